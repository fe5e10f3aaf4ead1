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


def made(plan: GroupPlan, state: NodeGroupState = STATE, before: object = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    values = {"done": (), "problems": (), "stamp": "now", **more}
    return status_of(before, plan=plan, state=state, cloud=CLOUD, **values)  # type: ignore[arg-type]


def new_plan(**fields: Any) -> GroupPlan:  # noqa: ANN401
    return GroupPlan(**{"requested_delta": 0, "decided_by": GroupRule.STEADY, **fields})


def ready(status: dict[str, Any]) -> tuple[str, str]:
    condition = condition_of({"status": status}, "Ready")
    return condition["status"], condition["reason"]


def test_the_state_survives_in_the_status() -> None:
    written = written_state(STATE)
    assert None not in written.values()
    assert state_from({"status": {"state": written}}) == STATE
    assert state_from({"status": {"state": written_state(NodeGroupState())}}) == NodeGroupState()


@pytest.mark.parametrize("resource", [None, {}, {"status": {"state": 1}}, {"status": {"state": {"lock": 1}}}])
def test_a_state_that_cannot_be_read_is_none(resource: dict[str, Any] | None) -> None:
    assert state_from(resource) is None


def test_nodes_on_their_way_lock_a_group_whose_state_is_lost() -> None:
    lock = ScaleLock(requested_count=2, locked_at_s=NOW_S)
    assert recovered_state(CLOUD, node_count=4, now_s=NOW_S) == NodeGroupState(lock=lock)
    assert recovered_state(CLOUD, node_count=6, now_s=NOW_S) == NodeGroupState()


def test_a_status_counts_nodes_and_says_how_full_they_are() -> None:
    group = nodes(4)
    _, plan = decided(snapshot(group, tuple(pod(1000, on=group[0]) for _ in range(8))))
    status = made(plan)
    assert status["nodes"] == {"total": 4, "untainted": 4, "tainted": 0, "forceTainted": 0, "cordoned": 0, "coming": 2}
    assert status["utilization"] == {"cpuPercent": 50.0, "memoryPercent": 12.5}
    assert (status["requested"]["cpu"], status["capacity"]["cpu"], status["podCount"]) == ("8000m", "16000m", 8)


def test_from_zero_there_is_no_percentage() -> None:
    assert made(new_plan(usage=FromZero()))["utilization"] == {}


def test_the_last_action_stays_until_there_is_another() -> None:
    first = made(new_plan(), done=["taint node a"])
    assert first["lastAction"] == {"time": "now", "rule": "steady", "what": ["taint node a"]}
    assert made(new_plan(), before={"status": first}, stamp="later")["lastAction"]["time"] == "now"


def test_conditions_say_why_a_group_does_not_scale() -> None:
    calm = NodeGroupState()
    assert ready(made(new_plan(), calm)) == ("True", "")
    assert ready(made(new_plan(), STATE)) == ("False", "BreakerOpen")
    assert ready(made(new_plan(error=PassError.BELOW_MIN), calm)) == ("False", "PassFailed")
    assert ready(made(new_plan(is_healthy=False), calm)) == ("False", "NewNodesUnhealthy")
    assert ready(made(new_plan(), calm, problems=["taint node a: no"])) == ("True", "SomeEffectsFailed")


def test_the_time_of_a_condition_is_that_of_its_last_change() -> None:
    calm = NodeGroupState()
    before = {"status": made(new_plan(), calm)}
    assert (
        condition_of({"status": made(new_plan(), calm, before, stamp="later")}, "Ready")["lastTransitionTime"] == "now"
    )
    assert (
        condition_of({"status": made(new_plan(), STATE, before, stamp="later")}, "Ready")["lastTransitionTime"]
        == "later"
    )


def test_without_a_pass_the_other_conditions_stay() -> None:
    before = {"metadata": {"generation": 3}, "status": made(new_plan(), NodeGroupState())}
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
def test_each_effect_has_a_sentence(effect: Effect, sentence: str) -> None:
    assert sentence_of(effect) == sentence


def test_the_lock_and_the_breaker_survive_without_a_status() -> None:
    text = annotation_text(STATE)
    state = state_from({"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: text}}})
    assert state == NodeGroupState(lock=STATE.lock, breaker=STATE.breaker)
    assert annotation_text(NodeGroupState()) == ""
    assert state_from({"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: "{"}}}) is None
    assert state_from({"metadata": {"annotations": {NODE_GROUP_STATE_ANNOTATION: '{"lock":1}'}}}) is None


def test_machines_that_are_missing_are_counted_in_a_sentence() -> None:
    condition = condition_of({"status": made(new_plan(unregistered_count=1), NodeGroupState())}, "MachinesRegistered")
    assert (condition["status"], condition["reason"]) == ("False", "MachinesMissing")
    assert condition["message"].startswith("1 machine of the cloud is no node of this group")


def test_keys_without_effect_are_in_a_condition_until_they_are_gone() -> None:
    assert keys_status({}, (), stamp="now") == {}
    problem = Problem(where="g: colour", what="no such option, ignored", expected="one of name")
    status = keys_status({}, (problem,), stamp="now")
    condition = condition_of({"status": status}, KEYS_KNOWN)
    assert (condition["status"], condition["reason"]) == ("False", "KeysIgnored")
    assert "g: colour" in condition["message"]
    condition = condition_of({"status": keys_status({"status": status}, (), stamp="now")}, KEYS_KNOWN)
    assert (condition["status"], condition["message"]) == ("True", "")


@pytest.mark.parametrize(("count", "words"), [(1, "1 pod waits for room"), (2, "2 pods wait for room")])
def test_pods_that_others_leave_no_room_are_counted_in_a_sentence(count: int, words: str) -> None:
    condition = condition_of({"status": made(new_plan(crowded_out_count=count), NodeGroupState())}, "PodsHaveRoom")
    assert (condition["status"], condition["reason"]) == ("False", "RoomTaken")
    assert condition["message"].startswith(words)


def test_why_says_the_rule_its_numbers_and_what_is_anticipated() -> None:
    full = Utilisation(cpu_percent=85.4, memory_percent=10.0)
    assert why_of(new_plan(usage=full)) == "steady asks for +0; cpu 85 %, memory 10 % requested"
    plan = new_plan(usage=full, requested_delta=2, anticipated_count=4)
    assert why_of(plan) == "steady asks for +2; cpu 85 %, memory 10 % requested; 4 pods are anticipated"
    assert why_of(new_plan(usage=FromZero(), anticipated_count=1)).endswith("there is no node; 1 pod is anticipated")
    assert why_of(new_plan()) == "steady asks for +0"


def test_every_value_has_a_metric() -> None:
    group = nodes(4)
    state, plan = decided(snapshot(group, tuple(pod(1000, on=group[0]) for _ in range(8))))
    values = gauges_of(plan, state, CLOUD)
    assert values.keys() <= {metric_spec.name for metric_spec in NODEGROUP_METRICS}
    assert (values["escalator_node_group_cpu_percent"], values["serving_nodegroup_nodes_coming"]) == (50.0, 2)
    assert (values["escalator_node_group_unhealthy_nodes"], values["serving_nodegroup_healthy"]) == (1.0, 1.0)


def test_from_zero_the_percentages_are_zero() -> None:
    plan = GroupPlan(requested_delta=1, decided_by=GroupRule.FROM_ZERO, usage=FromZero())
    assert gauges_of(plan, NodeGroupState(), CLOUD)["escalator_node_group_mem_percent"] == 0.0


def test_the_largest_pods_that_wait_and_the_nodes_with_the_most_room_have_gauges() -> None:
    book = NodeGroupBook()
    book.set_groups([settings(anticipation=True)])
    for group_node in (node(0), node(1), node(2, tainted_ago_s=5.0)):
        book.set_node(group_node)
    book.set_pod(pod(1000, on=node(0), name="a", memory_bytes=9))
    for name, cpu_m, memory_bytes in (("b", 300, 7), ("c", 200, 8)):
        book.set_pod(pod(cpu_m, name=name, memory_bytes=memory_bytes))
    # What does not exist yet does not wait.
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
    # The tainted node takes no pods; the first has 3000 m left, the second 4000 m.
    assert values[f"{prefix}_cpu_capacity_largest_available_cpu"] == 4000
    for name in "abcd":
        book.drop_pod(name)
    book.drop_node("n001")
    values = room_gauges(book.extremes("shared"))
    assert values[f"{prefix}_cpu_request_largest_pending_cpu"] == 0
    assert values[f"{prefix}_cpu_capacity_largest_available_cpu"] == 4000


def test_nodes_that_are_new_say_how_long_they_took() -> None:
    group = (*nodes(2), node(2, age_s=30.0), node(3, age_s=30.0))
    state, plan = decided(snapshot(group))
    node_group_state = msgspec.structs.replace(state, last_scale_up_at_s=NOW_S - 100.0)
    # Created 28 and 27 s ago: 72 and 73 s after they were asked for.
    assert registration_lags(plan, node_group_state, known={"n000"}) == [72.0, 73.0]
    assert registration_lags(plan, node_group_state, known={"n000", "n002"}) == [73.0]
    assert registration_lags(plan, msgspec.structs.replace(state, last_scale_up_at_s=None), known=()) == []
