"""How a group grows: nodes on their way out come back first, the cloud is asked for the rest.

Inputs: how many nodes are wanted and everything that bounds them; output: names to untaint, the number to ask the cloud
for, and what stood in the way. Source: atlassian/escalator 043bb1b, pkg/controller/scale_up.go.
"""

from collections.abc import Sequence

import msgspec

from serving.nodegroup.delta import nodes_to_add
from serving.nodegroup.plan import GroupLimit
from serving.nodegroup.states import newest_first
from serving.nodegroup.view import GroupView


class GrowthBound(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``count`` nodes may be asked for, because of ``limit``."""

    limit: GroupLimit
    count: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What growing comes to. ``limits`` are the bounds that took something away from what the cloud is asked for."""

    untainted: tuple[str, ...] = ()
    added_count: int = 0
    limits: tuple[GroupLimit, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether nodes are missing and the cloud is not asked for one."""
        return self.added_count == 0 and bool(self.limits)

    @property
    def count(self) -> int:
        """Nodes that the group wins."""
        return len(self.untainted) + self.added_count


def nodes_to_untaint(view: GroupView, wanted_count: int) -> tuple[str, ...]:
    """Names of the newest tainted nodes that may come back, at most as many as wanted. Sick ones stay tainted."""
    able = [node for node in view.parts.tainted if node.name not in view.unhealthy]
    room = wanted_count
    if not view.settings.quirks.scale_up_ignores_max_nodes:
        room = min(room, view.settings.max_nodes - len(view.parts.untainted))
    return tuple(node.name for node in newest_first(able, last=view.failed)[: max(0, room)])


def grow(
    view: GroupView,
    wanted_count: int,
    untainted: tuple[str, ...],
    *,
    target_size: int,
    more_bounds: Sequence[GrowthBound] = (),
) -> Growth:
    """Ask the cloud for what untainting leaves open, as far as every bound allows.

    With max_nodes 10, 6 untainted nodes, 2 that come back and 1 on its way, a wish for 5 asks the cloud for
    min(5 - 2, 10 - 6 - 2 - 1) = 1. ``target_size`` is the cloud's, after this pass's deletions.
    """
    remaining = wanted_count - len(untainted)
    if remaining <= 0:
        return Growth(untainted=untainted)
    cloud_room = nodes_to_add(remaining, target_size=target_size, max_size=view.cloud.max_size)
    bounds = [GrowthBound(limit=GroupLimit.CLOUD_MAX, count=cloud_room), *more_bounds]
    if not view.settings.quirks.scale_up_ignores_max_nodes:
        taken = len(view.parts.untainted) + len(untainted) + view.coming_count
        bounds.append(GrowthBound(limit=GroupLimit.MAX_NODES, count=view.settings.max_nodes - taken))
    added = max(0, min(remaining, *(bound.count for bound in bounds)))
    return Growth(
        untainted=untainted,
        added_count=added,
        limits=tuple(bound.limit for bound in bounds if bound.count < remaining),
    )
