"""Reuses the conclusion of an earlier decision about a simulated revision with the same inputs.

Input: the algorithm's decision, the policy's advice, the gate and the cluster's state. Output: the next state and the earlier
conclusion for the same inputs. Times matter only through comparisons, which are part of these inputs. The product's code always
computes the algorithm's count and the advice.
"""

import math
from collections import deque

import msgspec

from serving.core.model.knative import TrafficPath
from serving.core.model.nodata import NoData
from serving.core.scaling.decision.policy import Advice
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.decision.step import RevisionState
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState, ScaleDecision
from serving.core.scaling.kpa.window import WindowContents
from serving.core.scaling.kpa.zero import GateInputs, GatePhase, GateReason, GateState, InactiveReason, clock_conditions
from serving.core.scaling.spec import ScalingSpec

# Conclusions stored for each revision.
_CONCLUSIONS_MAX = 256
# Reasons with a countdown, which differs from decision to decision.
_TIMED_REASONS = frozenset(
    {GateReason.ACTIVATION_PENDING, GateReason.ACTIVE_TOO_SHORT, GateReason.POD_RETENTION, GateReason.GRACE}
)
# Sums of loads this close to a bound count as beyond it, because averages are rounded to six decimals.
_SUM_MARGIN = 1e-3
# Place of a missing count in a key.
_NO_COUNT = -1

Key = tuple[object, ...]
"""All inputs of a conclusion but times."""


class RevisionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision: desired and ready pods, and requests in flight."""

    scale: int
    ready: int
    inside: int


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a decision's outcome that the simulator uses.

    ``scale`` and ``ready`` were the pods at the decision. ``latest_count`` is the desired number of pods,
    ``apply_count`` the number to set, None for no change. ``to_reserve``: set the revision to Reserve. ``to_prove``:
    probe the activator. The ``gate`` fields and ``phase`` belong to the gate, which decides on scale to zero.
    """

    scale: int
    ready: int
    latest_count: int | None
    apply_count: int | None
    to_reserve: bool
    to_prove: bool
    path: TrafficPath
    gate_reason: GateReason
    gate_recheck_in_s: float | None
    phase: GatePhase
    inactive_reason: InactiveReason | None
    is_status_changed: bool
    """Whether the condition Active changed."""

    is_timed: bool
    """Whether the policy announced a time."""


def conclusion_of(outcome: ScalerOutcome, state: RevisionState) -> Conclusion:
    """The conclusion of an outcome. ``state`` is the state that follows the decision."""
    before, phase = outcome.inputs.gate, state.gate.phase
    return Conclusion(
        scale=outcome.view.present_scale,
        ready=outcome.view.ready_count,
        latest_count=state.latest_count,
        apply_count=outcome.apply_count,
        to_reserve=outcome.to_reserve,
        to_prove=outcome.to_prove,
        path=outcome.path,
        gate_reason=outcome.gate.reason,
        gate_recheck_in_s=outcome.gate.recheck_in_s,
        phase=phase,
        inactive_reason=state.gate.reason,
        is_status_changed=phase is not before.phase and not (before.is_inactive and state.gate.is_inactive),
        is_timed=outcome.inputs.advice.recheck_in_s is not None,
    )


class SteadyConclusions:
    """Caches conclusions by their inputs, for a revision without limits, further metrics, gauges or triggers."""

    __slots__ = ("_conclusions",)

    def __init__(self) -> None:
        self._conclusions: dict[Key, Conclusion] = {}

    def record(self, key: Key, conclusion: Conclusion) -> None:
        """Store a conclusion, unless it has a countdown and so cannot recur."""
        if conclusion.gate_reason in _TIMED_REASONS:
            return
        if len(self._conclusions) >= _CONCLUSIONS_MAX:
            self._conclusions.clear()
        self._conclusions[key] = conclusion

    def repeated(
        self, key: Key, *, gate: GateState, kpa: KpaState, now_s: float
    ) -> tuple[RevisionState, Conclusion] | None:
        """The next state and the stored conclusion; None if no earlier decision had these inputs."""
        conclusion = self._conclusions.get(key)
        if conclusion is None:
            return None
        if gate.phase is not conclusion.phase or gate.reason is not conclusion.inactive_reason:
            gate = GateState(
                since_s=now_s if conclusion.is_status_changed else gate.since_s,
                phase=conclusion.phase,
                reason=conclusion.inactive_reason,
                is_initialized=True,
            )
        return RevisionState(kpa=kpa, gate=gate, latest_count=conclusion.latest_count), conclusion


class SteadyLevel:
    """The loads in both windows, and the bounds within which the algorithm wants the same pods.

    Only for linear windows that are full, while pods report every second.
    """

    __slots__ = ("_number", "_panic", "_panic_max", "_stable", "_stable_max", "_stable_min", "_values", "is_left")

    def __init__(self, contents: WindowContents) -> None:
        self._values: deque[float] = deque(contents.stable.values, maxlen=len(contents.stable.values))
        # The load of a second is in the bucket of the next one.
        self._number = contents.stable.first + len(self._values) - 2
        self._stable, self._panic = sum(self._values), sum(contents.panic.values)
        self._stable_min, self._stable_max, self._panic_max = -math.inf, math.inf, math.inf
        self.is_left = True
        """Whether a sum has left the bounds since ``bound``."""

    def bound(self, detail: ScaleDecision, spec: ScalingSpec) -> None:
        """Set the bounds to those of a decision: no panic begins, and the count stays.

        Outside panic the stable load keeps its count. In panic, loads for fewer pods than now change nothing.
        """
        target, width_s, panic_s = spec.target_value, len(self._values), math.ceil(spec.panic_window_s)
        count, threshold = detail.desired_stable_count, spec.panic_threshold_ratio * max(1, detail.ready_count)
        panic_count = math.ceil(threshold) - 1
        self._stable_min = (count - 1) * target * width_s + _SUM_MARGIN
        if detail.panic_since_s is not None:
            count, self._stable_min = detail.panic_count_max, -math.inf
            panic_count = min(panic_count, count)
        self._stable_max = count * target * width_s - _SUM_MARGIN
        self._panic_max = panic_count * target * panic_s - _SUM_MARGIN
        self.is_left = not self._is_within

    def advance(self, number: int, panic_s: int) -> None:
        """Record no load for the seconds up to this one that were not recorded."""
        for _ in range(min(number - self._number, len(self._values))):
            self._append(0.0, panic_s)
        self._number = max(self._number, number)

    def record(self, number: int, load: float, panic_s: int) -> None:
        """Record the load of a second; the seconds since the last one had none."""
        if number - 1 > self._number:
            self.advance(number - 1, panic_s)
        self._number = number
        self._append(load, panic_s)

    def _append(self, load: float, panic_s: int) -> None:
        values = self._values
        self._stable += load - values[0]
        self._panic += load - values[-panic_s]
        values.append(load)
        self.is_left = self.is_left or not self._is_within

    @property
    def _is_within(self) -> bool:
        return self._stable_min < self._stable < self._stable_max and self._panic < self._panic_max


def key_of(  # noqa: PLR0913 - all that a conclusion depends on
    view: ScalerView,
    detail: ScaleDecision | NoData,
    advice: Advice,
    *,
    gate: GateState,
    is_busy: bool,
    spec: ScalingSpec,
    now_s: float,
) -> Key:
    """The inputs that determine a conclusion about an initialised revision."""
    desired, is_short = (
        (_NO_COUNT, False) if isinstance(detail, NoData) else (detail.desired_count, detail.excess_burst_capacity < 0)
    )
    proposals = advice.proposals
    counts = (
        None
        if proposals is None
        else tuple([_NO_COUNT if isinstance(proposal.desired, NoData) else proposal.desired for proposal in proposals])
    )
    # Without a public Service the activators have always been in the path.
    proxy_since_s = view.proxy_since_s if view.has_public else now_s - spec.scale_to_zero_grace_s
    # The clock decides only if no pod is wanted, or on the hand-off.
    is_wanted = desired > 0 if counts is None else max(counts, default=0) > 0
    clock = None
    if gate.is_inactive or not is_wanted:
        facts = GateInputs(
            desired=0,
            present_scale=1,
            ready_count=0,
            proved_at_s=view.proof_s,
            proxy_since_s=proxy_since_s,
            active_min_s=advice.active_min_s,
        )
        clock = clock_conditions(gate, facts=facts, spec=spec, now_s=now_s)
    return (
        view.present_scale,
        view.ready_count,
        view.serving_state,
        view.path,
        proxy_since_s is None,
        is_busy,
        desired,
        is_short,
        counts,
        advice.recheck_in_s is None,
        gate.phase,
        gate.reason,
        clock,
    )
