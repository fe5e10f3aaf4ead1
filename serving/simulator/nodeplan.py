"""What simulated nodes are like: how many, how large, how long they boot, and the group that grows and shrinks them."""

import msgspec

from serving.nodegroup.records import Amount
from serving.settings.nodegroup import NodeGroupSettings


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes are like. Amounts are of each node and of each pod; ``policy`` names a set of node scores."""

    count: int
    count_max: int
    node: Amount
    pod: Amount
    boot_s: float
    scan_interval_s: float
    policy: str
    group: NodeGroupSettings
