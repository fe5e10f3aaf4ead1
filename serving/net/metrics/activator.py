"""The activator's metrics page: outcomes of requests, queue time, wakes, and TLS.

``ActivatorMetrics.of`` gives the bound rows of one revision. A request then costs one observation, about 0.3 µs, and
0.6 µs more if it waited. Rows of deleted revisions are dropped when the page is rendered, or when there are too many.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate

import msgspec
from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from serving.core.model.responses import STATUS_CLASSES
from serving.core.traffic.latencies import FINE_DURATIONS, bucket_of
from serving.core.traffic.prefixes import PrefixMatch
from serving.core.traffic.traceparents import read_traceparent
from serving.net.aio.clock import now_s, wall_s
from serving.net.metrics.names import ACTIVATOR_METRICS, BUCKETS_S, REVISION_LABELS, named
from serving.net.metrics.page import MetricsPage, family_of

_EXEMPLAR_SPACING_S = 1.0
_BOUNDS = (*map(floatToGoString, BUCKETS_S), "+Inf")

Inside = tuple[tuple[str, str], int, int]
"""A revision, its number of requests, and of queued ones."""

_GONE_MAX = 100
# Most cold starts kept per revision, for the dashboard.
_COLD_STARTS_MAX = 20
_DURATION = "http_server_request_duration_seconds"

_GAUGES = ("kn_revision_request_concurrency", "serving_requests_waiting")
_FAILED = "serving_tls_handshakes_failed_total"
_REFUSED = "serving_http_refused_total"
_EXPIRY = "serving_certificate_expiry_timestamp_seconds"


class Durations:
    """A histogram of durations. ``clock`` gives the time of day in seconds, for exemplars."""

    __slots__ = ("_clock", "_counts", "_due_s", "_exemplars", "_sum_s", "fine")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts = [0] * len(_BOUNDS)
        self._sum_s = 0.0
        self.fine: dict[int, int] = {}
        """Counts by bucket of ``serving.core.traffic.latencies``."""
        self._due_s = [0.0] * len(_BOUNDS)
        self._exemplars: list[Exemplar | None] = [None] * len(_BOUNDS)

    def record(self, took_s: float, *, at_s: float, traceparent: bytes = b"") -> None:
        """Record a duration of ``took_s`` seconds that ended at ``at_s`` on a monotonic clock."""
        bucket = bisect_left(BUCKETS_S, took_s)
        self._counts[bucket] += 1
        self._sum_s += took_s
        fine = bucket_of(took_s)
        self.fine[fine] = self.fine.get(fine, 0) + 1
        if traceparent and at_s >= self._due_s[bucket]:
            self._remember(bucket, took_s, at_s=at_s, traceparent=traceparent)

    def samples(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        """The histogram's current samples."""
        total = 0
        for total, bound, exemplar in zip(accumulate(self._counts), _BOUNDS, self._exemplars, strict=True):
            yield Sample(f"{name}_bucket", {**labels, "le": bound}, total, None, exemplar)
        yield Sample(f"{name}_count", dict(labels), total)
        yield Sample(f"{name}_sum", dict(labels), self._sum_s)

    def _remember(self, bucket: int, took_s: float, *, at_s: float, traceparent: bytes) -> None:
        trace_id = trace_id_of(traceparent)
        if trace_id is not None:
            self._due_s[bucket] = at_s + _EXEMPLAR_SPACING_S
            self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, took_s, self._clock())


def trace_id_of(traceparent: bytes) -> str | None:
    """The trace id of a W3C traceparent; None if it is invalid."""
    parent = read_traceparent(traceparent)
    return None if parent is None else f"{parent.trace_id:032x}"


class RevisionRows:
    """The metrics of one revision, each created on first use."""

    __slots__ = (
        "_by_class",
        "_cold",
        "_labels",
        "_metrics",
        "_queue",
        "cold_starts",
        "cold_turn",
        "cold_until_s",
        "is_gone",
    )

    def __init__(self, metrics: "ActivatorMetrics", labels: tuple[str, str, str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self._by_class: dict[int, Durations] = {}
        self._queue: Histogram | None = None
        self._cold: Histogram | None = None
        self.cold_turn = 0
        """Number of ended cold starts, which identifies the current one."""
        self.cold_until_s = 0.0
        """When the last cold start ended."""
        self.cold_starts: deque[tuple[float, float]] = deque(maxlen=_COLD_STARTS_MAX)
        """The end and the length of the last cold starts, in seconds."""
        self.is_gone = False
        """Whether the metrics were dropped; requests still in flight must not restore them."""

    def ended(self, status: int, took_s: float, *, at_s: float, traceparent: bytes) -> None:
        """Count a request that ended at ``at_s``. ``status`` 0 means no response."""
        by_class = status // 100
        row = self._by_class.get(by_class)
        if row is None:
            # A status above 599 counts as an app error.
            capped = min(by_class, len(STATUS_CLASSES) - 1)
            row = self._by_class[by_class] = self._by_class.setdefault(capped, Durations())
        row.record(took_s, at_s=at_s, traceparent=traceparent)

    def durations(self) -> Iterator[tuple[str, Durations]]:
        """Durations of ended requests, by status class."""
        for by_class, text in enumerate(STATUS_CLASSES):
            if by_class in self._by_class:
                yield text, self._by_class[by_class]

    def waited(self, waited_s: float, *, traceparent: bytes = b"") -> None:
        """Record the queue time of a request."""
        if self.is_gone:
            return
        if self._queue is None:
            self._queue = self._metrics.queue.labels(*self._labels)
        self._queue.observe(waited_s, _exemplar(traceparent))

    def started_cold(self, waited_s: float, turn: int, *, at_s: float, traceparent: bytes = b"") -> None:
        """Count a cold start: a request waited ``waited_s`` seconds for a pod's start.

        ``turn`` is the value of ``cold_turn`` when the request began to wait. Of requests with the same turn only the
        first that gets a pod counts.
        """
        if self.is_gone or turn != self.cold_turn:
            return
        self.cold_turn += 1
        self.cold_until_s = at_s
        self.cold_starts.append((at_s, waited_s))
        if self._cold is None:
            self._cold = self._metrics.cold.labels(*self._labels)
        self._cold.observe(waited_s, _exemplar(traceparent))

    def refused(self, reason: str) -> None:
        """Count a request rejected with 503."""
        if not self.is_gone:
            self._metrics.refused.labels(*self._labels, reason).inc()

    def matched(self, match: PrefixMatch) -> None:
        """Count a prompt, and its blocks, by whether its pod already had them."""
        if not self.is_gone:
            metrics, labels = self._metrics, self._labels
            metrics.prompts.labels(*labels, "hit" if match.known_count else "miss").inc()
            for result, count in (("known", match.known_count), ("new", match.block_count - match.known_count)):
                metrics.blocks.labels(*labels, result).inc(count)

    def woken(self, reason: str) -> None:
        """Count a wake of the revision."""
        if not self.is_gone:
            self._metrics.wakes.labels(*self._labels, reason).inc()


class ActivatorMetrics:
    """All metrics of an activator.

    ``configuration_of`` returns a revision's Configuration. ``keys`` returns the current revisions, and ``inside`` the
    numbers of their requests. ``lost_frames`` and ``is_connected`` describe the connection to the autoscaler.
    """

    def __init__(
        self,
        *,
        configuration_of: Callable[[tuple[str, str]], str],
        keys: Callable[[], Collection[tuple[str, str]]],
        inside: Callable[[], Iterable[Inside]],
        lost_frames: Callable[[], int] = lambda: 0,
        is_connected: Callable[[], bool] = lambda: False,
    ) -> None:
        self.page = page = MetricsPage(ACTIVATOR_METRICS, before=self._retain_known, fine=self._pull_fine)
        self.queue = page.histogram("serving_request_queue_seconds")
        self.cold = page.histogram("serving_cold_start_duration_seconds")
        self.wakes = page.counter("serving_wakes_total")
        self.refused = page.counter("serving_requests_refused_total")
        self.prompts = page.counter("serving_prefix_requests_total")
        self.blocks = page.counter("serving_prefix_blocks_total")
        self.unmatched = page.counter("serving_requests_unmatched_total")
        self.unreachable = page.counter("serving_pods_unreachable_total")
        self.lost = page.counter("serving_pods_lost_total")
        self.silent = page.counter("serving_pods_silent_total")
        self.wrong_tokens = page.counter("serving_wrong_tokens_total")
        page.gauge("kn_activator_stats_conn_reachable").set_function(is_connected)
        self._lost_frames = lost_frames
        self._configuration_of = configuration_of
        self._keys = keys
        self._inside = inside
        self._rows: dict[tuple[str, str], tuple[tuple[str, str, str], RevisionRows]] = {}
        self._rows_max = _GONE_MAX
        page.pull(self._pull)

    def of(self, key: tuple[str, str]) -> RevisionRows:
        """The metrics of a revision."""
        entry = self._rows.get(key)
        return entry[1] if entry is not None else self._add_rows(key)

    def cold_starts(self, parts: Mapping[str, str]) -> str:
        """The last cold starts of a namespace's revisions as JSON, with times in seconds since the epoch.

        ``parts`` are the variable parts of the request's path, among them "namespace".
        """
        offset_s = wall_s() - now_s()
        starts = [
            {"revision": key[1], "asked_s": ended_s - waited_s + offset_s, "waited_s": waited_s}
            for key, (_, rows) in self._rows.items()
            if key[0] == parts["namespace"]
            for ended_s, waited_s in rows.cold_starts
        ]
        return msgspec.json.encode(starts).decode()

    def _add_rows(self, key: tuple[str, str]) -> RevisionRows:
        if len(self._rows) >= self._rows_max:
            self._retain_known()
        labels = self._labels(key)
        rows = RevisionRows(self, labels)
        self._rows[key] = (labels, rows)
        return rows

    def _labels(self, key: tuple[str, str]) -> tuple[str, str, str]:
        return key[0], self._configuration_of(key), key[1]

    def _retain_known(self) -> None:
        keys = set(self._keys())
        for key, (labels, rows) in list(self._rows.items()):
            # A metric may exist before its revision was observed, so that the Configuration is unknown.
            if key not in keys or labels != self._labels(key):
                del self._rows[key]
                rows.is_gone = True
                self._drop(labels)
        self._rows_max = 2 * len(self._rows) + _GONE_MAX

    def _drop(self, labels: tuple[str, str, str]) -> None:
        by_name = dict(zip(REVISION_LABELS, labels, strict=True))
        families: tuple[Histogram | Counter, ...] = (
            *(self.queue, self.cold, self.wakes, self.refused),
            *(self.prompts, self.blocks),
        )
        for family in families:
            family.remove_by_labels(by_name)

    def _levels(self) -> tuple[Family, Family]:
        """Current requests in flight, and queued ones."""
        inside, waiting = (family_of(named(ACTIVATOR_METRICS, name)) for name in _GAUGES)
        # Revisions with metrics but no request report 0, so that charts fall.
        levels = dict.fromkeys(self._rows, (0, 0)) | {key: (level, waiting) for key, level, waiting in self._inside()}
        for key, (level, waiting_count) in levels.items():
            labels = dict(zip(REVISION_LABELS, self._labels(key), strict=True))
            inside.add_sample(inside.name, labels, level)
            waiting.add_sample(waiting.name, labels, waiting_count)
        return inside, waiting

    def _pull(self) -> Iterator[Family]:
        lost = family_of(named(ACTIVATOR_METRICS, "serving_stat_frames_lost_total"))
        lost.add_sample("serving_stat_frames_lost_total", {}, self._lost_frames())
        yield from (self._durations(), *self._levels(), lost)

    def _pull_fine(self) -> Iterator[Family]:
        family = Family(FINE_DURATIONS, "Requests by duration, in buckets that grow by 4 percent.", "gauge")
        for (namespace, _, revision), rows in self._rows.values():
            for text, row in rows.durations():
                labels = {"namespace": namespace, "revision": revision, "response_code_class": text}
                for bucket, count in row.fine.items():
                    family.add_sample(FINE_DURATIONS, {**labels, "bucket": str(bucket)}, count)
        yield from (family, self._levels()[1])

    def _durations(self) -> Family:
        family = family_of(named(ACTIVATOR_METRICS, _DURATION))
        for labels, rows in self._rows.values():
            named_labels = dict(zip(REVISION_LABELS, labels, strict=True))
            for text, row in rows.durations():
                family.samples += row.samples(_DURATION, {**named_labels, "response_code_class": text})
        return family


def _exemplar(traceparent: bytes) -> dict[str, str] | None:
    trace_id = trace_id_of(traceparent) if traceparent else None
    return None if trace_id is None else {"trace_id": trace_id}


def add_tls(page: MetricsPage, *, failed: Callable[[], int], expiries: Callable[[], Mapping[str, float]]) -> None:
    """Add TLS metrics, read again for each page. ``expiries`` are seconds since 1970 by certificate name."""

    def pull() -> Iterator[Family]:
        failures, ends = (family_of(named(ACTIVATOR_METRICS, name)) for name in (_FAILED, _EXPIRY))
        failures.add_sample(_FAILED, {}, failed())
        for name, end_s in expiries().items():
            ends.add_sample(_EXPIRY, {"certificate": name}, end_s)
        yield from (failures, ends)

    page.pull(pull)


def add_refusals(page: MetricsPage, counts: Mapping[str, int]) -> None:
    """Add the counts of refused requests, read again for each page."""

    def pull() -> Iterator[Family]:
        refused = family_of(named(ACTIVATOR_METRICS, _REFUSED))
        for code, count in sorted(counts.items()):
            refused.add_sample(_REFUSED, {"code": code}, count)
        yield refused

    page.pull(pull)
