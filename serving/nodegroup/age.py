"""Whether a group at its minimum should be renewed because a node is too old.

A group that never grows never replaces its nodes. One node more than needed, and the next pass with low use taints
the oldest. Input: the untainted nodes; output: yes or no. Source: atlassian/escalator 043bb1b,
pkg/controller/controller.go.
"""

from collections.abc import Sequence

from serving.nodegroup.records import GroupNode
from serving.settings.nodegroup import NodeGroupSettings


def renewal_is_due(
    untainted: Sequence[GroupNode], *, tainted_count: int, settings: NodeGroupSettings, now_s: float
) -> bool:
    """Whether one node should be added to let an old one go.

    Only at exactly the minimum, which must not be 0, and while no node is on its way out. A node is too old beyond the
    maximum age, not at it. A maximum age of 0 or less is none.
    """
    age_max_s = settings.max_node_age_s
    if age_max_s <= 0 or settings.min_nodes == 0 or tainted_count or len(untainted) != settings.min_nodes:
        return False
    return any(now_s - node.created_at_s > age_max_s for node in untainted)
