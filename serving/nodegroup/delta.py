"""Computes by how many nodes a group should change, from its utilisation.

Input: the utilisation and the thresholds; output: a signed number of nodes and the threshold that gave it. It knows no
bounds, no lock and no cloud. Source: atlassian/escalator 043bb1b, pkg/controller/util.go, docs/calculations.md.
"""

import math

from serving.nodegroup.plan import FromZero, GroupRule, Utilisation, WantedNodes
from serving.nodegroup.records import Amount
from serving.settings.nodegroup import NodeGroupSettings


def scale_up_delta(usage: Utilisation, *, node_count: int, threshold_percent: int) -> int:
    """Nodes to add so that the utilisation falls to the threshold: ceil(n x (percent - threshold) / threshold).

    2 nodes at 250 % with a threshold of 70 %: 2 x 180 / 70 = 5.14, so 6; 8 nodes are then at 62.5 %. Rounded up, or the
    threshold would not be reached. The resource that needs more decides. Negative more than a node's worth below the
    threshold, where ``threshold_delta`` never asks.
    """
    return max(
        math.ceil(node_count * ((percent - threshold_percent) / threshold_percent))
        for percent in (usage.cpu_percent, usage.memory_percent)
    )


def nodes_to_keep(usage: Utilisation, *, node_count: int, threshold_percent: int) -> int:
    """Fewest nodes that are not above the scale-up threshold: ceil(n x percent / threshold).

    2 nodes at 36 % with a threshold of 70 %: 2 x 36 / 70 = 1.03, so 2. With one node less the group would be at 72 %
    and grow again in the next pass, and so on for ever.
    """
    return math.ceil(node_count * usage.percent / threshold_percent)


def from_zero_delta(request: Amount, *, node_capacity: Amount, threshold_percent: int) -> int:
    """Nodes to add to an empty group: ceil(request / capacity of a node / threshold x 100).

    1800 m asked, nodes of 1000 m, threshold 70 %: 1.8 / 0.7 = 2.57, so 3. Where the capacity of a node is not known yet
    (0), the first node will tell: 1.
    """
    if node_capacity.cpu_m == 0 or node_capacity.memory_bytes == 0:
        return 1
    return max(
        math.ceil(request.cpu_m / node_capacity.cpu_m / threshold_percent * 100),
        math.ceil(request.memory_bytes / node_capacity.memory_bytes / threshold_percent * 100),
    )


def nodes_to_add(asked: int, *, target_size: int, max_size: int) -> int:
    """The requested nodes, limited by the cloud's maximum: 6 on top of 5 with a maximum of 10 are 5."""
    return min(asked, max_size - target_size)


def threshold_delta(
    usage: Utilisation | FromZero,
    *,
    request: Amount,
    node_count: int,
    node_capacity: Amount,
    settings: NodeGroupSettings,
) -> WantedNodes:
    """The change by the thresholds. A utilisation equal to a threshold has not crossed it."""
    threshold = settings.scale_up_threshold_percent
    if isinstance(usage, FromZero):
        delta = from_zero_delta(request, node_capacity=node_capacity, threshold_percent=threshold)
        return WantedNodes(rule=GroupRule.FROM_ZERO, delta=delta)
    if usage.percent < settings.taint_lower_capacity_threshold_percent:
        return WantedNodes(
            rule=GroupRule.TAINT_LOWER,
            delta=-_spare_count(settings.fast_node_removal_rate, usage, node_count, settings=settings),
        )
    if usage.percent < settings.taint_upper_capacity_threshold_percent:
        return WantedNodes(
            rule=GroupRule.TAINT_UPPER,
            delta=-_spare_count(settings.slow_node_removal_rate, usage, node_count, settings=settings),
        )
    if usage.percent > threshold:
        delta = scale_up_delta(usage, node_count=node_count, threshold_percent=threshold)
        assert delta >= 0, "above the threshold nothing can be negative"
        return WantedNodes(rule=GroupRule.SCALE_UP, delta=delta)
    return WantedNodes(rule=GroupRule.STEADY, delta=0)


def _spare_count(rate: int, usage: Utilisation, node_count: int, *, settings: NodeGroupSettings) -> int:
    """The nodes to remove at the given rate, except those without which the group would grow again."""
    if settings.quirks.shrinking_crosses_scale_up_threshold:
        return rate
    threshold = settings.scale_up_threshold_percent
    return min(rate, node_count - nodes_to_keep(usage, node_count=node_count, threshold_percent=threshold))
