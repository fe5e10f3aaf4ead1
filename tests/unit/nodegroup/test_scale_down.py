"""How a group shrinks, and what stands in the way."""

from serving.nodegroup.plan import GroupLimit
from serving.nodegroup.records import CloudGroup, Failures
from serving.nodegroup.scale_down import Shrinkage, shrink
from tests.unit.nodegroup.builders import nodes, settings, snapshot, view

FREE = CloudGroup(target_size=100, min_size=0, max_size=100)


def test_the_oldest_nodes_are_tainted() -> None:
    assert shrink(view(snapshot(nodes(5))), 2, FREE) == Shrinkage(tainted=("n000", "n001"))


def test_a_node_that_could_not_be_tainted_is_tried_last() -> None:
    failures = Failures(node_names=frozenset({"n000"}))
    assert shrink(view(snapshot(nodes(5), failures=failures)), 2, FREE).tainted == ("n001", "n002")


def test_the_minimum_stays_untainted() -> None:
    shrunk = shrink(view(snapshot(nodes(2))), 5, FREE)
    assert shrunk == Shrinkage(tainted=("n000",), limits=(GroupLimit.MIN_NODES,))


def test_below_the_minimum_nothing_is_tainted() -> None:
    assert shrink(view(snapshot(nodes(2)), settings(min_nodes=3)), 1, FREE).tainted == ()


def test_no_more_is_tainted_than_the_cloud_lets_go() -> None:
    cloud = CloudGroup(target_size=4, min_size=3, max_size=9)
    shrunk = shrink(view(snapshot(nodes(5))), 4, cloud)
    assert shrunk == Shrinkage(tainted=("n000",), limits=(GroupLimit.CLOUD_MIN,))
