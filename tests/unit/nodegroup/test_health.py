"""Which nodes are unhealthy, and when a group is."""

import pytest

from serving.nodegroup.health import group_is_healthy, is_unhealthy, unhealthy_names
from serving.nodegroup.records import GroupNode
from tests.unit.nodegroup.builders import NOW_S, node, nodes, settings


def sick(number: int, *, age_s: float = 7200.0, is_cordoned: bool = False) -> GroupNode:
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
def test_a_node_is_examined_from_the_grace_period_on(age_s: float, *, counts: bool) -> None:
    assert is_unhealthy(sick(0, age_s=age_s), grace_s=300.0, now_s=NOW_S) is counts


def test_ready_and_cordoned_nodes_are_not_unhealthy() -> None:
    assert not is_unhealthy(node(0), grace_s=300.0, now_s=NOW_S)
    assert not is_unhealthy(sick(0, is_cordoned=True), grace_s=300.0, now_s=NOW_S)


def test_nobody_is_unhealthy_where_nobody_looks() -> None:
    assert unhealthy_names([sick(0)], settings=settings(), now_s=NOW_S) == frozenset()
    assert group_is_healthy([sick(0)], settings=settings(), now_s=NOW_S)


def test_the_unhealthy_are_named() -> None:
    found = unhealthy_names([sick(0), node(1), sick(2)], settings=settings(**watched()), now_s=NOW_S)
    assert found == {"n000", "n002"}


def test_the_newest_share_is_rounded_up_and_its_percentage_down() -> None:
    assert healthy(*nodes(9), sick(9), newest_percent=25, max_percent=33)
    assert not healthy(*nodes(9), sick(9), newest_percent=25, max_percent=32)


def test_only_the_newest_are_tested() -> None:
    assert healthy(sick(0), *nodes(9, first=1), newest_percent=25, max_percent=0)


def test_7_percent_of_100_nodes_are_8() -> None:
    assert not healthy(*nodes(92), sick(92), *nodes(7, first=93), newest_percent=7, max_percent=0)


def test_nodes_that_are_too_new_are_left_out() -> None:
    assert healthy(node(0), sick(1, age_s=10.0), newest_percent=50, max_percent=0)
    assert healthy(sick(1, age_s=10.0), max_percent=0)
