"""Whether nodes, and a group as a whole, are healthy.

Inputs: the nodes and a grace period for new ones; output: the names of unhealthy nodes, and whether the newest share of
the group is well enough to go on scaling. A group whose new nodes do not come up should neither grow nor shrink: the
fault is elsewhere. Source: atlassian/escalator 043bb1b, pkg/controller/controller.go.
"""

import math
from collections.abc import Iterable, Sequence

from serving.nodegroup.records import GroupNode
from serving.nodegroup.states import newest_first
from serving.settings.nodegroup import NodeGroupSettings


def is_old_enough(node: GroupNode, *, grace_s: float, now_s: float) -> bool:
    """Whether a node's health counts yet: from exactly the grace period on."""
    return now_s - node.created_at_s >= grace_s


def is_unhealthy(node: GroupNode, *, grace_s: float, now_s: float) -> bool:
    """Whether a node should be ready by now and is not. A cordoned node is under maintenance and never unhealthy."""
    return not node.is_cordoned and not node.is_ready and is_old_enough(node, grace_s=grace_s, now_s=now_s)


def unhealthy_names(nodes: Iterable[GroupNode], *, settings: NodeGroupSettings, now_s: float) -> frozenset[str]:
    """Names of the unhealthy nodes; none while health checks are off (grace period 0)."""
    grace_s = settings.unhealthy_node_grace_period_s
    if grace_s == 0:
        return frozenset()
    return frozenset(node.name for node in nodes if is_unhealthy(node, grace_s=grace_s, now_s=now_s))


def group_is_healthy(nodes: Sequence[GroupNode], *, settings: NodeGroupSettings, now_s: float) -> bool:
    """Whether at most the allowed percentage of the newest nodes is unhealthy.

    Of 10 nodes that are old enough the newest 25 % are ceil(2.5) = 3; with 1 of them unhealthy that is 33 %, cut off,
    which is healthy up to a maximum of 33. With no node old enough there is nothing to complain of.
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
