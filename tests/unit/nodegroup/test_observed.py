"""The gauges of one group."""

import msgspec

from serving.metrics.nodegroup_names import NODEGROUP_METRICS
from serving.nodegroup.book import NodeGroupBook
from serving.nodegroup.memory import NodeGroupState
from serving.nodegroup.observed import gauges_of, registration_lags, room_gauges
from serving.nodegroup.plan import GroupPlan, GroupRule
from serving.nodegroup.records import CloudGroup
from serving.nodegroup.utilisation import FromZero
from tests.unit.nodegroup.builders import NOW_S, decided, node, nodes, pod, settings, snapshot

CLOUD = CloudGroup(target_size=6, min_size=0, max_size=10)


def test_every_value_has_a_metric() -> None:
    group = nodes(4)
    state, plan = decided(snapshot(group, tuple(pod(1000, on=group[0]) for _ in range(8))))
    values = gauges_of(plan, state, CLOUD)
    assert values.keys() <= {one.name for one in NODEGROUP_METRICS}
    assert (values["escalator_node_group_cpu_percent"], values["serving_nodegroup_nodes_coming"]) == (50.0, 2)
    assert (values["escalator_node_group_unhealthy_nodes"], values["serving_nodegroup_healthy"]) == (1.0, 1.0)


def test_from_zero_the_percentages_are_zero() -> None:
    plan = GroupPlan(requested_delta=1, decided_by=GroupRule.FROM_ZERO, usage=FromZero())
    assert gauges_of(plan, NodeGroupState(), CLOUD)["escalator_node_group_mem_percent"] == 0.0


def test_the_largest_pods_that_wait_and_the_nodes_with_the_most_room_have_gauges() -> None:
    book = NodeGroupBook()
    book.take_groups([settings(anticipation=True)])
    for one in (node(0), node(1), node(2, tainted_ago_s=5.0)):
        book.take_node(one)
    book.take_pod(pod(1000, on=node(0), name="a", memory_bytes=9))
    for name, cpu_m, memory_bytes in (("b", 300, 7), ("c", 200, 8)):
        book.take_pod(pod(cpu_m, name=name, memory_bytes=memory_bytes))
    # What does not exist yet does not wait.
    book.take_pod(pod(900, name="d", is_anticipated=True))
    values = room_gauges(book.extremes("shared"))
    assert values.keys() <= {one.name for one in NODEGROUP_METRICS}
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
    asked = msgspec.structs.replace(state, last_scale_up_at_s=NOW_S - 100.0)
    # Created 28 and 27 s ago: 72 and 73 s after they were asked for.
    assert registration_lags(plan, asked, known={"n000"}) == [72.0, 73.0]
    assert registration_lags(plan, asked, known={"n000", "n002"}) == [73.0]
    assert registration_lags(plan, msgspec.structs.replace(state, last_scale_up_at_s=None), known=()) == []
