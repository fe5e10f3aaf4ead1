"""Computes two bounds for policies, with knowledge of the future: the oracle, and the clairvoyant, which pre-warms.

Both count pods as sets of slots: while 11 requests are in flight at 10 per pod, there are 2 pods, and with 10 requests
1 pod is sufficient, as if requests moved between pods. A pod's cost includes its start and drain. Limits in annotations
and failing starts are ignored.

- **clairvoyant**: every request finds a ready pod. A pod is removed between two uses if that time exceeds its
drain and its start together. No policy without waits costs less.
- **oracle**: a pod starts with the first request that needs it, and later requests wait for it. The oracle has the time
of the pod's next use, and the number of requests that would be cold without the pod: the pod stays if the pod-seconds
per such request are at most ``cold_start_worth_s``. For one pod no policy without pre-warming has fewer cold requests
at the same pod-seconds.
"""

import enum
import heapq
import itertools
import math
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from serving.tools.simulator.results import PodSeries, RevisionResult, durations_of
from serving.tools.simulator.revision_run import RunConfig

# Kinds of events, sorted by precedence at equal times.
_DONE, _READY = 0, 1


class Foresight(enum.StrEnum):
    """The kinds of policies with knowledge of the future. No other policy can be better.

    The clairvoyant starts pods before their requests, so that no request waits. The oracle starts a pod with its first
    request, and knows when to keep a pod for the next one.
    """

    ORACLE = "oracle"
    CLAIRVOYANT = "clairvoyant"


def run_with_foresight(
    name: str, arrivals: Iterator[tuple[float, float]], config: RunConfig, *, kind: Foresight, until_s: float
) -> RevisionResult:
    """Simulate one revision under a policy that knows the future.

    ``arrivals`` are pairs of a time and a duration in seconds; a NaN duration is drawn at random.
    """
    service = durations_of(config.service, f"service:{config.seed}:{name}")
    requests = [
        (at_s, next(service) if math.isnan(took_s) else took_s)
        for at_s, took_s in itertools.takewhile(lambda arrival: arrival[0] < until_s, arrivals)
    ]
    demand = Demand(requests, slots=config.concurrency)
    drain_s = config.queue_proxy.drain_lag_s
    starts_s = (took_s + config.probe_delay_s for took_s in durations_of(config.start, f"start:{config.seed}:{name}"))
    bill = _Bill(name, drain_s=drain_s, until_s=until_s)
    bill.result.requests = len(requests)
    judge = bill.result.judge_of(config.spec.slo or config.slo)
    if kind is Foresight.CLAIRVOYANT:
        _run_clairvoyant(demand, bill, starts_s=starts_s, drain_s=drain_s)
        waits_s = [0.0] * len(requests)
    else:
        oracle = _Oracle(demand, bill, config, starts_s=starts_s, until_s=until_s)
        oracle.run(requests)
        waits_s = oracle.waits_s
    if judge is not None:
        for (at_s, took_s), wait_s in zip(requests, waits_s, strict=False):
            judge.serve(at_s + wait_s, wait_s, took_s)
        judge.report(until_s)
    return bill.finish()


class Demand:
    """The number of pods over time if no request waits. The first pod is level 1, the second one level 2, and so on.

    A level is in use while so many requests are in flight that its pod is needed.
    """

    def __init__(self, requests: Sequence[tuple[float, float]], *, slots: int) -> None:
        """``requests`` are sorted pairs of time and duration, in seconds. ``slots`` 0: one pod serves all requests."""
        self._slots = slots or sys.maxsize
        self.arrivals_s = [at_s for at_s, _ in requests]
        self.levels: list[int] = []
        """Number of pods at each request."""

        self.uses: list[list[list[float]]] = []
        """By level, the start and end times of each use, sorted."""

        ends: list[float] = []
        for at_s, took_s in requests:
            self._end(ends, at_s)
            heapq.heappush(ends, at_s + took_s)
            level = self.pods_for(len(ends))
            self.levels.append(level)
            if (len(ends) - 1) % self._slots == 0:
                self.uses.extend([] for _ in range(level - len(self.uses)))
                self.uses[level - 1].append([at_s, math.inf])
        self._end(ends, math.inf)
        self._rises_s = [[use[0] for use in uses] for uses in self.uses]

    def pods_for(self, in_flight: int) -> int:
        """Pods for this many requests."""
        return -(-in_flight // self._slots)

    def next_use_s(self, level: int, now_s: float) -> float:
        """The next time at which a level is used, at or after ``now_s``; infinite if never."""
        rises_s = self._rises_s[level - 1] if level <= len(self._rises_s) else []
        place = bisect_left(rises_s, now_s)
        return rises_s[place] if place < len(rises_s) else math.inf

    def requests_at(self, level: int, from_s: float, to_s: float) -> int:
        """The number of requests that need a level between two times."""
        first, last = bisect_left(self.arrivals_s, from_s), bisect_left(self.arrivals_s, to_s)
        return sum(required >= level for required in self.levels[first:last])

    def _end(self, ends: list[float], at_s: float) -> None:
        """End the requests that are complete at a time. A level whose pod is no longer needed ends its use."""
        while ends and ends[0] <= at_s:
            end_s = heapq.heappop(ends)
            if len(ends) % self._slots == 0:
                self.uses[self.pods_for(len(ends))][-1][1] = end_s


class _Bill:
    """Sums up the pod-seconds and idle pod-seconds of one revision, until the end of the simulation."""

    def __init__(self, name: str, *, drain_s: float, until_s: float) -> None:
        self.result = RevisionResult(name=name)
        self._drain_s = drain_s
        self._until_s = until_s
        self._series = PodSeries(until_s)
        self._changes: list[tuple[float, int]] = []

    def add(self, created_s: float, removed_s: float) -> None:
        """Count a pod from its creation to the end of its drain. Time before the simulation's start is free."""
        created_s = max(0.0, created_s)
        end_s = self._until_s if removed_s >= self._until_s else removed_s + self._drain_s
        self.result.pod_starts += 1
        self.result.pod_seconds += end_s - created_s
        self._series.add(created_s, end_s)
        self._changes += [(created_s, 1), (min(removed_s, self._until_s), -1)]

    def add_idle(self, from_s: float, to_s: float) -> None:
        """Count idle time of a pod."""
        self.result.wasted_pod_seconds += max(0.0, min(to_s, self._until_s) - from_s)

    def finish(self) -> RevisionResult:
        """The result at the end."""
        direction = 0
        for at_s, change in sorted(self._changes):
            if at_s < self._until_s:
                self.result.flaps += direction == -change
                direction = change
        self.result.pod_series = self._series.means()
        return self.result


def _run_clairvoyant(demand: Demand, bill: _Bill, *, starts_s: Iterator[float], drain_s: float) -> None:
    """Start each pod before its use. Keep it through a pause if that costs less than a drain and another start."""
    for uses in demand.uses:
        start_s = next(starts_s)
        created_s, used_until_s = uses[0][0] - start_s, uses[0][1]
        for from_s, to_s in uses[1:]:
            start_s = next(starts_s)
            if from_s - used_until_s > start_s + drain_s:
                bill.add(created_s, used_until_s)
                created_s = from_s - start_s
            else:
                bill.add_idle(used_until_s, from_s)
            used_until_s = to_s
        bill.add(created_s, used_until_s)


class _Oracle:
    """Starts pods on demand. Keeps a pod if its next use is soon enough."""

    def __init__(
        self, demand: Demand, bill: _Bill, config: RunConfig, *, starts_s: Iterator[float], until_s: float
    ) -> None:
        self._demand = demand
        self._bill = bill
        self._config = config
        self._starts_s = starts_s
        self._until_s = until_s
        self._start_s = config.start.p50_s + config.probe_delay_s
        self._slots = config.concurrency or sys.maxsize
        self._events: list[tuple[float, int, float]] = []
        self._queue: deque[tuple[float, float]] = deque()
        # Creation time of each ready pod, by level; the levels above are starting.
        self._ready: list[float] = []
        # The time until which pods without requests stay, and the time from which they have no request.
        self._kept: dict[int, tuple[float, float]] = {}
        self._starting = self._running = 0
        self._latest_ready_s = -math.inf
        self.waits_s: list[float] = []

    def run(self, requests: Sequence[tuple[float, float]]) -> None:
        """Simulate up to the end."""
        events = self._events
        for at_s, took_s in [*requests, (self._until_s, 0.0)]:
            while events and events[0][0] <= at_s:
                event_s, kind, created_s = heapq.heappop(events)
                if event_s < self._until_s:
                    (self._done if kind == _DONE else self._become_ready)(event_s, created_s)
            if at_s < self._until_s:
                self._arrive(at_s, took_s)
        for level, created_s in enumerate(self._ready, start=1):
            self._use(level, self._until_s)
            self._bill.add(created_s, self._until_s)
        for _, kind, created_s in events:
            if kind == _READY:
                self._bill.add(created_s, self._until_s)

    def _arrive(self, at_s: float, took_s: float) -> None:
        self._queue.append((at_s, took_s))
        self._serve(at_s)
        missing = self._demand.pods_for(self._running + len(self._queue)) - len(self._ready) - self._starting
        for _ in range(missing):
            self._starting += 1
            heapq.heappush(self._events, (at_s + next(self._starts_s), _READY, at_s))

    def _become_ready(self, at_s: float, created_s: float) -> None:
        self._starting -= 1
        self._ready.append(created_s)
        self._latest_ready_s = at_s
        self._serve(at_s)
        self._release(at_s)

    def _done(self, at_s: float, _: float) -> None:
        self._running -= 1
        self._serve(at_s)
        self._release(at_s)

    def _serve(self, at_s: float) -> None:
        while self._queue and self._running < len(self._ready) * self._slots:
            arrived_s, took_s = self._queue.popleft()
            self.waits_s.append(at_s - arrived_s)
            self._bill.result.record_wait(at_s - arrived_s, is_cold=self._latest_ready_s > arrived_s)
            self._running += 1
            self._use(self._demand.pods_for(self._running), at_s)
            heapq.heappush(self._events, (at_s + took_s, _DONE, at_s))

    def _use(self, level: int, at_s: float) -> None:
        """Record that the pod of a level is no longer idle: a request uses it, or the simulation ends."""
        if level in self._kept:
            self._bill.add_idle(self._kept.pop(level)[1], at_s)

    def _release(self, at_s: float) -> None:
        """Remove idle pods that are not worth keeping, the highest level first."""
        while (level := len(self._ready)) > self._demand.pods_for(self._running):
            until_s, since_s = self._kept.get(level, (-math.inf, at_s))
            if until_s < at_s:
                until_s = self._kept_until_s(level, at_s)
            if until_s < at_s:
                self._kept.pop(level, None)
                self._bill.add_idle(since_s, at_s)
                self._bill.add(self._ready.pop(), at_s)
                continue
            self._kept[level] = until_s, since_s
            # The next use of lower levels is no later.
            for lower in range(self._demand.pods_for(self._running) + 1, level):
                self._kept.setdefault(lower, (until_s, at_s))
            return

    def _kept_until_s(self, level: int, at_s: float) -> float:
        """The time until which a pod is kept; in the past if keeping it costs more than a cold start."""
        next_s = self._demand.next_use_s(level, at_s)
        if next_s >= self._until_s:
            return -math.inf
        price_s = next_s - at_s - self._start_s - self._config.queue_proxy.drain_lag_s
        if price_s <= 0:
            return next_s
        cold = self._demand.requests_at(level, next_s, next_s + self._start_s)
        return next_s if price_s <= self._config.settings.cold_start_worth_s * cold else -math.inf
