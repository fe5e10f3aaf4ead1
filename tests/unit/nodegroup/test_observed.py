"""The gauges of one group."""

from serving.metrics.nodegroup_names import NODEGROUP_METRICS
from serving.nodegroup.memory import NodeGroupState
from serving.nodegroup.observed import gauges_of
from serving.nodegroup.plan import GroupPlan, GroupRule
from serving.nodegroup.records import CloudGroup
from serving.nodegroup.utilisation import FromZero
from tests.unit.nodegroup.builders import decided, nodes, pod, snapshot

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
