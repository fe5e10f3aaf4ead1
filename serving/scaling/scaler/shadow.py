"""Runs the policy not in force in shadow, on the same reports, to estimate its costs.

Input: each second of load, the arrivals that sources report, and at each decision the pods that there are. Output: pod-seconds of
both policies and the requests that arrived while no pod was ready, over the last day. Under ``policy: knative`` the shadow is
adaptive, with gaps and room of its own; under ``policy: adaptive`` it decides as Knative does. The shadow has pods of its own:
its windows, its panic and its gate to zero, and its pods take the measured time to start. Reports are those of the running pods,
so they cannot show the queues of the shadow's pods. It uses no clock.
"""

import math
from collections.abc import Sequence

import msgspec

from serving.model.nodata import NoData
from serving.model.revisionnumbers import PolicyCosts
from serving.model.stat import Stat
from serving.scaling.adaptive.advice import NEUTRAL, Advice, PreWarmBudget
from serving.scaling.adaptive.gaps import GapPrior
from serving.scaling.adaptive.policy import RevisionPolicy, policy_of
from serving.scaling.kpa.decide import decide_count, starting_state
from serving.scaling.kpa.merge import Proposal, bounded, merge, ready_count_min
from serving.scaling.kpa.window import MetricWindows
from serving.scaling.kpa.zero import GateAction, GateInputs, GatePhase, GateState, InactiveReason, step
from serving.scaling.scaler.costs import DayCosts
from serving.scaling.scaler.deciders import at_least
from serving.scaling.spec import ScalingSpec
from serving.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, KPA_CLASS, AutoscalerSettings

# Longest time between two decisions that counts, in seconds and in periods: the process may have been frozen.
_STEP_MAX_S, _STEP_MAX_PERIODS = 10.0, 2.0
# Tolerated earliness of a period, in seconds.
_EARLY_S = 0.1
_SILENCE = Stat()


class PolicyShadow:
    """The shadow of one revision. ``wall_offset_s`` is seconds since the epoch less the clock of the decisions.

    ``policy`` is the adaptive one, which the shadow decides with; None: it decides as Knative does.
    """

    __slots__ = (
        "_at_s",
        "_costs",
        "_decided_s",
        "_gate",
        "_has_new_costs",
        "_inside",
        "_kpa",
        "_period_s",
        "_present_scale",
        "_quirks",
        "_ready_count",
        "_recheck_s",
        "_saved_hour",
        "_scale",
        "_seen_second",
        "_spec",
        "_start_s",
        "_starting",
        "_step_max_s",
        "_windows",
        "policy",
        "wall_offset_s",
    )

    def __init__(
        self,
        spec: ScalingSpec,
        settings: AutoscalerSettings,
        *,
        policy: RevisionPolicy | None,
        present_scale: int,
        wall_offset_s: float,
        now_s: float,
    ) -> None:
        """The shadow starts with the existing pods."""
        self.policy = policy
        self._spec, self._quirks, self._period_s = spec, settings.quirks, settings.decision_period_s
        self.wall_offset_s = wall_offset_s
        quirks = settings.quirks
        self._step_max_s = max(_STEP_MAX_S, _STEP_MAX_PERIODS * settings.decision_period_s)
        self._windows = self._new_windows()
        self._kpa = starting_state(ready_count=0, present_scale=0, spec=spec, now_s=now_s, quirks=quirks)
        phase, reason = (GatePhase.ACTIVE, None) if present_scale else (GatePhase.INACTIVE, InactiveReason.NO_TRAFFIC)
        self._gate = GateState(since_s=now_s, phase=phase, reason=reason, is_initialized=True)
        self._scale = self._present_scale = self._ready_count = present_scale
        # Pods that start: when they are ready, and how many.
        self._starting: list[tuple[float, int]] = []
        self._start_s = 0.0 if policy is None else policy.start_s
        # The requests inside under the running policy, and when an adaptive policy must decide again at scale 0.
        self._inside: Stat | None = _SILENCE
        self._recheck_s = now_s
        self._seen_second = -1
        self._at_s = now_s
        self._decided_s = -math.inf
        self._costs = DayCosts(now_s + wall_offset_s)
        self._saved_hour, self._has_new_costs = self._costs.hour, False

    @property
    def _counts_waiting(self) -> bool:
        """Whether requests waiting for the first pod count at once, as in its decider."""
        return self.policy is not None and self.policy.counts_waiting

    @property
    def scale(self) -> int:
        """Pods under the shadow policy now, including starting ones."""
        return self._scale

    @property
    def due_s(self) -> float:
        """The time of its next decision without load; 0 while it has pods."""
        if self._scale:
            return 0.0
        return math.inf if self.policy is None else self._recheck_s

    def follow(self, spec: ScalingSpec, now_s: float) -> None:
        """Apply changed numbers of the revision."""
        self._spec, self._recheck_s = spec, now_s
        if self.policy is not None:
            self.policy.follow(spec)
        self._windows.resize(
            stable_window_s=spec.stable_window_s,
            panic_window_s=spec.panic_window_s,
            kind=spec.window_kind,
            now_s=now_s,
        )

    def take(self, number: int, load: Stat) -> None:
        """Add a completed second. Number 61 is the time from 61 s to 62 s."""
        self._seen_second = number
        self._windows.record(load, number + 1.0)
        if self.policy is not None:
            self.policy.take(number, load.concurrency, load.request_count)

    def arrive(self, request_count: float, now_s: float) -> None:
        """Count reported requests at the time of the report. Without a ready pod they are cold."""
        if request_count <= 0:
            return
        shadow_ready_count = self._ready(now_s)
        if not self._ready_count or not shadow_ready_count:
            cold, shadow_cold = request_count * (not self._ready_count), request_count * (not shadow_ready_count)
            adaptive, knative = self._by_policy(cold, shadow_cold)
            self._costs.add_cold(adaptive, knative, wall_s=now_s + self.wall_offset_s)
            self._has_new_costs = True
        if not self._scale:
            self._count(now_s)
            self._step(_bounded(1, self._spec), ready_count=0, now_s=now_s)

    def follow_decision(
        self,
        beside: Sequence[Proposal],
        *,
        inside: Stat | None,
        present_scale: int,
        ready_count: int,
        start_s: float,
        now_s: float,
    ) -> None:
        """Follow a decision with a scale of ``present_scale``; ``beside`` are proposals of other deciders.

        ``inside`` is the load inside now; None if it is not known.
        """
        self._present_scale, self._ready_count, self._start_s = present_scale, ready_count, start_s
        self._count(now_s)
        self._inside = inside
        if self.policy is None and now_s - self._decided_s < self._period_s - _EARLY_S:
            # Knative decides each period, also where the chosen policy looks more often.
            return
        if (
            self._scale
            or any(not isinstance(one.desired, NoData) and one.desired for one in beside)
            or (
                self.policy is not None
                and ((inside is not None and inside.concurrency > 0) or now_s >= self._recheck_s)
            )
        ):
            self._decided_s = now_s
            self._decide(beside, now_s)

    def costs(self, now_s: float) -> PolicyCosts:
        """The costs of the last day."""
        return self._costs.total(now_s + self.wall_offset_s)

    def due_save(self, *, is_now: bool) -> str | None:
        """The costs as text for ``load``, once an hour and when ``is_now``; otherwise None."""
        if not self._has_new_costs or (self._costs.hour == self._saved_hour and not is_now):
            return None
        self._saved_hour, self._has_new_costs = self._costs.hour, False
        return self._costs.dump()

    def load(self, text: str) -> None:
        """Restore saved costs. Raises ``InvalidValue``."""
        self._costs.load(text)

    def _count(self, now_s: float) -> None:
        """Add the pod-seconds since the last time."""
        step_s = min(max(0.0, now_s - self._at_s), self._step_max_s)
        self._at_s = now_s
        if step_s and (self._present_scale or self._scale):
            self._has_new_costs = True
            adaptive, knative = self._by_policy(step_s * self._present_scale, step_s * self._scale)
            self._costs.add_pods(adaptive, knative, wall_s=now_s + self.wall_offset_s)

    def _by_policy(self, running: float, shadow: float) -> tuple[float, float]:
        """Order a pair of costs: the adaptive policy's, then Knative's."""
        return (running, shadow) if self.policy is None else (shadow, running)

    def _decide(self, beside: Sequence[Proposal], now_s: float) -> None:
        ready_count, over = self._ready(now_s), math.floor(now_s) - 1
        if ready_count and self._seen_second < over:
            # Its pods would report their silence.
            self.take(over, _SILENCE)
        desired = self._algorithm(ready_count, now_s)
        proposals = [Proposal(decider="kpa", desired=desired, reason="")]
        advice = self._advice(proposals[0], ready_count=ready_count, now_s=now_s)
        if advice.proposals is not None:
            proposals = list(advice.proposals)
        if beside or len(proposals) > 1:
            merged = merge((*proposals, *beside), present_scale=self._scale, spec=self._spec, is_initialized=True)
            desired = merged if isinstance(merged, NoData) else merged.desired_count
        else:
            desired = proposals[0].desired
            desired = desired if isinstance(desired, NoData) else _bounded(desired, self._spec)
        is_settled = self._gate.phase is GatePhase.ACTIVE and ready_count >= ready_count_min(
            self._spec, is_initialized=True
        )
        if is_settled and not isinstance(desired, NoData) and desired:
            # The gate would let it pass as it is.
            self._resize(desired, now_s)
        else:
            self._step(desired, ready_count=ready_count, now_s=now_s, active_min_s=advice.active_min_s)

    def _algorithm(self, ready_count: int, now_s: float) -> int | NoData:
        """The load of the windows; for an adaptive policy, including requests that wait for a first pod."""
        observed = self._windows.query(now_s)
        if self._counts_waiting and self._inside is not None and (not ready_count or isinstance(observed, NoData)):
            observed = at_least(observed, self._spec.load_metric.amount(self._inside))
        if isinstance(observed, NoData):
            return observed
        self._kpa, desired = decide_count(
            self._kpa, observed=observed, ready_count=ready_count, spec=self._spec, now_s=now_s, quirks=self._quirks
        )
        return desired

    def _advice(self, algorithm: Proposal, *, ready_count: int, now_s: float) -> Advice:
        """The advice of the adaptive policy; none for Knative's."""
        if self.policy is None:
            return NEUTRAL
        advice = self.policy.next_advice(
            algorithm,
            in_flight=None if self._inside is None else self._inside.concurrency,
            present_scale=self._scale,
            ready_count=ready_count,
            now_s=now_s,
        )
        self._recheck_s = math.inf if advice.recheck_in_s is None else now_s + advice.recheck_in_s
        return advice

    def _step(
        self, desired: int | NoData, *, ready_count: int, now_s: float, active_min_s: float | None = None
    ) -> None:
        """Pass the gate. The activators are always in the path, and their proof comes at once."""
        facts = GateInputs(
            desired=desired,
            present_scale=self._scale,
            ready_count=ready_count,
            proxy_since_s=now_s - self._spec.scale_to_zero_grace_s,
            proved_at_s=now_s,
            active_min_s=active_min_s,
        )
        state, gate = step(self._gate, facts, spec=self._spec, now_s=now_s, quirks=self._quirks)
        self._gate = msgspec.structs.replace(state, story=())
        if gate.action is GateAction.APPLY and isinstance(gate.wanted, int):
            self._resize(gate.wanted, now_s)

    def _new_windows(self) -> MetricWindows:
        spec = self._spec
        return MetricWindows(
            stable_window_s=spec.stable_window_s,
            panic_window_s=spec.panic_window_s,
            kind=spec.window_kind,
            metric=spec.load_metric,
            quirks=self._quirks,
        )

    def _resize(self, count: int, now_s: float) -> None:
        """Change the pods: new ones are ready after the measured start time, starting ones are removed first."""
        if count == self._scale:
            return
        if not self._scale and self._counts_waiting:
            # Seconds before a revision woke up are unrelated to the load that woke it.
            self._windows = self._new_windows()
        if count > self._scale:
            self._starting.append((now_s + self._start_s, count - self._scale))
        excess = self._scale - count
        while excess > 0 and self._starting:
            ready_s, starting_count = self._starting.pop()
            if starting_count > excess:
                self._starting.append((ready_s, starting_count - excess))
            excess -= starting_count
        self._scale = count

    def _ready(self, now_s: float) -> int:
        """The number of ready pods."""
        starting = self._starting
        if not starting:
            return self._scale
        while starting and starting[0][0] <= now_s:
            del starting[0]
        return self._scale - sum(count for _, count in starting)


def _bounded(count: int, spec: ScalingSpec) -> int:
    """A count within the revision's minimum and maximum."""
    if count >= spec.min_scale and not 0 < spec.max_scale < count:
        return count
    return bounded(count, spec=spec, is_initialized=True).count


def shadow_of(  # noqa: PLR0913 - what a shadow is made of
    spec: ScalingSpec,
    settings: AutoscalerSettings,
    *,
    present_scale: int,
    wall_offset_s: float,
    now_s: float,
    prior: GapPrior | None = None,
    budget: PreWarmBudget | None = None,
) -> PolicyShadow | None:
    """The revision's other policy, in shadow; None for classes without a policy."""
    if spec.class_name != KPA_CLASS:
        return None
    other = msgspec.structs.replace(spec, policy=KNATIVE_POLICY if spec.policy == ADAPTIVE_POLICY else ADAPTIVE_POLICY)
    policy = policy_of(other, settings, prior=prior, budget=budget, explains=False)
    return PolicyShadow(
        spec, settings, policy=policy, present_scale=present_scale, wall_offset_s=wall_offset_s, now_s=now_s
    )
