"""Excess burst capacity and its effect: whether the activator stays in the path.

Input: ready pods, the load in the panic window, the revision's numbers. Output: requests that could arrive at once
beyond those asked for; the path of traffic. It changes no endpoint. Follows
knative/serving 98e5ef90, pkg/autoscaler/scaling and pkg/reconciler/autoscaling/kpa.
"""

import enum
import math

import msgspec

from serving.model.knative import TrafficPath
from serving.model.nodata import NoData
from serving.scaling.spec import ScalingSpec

# The status field is an int32; what would not fit is held at its ends, so that its sign stays right.
_INT32_MIN = -(2**31)
_INT32_MAX = 2**31 - 1


def excess_burst_capacity(*, ready_count: int, observed_panic: float, spec: ScalingSpec) -> int:
    """Capacity of the ready pods beyond the load and the target burst capacity.

    3 pods of 100 with a load of 50 and a target burst capacity of 211: 300 - 211 - 50 = 39, so the activator may leave
    the path; below 0 it stays. A target burst capacity of 0 always gives 0, one of -1 always -1.
    """
    target = spec.target_burst_capacity
    if target <= 0:
        return int(target)
    excess = ready_count * spec.total_value - target - observed_panic
    return math.floor(min(max(excess, _INT32_MIN), _INT32_MAX))


class PathRule(enum.StrEnum):
    """The rule behind the path of traffic."""

    ZERO_WANTED = "zero wanted"
    INACTIVE_AND_UNDECIDED = "inactive and undecided"
    EXCESS_BELOW_ZERO = "excess burst capacity below zero"
    EXCESS_SUFFICES = "excess burst capacity suffices"
    NO_READY_POD = "no ready pod"
    NO_READY_ACTIVATOR = "no ready activator"


class PathDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted path, the possible one, and the rule for the latter."""

    wanted: TrafficPath
    path: TrafficPath
    rule: PathRule


def traffic_path(
    *,
    wanted_count: int | NoData,
    is_inactive: bool,
    excess: int,
    ready_count: int,
    ready_activator_count: int,
) -> PathDecision:
    """The pods are the endpoints if there is enough excess; otherwise the activators are.

    ``wanted_count`` is the count of the gate, ``NoData`` before the first decision. With neither pod nor activator the
    path leads to the activators, which hold requests once they return.
    """
    rule = _path_rule(wanted_count, is_inactive=is_inactive, excess=excess)
    wanted = TrafficPath.SERVE if rule is PathRule.EXCESS_SUFFICES else TrafficPath.PROXY
    if not ready_count:
        if wanted is TrafficPath.SERVE:
            rule = PathRule.NO_READY_POD
        return PathDecision(wanted=wanted, path=TrafficPath.PROXY, rule=rule)
    if not ready_activator_count:
        if wanted is TrafficPath.PROXY:
            rule = PathRule.NO_READY_ACTIVATOR
        return PathDecision(wanted=wanted, path=TrafficPath.SERVE, rule=rule)
    return PathDecision(wanted=wanted, path=wanted, rule=rule)


def _path_rule(wanted_count: int | NoData, *, is_inactive: bool, excess: int) -> PathRule:
    if wanted_count == 0:
        return PathRule.ZERO_WANTED
    if isinstance(wanted_count, NoData) and is_inactive:
        return PathRule.INACTIVE_AND_UNDECIDED
    return PathRule.EXCESS_BELOW_ZERO if excess < 0 else PathRule.EXCESS_SUFFICES
