"""The states of a node.

Input: nodes; output: the four parts of a group. The module also sorts nodes for selection: the oldest are removed
first. Source: atlassian/escalator 043bb1b, pkg/controller/controller.go and sort.go. Escalator leaves the order of
equally old nodes undefined; here the name decides.
"""

import enum
from collections.abc import Collection, Iterable, Mapping

import msgspec

from serving.nodes.nodegroup.records import Affinity, GroupNode, Placement, PodPhase, RemovalTaint

DEFAULT_GROUP = "default"
_DAEMON_SET = "DaemonSet"
_IN = "In"


class NodeState(enum.StrEnum):
    """The state of a node between serving pods and its deletion.

    An administrator cordons a node. The group taints a node that it will remove after a grace period. A force-tainted
    node is removed as soon as it is empty. An untainted node serves pods.
    """

    CORDONED = "cordoned"
    FORCE_TAINTED = "force-tainted"
    TAINTED = "tainted"
    UNTAINTED = "untainted"


def state_of(node: GroupNode) -> NodeState:
    """The state of a node: the first of the enumeration that applies.

    A cordoned node is CORDONED, whatever its taints: that is an administrator's decision, so this daemon does not
    change the node. A force-tainted node is never untainted, and is deleted once it is empty. A tainted node receives
    no new pods, and is untainted first when the group grows.
    """
    if node.is_cordoned:
        return NodeState.CORDONED
    if node.is_force_tainted:
        return NodeState.FORCE_TAINTED
    return NodeState.UNTAINTED if node.removal_taint is None else NodeState.TAINTED


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a group by state, each part in the order of the input."""

    untainted: tuple[GroupNode, ...] = ()
    tainted: tuple[GroupNode, ...] = ()
    force_tainted: tuple[GroupNode, ...] = ()
    cordoned: tuple[GroupNode, ...] = ()


def partition(nodes: Iterable[GroupNode]) -> Partition:
    """Put every node into exactly one part."""
    parts: dict[NodeState, list[GroupNode]] = {state: [] for state in NodeState}
    for node in nodes:
        parts[state_of(node)].append(node)
    return Partition(
        untainted=tuple(parts[NodeState.UNTAINTED]),
        tainted=tuple(parts[NodeState.TAINTED]),
        force_tainted=tuple(parts[NodeState.FORCE_TAINTED]),
        cordoned=tuple(parts[NodeState.CORDONED]),
    )


def oldest_first(nodes: Iterable[GroupNode], *, last: Collection[str] = ()) -> list[GroupNode]:
    """Sort by creation time, then by name; nodes in ``last`` come at the end."""
    return sorted(nodes, key=lambda node: (node.name in last, node.created_at_s, node.name))


def newest_first(nodes: Iterable[GroupNode], *, last: Collection[str] = ()) -> list[GroupNode]:
    """Sort by creation time, newest first, then by name; nodes in ``last`` come at the end."""
    return sorted(nodes, key=lambda node: (node.name in last, -node.created_at_s, node.name))


def as_in_dry_mode(node: GroupNode, taints: Mapping[str, float | None], *, ignore_real_state: bool) -> GroupNode:
    """The node as if the plans of a dry run had been executed.

    ``taints`` are the planned changes: the time of a taint, or None for an untaint. ``ignore_real_state`` is a quirk of
    Escalator: in dry mode only planned taints count, and no node is cordoned.
    """
    bare = msgspec.structs.replace(node, is_cordoned=False, is_force_tainted=False, removal_taint=None)
    seen = bare if ignore_real_state else node
    if node.name not in taints:
        return seen
    at_s = taints[node.name]
    return msgspec.structs.replace(seen, removal_taint=None if at_s is None else RemovalTaint(at_s=at_s))


def node_belongs(labels: Mapping[str, str], *, label_key: str, label_value: str) -> bool:
    """Whether a node has the group's label."""
    return labels.get(label_key) == label_value


def pod_belongs(placement: Placement, *, group_name: str, label_key: str, label_value: str) -> bool:
    """Whether a pod counts for the group.

    Example: the group's label is customer=shared. A pod belongs to the group if its node selector has customer: shared,
    or if a required node affinity term has customer In (shared, dev). The affinity term counts even if the selector has
    another value. Other operators and preferred terms do not count. Pods of DaemonSets belong to no group.
    """
    if placement.owner_kind == _DAEMON_SET:
        return False
    if group_name == DEFAULT_GROUP:
        return not placement.is_static and not placement.node_selector and _is_unconstrained(placement.affinity)
    return placement.node_selector.get(label_key) == label_value or _affinity_names(
        placement.affinity, label_key=label_key, label_value=label_value
    )


def holds_a_node(placement: Placement) -> bool:
    """Whether a pod would be lost with its node: it is neither a DaemonSet's nor static."""
    return placement.owner_kind != _DAEMON_SET and not placement.is_static


def is_finished(phase: PodPhase) -> bool:
    """Whether a pod has ended; it then requests nothing and keeps no node."""
    return phase in {PodPhase.SUCCEEDED, PodPhase.FAILED}


def _is_unconstrained(affinity: Affinity | None) -> bool:
    return affinity is None or (
        affinity.required_node_terms is None and not affinity.has_pod_affinity and not affinity.has_pod_anti_affinity
    )


def _affinity_names(affinity: Affinity | None, *, label_key: str, label_value: str) -> bool:
    terms = affinity.required_node_terms if affinity else None
    return any(
        expression.key == label_key and expression.operator == _IN and label_value in expression.values
        for term in terms or ()
        for expression in term
    )
