"""Computes excess burst capacity, and decides whether the activator stays in the path.

Input: ready pods, the load in the panic window, the revision's numbers. Output: the excess burst capacity in requests,
and the path of traffic. The module changes no endpoint. Follows knative/serving 98e5ef90, pkg/autoscaler/scaling and
pkg/reconciler/autoscaling/kpa.
"""

import math

from serving.core.model.knative import TrafficPath
from serving.core.model.nodata import NoData
from serving.core.model.quantity import INT32_MAX
from serving.core.scaling.spec import ScalingSpec


def excess_burst_capacity(*, ready_count: int, observed_panic: float, spec: ScalingSpec) -> int:
    """Request capacity of the ready pods beyond the load and the target burst capacity.

    Example: 3 pods of 100, a load of 50 and a target burst capacity of 211 give 300 - 211 - 50 = 39, so the activator
    may leave the path. A negative result keeps the activator in the path. A target burst capacity of 0 always gives 0,
    and -1 always gives -1.
    """
    target = spec.target_burst_capacity
    if target <= 0:
        return int(target)
    excess = ready_count * spec.total_value - target - observed_panic
    # The status field is an int32; values are clamped, so that the sign stays right.
    return math.floor(min(max(excess, -INT32_MAX - 1), INT32_MAX))


def traffic_path(
    *,
    wanted_count: int | NoData,
    is_inactive: bool,
    excess: int,
    ready_count: int,
    ready_activator_count: int,
) -> TrafficPath:
    """The traffic path: to the pods if the excess burst capacity is sufficient, otherwise to the activators.

    ``wanted_count`` is the count after the gate to zero, ``NoData`` before the first decision. Without a ready pod and
    a ready activator the path leads to the activators, which queue requests once they run again.
    """
    if not ready_count:
        return TrafficPath.PROXY
    if not ready_activator_count:
        return TrafficPath.SERVE
    is_undecided = isinstance(wanted_count, NoData) and is_inactive
    return TrafficPath.PROXY if wanted_count == 0 or is_undecided or excess < 0 else TrafficPath.SERVE
