"""The status of a NodeGroup: a report of the last pass, and the state for the next one.

Input: the plan, the state, the cloud's group and failures; output: the status as JSON. The module also reads the state
back from a status. The state in the status survives a restart and a change of leader. Without it a new leader treats
starting nodes as requested just now.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, assert_never

import msgspec

from serving.core.model.errors import UNREADABLE, Problem
from serving.core.model.knative import CONDITION_READY, NODE_GROUP_STATE_ANNOTATION, ConditionStatus
from serving.core.model.objects import Object, annotations_of, condition_of, nested, with_transition_time
from serving.nodes.nodegroup.book import RoomExtremes
from serving.nodes.nodegroup.group_memory import BreakerPhase, BreakerState, NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import (
    DeleteNodes,
    Drain,
    Effect,
    GroupPlan,
    IncreaseSize,
    Taint,
    Untaint,
    Utilisation,
)
from serving.nodes.nodegroup.records import CloudGroup

ABLE_TO_SCALE, CLOUD_REACHABLE, HEALTHY, REGISTERED = "AbleToScale", "CloudReachable", "Healthy", "MachinesRegistered"
HAVE_ROOM, KEYS_KNOWN = "PodsHaveRoom", "KeysKnown"
# Most names in a status, so that the object of a large group stays small.
_NAMES_MAX = 50
_MESSAGE_MAX = 1024
_UNTAINTED = "untainted"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one condition. ``reason`` is one word in CamelCase."""

    is_true: bool
    reason: str = ""
    message: str = ""


def state_from(node_group: Mapping[str, Any] | None) -> NodeGroupState | None:
    """Read a group's state from the status of its NodeGroup; None if the state is missing or invalid.

    If the status has no state, lock and breaker are read from the annotation, which survives a restart of the store
    on a single machine.
    """
    written = nested(node_group, "status", "state")
    if not isinstance(written, Mapping):
        return _annotated_state(annotations_of(node_group).get(NODE_GROUP_STATE_ANNOTATION))
    taints = nested(node_group, "status", "state", "dry_taints") or {}
    plain = {name: None if at_s == _UNTAINTED else at_s for name, at_s in taints.items()}
    try:
        return msgspec.convert({**written, "dry_taints": plain}, type=NodeGroupState)
    except msgspec.ValidationError:
        return None


def _annotated_state(text: str | None) -> NodeGroupState | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=NodeGroupState)
    except UNREADABLE:
        return None


def annotation_text(state: NodeGroupState) -> str:
    """The lock and the breaker as text for the annotation; "" if neither is set."""
    state_fields: Object = {}
    if state.lock is not None:
        state_fields["lock"] = msgspec.to_builtins(state.lock)
    if state.breaker != BreakerState():
        state_fields["breaker"] = msgspec.to_builtins(state.breaker)
    return msgspec.json.encode(state_fields).decode() if state_fields else ""


def written_state(state: NodeGroupState) -> Object:
    """The state in the form of a status.

    An untaint of a dry run, which is None in the state, becomes "untainted", because a merge patch cannot write null.
    """
    written: Object = _without_null(msgspec.to_builtins(state))
    written["dry_taints"] = {name: _UNTAINTED if at_s is None else at_s for name, at_s in state.dry_taints.items()}
    return written


def recovered_state(cloud: CloudGroup, *, node_count: int, now_s: float) -> NodeGroupState:
    """The initial state of a group without a stored state. Starting machines count as requested just now.

    Example: with a target of 6 and 4 nodes, the group is locked for 2 nodes.
    """
    coming = cloud.target_size - node_count
    if coming <= 0:
        return NodeGroupState()
    return NodeGroupState(lock=ScaleLock(requested_count=coming, locked_at_s=now_s))


def status_of(  # noqa: PLR0913 - what a pass knows
    before: Mapping[str, Any] | None,
    *,
    plan: GroupPlan,
    state: NodeGroupState,
    cloud: CloudGroup,
    done: Sequence[str],
    problems: Sequence[str],
    stamp: str,
) -> Object:
    """The complete status. ``done`` describes successful effects, ``problems`` failed ones."""
    parts = plan.nodes
    node_count = len(parts.untainted) + len(parts.tainted) + len(parts.force_tainted) + len(parts.cordoned)
    status: Object = {
        "observedGeneration": nested(before, "metadata", "generation") or 0,
        "target": cloud.target_size,
        "minSize": cloud.min_size,
        "maxSize": cloud.max_size,
        "nodes": {
            "total": node_count,
            "untainted": len(parts.untainted),
            "tainted": len(parts.tainted),
            "forceTainted": len(parts.force_tainted),
            "cordoned": len(parts.cordoned),
            "coming": max(0, cloud.target_size - node_count),
        },
        "podCount": plan.pod_count,
        "anticipatedPodCount": plan.anticipated_count,
        "requested": {"cpu": f"{plan.request.cpu_m}m", "memory": str(plan.request.memory_bytes)},
        "capacity": {"cpu": f"{plan.capacity.cpu_m}m", "memory": str(plan.capacity.memory_bytes)},
        "lastPass": {
            "time": stamp,
            "rule": plan.decided_by.value,
            "delta": plan.requested_delta,
            "wanted": [{"rule": wanted.rule.value, "delta": wanted.delta} for wanted in plan.wanted],
            "limits": [limit.value for limit in plan.limits],
            "error": plan.error.value if plan.error else "",
            "withheld": [sentence_of(effect) for effect in plan.withheld][:_NAMES_MAX],
            "failed": list(problems)[:_NAMES_MAX],
        },
        "kept": [{"node": node.node_name, "reason": node.reason.value} for node in plan.kept_nodes[:_NAMES_MAX]],
        "lastAction": nested(before, "status", "lastAction") or {},
        "state": written_state(state),
        "conditions": _conditions(before, _verdicts(plan, state, problems), stamp=stamp),
    }
    status["utilization"] = (
        {"cpuPercent": round(plan.usage.cpu_percent, 2), "memoryPercent": round(plan.usage.memory_percent, 2)}
        if isinstance(plan.usage, Utilisation)
        else {}
    )
    if done:
        status["lastAction"] = {"time": stamp, "rule": plan.decided_by.value, "what": list(done)[:_NAMES_MAX]}
    return status


def refused_status(before: Mapping[str, Any] | None, condition: str, verdict: Verdict, *, stamp: str) -> Object:
    """The changes of the status if there was no pass: the settings are invalid, or the cloud does not respond."""
    verdicts = {condition: verdict}
    if condition != CONDITION_READY:
        verdicts[CONDITION_READY] = verdict
    return {
        "observedGeneration": nested(before, "metadata", "generation") or 0,
        "conditions": _conditions(before, verdicts, stamp=stamp),
    }


def keys_status(before: Mapping[str, Any] | None, ignored: Sequence[Problem], *, stamp: str) -> Object:
    """The changes of the status for keys without effect; none if there are no such keys and never were."""
    if not ignored and not condition_of(before, KEYS_KNOWN):
        return {}
    message = "; ".join(str(problem) for problem in ignored)[:_MESSAGE_MAX]
    verdict = Verdict(is_true=not ignored, reason="KeysIgnored" if ignored else "", message=message)
    return {"conditions": _conditions(before, {KEYS_KNOWN: verdict}, stamp=stamp)}


def sentence_of(effect: Effect) -> str:
    """A sentence for an effect: "taint node a", "ask the cloud for 2 nodes"."""
    match effect:
        case Taint():
            return f"taint node {effect.node_name}"
        case Untaint():
            return f"untaint node {effect.node_name}"
        case Drain():
            return f"drain node {effect.node_name}"
        case DeleteNodes():
            return f"delete {'node' if len(effect.node_names) == 1 else 'nodes'} {', '.join(effect.node_names)}"
        case IncreaseSize():
            return f"ask the cloud for {effect.count} {'node' if effect.count == 1 else 'nodes'}"
        case _:
            assert_never(effect)


def why_of(plan: GroupPlan) -> str:
    """The rule behind the effects, with its numbers: "taint-lower asks for -1; cpu 20 %, memory 6 % requested".

    If pods are anticipated, the text ends with their number: "...; 4 pods are anticipated".
    """
    request = f"{plan.decided_by.value} asks for {plan.requested_delta:+d}"
    count = plan.anticipated_count
    coming = f"; {count} {'pod is' if count == 1 else 'pods are'} anticipated" if count else ""
    match plan.usage:
        case Utilisation(cpu_percent=cpu, memory_percent=memory):
            return f"{request}; cpu {cpu:.0f} %, memory {memory:.0f} % requested{coming}"
        case None:
            return request
        case _:
            return f"{request}; pods wait and there is no node{coming}"


def _without_null(value: Object) -> Object:
    return {
        key: _without_null(field) if isinstance(field, dict) else field
        for key, field in value.items()
        if field is not None
    }


def _verdicts(plan: GroupPlan, state: NodeGroupState, problems: Sequence[str]) -> dict[str, Verdict]:
    able = Verdict(is_true=True)
    if state.breaker.phase is not BreakerPhase.CLOSED:
        failed = f"{state.breaker.failure_count} scale-ups in a row brought no node"
        able = Verdict(is_true=False, reason="BreakerOpen", message=failed)
    elif plan.error is not None:
        able = Verdict(is_true=False, reason="PassFailed", message=plan.error.value)
    healthy = Verdict(is_true=True)
    if not plan.is_healthy:
        message = "too many of the newest nodes are not ready: the group neither grows nor shrinks"
        healthy = Verdict(is_true=False, reason="NewNodesUnhealthy", message=message)
    ready = next((verdict for verdict in (able, healthy) if not verdict.is_true), Verdict(is_true=True))
    if ready.is_true and problems:
        ready = Verdict(is_true=True, reason="SomeEffectsFailed", message="; ".join(problems)[:_MESSAGE_MAX])
    return {
        CONDITION_READY: ready,
        CLOUD_REACHABLE: Verdict(is_true=True),
        ABLE_TO_SCALE: able,
        HEALTHY: healthy,
        REGISTERED: _registered(plan),
        HAVE_ROOM: _have_room(plan),
    }


def _registered(plan: GroupPlan) -> Verdict:
    """The condition about machines that never become nodes. They are kept, because only the cloud knows the cause."""
    count = plan.unregistered_count
    if not count:
        return Verdict(is_true=True)
    machines = "1 machine of the cloud is" if count == 1 else f"{count} machines of the cloud are"
    message = f"{machines} no node of this group: not registered in time, or without the group's label"
    return Verdict(is_true=False, reason="MachinesMissing", message=message)


def _have_room(plan: GroupPlan) -> Verdict:
    """The condition about pending pods that would have room if pods outside the group used none."""
    count = plan.crowded_out_count
    if not count:
        return Verdict(is_true=True)
    waiting = "1 pod waits" if count == 1 else f"{count} pods wait"
    message = f"{waiting} for room that DaemonSets or pods of other groups take; scaleOnStarve adds nodes for them"
    return Verdict(is_true=False, reason="RoomTaken", message=message)


def _conditions(before: Mapping[str, Any] | None, verdicts: Mapping[str, Verdict], *, stamp: str) -> list[Object]:
    """The conditions after ``verdicts``; others are unchanged. A change of status sets the transition time."""
    unchanged = [
        condition for condition in nested(before, "status", "conditions") or () if condition.get("type") not in verdicts
    ]
    judged: list[Object] = []
    for name, verdict in verdicts.items():
        status = ConditionStatus.TRUE if verdict.is_true else ConditionStatus.FALSE
        condition = {"type": name, "status": status.value, "reason": verdict.reason, "message": verdict.message}
        judged.append(with_transition_time(condition, condition_of(before, name), now=stamp))
    return sorted([*unchanged, *judged], key=lambda condition: str(condition.get("type")))


def gauges_of(plan: GroupPlan, state: NodeGroupState, cloud: CloudGroup) -> Mapping[str, float]:
    """Values by metric. When the group grows from zero, both percentages are 0, as in Escalator."""
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
    """Values by metric: the largest pending pods, and the nodes with the most room."""
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
    """Seconds from the last growth to the creation of each later node that is not ``known``."""
    asked_s = state.last_scale_up_at_s
    if asked_s is None:
        return []
    parts = plan.nodes
    nodes = (*parts.untainted, *parts.tainted, *parts.force_tainted, *parts.cordoned)
    return [node.created_at_s - asked_s for node in nodes if node.name not in known and node.created_at_s >= asked_s]
