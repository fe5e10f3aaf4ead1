"""The status of a NodeGroup, and the state in it."""

from typing import Any

import msgspec
import pytest

from serving.core.model.errors import Problem
from serving.core.model.knative import NODE_GROUP_STATE_ANNOTATION
from serving.core.model.objects import condition_of
from serving.net.metrics.names import NODEGROUP_METRICS
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.group_memory import BreakerPhase, BreakerState, NodeGroupState, ScaleLock
from serving.nodes.nodegroup.plan import (
    DeleteNodes,
    Drain,
    Effect,
    FromZero,
    GroupPlan,
    GroupRule,
    IncreaseSize,
    PassError,
    Taint,
    Untaint,
    Utilisation,
)
from serving.nodes.nodegroup.records import Amount, CloudGroup
from serving.nodes.nodegroup.status import (
    CLOUD_REACHABLE,
    KEYS_KNOWN,
    Verdict,
    annotation_text,
    gauges_of,
    keys_status,
    recovered_state,
    refused_status,
    registration_lags,
    room_gauges,
    sentence_of,
    state_from,
    status_of,
    why_of,
    written_state,
)
from tests.unit.nodes.nodegroup.builders import NOW_S, decided, node, nodes, pod, settings, snapshot

CLOUD = CloudGroup(target_size=6, min_size=0, max_size=10)
STATE = NodeGroupState(
    node_capacity=Amount(cpu_m=1, memory_bytes=2),
    lock=ScaleLock(requested_count=2, locked_at_s=NOW_S),
    breaker=BreakerState(phase=BreakerPhase.OPEN, failure_count=3, node_count_low=2),
    dry_taints={"a": 7.0, "b": None},
)


def new_status(plan: GroupPlan, state: NodeGroupState = STATE, before: object = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    values = {"done": (), "problems": (), "stamp": "now", **more}
    return status_of(before, plan=plan, state=state, cloud=CLOUD, **values)  # type: ignore[arg-type]


def new_plan(**fields: Any) -> GroupPlan:  # noqa: ANN401
    return GroupPlan(**{"requested_delta": 0, "decided_by": GroupRule.STEADY, **fields})


def ready(status: dict[str, Any]) -> tuple[str, str]:
    condition = condition_of({"status": status}, "Ready")
    return condition["status"], condition["reason"]


def test_state_round_trips_through_status() -> None:
    written = written_state(STATE)
    assert None not in written.values()
    assert state_from({"status": {"state": written}}) == STATE
    assert state_from({"status": {"state": written_state(NodeGroupState())}}) == NodeGroupState()


@pytest.mark.parametrize("resource", [None, {}, {"status": {"state": 1}}, {"status": {"state": {"lock": 1}}}])
def test_unreadable_state_is_none(resource: dict[str, Any] | None) -> None:
    assert state_from(resource) is None


def test_recovered_state_locks_group_if_machines_are_coming() -> None:
    lock = ScaleLock(requested_count=2, locked_at_s=NOW_S)
    assert recovered_state(CLOUD, node_count=4, now_s=NOW_S) == NodeGroupState(lock=lock)
    assert recovered_state(CLOUD, node_count=6, now_s=NOW_S) == NodeGroupState()


def test_status_has_node_counts_and_utilization() -> None:
    group = nodes(4)
    _, plan = decided(snapshot(group, tuple(pod(1000, on=group[0]) for _ in range(8))))
    status = new_status(plan)
    assert status["nodes"] == {"total": 4, "untainted": 4, "tainted": 0, "forceTainted": 0, "cordoned": 0, "coming": 2}
    assert status["utilization"] == {"cpuPercent": 50.0, "memoryPercent": 12.5}
    assert (status["requested"]["cpu"], status["capacity"]["cpu"], status["podCount"]) == ("8000m", "16000m", 8)


def test_status_from_zero_has_no_utilization() -> None:
    assert new_status(new_plan(usage=FromZero()))["utilization"] == {}


def test_last_action_is_retained_until_the_next() -> None:
    first = new_status(new_plan(), done=["taint node a"])
    assert first["lastAction"] == {"time": "now", "rule": "steady", "what": ["taint node a"]}
    assert new_status(new_plan(), before={"status": first}, stamp="later")["lastAction"]["time"] == "now"


def test_ready_condition_has_reason_why_group_does_not_scale() -> None:
    calm = NodeGroupState()
    assert ready(new_status(new_plan(), calm)) == ("True", "")
    assert ready(new_status(new_plan(), STATE)) == ("False", "BreakerOpen")
    assert ready(new_status(new_plan(error=PassError.BELOW_MIN), calm)) == ("False", "PassFailed")
    assert ready(new_status(new_plan(is_healthy=False), calm)) == ("False", "NewNodesUnhealthy")
    assert ready(new_status(new_plan(), calm, problems=["taint node a: no"])) == ("True", "SomeEffectsFailed")


def test_transition_time_changes_only_with_condition_status() -> None:
    calm = NodeGroupState()
    before = {"status": new_status(new_plan(), calm)}
    assert (
        condition_of({"status": new_status(new_plan(), calm, before, stamp="later")}, "Ready")["lastTransitionTime"]
        == "now"
    )
    assert (
        condition_of({"status": new_status(new_plan(), STATE, before, stamp="later")}, "Ready")["lastTransitionTime"]
        == "later"
    )


def test_failed_pass_preserves_other_conditions() -> None:
    before = {"metadata": {"generation": 3}, "status": new_status(new_plan(), NodeGroupState())}
    verdict = Verdict(is_true=False, reason="CloudUnavailable", message="away")
    status = refused_status(before, CLOUD_REACHABLE, verdict, stamp="later")
    assert status["observedGeneration"] == 3
    assert {condition["type"]: condition["status"] for condition in status["conditions"]} == {
        "AbleToScale": "True",
        "CloudReachable": "False",
        "Healthy": "True",
        "MachinesRegistered": "True",
        "PodsHaveRoom": "True",
        "Ready": "False",
    }
    alone = refused_status(None, "Ready", verdict, stamp="now")
    assert [condition["type"] for condition in alone["conditions"]] == ["Ready"]


@pytest.mark.parametrize(
    ("effect", "sentence"),
    [
        (Taint(node_name="a", at_s=1, effect="NoSchedule"), "taint node a"),
        (Untaint(node_name="a"), "untaint node a"),
        (Drain(node_name="a"), "drain node a"),
        (DeleteNodes(node_names=("a",)), "delete node a"),
        (DeleteNodes(node_names=("a", "b")), "delete nodes a, b"),
        (IncreaseSize(count=1), "ask the cloud for 1 node"),
        (IncreaseSize(count=2), "ask the cloud for 2 nodes"),
    ],
)
def test_effect_is_described_in_a_sentence(effect: Effect, sentence: str) -> None:
    assert sentence_of(effect) == sentence


def test_lock_and_breaker_round_trip_through_annotation() -> None:
    text = annotation_text(STATE)
    state = state_from({"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: text}}})
    assert state == NodeGroupState(lock=STATE.lock, breaker=STATE.breaker)
    assert annotation_text(NodeGroupState()) == ""
    assert state_from({"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: "{"}}}) is None
    assert state_from({"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: '{"lock":1}'}}}) is None


def test_condition_reports_number_of_missing_machines() -> None:
    condition = condition_of(
        {"status": new_status(new_plan(unregistered_count=1), NodeGroupState())}, "MachinesRegistered"
    )
    assert (condition["status"], condition["reason"]) == ("False", "MachinesMissing")
    assert condition["message"].startswith("1 machine of the cloud is no node of this group")


def test_ignored_keys_are_reported_in_condition_until_removed() -> None:
    assert keys_status({}, (), stamp="now") == {}
    problem = Problem(where="g: colour", what="no such option, ignored", expected="one of name")
    status = keys_status({}, (problem,), stamp="now")
    condition = condition_of({"status": status}, KEYS_KNOWN)
    assert (condition["status"], condition["reason"]) == ("False", "KeysIgnored")
    assert "g: colour" in condition["message"]
    condition = condition_of({"status": keys_status({"status": status}, (), stamp="now")}, KEYS_KNOWN)
    assert (condition["status"], condition["message"]) == ("True", "")


@pytest.mark.parametrize(("count", "words"), [(1, "1 pod waits for room"), (2, "2 pods wait for room")])
def test_condition_reports_number_of_crowded_out_pods(count: int, words: str) -> None:
    condition = condition_of(
        {"status": new_status(new_plan(crowded_out_count=count), NodeGroupState())}, "PodsHaveRoom"
    )
    assert (condition["status"], condition["reason"]) == ("False", "RoomTaken")
    assert condition["message"].startswith(words)


def test_why_text_has_rule_usage_and_anticipated_pods() -> None:
    full = Utilisation(cpu_percent=85.4, memory_percent=10.0)
    assert why_of(new_plan(usage=full)) == "steady asks for +0; cpu 85 %, memory 10 % requested"
    plan = new_plan(usage=full, requested_delta=2, anticipated_count=4)
    assert why_of(plan) == "steady asks for +2; cpu 85 %, memory 10 % requested; 4 pods are anticipated"
    assert why_of(new_plan(usage=FromZero(), anticipated_count=1)).endswith("there is no node; 1 pod is anticipated")
    assert why_of(new_plan()) == "steady asks for +0"


def test_gauges_of_a_pass_are_declared_metrics() -> None:
    group = nodes(4)
    state, plan = decided(snapshot(group, tuple(pod(1000, on=group[0]) for _ in range(8))))
    values = gauges_of(plan, state, CLOUD)
    assert values.keys() <= {metric_spec.name for metric_spec in NODEGROUP_METRICS}
    assert (values["escalator_node_group_cpu_percent"], values["serving_nodegroup_nodes_coming"]) == (50.0, 2)
    assert (values["escalator_node_group_unhealthy_nodes"], values["serving_nodegroup_healthy"]) == (1.0, 1.0)


def test_gauge_percentages_from_zero_are_0() -> None:
    plan = GroupPlan(requested_delta=1, decided_by=GroupRule.FROM_ZERO, usage=FromZero())
    assert gauges_of(plan, NodeGroupState(), CLOUD)["escalator_node_group_mem_percent"] == 0.0


def test_room_gauges_have_largest_pending_pods_and_largest_free_node() -> None:
    book = NodeGroupBook()
    book.set_groups([settings(anticipation=True)])
    for group_node in (node(0), node(1), node(2, tainted_ago_s=5.0)):
        book.set_node(group_node)
    book.set_pod(pod(1000, on=node(0), name="a", memory_bytes=9))
    for name, cpu_m, memory_bytes in (("b", 300, 7), ("c", 200, 8)):
        book.set_pod(pod(cpu_m, name=name, memory_bytes=memory_bytes))
    # An anticipated pod does not exist yet, and is not pending.
    book.set_pod(pod(900, name="d", is_anticipated=True))
    values = room_gauges(book.extremes("shared"))
    assert values.keys() <= {metric_spec.name for metric_spec in NODEGROUP_METRICS}
    prefix = "escalator_node_group"
    pending = {key: value for key, value in values.items() if "pending" in key}
    assert pending == {
        f"{prefix}_cpu_request_largest_pending_cpu": 300,
        f"{prefix}_mem_request_largest_pending_cpu": 7,
        f"{prefix}_cpu_request_largest_pending_mem": 200,
        f"{prefix}_mem_request_largest_pending_mem": 8,
    }
    # The tainted node accepts no pods; n000 has 3000 m free, n001 4000 m.
    assert values[f"{prefix}_cpu_capacity_largest_available_cpu"] == 4000
    for name in "abcd":
        book.drop_pod(name)
    book.drop_node("n001")
    values = room_gauges(book.extremes("shared"))
    assert values[f"{prefix}_cpu_request_largest_pending_cpu"] == 0
    assert values[f"{prefix}_cpu_capacity_largest_available_cpu"] == 4000


def test_registration_lag_is_measured_for_new_nodes_only() -> None:
    group = (*nodes(2), node(2, age_s=30.0), node(3, age_s=30.0))
    state, plan = decided(snapshot(group))
    node_group_state = msgspec.structs.replace(state, last_scale_up_at_s=NOW_S - 100.0)
    # Created 28 and 27 s ago: 72 and 73 s after they were requested.
    assert registration_lags(plan, node_group_state, known={"n000"}) == [72.0, 73.0]
    assert registration_lags(plan, node_group_state, known={"n000", "n002"}) == [73.0]
    assert registration_lags(plan, msgspec.structs.replace(state, last_scale_up_at_s=None), known=()) == []
