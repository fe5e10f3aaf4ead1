"""Minimum and maximum of a revision's pods, and how many must be ready for it to be active.

Input: a count that some decider wants, the revision's numbers, and whether the revision was initialised (had its first
pods ready once). Output: the count within its bounds and the bound that changed it. It does not know where the count
comes from, nor whether 0 may be applied (zero). Follows knative/serving 98e5ef90, pkg/reconciler/autoscaling/kpa.
"""

import enum

import msgspec

from serving.scaling.spec import ScalingSpec


class ScaleBound(enum.StrEnum):
    """The bound that changed a count."""

    MIN_SCALE = "min-scale"
    INITIAL_SCALE = "initial-scale"
    MAX_SCALE = "max-scale"


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """A count within its bounds, and the bound that changed it, or None. ``count_max`` 0 means no maximum."""

    count: int
    limited_by: ScaleBound | None
    count_min: int
    count_max: int


def bounded(count: int, *, spec: ScalingSpec, is_initialized: bool) -> Bounded:
    """``count``, at least the minimum and, stronger, at most the maximum.

    The minimum is ``min_scale``; until the revision was initialised, ``initial_scale`` if that is larger. Neither holds
    for an unreachable revision. With min 2, initial 5 and max 4: 0 becomes 4 before and 2 after.
    """
    count_min, lower = _minimum(spec, is_initialized=is_initialized)
    kept, limited_by = count, None
    if kept < count_min:
        kept, limited_by = count_min, lower
    if 0 < spec.max_scale < kept:
        kept, limited_by = spec.max_scale, ScaleBound.MAX_SCALE
    return Bounded(
        count=kept,
        limited_by=None if kept == count else limited_by,
        count_min=count_min,
        count_max=spec.max_scale,
    )


def ready_count_min(spec: ScalingSpec, *, is_initialized: bool) -> int:
    """Pods that must be ready for the revision to be active: at least its minimum, and 1.

    Until it was initialised the initial scale takes the place of the 1, so that 0 is possible: such a revision is ready
    without ever having had a pod.
    """
    min_scale = spec.min_scale if spec.reachable else 0
    return max(min_scale, 1 if is_initialized else spec.initial_scale)


def _minimum(spec: ScalingSpec, *, is_initialized: bool) -> tuple[int, ScaleBound | None]:
    if not spec.reachable:
        return 0, None
    if not is_initialized and spec.initial_scale > max(spec.min_scale, 1):
        return spec.initial_scale, ScaleBound.INITIAL_SCALE
    return spec.min_scale, ScaleBound.MIN_SCALE
