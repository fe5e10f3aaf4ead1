"""Runs the policy that is not in force in shadow, on the same reports, to estimate its costs.

Input: each second of load, reported arrivals, and the existing pods at each decision. Output: pod-seconds of both
policies over the last day, and the requests that arrived without a ready pod. If Knative's policy is in force, the
shadow is the adaptive one with separate gaps; otherwise the shadow is Knative's. The shadow has simulated pods,
windows, panic and gate to zero; its pods take the measured time to start. Reports are those of the real pods, so they
do not show queues of the shadow's pods. The module uses no clock.
"""

import math
from collections.abc import Sequence

import msgspec

from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.model.revisionnumbers import PolicyCosts
from serving.core.model.stat import Stat
from serving.core.scaling.decision.policy import RevisionPolicy, SecondOfLoad
from serving.core.scaling.decision.records import DecisionCause, InFlight, ScalerOutcome
from serving.core.scaling.decision.step import StepInputs, step
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.kpa.zero import GatePhase, GateState, InactiveReason
from serving.core.scaling.scaler.costs import DayCosts
from serving.core.scaling.scaler.silence import change_by_clock_s, change_in_silence_s, is_steady
from serving.core.scaling.scaler.windows import RevisionWindows, starting_revision_state
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import AutoscalerSettings

# Longest counted time between two decisions, in seconds and in periods, because the process may have been frozen.
_STEP_MAX_S, _STEP_MAX_PERIODS = 10.0, 2.0
# Tolerated earliness of a period, in seconds.
_EARLY_S = 0.1
_SILENCE = Stat()


class PolicyShadow:
    """The shadow policy of one revision. ``wall_offset_s`` is wall clock minus the decisions' clock, in seconds."""

    __slots__ = (
        "_at_s",
        "_costs",
        "_decided_s",
        "_has_new_costs",
        "_in_flight",
        "_outcome",
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
        "_state",
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
        policy: RevisionPolicy,
        present_scale: int,
        wall_offset_s: float,
        now_s: float,
    ) -> None:
        """The shadow starts with the present pods of the revision."""
        self.policy = policy
        self._spec = spec
        self._quirks = settings.quirks
        self._period_s = settings.decision_period_s
        self.wall_offset_s = wall_offset_s
        self._step_max_s = max(_STEP_MAX_S, _STEP_MAX_PERIODS * settings.decision_period_s)
        self._windows = RevisionWindows(_first_metric(spec), quirks=settings.quirks)
        phase, reason = (GatePhase.ACTIVE, None) if present_scale else (GatePhase.INACTIVE, InactiveReason.NO_TRAFFIC)
        gate = GateState(since_s=now_s, phase=phase, reason=reason, is_initialized=True)
        self._state = starting_revision_state(_first_metric(spec), gate, now_s=now_s, quirks=settings.quirks)
        self._scale = self._present_scale = self._ready_count = present_scale
        # Starting pods: the time at which they become ready, and their number.
        self._starting: list[tuple[float, int]] = []
        self._start_s = policy.start_s if policy.observes else 0.0
        # Requests in flight under the running policy; None if unknown.
        self._in_flight: Stat | None = _SILENCE
        # The next decision at scale 0 of a policy that observes seconds.
        self._recheck_s = now_s
        self._seen_second = -1
        self._at_s = now_s
        self._decided_s = -math.inf
        self._outcome: ScalerOutcome | None = None
        self._costs = DayCosts(now_s + wall_offset_s)
        self._saved_hour = self._costs.hour
        self._has_new_costs = False

    @property
    def scale(self) -> int:
        """Pods under the shadow policy now, including starting ones."""
        return self._scale

    @property
    def due_s(self) -> float:
        """When the shadow's decision may change without a request, because time passes.

        0 means that it may change in each period.
        """
        if self._scale:
            outcome = self._outcome
            # Without real pods, no report brings the seconds of its pods.
            if outcome is None or not self._present_scale or not is_steady(outcome, scale=self._scale):
                return 0.0
            return change_by_clock_s(outcome)
        return self._recheck_s if self.policy.observes else math.inf

    def change_in_silence_s(self, times: Sequence[float]) -> float:
        """The first of ``times`` at which the shadow's decision may change if no request arrives until then.

        If it may not change, the last of ``times``.
        """
        if self._outcome is None or not self._scale:
            return times[-1]
        return change_in_silence_s(self._outcome, self._state, self._windows, times=times)

    def update(self, spec: ScalingSpec, now_s: float) -> None:
        """Apply the changed settings of the revision."""
        self._spec = spec
        self._recheck_s = now_s
        self.policy.update(spec)
        self._windows.resize(_first_metric(spec), now_s)

    def record(self, number: int, load: Stat) -> None:
        """Record a completed second. ``number`` 61 is the time from 61 s to 62 s."""
        self._seen_second = number
        self._windows.record(number, load)
        self.policy.observe(SecondOfLoad(number, load.concurrency, load.request_count))

    def arrive(self, request_count: float, now_s: float) -> None:
        """Count reported requests at the time of the report; they are cold if the shadow has no ready pod."""
        # Reports arrive between the decisions about a revision that rests.
        self._count(now_s)
        if request_count <= 0:
            return
        shadow_ready_count = self._ready(now_s)
        if not self._ready_count or not shadow_ready_count:
            cold, shadow_cold = request_count * (not self._ready_count), request_count * (not shadow_ready_count)
            adaptive, knative = self._by_policy(cold, shadow_cold)
            self._costs.add_cold(adaptive, knative, wall_s=now_s + self.wall_offset_s)
            self._has_new_costs = True
        if not self._scale:
            self._decide((), now_s, is_woken=True)

    def decide(
        self,
        proposals: Sequence[Proposal],
        *,
        in_flight: Stat | None,
        present_scale: int,
        ready_count: int,
        start_s: float,
        now_s: float,
    ) -> None:
        """Decide by the shadow policy, while ``present_scale`` real pods exist. ``proposals`` come from other deciders.

        ``in_flight`` is the load in flight now, or None if unknown.
        """
        self._present_scale = present_scale
        self._ready_count = ready_count
        self._start_s = start_s
        self._count(now_s)
        self._in_flight = in_flight
        observes = self.policy.observes
        if not observes and now_s - self._decided_s < self._period_s - _EARLY_S:
            # Knative's policy decides once a period, even if the policy in force decides more often.
            return
        is_due = observes and ((in_flight is not None and in_flight.concurrency > 0) or now_s >= self._recheck_s)
        if (
            self._scale
            or is_due
            or any(not isinstance(proposal.desired, NoData) and proposal.desired for proposal in proposals)
        ):
            self._decided_s = now_s
            self._decide(proposals, now_s)

    def costs(self, now_s: float) -> PolicyCosts:
        """The costs of the last 24 hours."""
        self._count(now_s)
        return self._costs.total(now_s + self.wall_offset_s)

    def due_save(self, *, is_now: bool) -> str | None:
        """The costs as text for ``load``: once an hour, or if ``is_now``; otherwise None."""
        if not self._has_new_costs or (self._costs.hour == self._saved_hour and not is_now):
            return None
        self._saved_hour = self._costs.hour
        self._has_new_costs = False
        return self._costs.dump()

    def load(self, text: str) -> None:
        """Restore saved costs. Raises ``InvalidValue``."""
        self._costs.load(text)

    def _count(self, now_s: float) -> None:
        """Add the pod-seconds since the last call."""
        step_s = min(max(0.0, now_s - self._at_s), self._step_max_s)
        self._at_s = now_s
        if step_s and (self._present_scale or self._scale):
            self._has_new_costs = True
            adaptive, knative = self._by_policy(step_s * self._present_scale, step_s * self._scale)
            self._costs.add_pods(adaptive, knative, wall_s=now_s + self.wall_offset_s)

    def _by_policy(self, running: float, shadow: float) -> tuple[float, float]:
        """Order two costs, of the policy in force and of the shadow: the adaptive policy's first, then Knative's."""
        return (shadow, running) if self.policy.observes else (running, shadow)

    def _decide(self, proposals: Sequence[Proposal], now_s: float, *, is_woken: bool = False) -> None:
        """Make one decision. Activators are always in the shadow's path, which counts as proved."""
        ready_count, last_second = self._ready(now_s), math.floor(now_s) - 1
        if ready_count and self._seen_second < last_second:
            # The shadow's pods would report silence.
            self.record(last_second, _SILENCE)
        is_active = is_woken or self._scale > 0
        inputs = StepInputs(
            at_s=now_s,
            cause=DecisionCause.LOAD if is_woken else DecisionCause.PERIOD,
            view=ScalerView(
                present_scale=self._scale,
                ready_count=ready_count,
                serving_state=ServingState.ACTIVE if is_active else ServingState.RESERVE,
                proved_at_s=now_s,
            ),
            in_flight=InFlight(present=self._in_flight or _SILENCE, is_waiting=False),
            observed=self._windows.query(now_s),
            proposals=tuple(proposals),
            knows_in_flight=self._in_flight is not None,
            spec=_first_metric(self._spec),
            quirks=self._quirks,
        )
        self._state, outcome = step(self._state, inputs, self.policy)
        self._outcome = outcome
        recheck_in_s = outcome.inputs.advice.recheck_in_s
        self._recheck_s = math.inf if recheck_in_s is None else now_s + recheck_in_s
        if outcome.apply_count is not None:
            self._resize(outcome.apply_count, now_s)

    def _resize(self, count: int, now_s: float) -> None:
        """Change the number of simulated pods.

        New pods become ready after the measured start time. Starting pods are removed first.
        """
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


def _first_metric(spec: ScalingSpec) -> ScalingSpec:
    """The scaling numbers without further metrics, whose proposals are an input of each decision."""
    return msgspec.structs.replace(spec, further_metrics=()) if spec.further_metrics else spec
