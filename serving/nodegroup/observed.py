"""What a pass comes to in numbers: the gauges of one group, by the names of the metrics.

Input: the plan, the state and the cloud's group; output: values for ``serving.metrics.nodegroup``. Pure.
"""

from collections.abc import Collection, Mapping

from serving.nodegroup.book import RoomExtremes
from serving.nodegroup.breaker import BreakerPhase
from serving.nodegroup.memory import NodeGroupState
from serving.nodegroup.plan import GroupPlan
from serving.nodegroup.records import CloudGroup
from serving.nodegroup.utilisation import Utilisation


def gauges_of(plan: GroupPlan, state: NodeGroupState, cloud: CloudGroup) -> Mapping[str, float]:
    """Values by metric. From zero nodes the percentages are 0, as Escalator publishes them."""
    parts = plan.nodes
    node_count = len(parts.untainted) + len(parts.tainted) + len(parts.force_tainted) + len(parts.cordoned)
    usage = plan.usage if isinstance(plan.usage, Utilisation) else Utilisation(cpu_percent=0.0, memory_percent=0.0)
    group = {
        "nodes": node_count,
        "untainted_nodes": len(parts.untainted),
        "tainted_nodes": len(parts.tainted),
        "force_tainted_nodes": len(parts.force_tainted),
        "cordoned_nodes": len(parts.cordoned),
        "unhealthy_nodes": float(plan.is_healthy),
        "pods": plan.pod_count,
        "cpu_percent": usage.cpu_percent,
        "mem_percent": usage.memory_percent,
        "cpu_request": plan.request.cpu_m,
        "mem_request": plan.request.memory_bytes,
        "cpu_capacity": plan.capacity.cpu_m,
        "mem_capacity": plan.capacity.memory_bytes,
        "scale_lock": float(state.lock is not None),
        "scale_delta": plan.requested_delta,
    }
    bounds = {
        "min_size": cloud.min_size,
        "max_size": cloud.max_size,
        "target_size": cloud.target_size,
        "size": node_count,
    }
    return {
        **{f"escalator_node_group_{name}": value for name, value in group.items()},
        **{f"escalator_cloud_provider_{name}": value for name, value in bounds.items()},
        "serving_nodegroup_healthy": float(plan.is_healthy),
        "serving_nodegroup_breaker_open": float(state.breaker.phase is not BreakerPhase.CLOSED),
        "serving_nodegroup_nodes_coming": max(0, cloud.target_size - node_count),
        "serving_nodegroup_unregistered_machines": plan.unregistered_count,
        "serving_nodegroup_anticipated_pods": plan.anticipated_count,
    }


def room_gauges(room: RoomExtremes) -> Mapping[str, float]:
    """Values of the largest pods that wait and of the nodes with the most room."""
    gauges: dict[str, float] = {}
    for what, by_cpu, by_memory in (
        ("request_largest_pending", room.pending_cpu, room.pending_memory),
        ("capacity_largest_available", room.free_cpu, room.free_memory),
    ):
        for by, amount in (("cpu", by_cpu), ("mem", by_memory)):
            gauges[f"escalator_node_group_cpu_{what}_{by}"] = amount.cpu_m
            gauges[f"escalator_node_group_mem_{what}_{by}"] = amount.memory_bytes
    return gauges


def registration_lags(plan: GroupPlan, state: NodeGroupState, *, known: Collection[str]) -> list[float]:
    """Seconds from the last growth to the creation of each node that is not ``known`` and came after it."""
    asked_s = state.last_scale_up_at_s
    if asked_s is None:
        return []
    parts = plan.nodes
    nodes = (*parts.untainted, *parts.tainted, *parts.force_tainted, *parts.cordoned)
    return [one.created_at_s - asked_s for one in nodes if one.name not in known and one.created_at_s >= asked_s]
