"""Node group cases: atlassian/escalator 043bb1b, run with a cloud group that carries the AWS provider's size checks.

Kinds: percent_usage, scale_up_delta, nodes_to_add, pod_request, pod_membership, decision (one pass of the daemon over a
group: Nodes and Pods in the store, the memory cloud) and validate. The largest float stands for "from zero" in
percentages. A decision is compared by what it changes: the requested delta, whether there was an error (its text is
free), the cloud's target, the nodes deleted, the partition after the pass, the lock and the cached capacity; lists of
names as sets, because the original's order is the lister's. An error is compared only by whether there is one.
Percentages may differ by one part in 10^12: the original multiplies both sides of its division by 1000 first.
"""

import re
import sys
from typing import Any

from serving.core.model.errors import InvalidValue
from serving.core.model.quantity import Resources, parse_duration_s
from serving.core.settings.knob import fields_of
from serving.core.settings.nodegroup import ORIGINAL, NodeGroupSettings
from serving.core.settings.nodegroup_options import problems_of_node_group
from serving.nodes.nodegroup.facts import InitContainer, pod_request
from serving.nodes.nodegroup.group_memory import NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import DeleteNodes, FromZero, IncreaseSize, Taint, Untaint, Utilisation, utilisation
from serving.nodes.nodegroup.records import (
    Affinity,
    Amount,
    CloudGroup,
    Expression,
    GroupNode,
    GroupPod,
    Placement,
    PodPhase,
    RemovalTaint,
)
from serving.nodes.nodegroup.rules import from_zero_delta, nodes_to_add, scale_up_delta
from serving.nodes.nodegroup.states import as_in_dry_mode, partition, pod_belongs
from tests.conformance.compare import same
from tests.conformance.node_group_stage import staged_pass
from tests.unit.nodes.nodegroup.outcome import Snapshot, carried_out, decide

NOW_S = 1_700_000_000.0
LABEL_KEY, LABEL_VALUE = "customer", "shared"
FROM_ZERO = sys.float_info.max
RELATIVE = 1e-12
NAME_LISTS = ("untainted", "tainted", "force_tainted", "cordoned", "deleted", "k8s_deleted")
# The cases' short names for some options.
OPTION_KEYS = {
    "taint_lower": "taint_lower_capacity_threshold_percent",
    "taint_upper": "taint_upper_capacity_threshold_percent",
    "scale_up_threshold": "scale_up_threshold_percent",
    "slow_removal_rate": "slow_node_removal_rate",
    "fast_removal_rate": "fast_node_removal_rate",
}
KNOWN_OPTIONS = {field.knob.key for field in fields_of(NodeGroupSettings)} | {"aws"}
ZEROED = re.compile("zero|empty|blank|clear")
UNSET = "unset"
PHASES = {phase.value: phase for phase in PodPhase}


def expected(case: dict[str, Any]) -> object:
    expect = dict(case["expect"])
    if "error" in expect:
        expect["error"] = expect["error"] is not None
    expect.pop("upstream_messages", None)
    for key in NAME_LISTS:
        if key in expect:
            expect[key] = sorted(expect[key] or [])
    return expect


def result_of(case: dict[str, Any]) -> object:
    return RESULTS[case["kind"]](case["in"])


def agrees(expected_answer: object, value: object) -> bool:
    return same(expected_answer, value, relative=RELATIVE)


def percent_usage(entry: dict[str, Any]) -> object:
    usage = utilisation(
        Amount(cpu_m=entry["cpu_request_m"], memory_bytes=entry["mem_request_bytes"]),
        Amount(cpu_m=entry["cpu_capacity_m"], memory_bytes=entry["mem_capacity_bytes"]),
        untainted_count=entry["untainted_nodes"],
    )
    if isinstance(usage, FromZero):
        return {"cpu_percent": FROM_ZERO, "mem_percent": FROM_ZERO, "error": False}
    if isinstance(usage, Utilisation):
        return {"cpu_percent": usage.cpu_percent, "mem_percent": usage.memory_percent, "error": False}
    return {"cpu_percent": 0, "mem_percent": 0, "error": True}


def delta_of(entry: dict[str, Any]) -> object:
    threshold = entry["scale_up_threshold"]
    cpu_percent, memory_percent = entry["cpu_percent"], entry["mem_percent"]
    if FROM_ZERO in {cpu_percent, memory_percent}:
        delta = from_zero_delta(
            Amount(cpu_m=entry["cpu_request_m"], memory_bytes=entry["mem_request_bytes"]),
            node_capacity=Amount(cpu_m=entry["cached_cpu_m"], memory_bytes=entry["cached_mem_bytes"]),
            threshold_percent=threshold,
        )
    else:
        usage = Utilisation(cpu_percent=cpu_percent, memory_percent=memory_percent)
        delta = scale_up_delta(usage, node_count=entry["nodes"], threshold_percent=threshold)
    return {"delta": delta, "error": delta < 0}


def clamped(entry: dict[str, Any]) -> object:
    added = nodes_to_add(entry["nodes_to_add"], target_size=entry["target_size"], max_size=entry["cloud_max"])
    return {"result": added}


def request_of(entry: dict[str, Any]) -> object:
    overhead = entry.get("overhead")
    amount = pod_request(
        [resources(pair) for pair in entry.get("containers") or ()],
        [InitContainer(request=resources(pair)) for pair in entry.get("init_containers") or ()],
        overhead=resources(overhead) if overhead else None,
        sidecars_count_as_init_containers=True,
    )
    return {"cpu_m": amount.cpu_m, "mem_bytes": amount.memory_bytes}


def resources(pair: list[int]) -> Resources:
    cpu_m, memory_bytes = (None if value == -1 else value for value in pair)
    return Resources(cpu_m=cpu_m, memory_bytes=memory_bytes)


def membership(entry: dict[str, Any]) -> object:
    placement = Placement(
        node_selector=entry.get("node_selector") or {},
        affinity=affinity_of(entry),
        owner_kind=entry.get("owner"),
        is_static=bool(entry.get("static")),
    )
    return {
        "default_group": belongs(placement, "default"),
        "labelled_group_customer_shared": belongs(placement, "shared"),
    }


def belongs(placement: Placement, group_name: str) -> bool:
    return pod_belongs(placement, group_name=group_name, label_key=LABEL_KEY, label_value=LABEL_VALUE)


def affinity_of(entry: dict[str, Any]) -> Affinity | None:
    shape = entry.get("affinity_struct")
    term = entry.get("affinity")
    if term:
        operator = term.get("op") or term.get("operator")
        values = tuple(term.get("values") or ())
        expression = Expression(key=term["key"], operator=operator, values=values)
        return Affinity(required_node_terms=((expression,),))
    if shape is None:
        return None
    return Affinity(
        required_node_terms=() if shape == "nodeAffinity" else None,
        has_pod_affinity=shape == "podAffinity",
        has_pod_anti_affinity=shape == "podAntiAffinity",
    )


def decision(entry: dict[str, Any]) -> object:
    """One pass of the daemon over API objects and the memory cloud."""
    settings, before = settings_of(entry["options"]), state_of(entry)
    done = staged_pass(entry, settings, before, NOW_S)
    plan, state = done.group_pass.plan, done.group_pass.state
    group = settings.cloud_provider_group_name
    return {
        "delta": plan.requested_delta,
        "error": plan.error is not None,
        "cloud_target_after": done.cloud.groups[group].target_size,
        "cloud_increase": sum(count for _, count in done.cloud.increases),
        "deleted": sorted(name for _, names in done.cloud.deletions for name in names),
        "k8s_deleted": sorted(raw["name"] for raw in entry.get("nodes") or () if raw["name"] not in done.left),
        "untainted": sorted(node.name for node in done.parts.untainted),
        "tainted": sorted(node.name for node in done.parts.tainted),
        "force_tainted": sorted(node.name for node in done.parts.force_tainted),
        "cordoned": sorted(node.name for node in done.parts.cordoned),
        "is_locked": state.lock is not None,
        "locked_requested": state.lock.requested_count if state.lock else 0,
        "cached_cpu_m": state.node_capacity.cpu_m,
        "cached_mem_bytes": state.node_capacity.memory_bytes,
    }


def pure_decision(entry: dict[str, Any]) -> object:
    """The pure decision of the pass on the same case."""
    settings = settings_of(entry["options"])
    snapshot = Snapshot(
        nodes=tuple(node_of(raw) for raw in entry.get("nodes") or ()),
        pods=tuple(pod for raw in entry.get("pods") or () for pod in pods_of(raw)),
        cloud=CloudGroup(target_size=entry["cloud_target"], min_size=entry["cloud_min"], max_size=entry["cloud_max"]),
    )
    state, plan = decide(state_of(entry), snapshot, settings, now_s=NOW_S)
    changes = carried_out(snapshot, (effect for effect in plan.effects if isinstance(effect, Taint | Untaint)))
    nodes = changes.nodes
    if settings.dry_mode:
        nodes = tuple(as_in_dry_mode(node, state.dry_taints, ignore_real_state=True) for node in nodes)
    parts = partition(nodes)
    deleted = sorted(name for effect in plan.effects if isinstance(effect, DeleteNodes) for name in effect.node_names)
    return {
        "delta": plan.requested_delta,
        "error": plan.error is not None,
        "cloud_target_after": carried_out(snapshot, plan.effects).cloud.target_size,
        "cloud_increase": sum(effect.count for effect in plan.effects if isinstance(effect, IncreaseSize)),
        "deleted": deleted,
        "k8s_deleted": deleted,
        "untainted": sorted(node.name for node in parts.untainted),
        "tainted": sorted(node.name for node in parts.tainted),
        "force_tainted": sorted(node.name for node in parts.force_tainted),
        "cordoned": sorted(node.name for node in parts.cordoned),
        "is_locked": state.lock is not None,
        "locked_requested": state.lock.requested_count if state.lock else 0,
        "cached_cpu_m": state.node_capacity.cpu_m,
        "cached_mem_bytes": state.node_capacity.memory_bytes,
    }


def settings_of(options: dict[str, Any]) -> NodeGroupSettings:
    entry = {OPTION_KEYS.get(key, key): value for key, value in options.items()}
    return NodeGroupSettings(
        name="default",
        label_key=LABEL_KEY,
        label_value=LABEL_VALUE,
        cloud_provider_group_name="asg",
        min_nodes=entry.get("min_nodes", 0),
        max_nodes=entry.get("max_nodes", 0),
        taint_lower_capacity_threshold_percent=entry.get("taint_lower_capacity_threshold_percent", 0),
        taint_upper_capacity_threshold_percent=entry.get("taint_upper_capacity_threshold_percent", 0),
        scale_up_threshold_percent=entry.get("scale_up_threshold_percent", 0),
        slow_node_removal_rate=entry.get("slow_node_removal_rate", 0),
        fast_node_removal_rate=entry.get("fast_node_removal_rate", 0),
        soft_delete_grace_period_s=seconds(entry, "soft_delete_grace_period"),
        hard_delete_grace_period_s=seconds(entry, "hard_delete_grace_period"),
        scale_up_cool_down_period_s=seconds(entry, "scale_up_cool_down_period"),
        max_node_age_s=seconds(entry, "max_node_age"),
        unhealthy_node_grace_period_s=seconds(entry, "unhealthy_node_grace_period"),
        health_check_newest_nodes_percent=entry.get("health_check_newest_nodes_percent", 0),
        max_unhealthy_nodes_percent=entry.get("max_unhealthy_nodes_percent", 0),
        dry_mode=entry.get("dry_mode", False),
        scale_on_starve=entry.get("scale_on_starve", False),
        taint_effect=entry.get("taint_effect") or "NoSchedule",
        # Settings that Escalator does not have.
        drain_grace_period_s=0.0,
        scale_up_failure_threshold=0,
        quirks=ORIGINAL,
    )


def seconds(options: dict[str, Any], key: str) -> float:
    try:
        return parse_duration_s(options.get(key) or "0")
    except InvalidValue:
        return 0.0


def node_of(raw: dict[str, Any]) -> GroupNode:
    tainted_ago_s = raw.get("tainted_ago_s")
    return GroupNode(
        name=raw["name"],
        created_at_s=NOW_S - raw.get("age_s", 0),
        allocatable=Amount(cpu_m=raw["cpu_m"], memory_bytes=raw["mem_bytes"]),
        labels={LABEL_KEY: LABEL_VALUE},
        is_cordoned=bool(raw.get("cordoned")),
        is_force_tainted=bool(raw.get("force_tainted")),
        removal_taint=None if tainted_ago_s is None else RemovalTaint(at_s=NOW_S - tainted_ago_s),
        is_protected=bool(raw.get("no_delete")),
        is_ready=not raw.get("not_ready"),
    )


def pods_of(raw: dict[str, Any]) -> list[GroupPod]:
    pod = GroupPod(
        name="pod",
        request=Amount(cpu_m=raw["cpu_m"], memory_bytes=raw["mem_bytes"]),
        phase=PHASES.get(raw.get("phase", ""), PodPhase.UNKNOWN),
        node_name=raw.get("node") or None,
        is_scheduled=bool(raw.get("scheduled")),
        placement=Placement(
            owner_kind="DaemonSet" if raw.get("daemonset") else None, is_static=bool(raw.get("static"))
        ),
    )
    return [pod] * raw.get("count", 1)


def state_of(entry: dict[str, Any]) -> NodeGroupState:
    locked_ago_s = entry.get("locked_ago_s")
    lock = None
    if locked_ago_s is not None:
        lock = ScaleLock(requested_count=entry.get("locked_requested", 0), locked_at_s=NOW_S - locked_ago_s)
    capacity = Amount(cpu_m=entry.get("cached_cpu_m", 0), memory_bytes=entry.get("cached_mem_bytes", 0))
    return NodeGroupState(node_capacity=capacity, lock=lock)


def validate(entry: dict[str, Any]) -> object:
    override = entry.get("override") or {}
    # Every field at its zero value may be written out, or asked for by one flag; a field that is "unset" is not set at
    # all.
    is_zeroed = any(value and ZEROED.search(key) for key, value in {**entry, **override}.items())
    fields = {**(entry.get("base") or {}), **override}
    is_zeroed = is_zeroed or fields.pop("everything", None) == UNSET
    overridden = {} if is_zeroed else {key: value for key, value in fields.items() if value != UNSET}
    # The original's record cannot tell a zero value from a key that is not given.
    options = {OPTION_KEYS.get(key, key): value for key, value in overridden.items() if value}
    lifecycle = options.pop("aws_lifecycle", None) or options.pop("lifecycle", None)
    if lifecycle is not None:
        options["aws"] = {"lifecycle": lifecycle}
    # The original skips keys that it does not know.
    known = {key: value for key, value in options.items() if key in KNOWN_OPTIONS}
    problems = problems_of_node_group(known, where="case", quirks=ORIGINAL)
    return {"valid": not problems, "problem_count": len(problems)}


RESULTS = {
    "percent_usage": percent_usage,
    "scale_up_delta": delta_of,
    "nodes_to_add": clamped,
    "pod_request": request_of,
    "pod_membership": membership,
    "decision": decision,
    "validate": validate,
}
