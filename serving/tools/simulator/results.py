"""The results of simulated revisions: counts, costs, waits and pods over time. Also models request durations.

A histogram with bins of half a percent stores waits, so that memory does not grow with the number of requests. A
percentile is the mean of its bin, and therefore exact where all waits of a bin are equal.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.slo import Slo, SloMeter, late_sum
from serving.core.scaling.classic.classic import ClassicDecision
from serving.core.scaling.kpa.decide import ScaleDecision
from serving.core.scaling.kpa.merge import MergeDecision
from serving.core.scaling.kpa.zero import GateDecision

LATE_S = 0.01
"""Waits in seconds above this count as late."""

SERIES_COLUMNS = 240
"""Points of the series over time."""

_MINUTE_S = 60.0
# Bins per factor e: each bin is 0.5 % wide.
_BINS_PER_E = 200

# The 99th percentile of the standard normal distribution.
_Z_99 = 2.3263

Durations = Iterator[float]
"""An endless stream of durations in seconds."""


class WaitHistogram:
    """A histogram of waits above 0. Each of its logarithmic bins has a count and a sum."""

    __slots__ = ("_bins", "count")

    def __init__(self) -> None:
        self._bins: dict[int, list[float]] = {}
        self.count = 0

    def add(self, wait_s: float) -> None:
        """Count one wait above 0."""
        self.count += 1
        totals = self._bins.get(number := int(math.log(wait_s) * _BINS_PER_E))
        if totals is None:
            self._bins[number] = [1.0, wait_s]
        else:
            totals[0] += 1.0
            totals[1] += wait_s

    def update(self, other: "WaitHistogram") -> None:
        """Add the waits of another histogram."""
        self.count += other.count
        for number, (count, total) in other._bins.items():  # noqa: SLF001 - its own class
            totals = self._bins.setdefault(number, [0.0, 0.0])
            totals[0] += count
            totals[1] += total

    def above(self, wait_s: float) -> int:
        """Count requests with longer waits, with the precision of a bin."""
        return int(sum(count for count, total in self._bins.values() if total / count > wait_s))

    def percentile(self, share: float, *, requests: int) -> float:
        """The percentile over all requests. Requests without an entry did not wait.

        Example: if 3 of 100 requests waited 2 s, the 97th percentile is 0 and the 98th is 2 s.
        """
        rank = math.ceil(share * requests) - (requests - self.count)
        if rank <= 0:
            return 0.0
        mean_s = 0.0
        for number in sorted(self._bins):
            count, total = self._bins[number]
            mean_s, rank = total / count, rank - int(count)
            if rank <= 0:
                break
        return mean_s


class RevisionResult(msgspec.Struct, kw_only=True):
    """The outcomes of one revision's requests, and their cost. Times in seconds.

    Cold requests waited for a pod to become ready, late ones waited more than 10 ms, refused ones were rejected. Wasted
    pod-seconds had a ready pod without requests. Flaps are changes of direction of the scale.
    """

    name: str
    requests: int = 0
    cold_requests: int = 0
    late_requests: int = 0
    refused: int = 0
    pod_starts: int = 0
    failed_starts: int = 0
    pod_seconds: float = 0.0
    wasted_pod_seconds: float = 0.0
    dormant_seconds: float = 0.0
    flaps: int = 0
    decisions: int = 0
    waits: WaitHistogram = msgspec.field(default_factory=WaitHistogram)
    minutes: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    """By minute, the requests, and the requests that missed a goal for latency; empty without a goal."""

    prompts: "PromptFigures | None" = None
    """None unless the requests are prompts of model servers."""

    pod_series: list[float] = msgspec.field(default_factory=list)
    """Mean number of pods in each of ``SERIES_COLUMNS`` parts of the time."""

    def record_wait(self, wait_s: float, *, is_cold: bool) -> None:
        """Record the wait of a request that got a pod; a wait of 0 is not stored."""
        if wait_s > 0:
            self.waits.add(wait_s)
            self.late_requests += wait_s > LATE_S
            self.cold_requests += is_cold

    def judge_of(self, slo: Slo | None) -> "SloJudge | None":
        """A judge that counts requests into ``minutes`` by a goal; None without a goal."""
        return None if slo is None else SloJudge(slo, self)

    def held_ratio(self, slo: Slo) -> float:
        """The share of minutes with requests that met the goal; 1 without requests."""
        allowed = [slo.allows(late, count) for count, late in self.minutes.values()]
        return sum(allowed) / len(allowed) if allowed else 1.0


class PromptFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How model servers processed prompts.

    ``hit_share`` is the share of prompt blocks that were in a cache. ``ttft`` is the time to the first token, in
    seconds from the arrival. ``load_ratio`` compares the server with the most tokens in flight with the mean of all
    servers: 1 is even load.
    """

    hit_share: float
    """Share of the blocks of all prompts that were in a cache."""

    ttft_mean_s: float
    ttft_p99_s: float
    load_ratio: float
    """The most tokens in flight of a server, as a mean over the time, over the mean of all servers."""


class SloJudge:
    """Compares the latency of a revision's requests with its goal, and counts late requests by minute in the result."""

    __slots__ = ("_meter", "_refused", "_responses", "_result", "is_wait")

    def __init__(self, slo: Slo, result: RevisionResult) -> None:
        self._meter = SloMeter(slo)
        self.is_wait = slo.is_wait
        self._result = result
        self._refused = 0
        # Future responses, by the time of their end.
        self._responses: list[tuple[float, float]] = []

    def serve(self, at_s: float, waited_s: float, took_s: float) -> None:
        """Count a request that leaves the queue."""
        if self.is_wait:
            self._meter.record(waited_s)
        else:
            heapq.heappush(self._responses, (at_s + took_s, waited_s + took_s))

    def report(self, end_s: float) -> tuple[int, ...]:
        """The number of requests in each latency bin, in the second that ends. Rejected requests count as late."""
        responses, result = self._responses, self._result
        for _ in range(result.refused - self._refused):
            self._meter.record(math.inf)
        self._refused = result.refused
        while responses and responses[0][0] <= end_s:
            self._meter.record(heapq.heappop(responses)[1])
        bins = self._meter.drain()
        if bins:
            minute = int(end_s // _MINUTE_S)
            count, late = result.minutes.get(minute, (0, 0))
            result.minutes[minute] = (count + sum(bins), late + int(late_sum(bins)))
        return bins


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a revision after one decision, with the parts of the decision and its sentence ``reason``.

    ``decision`` is the count that the policy wants, ``merged`` the count after the proposals of ScalingPolicies.
    ``gate`` decides on scale to zero.
    """

    at_s: float
    scale: int
    ready_count: int
    running_count: int
    waiting_count: int
    decision: ScaleDecision | ClassicDecision | NoData
    merged: MergeDecision | NoData
    gate: GateDecision
    reason: str


class RunLog(msgspec.Struct, kw_only=True):
    """Each decision about one revision, and the latency of each served request, in seconds."""

    moments: list[Moment] = msgspec.field(default_factory=list)
    latencies_s: list[float] = msgspec.field(default_factory=list)


class NodesResult(msgspec.Struct, kw_only=True):
    """The results of the nodes on which all revisions ran. Times in seconds.

    Nodes cost from their request on. ``pods_pending`` counts the pods that had to wait for a place, for
    ``pending_pod_seconds`` in total.
    """

    node_seconds: float = 0.0
    """Machine-seconds from the request to the cloud until deletion, including the boot."""

    node_starts: float = 0
    """Machines requested after the start."""

    nodes_max: float = 0
    pods_pending: float = 0
    """Pods that did not get a place immediately."""

    pending_pod_seconds: float = 0.0
    evictions: float = 0
    node_series: list[float] = msgspec.field(default_factory=list)
    """Mean number of machines in each of ``SERIES_COLUMNS`` parts of the time."""


class PodSeries:
    """Mean number of pods in equal parts of the simulated time."""

    __slots__ = ("_column_s", "_sums")

    def __init__(self, length_s: float) -> None:
        self._column_s = max(length_s, 1e-9) / SERIES_COLUMNS
        self._sums = [0.0] * SERIES_COLUMNS

    def add(self, from_s: float, to_s: float) -> None:
        """Count one pod from ``from_s`` to ``to_s``. Time after the end is ignored."""
        width, sums = self._column_s, self._sums
        first, last = int(from_s / width), min(int(to_s / width), SERIES_COLUMNS - 1)
        for column in range(first, last + 1):
            sums[column] += min(to_s, (column + 1) * width) - max(from_s, column * width)

    def means(self) -> list[float]:
        """The mean of each part."""
        return [total / self._column_s for total in self._sums]


def summed(series: Iterable[list[float]]) -> list[float]:
    """Sum of several series, part by part."""
    return [sum(values) for values in zip(*series, strict=True)]


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Median and 99th percentile of a duration in seconds. If they are equal, the duration is constant."""

    p50_s: float
    p99_s: float


class DurationModel(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of all functions. ``default`` is for functions that ``by_function`` lacks."""

    default: Quantiles
    by_function: Mapping[str, Quantiles] = {}

    def of(self, function: str) -> Quantiles:
        """The distribution of one function."""
        return self.by_function.get(function, self.default)


def durations_of(quantiles: Quantiles, seed: str) -> Durations:
    """Durations with these quantiles. Equal quantiles give a constant."""
    if quantiles.p99_s <= quantiles.p50_s:
        return itertools.repeat(quantiles.p50_s)
    draw = _lognormal(quantiles, random.Random(seed))  # noqa: S311 - a simulated world
    return iter(draw, None)


def _lognormal(quantiles: Quantiles, dice: random.Random) -> Callable[[], float]:
    """A lognormal distribution: log(p99 / p50) is 2.3263 standard deviations. 1 s and 10 s give a deviation of 0.99."""
    median = math.log(quantiles.p50_s)
    deviation = (math.log(quantiles.p99_s) - median) / _Z_99
    return lambda: dice.lognormvariate(median, deviation)
