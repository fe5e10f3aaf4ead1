"""What the group looks like once a plan has been carried out."""

from serving.nodegroup.outcome import carried_out
from serving.nodegroup.plan import DeleteNodes, Drain, IncreaseSize, Taint, Untaint
from serving.nodegroup.records import PodPhase, RemovalTaint
from tests.unit.nodegroup.builders import node, pod, snapshot

BEFORE = snapshot((node(0), node(1, tainted_ago_s=5.0)), (pod(on=node(0)), pod(on=node(1))))


def test_taints_are_set_and_taken() -> None:
    after = carried_out(BEFORE, [Taint(node_name="n000", at_s=7, effect="NoSchedule"), Untaint(node_name="n001")])
    assert [one.removal_taint for one in after.nodes] == [RemovalTaint(at_s=7), None]


def test_deleted_nodes_take_their_pods_along_and_lower_the_target() -> None:
    after = carried_out(BEFORE, [DeleteNodes(node_names=("n001",))])
    assert ([one.name for one in after.nodes], len(after.pods), after.cloud.target_size) == (["n000"], 1, 1)


def test_drained_pods_wait_for_another_node() -> None:
    after = carried_out(BEFORE, [Drain(node_name="n001")])
    assert [(one.node_name, one.phase) for one in after.pods] == [("n000", PodPhase.RUNNING), (None, PodPhase.PENDING)]


def test_the_cloud_is_asked_for_more() -> None:
    after = carried_out(BEFORE, [IncreaseSize(count=3)])
    assert (len(after.nodes), after.cloud.target_size) == (2, 5)
