"""A group at its minimum is renewed when a node is too old."""

import pytest

from serving.nodegroup.age import renewal_is_due
from serving.nodegroup.records import GroupNode
from tests.unit.nodegroup.builders import NOW_S, node, settings


def due(*group: GroupNode, tainted_count: int = 0, min_nodes: int = 1, max_node_age_s: float = 3600.0) -> bool:
    asked = settings(min_nodes=min_nodes, max_node_age_s=max_node_age_s)
    return renewal_is_due(group, tainted_count=tainted_count, settings=asked, now_s=NOW_S)


@pytest.mark.parametrize(("age_s", "is_due"), [(3600.0, False), (3600.5, True)])
def test_a_node_is_too_old_beyond_the_maximum_age(age_s: float, *, is_due: bool) -> None:
    assert due(node(0, age_s=age_s)) is is_due


def test_nothing_is_renewed_above_the_minimum() -> None:
    assert not due(node(0), node(1))


def test_nothing_is_renewed_while_a_node_is_on_its_way_out() -> None:
    assert not due(node(0), tainted_count=1)


def test_a_group_that_may_be_empty_is_not_renewed() -> None:
    assert not due(min_nodes=0)


@pytest.mark.parametrize("max_node_age_s", [0.0, -60.0])
def test_a_maximum_age_of_0_or_less_is_none(max_node_age_s: float) -> None:
    assert not due(node(0), max_node_age_s=max_node_age_s)
