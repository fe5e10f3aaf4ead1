"""The bounds of a revision's pods, and the merge of the proposals of several deciders within them.

Input: one ``Proposal`` per decider (the current algorithm, the classic one, each trigger), the present scale, the
revision's numbers. Output: a ``MergeDecision`` with all proposals, the winning decider and the effective bounds;
``NoData`` if no decider has data. Knative has only one decider per revision.
"""

import enum
from collections.abc import Sequence

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.spec import ScalingSpec

ACTIVATOR_DECIDER = "activator"
"""The decider that wakes a revision."""

_NO_PROPOSAL = NoData(missing="no proposal of any decider")


class ScaleBound(enum.StrEnum):
    """The bound that changed a count: a scale of the revision, a budget for several revisions, or the memory."""

    MIN_SCALE = "min-scale"
    INITIAL_SCALE = "initial-scale"
    MAX_SCALE = "max-scale"
    BUDGET = "budget"
    """A budget over several revisions (``core/scaling/budget.py``)."""
    MEMORY = "memory"
    """The memory of the machine (``core/scaling/memoryshort.py``)."""


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """A count within its bounds, and the effective bound, if any. ``count_max`` 0 means no maximum."""

    count: int
    limited_by: ScaleBound | None
    count_min: int
    count_max: int


def bounded(count: int, *, spec: ScalingSpec, is_initialized: bool) -> Bounded:
    """Raise ``count`` to the minimum, then limit it to the maximum.

    The minimum is ``min_scale``, or ``initial_scale`` if that is larger and the revision is not initialised yet. An
    unreachable revision has no minimum. Example: with min 2, initial 5 and max 4, a count of 0 becomes 4 before the
    initialisation and 2 after it.
    """
    count_min, lower = _minimum(spec, is_initialized=is_initialized)
    limited, limited_by = count, None
    if limited < count_min:
        limited, limited_by = count_min, lower
    if 0 < spec.max_scale < limited:
        limited, limited_by = spec.max_scale, ScaleBound.MAX_SCALE
    return Bounded(
        count=limited,
        limited_by=None if limited == count else limited_by,
        count_min=count_min,
        count_max=spec.max_scale,
    )


def ready_count_min(spec: ScalingSpec, *, is_initialized: bool) -> int:
    """Pods that must be ready for an active revision: its minimum scale, and at least 1.

    Before the revision is initialised, the initial scale, which may be 0, replaces the 1.
    """
    min_scale = spec.min_scale if spec.reachable else 0
    return max(min_scale, 1 if is_initialized else spec.initial_scale)


def _minimum(spec: ScalingSpec, *, is_initialized: bool) -> tuple[int, ScaleBound | None]:
    if not spec.reachable:
        return 0, None
    if not is_initialized and spec.initial_scale > max(spec.min_scale, 1):
        return spec.initial_scale, ScaleBound.INITIAL_SCALE
    return spec.min_scale, ScaleBound.MIN_SCALE


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One decider's count of pods, or ``NoData``; ``reason`` is the rule that limited the count.

    ``is_content``: the decider wants no change, and its reason is reported only if its count is the largest.
    """

    decider: str
    desired: int | NoData
    reason: str

    is_content: bool = False


class MergeDecision(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The merged count of a revision, with the proposals behind it. ``silent`` are the deciders without data.

    ``desired_count`` is the count within the bounds, and ``bounds`` has the effective bound. ``decided_by`` is the
    decider with the largest count, the first one if several are equal; None if a decider is silent and the present
    scale is larger than all counts.
    """

    desired_count: int
    decided_by: str | None
    silent: tuple[str, ...]
    present_scale: int
    bounds: Bounded
    proposals: tuple[Proposal, ...]


def conclusion(merged: MergeDecision | NoData) -> tuple[object, ...]:
    """The parts by which decisions are compared: count, winning decider, deciders without data, and bound."""
    if isinstance(merged, NoData):
        return (merged,)
    return (merged.desired_count, merged.decided_by, merged.silent, merged.bounds.limited_by)


def most(proposals: Sequence[Proposal]) -> int | None:
    """The largest proposed count; None without data."""
    return max((proposal.desired for proposal in proposals if not isinstance(proposal.desired, NoData)), default=None)


def merge(
    proposals: Sequence[Proposal], *, present_scale: int, spec: ScalingSpec, is_initialized: bool
) -> MergeDecision | NoData:
    """The largest proposal within the bounds; ``NoData`` if no decider has data.

    Examples: load wants 3 and cpu 5 at a maximum of 4: the result is 4. Load wants 3 and cpu has no data: at a present
    scale of 10 the result is 10, at 2 it is 3.

    A decider without data counts as proposing the present scale. If it were ignored, the others could remove pods that
    are still needed: if request metrics are lost while cpu is low, ten pods would become one. So missing data prevents
    scaling down, but never scaling up, and requests no pod at scale 0. A HorizontalPodAutoscaler follows the same rule.
    If missing data decides, ``decided_by`` is None, and ``silent`` names the decider.
    """
    heard = [(proposal.desired, proposal) for proposal in proposals if not isinstance(proposal.desired, NoData)]
    if not heard:
        return _NO_PROPOSAL
    silent = tuple(proposal.decider for proposal in proposals if isinstance(proposal.desired, NoData))
    count, largest = max(heard, key=lambda pair: pair[0])
    is_kept = bool(silent) and present_scale > count
    bounds = bounded(present_scale if is_kept else count, spec=spec, is_initialized=is_initialized)
    return MergeDecision(
        desired_count=bounds.count,
        decided_by=None if is_kept else largest.decider,
        silent=silent,
        present_scale=present_scale,
        bounds=bounds,
        proposals=tuple(proposals),
    )
