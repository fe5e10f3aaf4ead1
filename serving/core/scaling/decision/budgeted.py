"""Limits a decision to the budgets over several revisions, and to the memory of the machine.

Input: the merged count and its parts. Output: the demand for ``core/scaling/budget.py`` and ``memoryshort.py``, the
count within their allowance, and a sentence about it.
"""

import math
from collections.abc import Callable

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.budget import Allowance, AllowanceReason, BudgetDemand
from serving.core.scaling.decision.policy import KEEP_ALIVE, PRE_WARMING
from serving.core.scaling.decision.records import Decided, InFlight
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import ScaleDecision
from serving.core.scaling.kpa.merge import MergeDecision, ScaleBound, bounded, most
from serving.core.scaling.spec import ScalingSpec

Limit = Callable[[BudgetDemand], Allowance | None]
"""Requests pods from a revision's budgets; None allows all wanted pods."""

_WHY = {
    AllowanceReason.SHARE: "all under it want {one.all_wanted}",
    AllowanceReason.ENDING: "pods of others are still ending",
    AllowanceReason.TURN: "more revisions have requests than it has pods, and this one waits for its turn",
    AllowanceReason.FLOORS: "min-scale of all under it is more than it has",
    AllowanceReason.TOO_LARGE: "one pod alone is larger",
    AllowanceReason.MEMORY: "{one.budget}",
}
# Longest wait before a memory shortage removes the last pod, in seconds, since the activators became the endpoints.
_SHORT_GRACE_S = 1.0
_SHORTAGES = (AllowanceReason.FLOORS, AllowanceReason.TOO_LARGE)
# Pods of these deciders wait for possible requests; their worth is the load in the windows.
_IDLE = (KEEP_ALIVE, PRE_WARMING)


def demand_of(
    merged: MergeDecision | NoData,
    decided: Decided,
    view: ScalerView,
    *,
    in_flight: InFlight,
    spec: ScalingSpec,
    is_initialized: bool,
) -> BudgetDemand:
    """The demand of a decision; without data, the present number of pods. A waking revision has one pod in use.

    The load is the larger of the windows' load and the load in flight. If a trigger or another decider wants more pods,
    the load is that of these pods at their targets.
    """
    detail, load, others = decided.detail, in_flight.load(spec.load_metric), None
    if isinstance(merged, NoData):
        bounds = bounded(view.present_scale, spec=spec, is_initialized=is_initialized)
    else:
        bounds = merged.bounds
        algorithm = decided.proposal.decider if isinstance(detail, ScaleDecision) else ""
        others = most(
            [
                proposal
                for proposal in merged.proposals
                if proposal.decider not in (algorithm, *_IDLE) and not proposal.is_content
            ]
        )
    is_busy, in_use = in_flight.present.concurrency > 0, math.ceil(load / spec.target_value)
    recent = detail.observed_panic if isinstance(detail, ScaleDecision) else 0.0
    if isinstance(detail, ScaleDecision):
        load = max(load, recent, detail.observed_stable)
    return BudgetDemand(
        wanted=bounds.count,
        floor=min(bounds.count_min, bounds.count),
        load=max(load / spec.target_value, float(others or 0)),
        has_load=recent > 0 or is_busy,
        in_use=max(in_use, int(is_busy or view.is_starting)),
        present=view.present_scale,
        ready=view.ready_count,
    )


def within(merged: MergeDecision | NoData, allowance: Allowance) -> MergeDecision | NoData:
    """Limit the merged count to the allowance."""
    if isinstance(merged, NoData) or merged.desired_count <= allowance.count:
        return merged
    bound = ScaleBound.MEMORY if allowance.reason is AllowanceReason.MEMORY else ScaleBound.BUDGET
    bounds = msgspec.structs.replace(merged.bounds, count=allowance.count, limited_by=bound)
    return msgspec.structs.replace(merged, desired_count=allowance.count, bounds=bounds)


def gated(spec: ScalingSpec, allowance: Allowance) -> ScalingSpec:
    """The spec for the gate to zero. If a memory shortage allows no pods, zero is enabled after a short grace."""
    if allowance.reason is not AllowanceReason.MEMORY or allowance.count:
        return spec
    return msgspec.structs.replace(
        spec,
        enable_scale_to_zero=True,
        scale_to_zero_grace_s=min(spec.scale_to_zero_grace_s, _SHORT_GRACE_S),
        scale_to_zero_pod_retention_s=0.0,
    )


def allowance_reason(allowance: Allowance) -> str:
    """Why a budget allows no more pods, as the end of a sentence: "all under it want 31".

    A share also names its price: "and with one more pod the most loaded would have 1.7 times its target".
    """
    price = ""
    if allowance.reason is AllowanceReason.SHARE and 0 < allowance.price < math.inf:
        price = f", and with one more pod the most loaded would have {allowance.price:.2g} times its target"
    return _WHY[allowance.reason].format(one=allowance) + price


def shortage_of(allowance: Allowance | None) -> str:
    """Why a budget is too small for the wanted pods; "" if it is large enough."""
    if allowance is None or allowance.reason not in _SHORTAGES:
        return ""
    return f"the budget of {allowance.budget} is too small: {_WHY[allowance.reason]}"
