"""Finds when a decision can change although no request arrives.

Input: the last outcome, the state and the windows of a revision, and the times of later decisions. The algorithm itself
decides on the windows of a silent revision, so that a decision that is skipped would have had the same outcome.
"""

import math
from collections.abc import Sequence

from serving.core.model.knative import TargetMode
from serving.core.model.nodata import NoData
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.decision.step import RevisionState
from serving.core.scaling.kpa.decide import ScaleDecision, decide
from serving.core.scaling.kpa.zero import GatePhase, GateReason
from serving.core.scaling.scaler.windows import RevisionWindows
from serving.core.settings.autoscaler import CLASSIC_CLASS

# In these cases the gate depends on the algorithm's count and its announced time only.
_TIMED_REASONS = frozenset(
    {
        GateReason.PODS_WANTED,
        GateReason.ZERO_DISABLED,
        GateReason.ACTIVE_TOO_SHORT,
        GateReason.POD_RETENTION,
        GateReason.GRACE,
    }
)


def is_steady(outcome: ScalerOutcome, *, scale: int) -> bool:
    """Whether only a request, the content of the windows, or an announced time can change an outcome at this scale.

    False under the classic algorithm, whose points expire, and with a latency goal, further metrics, a scale-down
    delay, or a target that the use of pods may move. Also false if the scale is changing.
    """
    view, spec = outcome.view, outcome.inputs.spec
    if (
        not view.present_scale == view.ready_count == scale
        or view.is_starting
        or outcome.apply_count is not None
        or outcome.path is not view.path
        or outcome.inputs.allowance is not None
        or outcome.inputs.proposals
        or outcome.present.concurrency
        or spec.class_name == CLASSIC_CLASS
        or spec.slo is not None
        or spec.further_metrics
    ):
        return False
    if not scale:
        return outcome.phase is GatePhase.INACTIVE and not outcome.decided.desired_count
    return (
        isinstance(outcome.decided.detail, ScaleDecision)
        and outcome.gate.reason in _TIMED_REASONS
        and not spec.load_metric.gauge
        and not spec.scale_down_delay_s
        and spec.target_mode in {TargetMode.OFF, TargetMode.SHADOW}
    )


def change_by_clock_s(outcome: ScalerOutcome) -> float:
    """When an outcome must be decided again because time has passed (its ``recheck_in_s``); infinite if never."""
    return math.inf if outcome.recheck_in_s is None else outcome.at_s + outcome.recheck_in_s


def change_in_silence_s(
    outcome: ScalerOutcome, state: RevisionState, windows: RevisionWindows, *, times: Sequence[float]
) -> float:
    """The first of ``times`` at which the algorithm decides otherwise if no second until then has a load.

    If it does not decide otherwise, the last of ``times``: so also for an algorithm without data.
    """
    detail, at_s = outcome.decided.detail, outcome.at_s
    if state.kpa is None or not isinstance(detail, ScaleDecision):
        return times[-1]
    for at_s, observed in zip(times, windows.in_silence(times), strict=True):
        _, later = decide(
            state.kpa,
            observed=observed,
            ready_count=outcome.view.ready_count,
            spec=outcome.inputs.spec,
            now_s=at_s,
            quirks=outcome.inputs.quirks,
        )
        if isinstance(later, NoData) or _conclusion(later) != _conclusion(detail):
            break
    return at_s


def _conclusion(decision: ScaleDecision) -> tuple[int, bool, bool]:
    return decision.desired_count, decision.excess_burst_capacity < 0, decision.is_over_panic_threshold
