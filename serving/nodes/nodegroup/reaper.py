"""Selects nodes to delete now and nodes to drain first, among those marked for removal.

Inputs: the nodes marked for removal, their pods, both grace periods and the cloud's minimum. Output: names to drain,
names to delete, and the reason for every node that stays. The reaper never selects a cordoned node, or one that is not
marked. Source: atlassian/escalator 043bb1b, pkg/controller/scale_down.go; draining is ours.
"""

from collections.abc import Sequence

import msgspec

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.plan import PostponedRemoval, RetentionReason
from serving.nodes.nodegroup.records import CloudGroup, GroupNode
from serving.nodes.nodegroup.view import GroupView


class Reaped(msgspec.Struct, frozen=True, kw_only=True):
    """The tainted nodes to delete, drain or keep. ``is_refused``: the cloud's minimum prevented some deletions."""

    deleted: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    kept_nodes: tuple[PostponedRemoval, ...] = ()
    is_refused: bool = False


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one node: delete it (``keep`` is None) or keep it, and whether to evict its pods."""

    keep: RetentionReason | None = None
    drain: bool = False


def fate_of_tainted(node: GroupNode, view: GroupView) -> Fate:
    """Decide about one tainted node. A node that is protected, or whose taint has no time, is kept."""
    if node.is_protected:
        return Fate(keep=RetentionReason.PROTECTED)
    if node.removal_taint is None or node.removal_taint.at_s is None:
        return Fate(keep=RetentionReason.NO_TIMESTAMP)
    age_s = view.now_s - node.removal_taint.at_s
    return _fate_by_age(age_s, is_empty=view.is_empty(node), settings=view.settings)


def _fate_by_age(age_s: float, *, is_empty: bool, settings: NodeGroupSettings) -> Fate:
    """Decide about a tainted node by the seconds since its taint, and by the grace periods.

    Example: the soft grace is 60 s, the hard grace 600 s, and the drain grace 300 s. An empty node is deleted after 60
    s. A node with pods is drained after 600 s, and deleted with its remaining pods after 900 s. At exactly these times
    the node is still kept.
    """
    if age_s <= settings.soft_delete_grace_period_s:
        return Fate(keep=RetentionReason.SOFT_GRACE)
    if is_empty:
        return Fate()
    if age_s <= settings.hard_delete_grace_period_s:
        return Fate(keep=RetentionReason.HARD_GRACE)
    if age_s <= settings.hard_delete_grace_period_s + settings.drain_grace_period_s:
        return Fate(keep=RetentionReason.DRAINING, drain=True)
    return Fate()


def reap_tainted(nodes: Sequence[GroupNode], view: GroupView, cloud: CloudGroup, *, keep_healthy: bool) -> Reaped:
    """Delete and drain tainted nodes. If ``keep_healthy``, the group is unhealthy, and only unhealthy nodes may go."""
    fates: list[tuple[GroupNode, Fate]] = []
    for node in nodes:
        is_spared = keep_healthy and node.name not in view.unhealthy
        fates.append((node, Fate(keep=RetentionReason.HEALTHY) if is_spared else fate_of_tainted(node, view)))
    return _within_cloud_min(fates, view, cloud)


def reap_force_tainted(view: GroupView, cloud: CloudGroup) -> Reaped:
    """Delete the empty force-tainted nodes, without any grace period."""
    fates: list[tuple[GroupNode, Fate]] = []
    for node in view.parts.force_tainted:
        if node.is_protected and not view.settings.quirks.force_taint_overrides_no_delete:
            fate = Fate(keep=RetentionReason.PROTECTED)
        else:
            fate = Fate() if view.is_empty(node) else Fate(keep=RetentionReason.PODS)
        fates.append((node, fate))
    return _within_cloud_min(fates, view, cloud)


def _within_cloud_min(fates: Sequence[tuple[GroupNode, Fate]], view: GroupView, cloud: CloudGroup) -> Reaped:
    """As many deletions as the cloud's minimum allows: with a target of 5 and a minimum of 3, two.

    The limit applies to drains, too: a node that cannot be deleted is not drained.
    """
    due = [node for node, fate in fates if fate.keep is None]
    draining = [node for node, fate in fates if fate.drain]
    room = max(0, cloud.target_size - cloud.min_size)
    if view.settings.quirks.deletes_all_or_none:
        going = due if len(due) <= room else []
    else:
        going = _most_dispensable_first(due, view)[:room]
    drained = _most_dispensable_first(draining, view)[: room - len(going)]
    going_names, drained_names = ({node.name for node in nodes} for nodes in (going, drained))
    retained: list[PostponedRemoval] = []
    for node, fate in fates:
        if node.name in going_names:
            continue
        is_drain_refused = fate.drain and node.name not in drained_names
        reason = RetentionReason.CLOUD_MIN if fate.keep is None or is_drain_refused else fate.keep
        retained.append(PostponedRemoval(node_name=node.name, reason=reason))
    return Reaped(
        deleted=tuple(node.name for node in going),
        drained=tuple(node.name for node in drained),
        kept_nodes=tuple(retained),
        is_refused=len(going) < len(due) or len(drained) < len(draining),
    )


def _most_dispensable_first(nodes: Sequence[GroupNode], view: GroupView) -> list[GroupNode]:
    """Sort the nodes: those without recent failures, then empty ones, then by time of the taint, then by name."""
    return sorted(
        nodes,
        key=lambda node: (
            node.name in view.failed,
            not view.is_empty(node),
            node.removal_taint.at_s if node.removal_taint and node.removal_taint.at_s is not None else 0.0,
            node.name,
        ),
    )
