"""Reads a running system's logs as a workload: requests from the access log, start times from the decision log.

Input: files of JSON lines, or a folder such as the state folder of ``serving up``; other lines are skipped. Output: one
function for each host, sorted, and the start times of pods. A request without a ready pod waited, so its duration
differs from the service time; the simulator draws a duration from the requests without a wait.
"""

import array
import bisect
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from serving.core.model.errors import UNREADABLE, Problem, SettingsError
from serving.core.scaling.scaler.decision_history import DecisionRecord
from serving.net.aio.inputfile import open_input
from serving.tools.simulator.results import DurationModel, Quantiles
from serving.tools.simulator.trace import FunctionTrace, RecordedFunction, TraceWindow

_LISTENERS = ("public", "inner")
_EXPECTED = "JSON lines of an access log: set http.access-log-percentage to 100"
_SHORTEST_S = 0.001


class RecordedLogs(msgspec.Struct, frozen=True, kw_only=True):
    """A workload from logs. ``start`` is None if the decision log contains no start of a pod."""

    functions: list[FunctionTrace]
    length_s: float
    service: DurationModel
    start: Quantiles | None


class _LoggedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a line in the access log. ``at_s`` is the request's end."""

    at_s: float
    listener: str
    host: str
    status: int
    duration_s: float


class _LoggedRevision:
    """The pods of one revision over time, from the decision log."""

    __slots__ = ("_ready", "_times_s", "starts_s")

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._ready: list[int] = []
        self.starts_s: list[float] = []

    def add(self, at_s: float, *, wanted: int, ready: int, woken_s: float | None) -> float | None:
        """Add a decision. ``woken_s`` and the returned value are the start of a scale-up from zero ready pods.

        They are None if no such scale-up is in progress.
        """
        self._times_s.append(at_s)
        self._ready.append(ready)
        if ready:
            if woken_s is not None:
                self.starts_s.append(at_s - woken_s)
            return None
        return at_s if woken_s is None and wanted else woken_s

    def had_pods(self, at_s: float) -> bool:
        """Whether a pod was ready at a time; True before the first decision."""
        place = bisect.bisect_right(self._times_s, at_s) - 1
        return place < 0 or self._ready[place] > 0


def read_logs(path: Path, *, window: TraceWindow) -> RecordedLogs:
    """The workload in a log file or a folder of them. Raises ``SettingsError``."""
    requests, records = _read(path)
    if not requests:
        raise SettingsError([Problem(where=str(path), what="no request", expected=_EXPECTED)])
    revisions = _revisions(records)
    begin_s = min(request.at_s - request.duration_s for request in requests) + window.from_s
    end_s = min(max(request.at_s for request in requests), begin_s + window.until_s - window.from_s)
    by_host: dict[str, list[tuple[float, float]]] = {}
    for request in requests:
        at_s = request.at_s - request.duration_s
        if begin_s <= at_s < end_s:
            revision = revisions.get(_service_of(request.host))
            is_warm = revision is None or revision.had_pods(at_s)
            by_host.setdefault(request.host, []).append((at_s - begin_s, request.duration_s if is_warm else math.nan))
    functions = [_function(name, sorted(pairs)) for name, pairs in by_host.items()]
    warm = {function.name: [took_s for took_s in function.durations_s if took_s > 0] for function in functions}
    quantiles = {name: _quantiles(times_s) for name, times_s in warm.items() if times_s}
    every = [took_s for times_s in warm.values() for took_s in times_s]
    starts_s = [start_s for revision in revisions.values() for start_s in revision.starts_s]
    return RecordedLogs(
        functions=list(functions),
        length_s=max(0.0, end_s - begin_s),
        service=DurationModel(default=_quantiles(every or [_SHORTEST_S]), by_function=quantiles),
        start=_quantiles(starts_s) if starts_s else None,
    )


def _read(path: Path) -> tuple[list[_LoggedRequest], list[DecisionRecord]]:
    as_request, as_record = msgspec.json.Decoder(_LoggedRequest), msgspec.json.Decoder(DecisionRecord)
    requests: list[_LoggedRequest] = []
    records: list[DecisionRecord] = []
    for line in _lines(path):
        if not line.startswith(b"{"):
            continue
        try:
            if b'"listener"' in line:
                request = as_request.decode(line)
                requests += [request] if request.listener in _LISTENERS else []
            elif b'"told"' in line:
                records.append(as_record.decode(line))
        except UNREADABLE:
            # The last line of a log during its write, or a line of another program.
            continue
    return requests, records


def _lines(path: Path) -> Iterator[bytes]:
    try:
        files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        for file in files:
            if path.is_dir() and not any(part in (".log", ".jsonl") for part in file.suffixes):
                continue
            with open_input(file) as opened:
                yield from opened
    except OSError as error:
        raise SettingsError(
            [Problem(where=str(path), what=error.strerror or str(error), expected=_EXPECTED)]
        ) from error


def _revisions(records: Iterable[DecisionRecord]) -> dict[str, _LoggedRevision]:
    """The pods of each service over time. All revisions of a service count as one."""
    revisions: dict[str, _LoggedRevision] = {}
    woken_s: dict[str, float | None] = {}
    for record in sorted(records, key=lambda record: record.entry.at_wall_s):
        outcome = record.entry.outcome
        name = f"{record.revision.rpartition('-')[0]}.{record.namespace}"
        wanted = outcome.view.present_scale if outcome.apply_count is None else outcome.apply_count
        woken_s[name] = revisions.setdefault(name, _LoggedRevision()).add(
            record.entry.at_wall_s, wanted=wanted, ready=outcome.view.ready_count, woken_s=woken_s.get(name)
        )
    return revisions


def _service_of(host: str) -> str:
    """The service of a host: hello.default.localhost:8080 belongs to hello.default.

    The function only takes the first two labels, so for a user's own domain the result is not a service.
    """
    return ".".join(host.partition(":")[0].split(".")[:2])


def _function(name: str, pairs: list[tuple[float, float]]) -> RecordedFunction:
    return RecordedFunction(
        name=name,
        arrivals_s=array.array("d", [at_s for at_s, _ in pairs]),
        durations_s=array.array("d", [took_s for _, took_s in pairs]),
    )


def _quantiles(times_s: list[float]) -> Quantiles:
    p50_s = max(_SHORTEST_S, statistics.median(times_s))
    p99_s = sorted(times_s)[min(len(times_s) - 1, int(0.99 * len(times_s)))]
    return Quantiles(p50_s=p50_s, p99_s=max(p50_s, p99_s))
