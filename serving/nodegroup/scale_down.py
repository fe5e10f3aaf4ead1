"""How a group shrinks: the oldest nodes are tainted, never below a minimum.

Inputs: how many nodes should go, the untainted nodes and both minimums; output: names to taint and what stood in the
way. Nothing is deleted here: the reaper does that when the grace periods are over. Source: atlassian/escalator
043bb1b, pkg/controller/scale_down.go.
"""

import msgspec

from serving.nodegroup.plan import GroupLimit
from serving.nodegroup.records import CloudGroup
from serving.nodegroup.states import oldest_first
from serving.nodegroup.view import GroupView


class Shrinkage(msgspec.Struct, frozen=True, kw_only=True):
    """Names to taint, oldest first, and the bounds that took something away."""

    tainted: tuple[str, ...] = ()
    limits: tuple[GroupLimit, ...] = ()


def shrink(view: GroupView, wanted_count: int, cloud: CloudGroup) -> Shrinkage:
    """Taint the oldest untainted nodes.

    Of 2 untainted nodes with a minimum of 1, a wish for 5 taints 1. With a cloud target of 4 and a cloud minimum of 3
    it taints 1 too: more could not be deleted.
    """
    limits: list[GroupLimit] = []
    count = min(wanted_count, len(view.parts.untainted) - view.settings.min_nodes)
    if count < wanted_count:
        limits.append(GroupLimit.MIN_NODES)
    room = cloud.target_size - cloud.min_size
    is_bound = room >= 0 or not view.settings.quirks.taints_below_cloud_min
    if is_bound and count > room:
        count = room
        limits.append(GroupLimit.CLOUD_MIN)
    oldest = oldest_first(view.parts.untainted, last=view.failed)
    return Shrinkage(tainted=tuple(node.name for node in oldest[: max(0, count)]), limits=tuple(limits))
