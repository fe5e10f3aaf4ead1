"""The simulated pods of one revision: they start, serve, drain and end.

Input: the scale, and the times at which pods become ready. The product's policy selects the free pod for a request
(``serving.core.traffic.policy``); the ReplicaSet controller's rule with the product's deletion costs selects the pods
to remove: pods that are not ready, then by ``removal_rank``, then the youngest. Pod-seconds count from the creation to
the end, draining included.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from serving.core.scaling.removal import removal_rank
from serving.core.traffic.policy import BalancedPod, BalancingPolicy, FirstFree, FreePods, RoundRobin, TwoChoices
from serving.tools.simulator.results import PodSeries, RevisionResult


class PodTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of pods.

    A removed pod drains for ``drain_s`` seconds. An idle pod becomes dormant after ``dormant_after_s`` seconds; each
    further second costs ``dormant_cost`` pod-seconds.
    """

    drain_s: float
    dormant_after_s: float = math.inf
    dormant_cost: float = 1.0


class SimulatedPod(BalancedPod):
    """A pod. ``queue`` has the requests in its queue-proxy, by arrival and duration."""

    __slots__ = (
        "created_s",
        "failures",
        "idle_since_s",
        "is_ending",
        "is_in_line",
        "is_placed",
        "queue",
        "ready_s",
        "removed_s",
    )

    def __init__(self, number: int, created_s: float, *, slots: int | None) -> None:
        super().__init__(f"{number:09d}")
        self.created_s = created_s
        self.failures = 0
        self.ready_s: float | None = None
        self.slots = slots
        self.idle_since_s = self.removed_s = created_s
        self.is_ending = False
        self.is_in_line = self.is_placed = False
        self.queue: deque[tuple[float, float]] = deque()


class PodSet:
    """All pods of one revision.

    ``scale`` counts ready and starting pods; ``ready`` lists the ready pods, ``free_count`` counts those with a free
    slot.
    """

    def __init__(
        self,
        result: RevisionResult,
        series: PodSeries,
        *,
        concurrency: int,
        policy: BalancingPolicy,
        times: PodTimes,
        on_end: Callable[[SimulatedPod, float], None] | None = None,
    ) -> None:
        """``on_end`` receives each ended pod and the time at which it leaves its node."""
        self._on_end = on_end
        self._result = result
        self._series = series
        self._times = times
        self._slots = concurrency or None
        self._dice = random.Random(f"pods:{result.name}")  # noqa: S311 - a simulated world
        self._pods: dict[str, SimulatedPod] = {}
        self._number = 0
        self._free: FreePods = self._line_of(policy)
        self.free_count = 0
        # Removed pods: the number with requests, and the removal times of the other pods.
        self._finishing_count = 0
        self._gone_s: list[float] = []
        self.ready: list[SimulatedPod] = []

    @property
    def scale(self) -> int:
        """Pods that are ready or starting."""
        return len(self._pods)

    def ending_count(self, now_s: float) -> int:
        """Removed pods that still exist."""
        while self._gone_s and self._gone_s[0] <= now_s:
            heapq.heappop(self._gone_s)
        return self._finishing_count + len(self._gone_s)

    def create(self, count: int, now_s: float) -> Iterator[SimulatedPod]:
        """Create ``count`` pods, and yield each."""
        for _ in range(count):
            self._number += 1
            pod = SimulatedPod(self._number, now_s, slots=self._slots)
            self._pods[pod.address] = pod
            self._result.pod_starts += 1
            yield pod

    def become_ready(self, pod: SimulatedPod, now_s: float) -> bool:
        """Mark a pod as ready; return False if it was removed while it started."""
        if pod.is_ending:
            return False
        pod.ready_s = pod.idle_since_s = now_s
        self.ready.append(pod)
        self._add_free(pod)
        return True

    def pick(self) -> SimulatedPod:
        """The next pod with a free slot, as selected by the activator."""
        pod = self._free.pick()
        assert isinstance(pod, SimulatedPod)
        return pod

    def any_ready(self) -> SimulatedPod:
        """A random ready pod, as selected by a Service without the activator."""
        return self.ready[int(self._dice.random() * len(self.ready))]

    def start_request(self, pod: SimulatedPod, now_s: float) -> None:
        """Start one more request on the pod."""
        if not pod.in_flight:
            self._count_idle(pod, now_s)
        pod.in_flight += 1
        if pod.is_in_line and pod.in_flight == pod.slots:
            self._remove_free(pod)

    def release(self, pod: SimulatedPod, now_s: float) -> None:
        """End one request on the pod."""
        pod.in_flight -= 1
        if not pod.in_flight:
            pod.idle_since_s = now_s
            if pod.is_ending and not pod.queue:
                self._end(pod, now_s)
                return
        if not pod.is_in_line and not pod.is_ending and not pod.queue:
            self._add_free(pod)

    def remove(self, count: int, now_s: float, *, heats: Mapping[str, float]) -> None:
        """Remove pods; those with requests finish them. ``heats`` are the savings of their prompt caches."""

        def rank(pod: SimulatedPod) -> tuple[bool, tuple[float, float, float], float]:
            dormant_s = pod.idle_since_s + self._times.dormant_after_s
            is_dormant = not pod.in_flight and dormant_s <= now_s
            removal = removal_rank(
                heat=heats.get(pod.address, 0.0),
                in_flight=pod.in_flight,
                dormant_since_s=dormant_s if is_dormant else math.inf,
            )
            return pod.ready_s is not None, removal, -pod.created_s

        for pod in sorted(self._pods.values(), key=rank)[:count]:
            self.evict(pod, now_s)

    def evict(self, pod: SimulatedPod, now_s: float) -> None:
        """Remove one pod; it finishes its requests."""
        del self._pods[pod.address]
        pod.is_ending, pod.removed_s = True, now_s
        self._finishing_count += 1
        if pod.is_in_line:
            self._remove_free(pod)
        if pod.ready_s is not None:
            self.ready.remove(pod)
            if not pod.in_flight:
                self._count_idle(pod, now_s)
        if not pod.in_flight and not pod.queue:
            self._end(pod, now_s)

    def finish(self, until_s: float) -> None:
        """Count the remaining pods at the end of the simulation."""
        for pod in self._pods.values():
            if pod.ready_s is not None and not pod.in_flight:
                self._count_idle(pod, until_s)
            self._count(pod, until_s)

    def _end(self, pod: SimulatedPod, now_s: float) -> None:
        """End a pod. A pod that has served drains first, because senders notice its end late."""
        lag_s = 0.0 if pod.ready_s is None else self._times.drain_s
        end_s = max(now_s, pod.removed_s + lag_s)
        self._count(pod, end_s)
        self._finishing_count -= 1
        self.ending_count(now_s)
        heapq.heappush(self._gone_s, end_s)
        if self._on_end is not None:
            self._on_end(pod, end_s)

    def _count_idle(self, pod: SimulatedPod, until_s: float) -> None:
        """Count the idle time of a pod, and the cost saved while it is dormant."""
        idle_s = until_s - pod.idle_since_s
        if idle_s <= self._times.dormant_after_s:
            self._result.wasted_pod_seconds += idle_s
            return
        dormant_s = idle_s - self._times.dormant_after_s
        saved_s = dormant_s * (1.0 - self._times.dormant_cost)
        self._result.wasted_pod_seconds += idle_s - saved_s
        self._result.pod_seconds -= saved_s
        self._result.dormant_seconds += dormant_s

    def _count(self, pod: SimulatedPod, end_s: float) -> None:
        self._result.pod_seconds += end_s - pod.created_s
        self._series.add(pod.created_s, end_s)

    def _add_free(self, pod: SimulatedPod) -> None:
        self._free.add(pod)
        pod.is_in_line = True
        self.free_count += 1

    def _remove_free(self, pod: SimulatedPod) -> None:
        self._free.remove(pod)
        pod.is_in_line = False
        self.free_count -= 1

    def _line_of(self, policy: BalancingPolicy) -> FreePods:
        match policy:
            case BalancingPolicy.FIRST_FREE:
                return FirstFree()
            case BalancingPolicy.ROUND_ROBIN:
                return RoundRobin()
            case BalancingPolicy.TWO_CHOICES:
                return TwoChoices(self._dice.random)
