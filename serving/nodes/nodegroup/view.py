"""The input of a pass: the group's nodes and pods, sorted and summed.

Input: the snapshot, the state and the settings; output: one record for all rules. The module also selects the unhealthy
nodes to taint, because tainting changes the capacity. Source: atlassian/escalator 043bb1b,
pkg/controller/controller.go.
"""

import enum
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.records import (
    Amount,
    CloudGroup,
    GroupFacts,
    GroupNode,
    GroupPod,
    OthersUsage,
    PodPhase,
    RemovalTaint,
)
from serving.nodes.nodegroup.states import (
    Partition,
    as_in_dry_mode,
    holds_a_node,
    is_finished,
    newest_first,
    oldest_first,
    partition,
    pod_belongs,
)


def is_old_enough(node: GroupNode, *, grace_s: float, now_s: float) -> bool:
    """Whether a node's health counts: the node is at least as old as the grace period."""
    return now_s - node.created_at_s >= grace_s


def is_unhealthy(node: GroupNode, *, grace_s: float, now_s: float) -> bool:
    """Whether a node should be ready by now but is not. A cordoned node is under maintenance and counts as healthy."""
    return not node.is_cordoned and not node.is_ready and is_old_enough(node, grace_s=grace_s, now_s=now_s)


def unhealthy_names(nodes: Iterable[GroupNode], *, settings: NodeGroupSettings, now_s: float) -> frozenset[str]:
    """Names of the unhealthy nodes; none while health checks are off (grace period 0)."""
    grace_s = settings.unhealthy_node_grace_period_s
    if grace_s == 0:
        return frozenset()
    return frozenset(node.name for node in nodes if is_unhealthy(node, grace_s=grace_s, now_s=now_s))


def group_is_healthy(nodes: Sequence[GroupNode], *, settings: NodeGroupSettings, now_s: float) -> bool:
    """Whether at most the allowed percentage of the newest nodes is unhealthy.

    Example: of 10 nodes that are old enough, the newest 25 % are ceil(2.5) = 3. If 1 of them is unhealthy, that is 33 %
    (truncated), which a maximum of 33 allows. A group without nodes that are old enough is healthy.
    """
    grace_s = settings.unhealthy_node_grace_period_s
    if grace_s == 0:
        return True
    examined = newest_first(node for node in nodes if is_old_enough(node, grace_s=grace_s, now_s=now_s))
    # In this order of operations: 7 percent of 100 are 7.000000000000001 in floats, so 8 nodes.
    tested = examined[: math.ceil(settings.health_check_newest_nodes_percent / 100 * len(examined))]
    if not tested:
        return True
    unhealthy_count = sum(is_unhealthy(node, grace_s=grace_s, now_s=now_s) for node in tested)
    return unhealthy_count * 100 // len(tested) <= settings.max_unhealthy_nodes_percent


class PodRole(enum.Enum):
    """The role of a pod for a group. An OWN pod counts for the group's size.

    A FOREIGN pod does not count; it only prevents the deletion of its node.
    """

    OWN = "own"
    FOREIGN = "foreign"


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """One group at one time.

    ``nodes`` and ``pods`` are the group's. ``parts`` are its nodes by state; nodes in ``unhealthy_tainted`` are already
    among the tainted ones. ``pod_counts`` has, for each node, the number of pods that make it not empty. ``failed`` are
    the nodes on which effects of the last plan failed. ``anticipated_count`` of the pods do not exist yet. ``request``
    is the sum over all pods, ``capacity`` the sum over the untainted nodes. ``others_taken`` are the amounts that pods
    outside the group use on each node.
    """

    settings: NodeGroupSettings
    cloud: CloudGroup
    nodes: tuple[GroupNode, ...]
    pods: Collection[GroupPod]
    parts: Partition
    pod_counts: Mapping[str, int]
    failed: frozenset[str]
    unhealthy: frozenset[str]
    unhealthy_tainted: tuple[str, ...]
    is_healthy: bool
    request: Amount
    anticipated_count: int
    others_taken: Mapping[str, OthersUsage]
    capacity: Amount
    now_s: float

    @property
    def coming_count(self) -> int:
        """Machines in the cloud's target that have no node yet."""
        return max(0, self.cloud.target_size - len(self.nodes))

    def is_empty(self, node: GroupNode) -> bool:
        """Whether no pod would be lost with the node."""
        return self.pod_counts.get(node.name, 0) == 0


def with_cloud_bounds(settings: NodeGroupSettings, cloud: CloudGroup) -> NodeGroupSettings:
    """The settings; if they have no bounds, with the bounds of the cloud's group."""
    if not settings.takes_cloud_bounds:
        return settings
    return msgspec.structs.replace(settings, min_nodes=cloud.min_size, max_nodes=cloud.max_size)


def as_counted(pod: GroupPod, settings: NodeGroupSettings) -> GroupPod:
    """The pod with the request that the group's quirks select."""
    if pod.original_request is None or not settings.quirks.sidecars_count_as_init_containers:
        return pod
    return msgspec.structs.replace(pod, request=pod.original_request)


def pod_role(pod: GroupPod, settings: NodeGroupSettings) -> PodRole | None:
    """The role of a pod for a group: it counts, it only prevents the deletion of its node, or None."""
    if is_finished(pod.phase) or (pod.is_anticipated and not settings.anticipation):
        return None
    if pod_belongs(
        pod.placement,
        group_name=settings.name,
        label_key=settings.label_key,
        label_value=settings.label_value,
    ):
        return PodRole.OWN
    protects = holds_a_node(pod.placement) and not settings.quirks.foreign_pods_do_not_protect
    return PodRole.FOREIGN if protects else None


def takes_room(pod: GroupPod) -> bool:
    """Whether the pod uses room on its node: it is bound, scheduled, and has not ended."""
    return pod.node_name is not None and pod.is_scheduled and pod.phase in {PodPhase.PENDING, PodPhase.RUNNING}


def others_usage(pod: GroupPod, settings: NodeGroupSettings) -> OthersUsage | None:
    """The amounts that a pod outside the group uses on its node; None for any other pod."""
    if settings.quirks.starve_ignores_other_pods or not takes_room(pod):
        return None
    request = as_counted(pod, settings).request
    return OthersUsage(foreign=request) if holds_a_node(pod.placement) else OthersUsage(daemons=request)


def view_of(state: NodeGroupState, facts: GroupFacts, settings: NodeGroupSettings, *, now_s: float) -> GroupView:
    """The view for a pass: unhealthy nodes tainted, nodes sorted by state, and sums."""
    group = facts.nodes
    unhealthy = unhealthy_names(group, settings=settings, now_s=now_s)
    is_healthy = group_is_healthy(group, settings=settings, now_s=now_s)
    nodes = [_as_seen(node, state, settings) for node in group] if settings.dry_mode else list(group)
    tainted = _to_taint_as_unhealthy(nodes, unhealthy, is_healthy=is_healthy, settings=settings)
    if tainted:
        taint = RemovalTaint(at_s=int(now_s))
        nodes = [msgspec.structs.replace(node, removal_taint=taint) if node.name in tainted else node for node in nodes]
    parts = partition(nodes)
    return GroupView(
        settings=settings,
        cloud=facts.cloud,
        nodes=tuple(nodes),
        pods=facts.pods,
        parts=parts,
        pod_counts=facts.pod_counts,
        failed=facts.failures.node_names,
        unhealthy=unhealthy,
        unhealthy_tainted=tainted,
        is_healthy=is_healthy,
        request=facts.request,
        anticipated_count=facts.anticipated_count,
        others_taken=facts.others_taken,
        capacity=Amount(
            cpu_m=sum(node.allocatable.cpu_m for node in parts.untainted),
            memory_bytes=sum(node.allocatable.memory_bytes for node in parts.untainted),
        ),
        now_s=now_s,
    )


def node_capacity(state: NodeGroupState, view: GroupView) -> Amount:
    """Capacity of a node of the group, for growth from zero; without a node, the last known one.

    Of untainted nodes with 4000 m and 2000 m the smaller one counts, because the next node may be of either size. A
    wrong guess then brings a node too many, which is tainted again, and not one too few, for which pods would wait a
    cool-down. A node without a reported capacity does not count.
    """
    if view.settings.quirks.capacity_cached_from_first_node:
        return view.nodes[0].allocatable if view.nodes else state.node_capacity
    for nodes in (view.parts.untainted, view.nodes):
        known = [node.allocatable for node in nodes if node.allocatable.cpu_m and node.allocatable.memory_bytes]
        if known:
            return Amount(
                cpu_m=min(amount.cpu_m for amount in known),
                memory_bytes=min(amount.memory_bytes for amount in known),
            )
    return state.node_capacity


def _as_seen(node: GroupNode, state: NodeGroupState, settings: NodeGroupSettings) -> GroupNode:
    ignore = settings.quirks.dry_mode_ignores_real_state
    return as_in_dry_mode(node, state.dry_taints, ignore_real_state=ignore)


def _to_taint_as_unhealthy(
    nodes: Sequence[GroupNode], unhealthy: frozenset[str], *, is_healthy: bool, settings: NodeGroupSettings
) -> tuple[str, ...]:
    """Names of the unhealthy nodes to taint now, oldest first.

    Their number is limited by the fast removal rate and by the nodes above the minimum. Example: with 10 nodes, 4 of
    them unhealthy, a minimum of 8 and a rate of 3: min(4, 3, 10 - 8) = 2. At the minimum, a rule first adds a healthy
    node. Only a group of fixed size, which cannot grow, may go one node below the minimum.
    """
    untainted = partition(nodes).untainted
    sick = [node.name for node in oldest_first(untainted) if node.name in unhealthy]
    if settings.quirks.unhealthy_tainted_without_limit:
        return tuple(sick)
    if not is_healthy:
        return ()
    spare_count = len(untainted) - settings.min_nodes
    if settings.min_nodes == settings.max_nodes and spare_count == 0:
        spare_count = 1
    # A removal rate of 0 keeps idle nodes; an unhealthy node is removed anyway.
    count_max = min(max(1, settings.fast_node_removal_rate), spare_count)
    return tuple(sick[: max(0, count_max)])
