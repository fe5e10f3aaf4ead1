"""Keeps requests for inspection: each revision's last failed, slowest and sampled ones, and errors by cause.

Input: the end of a request, and the time. Output: reports of one service or revision. Each list and the sum of all
records are bounded. The revision that was quiet longest is dropped first. Texts come from clients and apps;
``printable`` bounds them.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from serving.core.model.knative import RevisionKey

FAILED_MAX = 50
SLOW_MAX = 20
SAMPLED_MAX = 50
CAUSES_MAX = 20
SLOW_AGE_MAX_S = 900.0
"""Greatest age of a slow request, in seconds, so that the list shows the present."""
SAMPLE_PERIOD_S = 1.0
# Failed requests per second and revision that are recorded; more are only counted. A record takes about 10 µs.
_FAILED_PER_S_MAX = 50
TEXT_MAX = 200
# Ports, counts and times differ between errors of the same cause.
_NUMBERS = re.compile(r"\d+")


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One ended request.

    ``at_wall_s`` is its end in seconds since the epoch. ``status`` is 0 without a response. For a failed request,
    ``failed_by`` is "client", "activator", "queue-proxy" or "app", and ``why`` is the reason; otherwise both are empty.
    ``is_cold``: the request waited for a pod to start. ``pod`` is a name, or an address if the name is unknown; empty
    if no pod got the request. ``request_id`` is the X-Request-Id in an error response of the system; otherwise empty.

    ``duration_s`` is measured from the request's head. It is the sum of four times: ``waited_s`` for a slot in the
    activator's queue, ``start_s`` for the start of a pod, ``queued_s`` in the pod's queue, and ``app_s`` in the app and
    the network.
    """

    service: str
    revision: str
    at_wall_s: float
    method: str
    path: str
    status: int
    failed_by: str = ""
    why: str = ""
    is_cold: bool = False
    waited_s: float = 0.0
    start_s: float = 0.0
    queued_s: float = 0.0
    app_s: float = 0.0
    duration_s: float = 0.0
    pod: str = ""
    trace_id: str = ""
    request_id: str = ""


class ErrorCause(msgspec.Struct, kw_only=True):
    """Errors with the same cause: their number, the last reason, and first and last time in seconds since the epoch."""

    failed_by: str
    status: int
    why: str
    count: int
    first_wall_s: float
    last_wall_s: float


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """One revision's requests, oldest first. ``slow`` is sorted by duration, ``errors`` by count; the largest first."""

    service: str
    revision: str
    failed: list[RequestRecord]
    slow: list[RequestRecord]
    sampled: list[RequestRecord]
    errors: list[ErrorCause]


def printable(raw: bytes, length_max: int = TEXT_MAX) -> str:
    """Untrusted text on one line. Invisible characters are escaped; text beyond ``length_max`` is replaced by "..."."""
    # Truncated before escaping, which makes it longer: a path may have a megabyte.
    text = raw[: length_max + 1].decode("utf-8", "backslashreplace")
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
    return text if len(text) <= length_max and len(raw) <= length_max else f"{text[: length_max - 3]}..."


def merged(reports: Iterable[RequestReport]) -> list[RequestReport]:
    """Merge the reports of several activators into one per revision, sorted by name."""
    by_revision: dict[str, list[RequestReport]] = {}
    for report in reports:
        by_revision.setdefault(report.revision, []).append(report)
    return [_merged(by_revision[revision]) for revision in sorted(by_revision)]


def since(report: RequestReport, from_s: float) -> RequestReport:
    """The part of a report from the creation of its revision (``from_s``) on; an earlier one may have had its name."""
    return RequestReport(
        service=report.service,
        revision=report.revision,
        failed=[record for record in report.failed if record.at_wall_s >= from_s],
        slow=[record for record in report.slow if record.at_wall_s >= from_s],
        sampled=[record for record in report.sampled if record.at_wall_s >= from_s],
        errors=[cause for cause in report.errors if cause.last_wall_s >= from_s],
    )


def _merged(reports: Sequence[RequestReport]) -> RequestReport:
    causes: dict[tuple[str, int, str], ErrorCause] = {}
    for error in (cause for report in reports for cause in report.errors):
        key = _cause_of(error.failed_by, error.status, error.why)
        before = causes.get(key, error)
        last = max(before, error, key=lambda cause: cause.last_wall_s)
        causes[key] = msgspec.structs.replace(
            last,
            count=error.count if before is error else before.count + error.count,
            first_wall_s=min(before.first_wall_s, error.first_wall_s),
        )
    failed = [record for report in reports for record in report.failed]
    slow = [record for report in reports for record in report.slow]
    sampled = [record for report in reports for record in report.sampled]
    return RequestReport(
        service=reports[0].service,
        revision=reports[0].revision,
        failed=sorted(failed, key=lambda record: record.at_wall_s)[-FAILED_MAX:],
        slow=sorted(slow, key=lambda record: -record.duration_s)[:SLOW_MAX],
        sampled=sorted(sampled, key=lambda record: record.at_wall_s)[-SAMPLED_MAX:],
        errors=sorted(causes.values(), key=lambda cause: -cause.count),
    )


def _cause_of(failed_by: str, status: int, why: str) -> tuple[str, int, str]:
    return failed_by, status, _NUMBERS.sub("N", why)


class RequestHistory:
    """The recorded requests of all revisions, at most ``records_max``. With 0, nothing is recorded."""

    def __init__(self, records_max: int) -> None:
        self.records_max = records_max
        # Ordered by last recorded request; a revision with traffic records one each second.
        self._revisions: dict[RevisionKey, _RevisionRecords] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Records of all revisions, plus error causes, which are about as large."""
        return self._count

    def is_due(self, key: RevisionKey, duration_s: float, now_s: float) -> bool:
        """Whether to record a successful request: it is slow, or the sample is due."""
        records = self._revisions.get(key)
        return records is None or duration_s > records.slow_above_s or now_s >= records.sample_due_s

    def record(self, namespace: str, record: RequestRecord, now_s: float) -> None:
        """Record a request; ``now_s`` is its end on a monotonic clock."""
        if self.records_max <= 0:
            return
        key = (namespace, record.revision)
        records = self._revisions.pop(key, None) or _RevisionRecords()
        self._revisions[key] = records
        before = records.count
        records.record(record, now_s)
        self._count += records.count - before
        while self._count > self.records_max and self._revisions:
            self._count -= self._revisions.pop(next(iter(self._revisions))).count

    def reports(self, namespace: str, name: str, now_s: float) -> list[RequestReport]:
        """The recorded requests of one revision or of a service's revisions, sorted by name."""
        reports = [records.report(now_s) for (place, _), records in self._revisions.items() if place == namespace]
        return sorted(
            (report for report in reports if name in {report.service, report.revision}),
            key=lambda report: report.revision,
        )


class _RevisionRecords:
    __slots__ = ("_causes", "_failed", "_failed_count", "_sampled", "_second", "_slow", "sample_due_s", "slow_above_s")

    def __init__(self) -> None:
        self.slow_above_s = -1.0
        self.sample_due_s = 0.0
        self._failed: deque[RequestRecord] = deque(maxlen=FAILED_MAX)
        self._sampled: deque[RequestRecord] = deque(maxlen=SAMPLED_MAX)
        self._slow: list[tuple[float, RequestRecord]] = []
        self._causes: dict[tuple[str, int, str], ErrorCause] = {}
        self._second = 0.0
        self._failed_count = 0

    @property
    def count(self) -> int:
        return len(self._failed) + len(self._sampled) + len(self._slow) + len(self._causes)

    def record(self, record: RequestRecord, now_s: float) -> None:
        if record.failed_by:
            self._fail(record, now_s)
        is_due = now_s >= self.sample_due_s
        if is_due:
            self.sample_due_s = now_s + SAMPLE_PERIOD_S
            self._sampled.append(record)
        if is_due or record.duration_s > self.slow_above_s:
            self._rank(record, now_s)

    def report(self, now_s: float) -> RequestReport:
        slow = [record for at_s, record in self._slow if at_s > now_s - SLOW_AGE_MAX_S]
        last = self._sampled[-1]
        causes = sorted(self._causes.values(), key=lambda cause: -cause.count)
        return RequestReport(
            service=last.service,
            revision=last.revision,
            failed=[*self._failed],
            slow=slow,
            sampled=[*self._sampled],
            errors=causes,
        )

    def _rank(self, record: RequestRecord, now_s: float) -> None:
        slow = [ranked for ranked in self._slow if ranked[0] > now_s - SLOW_AGE_MAX_S]
        slow.append((now_s, record))
        slow.sort(key=lambda ranked: -ranked[1].duration_s)
        self._slow = slow[:SLOW_MAX]
        self.slow_above_s = slow[SLOW_MAX - 1][1].duration_s if len(slow) >= SLOW_MAX else -1.0

    def _fail(self, record: RequestRecord, now_s: float) -> None:
        if now_s - self._second >= 1:
            self._second = now_s
            self._failed_count = 0
        self._failed_count += 1
        if self._failed_count <= _FAILED_PER_S_MAX:
            self._failed.append(record)
        key = _cause_of(record.failed_by, record.status, record.why)
        at_s = record.at_wall_s
        # Causes are ordered by last occurrence, and the first is dropped.
        cause = self._causes.pop(key, None) or ErrorCause(
            failed_by=record.failed_by,
            status=record.status,
            why=record.why,
            count=0,
            first_wall_s=at_s,
            last_wall_s=at_s,
        )
        cause.count, cause.why, cause.last_wall_s = cause.count + 1, record.why, at_s
        self._causes[key] = cause
        if len(self._causes) > CAUSES_MAX:
            del self._causes[next(iter(self._causes))]
