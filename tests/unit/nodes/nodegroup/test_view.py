"""A pass's view of its group."""

import msgspec
import pytest

from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.records import Amount, CloudGroup, GroupNode, Placement, PodPhase, RemovalTaint
from serving.nodes.nodegroup.view import (
    group_is_healthy,
    is_unhealthy,
    node_capacity,
    unhealthy_names,
    with_cloud_bounds,
)
from tests.unit.nodes.nodegroup.builders import (
    GIB,
    NODE_AMOUNT,
    NOW_S,
    SETTINGS,
    node,
    nodes,
    pod,
    quirky,
    settings,
    snapshot,
    view,
)

OTHER = Placement(node_selector={"customer": "other"})
DAEMON = Placement(owner_kind="DaemonSet")
WATCHED = {
    "unhealthy_node_grace_period_s": 300.0,
    "health_check_newest_nodes_percent": 100,
    "max_unhealthy_nodes_percent": 50,
}


def sick(count: int, *, first: int = 0) -> tuple[GroupNode, ...]:
    return nodes(count, first=first, is_ready=False)


def test_view_contains_nodes_and_pods_of_the_group_only() -> None:
    own, other = node(0), node(1, labels={"customer": "other"})
    seen = view(snapshot((own, other), (pod(1000, on=own), pod(7, on=other, placement=OTHER))))
    assert seen.nodes == (own,)
    assert seen.request == Amount(cpu_m=1000, memory_bytes=GIB)


def test_capacity_is_that_of_untainted_nodes() -> None:
    seen = view(snapshot((node(0), node(1, tainted_ago_s=5.0), node(2, is_cordoned=True))))
    assert seen.capacity == NODE_AMOUNT


def test_finished_pods_neither_request_nor_hold_a_node() -> None:
    own = node(0)
    seen = view(snapshot((own,), (pod(on=own, phase=PodPhase.SUCCEEDED), pod(on=own, phase=PodPhase.FAILED))))
    assert (seen.pods, seen.is_empty(own)) == ((), True)


def test_node_with_foreign_pod_is_not_empty_unless_daemon_set() -> None:
    first, second = nodes(2)
    seen = view(snapshot((first, second), (pod(on=first, placement=OTHER), pod(on=second, placement=DAEMON))))
    assert (seen.is_empty(first), seen.is_empty(second)) == (False, True)


def test_machines_that_are_not_nodes_yet_are_coming() -> None:
    assert view(snapshot(nodes(3), target=5)).coming_count == 2
    assert view(snapshot(nodes(3), target=2)).coming_count == 0


def test_cloud_bounds_replace_unset_group_bounds() -> None:
    cloud = CloudGroup(target_size=5, min_size=2, max_size=9)
    bounded = with_cloud_bounds(settings(min_nodes=0, max_nodes=0), cloud)
    assert (bounded.min_nodes, bounded.max_nodes) == (2, 9)
    assert with_cloud_bounds(SETTINGS, cloud) is SETTINGS


def test_unhealthy_node_is_tainted_and_excluded_from_capacity() -> None:
    seen = view(snapshot((*sick(1), *nodes(3, first=1))), settings(**WATCHED))
    assert seen.unhealthy_tainted == ("n000",)
    assert seen.parts.tainted[0].removal_taint == RemovalTaint(at_s=NOW_S)
    assert seen.capacity.cpu_m == 12000


def test_unhealthy_nodes_are_tainted_oldest_first_within_rate_and_minimum() -> None:
    group = (*sick(4), *nodes(6, first=4))
    watched = settings(**WATCHED, min_nodes=8, fast_node_removal_rate=3)
    assert view(snapshot(group), watched).unhealthy_tainted == ("n000", "n001")
    fast = msgspec.structs.replace(watched, min_nodes=1)
    assert view(snapshot(group), fast).unhealthy_tainted == ("n000", "n001", "n002")


def test_removal_rate_of_0_still_taints_one_unhealthy_node() -> None:
    watched = settings(**WATCHED, fast_node_removal_rate=0)
    assert view(snapshot((*sick(2), *nodes(2, first=2))), watched).unhealthy_tainted == ("n000",)


def test_no_unhealthy_node_is_tainted_at_or_below_minimum() -> None:
    group = (*sick(1), *nodes(2, first=1))
    assert view(snapshot(group), settings(**WATCHED, min_nodes=3)).unhealthy_tainted == ()
    assert view(snapshot(group), settings(**WATCHED, min_nodes=4)).unhealthy_tainted == ()


def test_fixed_size_group_taints_one_unhealthy_node_below_minimum() -> None:
    fixed = settings(**WATCHED, min_nodes=4, max_nodes=4)
    assert view(snapshot((*sick(2), *nodes(2, first=2))), fixed).unhealthy_tainted == ("n000",)
    assert view(snapshot((*sick(1), *nodes(2, first=2))), fixed).unhealthy_tainted == ()


def test_no_node_of_an_unhealthy_group_is_tainted() -> None:
    seen = view(snapshot((*sick(3), node(3))), settings(**WATCHED))
    assert (seen.is_healthy, seen.unhealthy_tainted) == (False, ())


def test_dry_mode_view_uses_recorded_taints() -> None:
    state = NodeGroupState(dry_taints={"n000": NOW_S - 5.0, "n001": None})
    seen = view(snapshot((node(0), node(1, tainted_ago_s=9.0))), settings(dry_mode=True), state)
    assert [group_node.name for group_node in seen.parts.tainted] == ["n000"]


def test_node_capacity_is_the_minimum_of_untainted_nodes() -> None:
    small = Amount(cpu_m=2000, memory_bytes=64 * GIB)
    tiny = node(2, allocatable=Amount(cpu_m=1, memory_bytes=1), tainted_ago_s=5.0)
    seen = view(snapshot((node(0), node(1, allocatable=small), tiny)))
    assert node_capacity(NodeGroupState(), seen) == Amount(cpu_m=2000, memory_bytes=16 * GIB)


def test_node_capacity_ignores_nodes_without_full_allocatable() -> None:
    silent = node(0, allocatable=Amount(cpu_m=4000))
    assert node_capacity(NodeGroupState(), view(snapshot((silent, node(1))))) == NODE_AMOUNT


def test_node_capacity_uses_any_node_if_none_is_untainted() -> None:
    assert node_capacity(NodeGroupState(), view(snapshot((node(0, is_cordoned=True),)))) == NODE_AMOUNT


def test_node_capacity_is_retained_without_nodes() -> None:
    known = NodeGroupState(node_capacity=Amount(cpu_m=1, memory_bytes=2))
    assert node_capacity(known, view(snapshot(()))) == known.node_capacity
    assert node_capacity(known, view(snapshot(()), quirky("capacity_cached_from_first_node"))) == known.node_capacity


def sick_of_health(number: int, *, age_s: float = 7200.0, is_cordoned: bool = False) -> GroupNode:
    return node(number, is_ready=False, age_s=age_s, is_cordoned=is_cordoned)


def watched(newest_percent: int = 100, max_percent: int = 33) -> dict[str, object]:
    return {
        "unhealthy_node_grace_period_s": 300.0,
        "health_check_newest_nodes_percent": newest_percent,
        "max_unhealthy_nodes_percent": max_percent,
    }


def healthy(*group: GroupNode, **options: int) -> bool:
    return group_is_healthy(group, settings=settings(**watched(**options)), now_s=NOW_S)


@pytest.mark.parametrize(("age_s", "counts"), [(299.0, False), (300.0, True)])
def test_node_can_be_unhealthy_from_end_of_grace_period(age_s: float, *, counts: bool) -> None:
    assert is_unhealthy(sick_of_health(0, age_s=age_s), grace_s=300.0, now_s=NOW_S) is counts


def test_ready_and_cordoned_nodes_are_not_unhealthy() -> None:
    assert not is_unhealthy(node(0), grace_s=300.0, now_s=NOW_S)
    assert not is_unhealthy(sick_of_health(0, is_cordoned=True), grace_s=300.0, now_s=NOW_S)


def test_unwatched_group_has_no_unhealthy_nodes() -> None:
    assert unhealthy_names([sick_of_health(0)], settings=settings(), now_s=NOW_S) == frozenset()
    assert group_is_healthy([sick_of_health(0)], settings=settings(), now_s=NOW_S)


def test_unhealthy_nodes_are_returned_by_name() -> None:
    results = unhealthy_names(
        [sick_of_health(0), node(1), sick_of_health(2)], settings=settings(**watched()), now_s=NOW_S
    )
    assert results == {"n000", "n002"}


def test_newest_node_count_is_rounded_up_and_unhealthy_percent_down() -> None:
    assert healthy(*nodes(9), sick_of_health(9), newest_percent=25, max_percent=33)
    assert not healthy(*nodes(9), sick_of_health(9), newest_percent=25, max_percent=32)


def test_only_newest_nodes_are_health_checked() -> None:
    assert healthy(sick_of_health(0), *nodes(9, first=1), newest_percent=25, max_percent=0)


def test_newest_7_percent_of_100_nodes_are_8_nodes() -> None:
    assert not healthy(*nodes(92), sick_of_health(92), *nodes(7, first=93), newest_percent=7, max_percent=0)


def test_nodes_within_grace_period_are_not_health_checked() -> None:
    assert healthy(node(0), sick_of_health(1, age_s=10.0), newest_percent=50, max_percent=0)
    assert healthy(sick_of_health(1, age_s=10.0), max_percent=0)
