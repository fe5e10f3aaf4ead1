"""Small groups for tests: nodes of 4000 m and 16 GiB, labelled customer=shared, in a group named shared."""

from typing import Any

import msgspec

from serving.core.settings.nodegroup import NodeGroupQuirks, NodeGroupSettings
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.plan import GroupPlan
from serving.nodes.nodegroup.records import (
    Amount,
    CloudGroup,
    Failures,
    GroupNode,
    GroupPod,
    Placement,
    PodPhase,
    RemovalTaint,
)
from serving.nodes.nodegroup.view import GroupView, view_of
from tests.unit.nodes.nodegroup.outcome import Snapshot, decide, gathered

NOW_S = 1_000_000.0
GIB = 2**30
NODE_AMOUNT = Amount(cpu_m=4000, memory_bytes=16 * GIB)
LABELS = {"customer": "shared"}
PLACED = Placement(node_selector=LABELS)

SETTINGS = NodeGroupSettings(
    name="shared",
    label_key="customer",
    label_value="shared",
    cloud_provider_group_name="asg",
    taint_lower_capacity_threshold_percent=10,
    taint_upper_capacity_threshold_percent=40,
    scale_up_threshold_percent=70,
    slow_node_removal_rate=2,
    fast_node_removal_rate=5,
    soft_delete_grace_period_s=60.0,
    hard_delete_grace_period_s=600.0,
    scale_up_cool_down_period_s=120.0,
    min_nodes=1,
    max_nodes=30,
)


def settings(**changes: object) -> NodeGroupSettings:
    return msgspec.structs.replace(SETTINGS, **changes)


def quirky(*names: str, **changes: object) -> NodeGroupSettings:
    return settings(quirks=NodeGroupQuirks(**dict.fromkeys(names, True)), **changes)


def node(number: int, *, age_s: float = 7200.0, tainted_ago_s: float | None = None, **changes: object) -> GroupNode:
    """Node n000, n001 ...: among nodes of equal age, the lower number is the older."""
    fields: dict[str, Any] = {
        "name": f"n{number:03}",
        "created_at_s": NOW_S - age_s + number,
        "allocatable": NODE_AMOUNT,
        "labels": LABELS,
        "removal_taint": None if tainted_ago_s is None else RemovalTaint(at_s=NOW_S - tainted_ago_s),
    }
    fields.update(changes)
    return GroupNode(**fields)


def nodes(count: int, *, first: int = 0, **changes: object) -> tuple[GroupNode, ...]:
    return tuple(msgspec.structs.replace(node(number), **changes) for number in range(first, first + count))


def pod(cpu_m: int = 1000, *, on: GroupNode | None = None, memory_bytes: int = GIB, **changes: object) -> GroupPod:
    """A running pod on a node, or a pending one."""
    fields: dict[str, Any] = {
        "name": "pod",
        "request": Amount(cpu_m=cpu_m, memory_bytes=memory_bytes),
        "phase": PodPhase.RUNNING if on else PodPhase.PENDING,
        "node_name": on.name if on else None,
        "is_scheduled": on is not None,
        "placement": PLACED,
    }
    fields.update(changes)
    return GroupPod(**fields)


def snapshot(
    group: tuple[GroupNode, ...],
    pods: tuple[GroupPod, ...] = (),
    *,
    target: int | None = None,
    cloud: tuple[int, int] = (0, 30),
    failures: Failures | None = None,
) -> Snapshot:
    """A snapshot whose cloud target size is the number of nodes by default."""
    size = len(group) if target is None else target
    return Snapshot(
        nodes=group,
        pods=pods,
        cloud=CloudGroup(target_size=size, min_size=cloud[0], max_size=cloud[1]),
        failures=failures or Failures(),
    )


def view(
    seen: Snapshot, node_group_settings: NodeGroupSettings = SETTINGS, state: NodeGroupState | None = None
) -> GroupView:
    return view_of(state or NodeGroupState(), gathered(seen, node_group_settings), node_group_settings, now_s=NOW_S)


def decided(
    seen: Snapshot,
    node_group_settings: NodeGroupSettings = SETTINGS,
    state: NodeGroupState | None = None,
    *,
    now_s: float = NOW_S,
) -> tuple[NodeGroupState, GroupPlan]:
    return decide(state or NodeGroupState(), seen, node_group_settings, now_s=now_s)


def load(percent: float, group: tuple[GroupNode, ...]) -> tuple[GroupPod, ...]:
    """One pod per node, so that all untainted nodes together have this utilisation of cpu."""
    untainted = [
        group_node
        for group_node in group
        if group_node.removal_taint is None and not group_node.is_cordoned and not group_node.is_force_tainted
    ]
    return tuple(pod(round(percent * 40), on=group_node, memory_bytes=1) for group_node in untainted)
