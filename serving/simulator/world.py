"""Simulates one revision on virtual time: an activator with its queue, pods and an autoscaler.

``Engine`` runs actions in the order of their times. All decisions are the product's own (breaker, balancer, meter, windows,
decision, bounds, gate), on the product's own settings. Only the world around them is simulated: requests arrive and take
``service_s``, pods take ``start_s`` until they are ready. The activator is always in the path, as on one machine.
"""

import heapq
import random
from collections.abc import Callable, Sequence

import msgspec

from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.kpa.decide import KpaState, ScaleDecision, decide, is_poke, starting_state
from serving.scaling.kpa.merge import MergeDecision, Proposal, merge
from serving.scaling.kpa.window import MetricWindows
from serving.scaling.kpa.zero import GateAction, GateDecision, GateInputs, GatePhase, GateState, InactiveReason, step
from serving.scaling.resolve import resolve
from serving.scaling.spec import ScalingSpec
from serving.settings.activator import ActivatorSettings
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import AutoscalerSettings
from serving.traffic.balance import Balancer, Chosen
from serving.traffic.breaker import Admitted, Breaker, Granted, Rejected
from serving.traffic.meter import Meter, stat_of
from serving.traffic.policy import policy_for

Action = Callable[[], None]

REPORT_PERIOD_S = 1.0


class Engine:
    """Runs actions in the order of their times, equal times in order of planning."""

    __slots__ = ("_heap", "_planned_count", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._planned_count = 0

    def at(self, at_s: float, action: Action) -> None:
        """Plan an action; one in the past happens next."""
        self._planned_count += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._planned_count, action))

    def every(self, period_s: float, action: Action) -> None:
        """Plan an action at once and each ``period_s`` seconds after."""

        def beat() -> None:
            action()
            self.at(self.now_s + period_s, beat)

        self.at(self.now_s, beat)

    def run(self, until_s: float) -> None:
        """Run all actions planned up to ``until_s``, and advance the clock to it."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        self.now_s = until_s


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a world. Times in seconds; ``container_concurrency`` 0 means no limit."""

    settings: AutoscalerSettings = AutoscalerSettings()
    activator: ActivatorSettings = ActivatorSettings()
    scaling: ScalingAnnotations = ScalingAnnotations()
    container_concurrency: int = 10
    service_s: float = 0.5
    start_s: float = 1.0
    seed: int = 1


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the world at one decision, with the decision."""

    at_s: float
    scale: int
    ready_count: int
    running_count: int
    waiting_count: int
    decision: ScaleDecision | NoData
    merged: MergeDecision | NoData
    gate: GateDecision


class World:
    """One revision, from nothing. ``moments``, ``latencies_s`` and the counts grow while the engine runs."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self._plan, self._engine = plan, engine
        self._dice = random.Random(plan.seed)  # noqa: S311 - a simulated world, not a secret
        self._spec: ScalingSpec = resolve(
            plan.settings, plan.scaling, container_concurrency=plan.container_concurrency, reachable=True
        )
        self._meter = Meter(now_s=0.0)
        self._collection = MetricWindows(
            stable_window_s=self._spec.stable_window_s,
            panic_window_s=self._spec.panic_window_s,
            kind=self._spec.window_kind,
            metric=self._spec.load_metric,
        )
        self._state: KpaState = starting_state(ready_count=0, present_scale=0, spec=self._spec, now_s=0.0)
        self._gate = GateState(
            since_s=0.0, phase=GatePhase.INACTIVE, reason=InactiveReason.NO_TRAFFIC, is_initialized=True
        )
        self._latest: ScaleDecision | None = None
        self._poked_count = 0
        policy = policy_for(
            plan.container_concurrency, first_free_concurrency_max=plan.activator.first_free_concurrency_max
        )
        self._balancer = Balancer(policy, random=self._dice.random)
        self._breaker: Breaker[int] = Breaker(
            capacity=0, depth_max=plan.activator.queue_depth_max, wait_max_s=plan.activator.queue_wait_max_s
        )
        self._arrived_s: dict[int, float] = {}
        self._pods: dict[str, bool] = {}  # name -> ready
        self._started_count = 0
        self.moments: list[Moment] = []
        self.latencies_s: list[float] = []
        self.refused_count = 0
        engine.every(REPORT_PERIOD_S, self._report)
        engine.every(plan.settings.decision_period_s, self._decide)

    @property
    def scale(self) -> int:
        """Pods that are ready or starting."""
        return len(self._pods)

    def arrive(self) -> None:
        """One request arrives now."""
        now_s = self._engine.now_s
        request = len(self._arrived_s) + len(self.latencies_s) + self.refused_count
        match self._breaker.admit(request, now_s):
            case Rejected():
                self.refused_count += 1
                return
            case Admitted():
                self._begin(request)
        self._arrived_s[request] = now_s
        self._meter.arrive(now_s, proxied=False)
        self._poke()

    def _poke(self) -> None:
        """The first request of a revision at zero is reported at once, and taken off the next report."""
        stat = Stat(pod="activator", at_s=self._engine.now_s, concurrency=1, request_count=1)
        if self._latest is None or not is_poke(stat, self._latest) or self._poked_count:
            return
        self._poked_count = 1
        self._collection.record(stat, self._engine.now_s)
        self._decide()

    def _begin(self, request: int) -> None:
        chosen = self._balancer.take()
        assert isinstance(chosen, Chosen), "the breaker's capacity is what the pods have"
        self._engine.at(self._engine.now_s + self._plan.service_s, lambda: self._finish(request, chosen.pod))

    def _begin_all(self, granted: Sequence[Granted[int]]) -> None:
        for grant in granted:
            self._begin(grant.request_id)

    def _finish(self, request: int, address: str) -> None:
        now_s = self._engine.now_s
        self.latencies_s.append(now_s - self._arrived_s.pop(request))
        self._meter.leave(now_s, proxied=False)
        self._balancer.give_back(address)
        self._begin_all(self._breaker.set_capacity(self._balancer.capacity, now_s))
        self._begin_all(self._breaker.release(request, now_s))

    def _report(self) -> None:
        now_s = self._engine.now_s
        stat = stat_of(self._meter.report(now_s), pod="activator", at_s=now_s, report_period_s=REPORT_PERIOD_S)
        poked, self._poked_count = self._poked_count, 0
        self._collection.record(
            msgspec.structs.replace(
                stat, concurrency=max(0.0, stat.concurrency - poked), request_count=stat.request_count - poked
            ),
            now_s,
        )

    def _decide(self) -> None:
        now_s = self._engine.now_s
        ready_count = sum(self._pods.values())
        observed = self._collection.query(now_s)
        self._state, decision = decide(
            self._state, observed=observed, ready_count=ready_count, spec=self._spec, now_s=now_s
        )
        if isinstance(decision, ScaleDecision):
            self._latest = decision
        wanted = decision if isinstance(decision, NoData) else decision.desired_count
        reason = "" if isinstance(decision, NoData) else (decision.limited_by or decision.mode)
        merged = merge(
            [Proposal(decider="kpa", desired=wanted, reason=reason)],
            present_scale=self.scale,
            spec=self._spec,
            is_initialized=self._gate.is_initialized,
        )
        facts = GateInputs(
            desired=merged if isinstance(merged, NoData) else merged.desired_count,
            present_scale=self.scale,
            ready_count=ready_count,
            proxy_since_s=0.0,
            proved_at_s=now_s,
        )
        self._gate, gate = step(self._gate, facts, spec=self._spec, now_s=now_s)
        if gate.action is GateAction.APPLY and isinstance(gate.wanted, int):
            self._set_scale(gate.wanted)
        counts = self._breaker.counts()
        self.moments.append(
            Moment(
                at_s=now_s,
                scale=self.scale,
                ready_count=ready_count,
                running_count=counts.running,
                waiting_count=counts.waiting,
                decision=decision,
                merged=merged,
                gate=gate,
            )
        )

    def _set_scale(self, count: int) -> None:
        while self.scale < count:
            self._started_count += 1
            name = f"pod-{self._started_count:04d}"
            self._pods[name] = False
            self._engine.at(self._engine.now_s + self._plan.start_s, self._ready(name))
        # Pods that do not serve yet go first, then the youngest.
        for name in sorted(self._pods, key=lambda name: (self._pods[name], -int(name[4:])))[: self.scale - count]:
            del self._pods[name]
        self._settle()

    def _ready(self, name: str) -> Callable[[], None]:
        def become_ready() -> None:
            if name in self._pods:
                self._pods[name] = True
                self._settle()

        return become_ready

    def _settle(self) -> None:
        """Update balancer and breaker with the pods; removed ones drain."""
        slots = self._plan.container_concurrency or None
        self._balancer.set_pods({name: slots for name, is_ready in self._pods.items() if is_ready})
        self._begin_all(self._breaker.set_capacity(self._balancer.capacity, self._engine.now_s))
