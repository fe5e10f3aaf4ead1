"""How a group grows, and what stands in the way."""

from serving.nodegroup.plan import GroupLimit
from serving.nodegroup.records import Failures
from serving.nodegroup.scale_up import Growth, GrowthBound, grow, nodes_to_untaint
from tests.unit.nodegroup.builders import node, nodes, settings, snapshot, view

TAINTED = tuple(node(number, tainted_ago_s=5.0) for number in range(6, 9))


def test_the_newest_tainted_nodes_come_back_first() -> None:
    assert nodes_to_untaint(view(snapshot((*nodes(6), *TAINTED))), 2) == ("n008", "n007")


def test_a_node_that_could_not_be_untainted_comes_back_last() -> None:
    failures = Failures(node_names=frozenset({"n008"}))
    assert nodes_to_untaint(view(snapshot((*nodes(6), *TAINTED), failures=failures)), 2) == ("n007", "n006")


def test_sick_nodes_stay_tainted() -> None:
    watched = settings(unhealthy_node_grace_period_s=300.0, health_check_newest_nodes_percent=1)
    sick = node(7, tainted_ago_s=5.0, is_ready=False)
    assert nodes_to_untaint(view(snapshot((TAINTED[0], sick)), watched), 2) == ("n006",)


def test_no_more_come_back_than_max_nodes_leaves() -> None:
    group = snapshot((*nodes(6), *TAINTED))
    assert nodes_to_untaint(view(group, settings(max_nodes=7)), 3) == ("n008",)
    assert nodes_to_untaint(view(group, settings(max_nodes=5)), 3) == ()


def test_nobody_comes_back_when_nobody_is_wanted() -> None:
    assert nodes_to_untaint(view(snapshot((*nodes(6), *TAINTED))), -2) == ()


def test_the_cloud_is_asked_for_what_untainting_leaves_open() -> None:
    assert grow(view(snapshot(nodes(6))), 5, ("n008", "n007"), target_size=6) == Growth(
        untainted=("n008", "n007"), added_count=3
    )


def test_the_cloud_is_not_asked_when_enough_come_back() -> None:
    assert grow(view(snapshot(nodes(6))), 1, ("n008",), target_size=6) == Growth(untainted=("n008",))


def test_nodes_on_their_way_and_those_that_come_back_count_against_max_nodes() -> None:
    seen = view(snapshot((*nodes(6), *TAINTED[:2]), target=9), settings(max_nodes=10))
    grown = grow(seen, 5, ("n007", "n006"), target_size=9)
    assert (grown.added_count, grown.limits, grown.count) == (1, (GroupLimit.MAX_NODES,), 3)


def test_the_clouds_maximum_limits_growth() -> None:
    grown = grow(view(snapshot(nodes(6), cloud=(0, 8))), 5, (), target_size=6)
    assert (grown.added_count, grown.limits) == (2, (GroupLimit.CLOUD_MAX,))


def test_growth_of_which_nothing_is_left_is_refused() -> None:
    seen = view(snapshot(nodes(6)))
    grown = grow(seen, 5, (), target_size=6, more_bounds=[GrowthBound(limit=GroupLimit.BREAKER, count=0)])
    assert (grown.added_count, grown.limits, grown.is_refused) == (0, (GroupLimit.BREAKER,), True)
    assert not grow(seen, 1, ("n008",), target_size=6).is_refused


def test_a_group_above_its_maximum_is_not_asked_to_grow_by_less_than_nothing() -> None:
    assert grow(view(snapshot(nodes(6), cloud=(0, 3))), 1, (), target_size=6).added_count == 0
