"""One revision against recorded arrivals, as fast as may be: time jumps to the next event that can change anything.

Every decision is the product's own: windows, algorithm, merge with bounds, gate to zero. What is modelled around them are
pods that take a time to start, serve some requests at once, and drain before they end; a queue in front of them; a report
each second; a decision each period, and at once when the queue asks for more pods than are wanted. A period is skipped
when its decision is known: one ready pod, load in the window, and no second of it above the target of one pod; or none.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable

import msgspec

from serving.autoscaler.adaptive.advice import NEUTRAL, Advice
from serving.autoscaler.adaptive.policy import policy_of
from serving.autoscaler.decide import KpaState, ScaleDecision, decide, starting_state
from serving.autoscaler.merge import Proposal, merge
from serving.autoscaler.metric_windows import MetricWindows, Observation
from serving.autoscaler.zero import GateAction, GateInputs, GatePhase, GateState, InactiveReason, step
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.spec import ScalingSpec
from serving.settings.autoscaler import AutoscalerSettings
from serving.simulator.trace import FunctionTrace

__all__ = ["RevisionRun", "RunConfig", "RunResult", "lognormal"]

LATE_S = 0.01


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated beside the arrivals. Times in seconds; ``container_concurrency`` 0 means no limit."""

    settings: AutoscalerSettings
    spec: ScalingSpec
    container_concurrency: int = 10
    start_s: float = 2.0
    queue_depth_max: int = 10_000


class RunResult(msgspec.Struct, kw_only=True):
    """What became of the requests of one revision, and what it cost."""

    name: str
    requests: int = 0
    cold_requests: int = 0
    refused: int = 0
    pod_starts: int = 0
    pod_seconds: float = 0.0
    wasted_pod_seconds: float = 0.0
    flaps: int = 0
    late: int = 0
    waits_s: list[float] = msgspec.field(default_factory=list)
    """Waits that were not 0; the others were."""


class _SimulatedPod:
    __slots__ = ("created_s", "idle_since_s", "in_flight", "is_ending", "is_free", "ready_s")

    def __init__(self, created_s: float, ready_s: float) -> None:
        self.created_s, self.ready_s = created_s, ready_s
        self.in_flight = 0
        self.idle_since_s = ready_s
        self.is_ending = False
        self.is_free = False


class RevisionRun:
    """One run; ``run`` it once."""

    def __init__(
        self, trace: FunctionTrace, config: RunConfig, *, service_s: Callable[[], float], until_s: float
    ) -> None:
        spec = config.spec
        self._trace, self._config, self._spec = trace, config, spec
        self._service_s = service_s
        self._until_s = until_s
        self._period_s = config.settings.decision_period_s
        self._windows = self._new_windows()
        self._state: KpaState = starting_state(ready_count=0, present_scale=0, spec=spec, now_s=0.0)
        self._gate = GateState(
            since_s=0.0, phase=GatePhase.INACTIVE, reason=InactiveReason.NO_TRAFFIC, is_initialized=True
        )
        self._slots = config.container_concurrency or math.inf
        self._pods: list[_SimulatedPod] = []
        self._ready_count = 0
        self._free: deque[_SimulatedPod] = deque()
        self._queue: deque[tuple[float, float]] = deque()
        self._events: list[tuple[float, int, _SimulatedPod, bool]] = []
        self._sequence = 0
        self._level = 0
        self._second = 0
        self._sum = 0.0
        self._metered_s = 0.0
        self._loaded_second = -math.inf
        self._hot_second = -math.inf
        self._tick = 0
        self._wanted = 0
        self._direction = 0
        self._latest_ready_s = -math.inf
        self._policy = policy_of(spec, config.settings)
        self._advice: Advice = NEUTRAL
        self._advised_s = 0.0
        self._quiet_load = spec.target_value if self._policy is None else self._policy.quiet_load
        self.result = RunResult(name=trace.name)

    def run(self) -> RunResult:
        """Everything up to the end of the trace, and until the last pod has drained."""
        arrivals, durations = self._trace.arrivals_s, self._trace.durations_s
        events, index, count = self._events, 0, len(arrivals)
        self.result.requests = count
        next_arrival_s = arrivals[0] if count else math.inf
        while True:
            event_s = events[0][0] if events else math.inf
            at_s = min(next_arrival_s, event_s)
            tick_s = self._next_tick_s()
            if tick_s < at_s and tick_s <= self._until_s:
                self._meter(tick_s)
                self._decide(tick_s)
                continue
            if at_s > self._until_s or at_s == math.inf:
                break
            self._meter(at_s)
            if event_s <= next_arrival_s:
                _, _, pod, is_ready = heapq.heappop(events)
                (self._pod_ready if is_ready else self._finished)(pod, at_s)
                continue
            took_s = durations[index] if durations is not None else math.nan
            index += 1
            next_arrival_s = arrivals[index] if index < count else math.inf
            self._arrive(at_s, self._service_s() if math.isnan(took_s) else took_s)
        for pod in self._pods:
            self._end(pod, self._until_s)
        return self.result

    # Time.

    def _next_tick_s(self) -> float:
        """The next period whose decision may change anything."""
        scale = len(self._pods)
        if not scale and not self._level and not self._wanted:
            return self._recheck_s()
        if scale == 1 == self._ready_count and not self._level and self._wanted == 1 and self._advice.keep is not None:
            return self._recheck_s()
        tick = max(self._tick + 1, 0)
        if scale == 1 and self._ready_count == 1 and self._is_quiet(tick * self._period_s):
            # Decided on while there is load: first when the last of it has left the window.
            if self._level:
                return math.inf
            tick = max(tick, math.ceil((self._loaded_second + 1 + self._spec.stable_window_s) / self._period_s))
        return tick * self._period_s

    def _recheck_s(self) -> float:
        """When the policy's advice changes by itself."""
        recheck_in_s = self._advice.recheck_in_s
        return math.inf if recheck_in_s is None else self._advised_s + recheck_in_s

    def _is_quiet(self, at_s: float) -> bool:
        spec = self._spec
        return (
            self._state.panic_since_s is None
            and self._wanted == 1
            and self._gate.phase is GatePhase.ACTIVE
            and not spec.scale_down_delay_s
            and self._level <= min(spec.target_value, self._quiet_load)
            and at_s - self._hot_second > spec.stable_window_s + 1
            and at_s < self._loaded_second + 1 + spec.stable_window_s
        )

    def _meter(self, now_s: float) -> None:
        """Add what was inside up to now; each second that is over goes into the windows."""
        second = int(now_s)
        if second == self._second:
            self._sum += self._level * (now_s - self._metered_s)
            self._metered_s = now_s
            return
        self._flush(self._sum + self._level * (self._second + 1 - self._metered_s))
        if self._level:
            for passed in range(self._second + 1, second):
                self._second = passed
                self._flush(float(self._level))
        elif second - self._second > 1:
            # Seconds without a value count as 0 once a later one has come.
            self._second = second - 1
            self._flush(0.0)
        self._second, self._metered_s = second, now_s
        self._sum = self._level * (now_s - second)

    def _flush(self, load: float) -> None:
        at_s = self._second + 1.0
        self._windows.record(Stat(concurrency=load), at_s)
        if load > 0:
            if self._policy is not None:
                self._policy.take(self._second, load, 0.0)
            self._loaded_second = self._second
            if load > self._quiet_load:
                self._hot_second = self._second

    # Requests.

    def _arrive(self, at_s: float, took_s: float) -> None:
        if self._queue or not self._free:
            if len(self._queue) >= self._config.queue_depth_max:
                self.result.refused += 1
                return
            self._level += 1
            self._queue.append((at_s, took_s))
            if not self._ready_count and len(self._queue) > self._wanted * self._spec.target_value:
                self._decide(at_s)
            return
        self._level += 1
        self._start(at_s, took_s)

    def _start(self, at_s: float, took_s: float) -> None:
        free = self._free
        pod = free[0]
        if not pod.in_flight:
            self.result.wasted_pod_seconds += at_s - pod.idle_since_s
        pod.in_flight += 1
        if pod.in_flight >= self._slots:
            free.popleft()
            pod.is_free = False
        elif self._slots > 3 and len(free) > 1:
            free.rotate(-1)
        self._sequence += 1
        heapq.heappush(self._events, (at_s + took_s, self._sequence, pod, False))

    def _finished(self, pod: _SimulatedPod, at_s: float) -> None:
        self._level -= 1
        pod.in_flight -= 1
        if not pod.in_flight:
            pod.idle_since_s = at_s
            if pod.is_ending:
                self._end(pod, at_s)
                return
        if not pod.is_ending and not pod.is_free:
            pod.is_free = True
            self._free.append(pod)
        self._drain_queue(at_s)

    def _drain_queue(self, at_s: float) -> None:
        queue, result = self._queue, self.result
        while queue and self._free:
            arrived_s, took_s = queue.popleft()
            wait_s = at_s - arrived_s
            if wait_s > 0:
                result.waits_s.append(wait_s)
                result.late += wait_s > LATE_S
                result.cold_requests += self._latest_ready_s > arrived_s
            self._start(at_s, took_s)

    # Pods.

    def _pod_ready(self, pod: _SimulatedPod, at_s: float) -> None:
        if pod.is_ending:
            return
        self._ready_count += 1
        self._latest_ready_s = at_s
        if self._policy is not None:
            self._policy.started(at_s - pod.created_s)
        pod.is_free = True
        self._free.append(pod)
        self._drain_queue(at_s)

    def _end(self, pod: _SimulatedPod, at_s: float) -> None:
        self.result.pod_seconds += at_s - pod.created_s
        if not pod.in_flight and at_s > pod.idle_since_s:
            self.result.wasted_pod_seconds += at_s - pod.idle_since_s

    def _set_scale(self, count: int, at_s: float) -> None:
        present = len(self._pods)
        direction = (count > present) - (count < present)
        if direction and self._direction and direction != self._direction:
            self.result.flaps += 1
        self._direction = direction or self._direction
        for _ in range(count - present):
            pod = _SimulatedPod(at_s, at_s + self._config.start_s)
            self._pods.append(pod)
            self.result.pod_starts += 1
            self._sequence += 1
            heapq.heappush(self._events, (pod.ready_s, self._sequence, pod, True))
        if count < present:
            # Pods that do not serve yet go first, then idle ones, then the youngest.
            going = sorted(self._pods, key=lambda one: (one.ready_s <= at_s, one.in_flight > 0, -one.created_s))
            for pod in going[: present - count]:
                self._remove(pod, at_s)

    def _remove(self, pod: _SimulatedPod, at_s: float) -> None:
        pod.is_ending = True
        self._pods.remove(pod)
        if pod.is_free:
            self._free.remove(pod)
            pod.is_free = False
        if pod.ready_s <= at_s:
            self._ready_count -= 1
        if not pod.in_flight:
            self._end(pod, at_s)

    # Decisions.

    def _decide(self, now_s: float) -> None:
        self._tick = int(now_s / self._period_s + 1e-9)
        spec, scale = self._spec, len(self._pods)
        observed = self._windows.query(now_s)
        waiting = float(len(self._queue))
        if waiting and not self._ready_count:
            seen = (0.0, 0.0) if isinstance(observed, NoData) else (observed.stable, observed.panic)
            observed = Observation(stable=max(seen[0], waiting), panic=max(seen[1], waiting))
        self._state, decision = decide(
            self._state,
            observed=observed,
            ready_count=self._ready_count,
            spec=spec,
            now_s=now_s,
            quirks=self._config.settings.quirks,
        )
        wanted: int | NoData = decision.desired_count if isinstance(decision, ScaleDecision) else decision
        proposal = Proposal(decider="kpa", desired=wanted, reason="")
        advice = self._advice = (
            NEUTRAL
            if self._policy is None
            else self._policy.advise(
                proposal,
                in_flight=float(self._level),
                present_scale=scale,
                ready_count=self._ready_count,
                now_s=now_s,
            )
        )
        self._advised_s = now_s
        merged = merge(
            (proposal,) if advice.proposals is None else advice.proposals,
            present_scale=scale,
            spec=spec,
            is_initialized=True,
        )
        facts = GateInputs(
            desired=merged if isinstance(merged, NoData) else merged.desired_count,
            present_scale=scale,
            ready_count=self._ready_count,
            proxy_since_s=now_s - spec.scale_to_zero_grace_s,
            proved_at_s=now_s,
            active_min_s=advice.active_min_s,
        )
        self._gate, gate = step(self._gate, facts, spec=spec, now_s=now_s, quirks=self._config.settings.quirks)
        self._wanted = merged.desired_count if not isinstance(merged, NoData) else 0
        if gate.action is GateAction.APPLY and isinstance(gate.wanted, int):
            if not scale and gate.wanted:
                self._windows = self._new_windows()
                self._hot_second = -math.inf
            self._set_scale(gate.wanted, now_s)

    def _new_windows(self) -> MetricWindows:
        spec = self._spec
        return MetricWindows(
            stable_window_s=spec.stable_window_s,
            panic_window_s=spec.panic_window_s,
            kind=spec.window_kind,
            metric=spec.load_metric,
            quirks=self._config.settings.quirks,
        )


def lognormal(p50_s: float, p99_s: float, dice: random.Random) -> Callable[[], float]:
    """Times with that median and that 99th percentile."""
    # The 99th percentile of the standard normal distribution.
    sigma = (math.log(p99_s) - math.log(p50_s)) / 2.3263
    median = math.log(p50_s)
    return lambda: dice.lognormvariate(median, sigma)
