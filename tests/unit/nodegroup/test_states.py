"""Each node in one state, and the order in which nodes are picked."""

import itertools

import pytest

from serving.nodegroup.records import GroupNode, RemovalTaint
from serving.nodegroup.states import (
    STATES,
    NodeState,
    Partition,
    as_in_dry_mode,
    newest_first,
    oldest_first,
    partition,
    state_of,
)
from tests.unit.nodegroup.builders import NOW_S, node


@pytest.mark.parametrize(("cordoned", "forced", "tainted"), [*itertools.product([False, True], repeat=3)])
def test_the_first_state_that_applies_is_the_nodes(*, cordoned: bool, forced: bool, tainted: bool) -> None:
    made = node(0, is_cordoned=cordoned, is_force_tainted=forced, tainted_ago_s=5.0 if tainted else None)
    ranked = [
        (cordoned, NodeState.CORDONED),
        (forced, NodeState.FORCE_TAINTED),
        (tainted, NodeState.TAINTED),
        (True, NodeState.UNTAINTED),
    ]
    assert state_of(made) == next(state for applies, state in ranked if applies)


def test_a_taint_without_a_timestamp_is_a_taint() -> None:
    assert state_of(node(0, removal_taint=RemovalTaint(at_s=None))) is NodeState.TAINTED


def test_every_state_stands_in_the_table_and_a_cordoned_node_is_left_alone() -> None:
    assert set(STATES) == set(NodeState)
    traits = STATES[NodeState.CORDONED]
    touched = [traits.is_capacity, traits.may_be_tainted, traits.may_be_untainted, traits.is_reaped]
    assert touched == [False] * 4


def test_a_partition_keeps_the_order_of_the_input() -> None:
    group = (node(3), node(1, tainted_ago_s=1.0), node(2, is_cordoned=True), node(0), node(4, is_force_tainted=True))
    assert partition(group) == Partition(
        untainted=(group[0], group[3]), tainted=(group[1],), cordoned=(group[2],), force_tainted=(group[4],)
    )


def names(picked: list[GroupNode]) -> list[str]:
    return [one.name for one in picked]


def test_nodes_are_picked_by_age_then_by_name() -> None:
    same = NOW_S - 50.0
    group = [node(2, created_at_s=same), node(1, created_at_s=same), node(3, age_s=100.0), node(0, age_s=10.0)]
    assert names(oldest_first(group)) == ["n003", "n001", "n002", "n000"]
    assert names(newest_first(group)) == ["n000", "n001", "n002", "n003"]


def test_nodes_on_which_something_failed_come_last() -> None:
    group = [node(0), node(1), node(2)]
    assert names(oldest_first(group, last={"n000"})) == ["n001", "n002", "n000"]
    assert names(newest_first(group, last={"n002"})) == ["n001", "n000", "n002"]


def test_a_dry_run_sees_what_it_did_on_top_of_what_is_real() -> None:
    tainted, cordoned = node(0, tainted_ago_s=9.0), node(1, is_cordoned=True)
    seen = [as_in_dry_mode(one, {"n000": None, "n002": 5.0}, ignore_real_state=False) for one in (tainted, cordoned)]
    assert [state_of(one) for one in seen] == [NodeState.UNTAINTED, NodeState.CORDONED]
    assert as_in_dry_mode(node(2), {"n002": 5.0}, ignore_real_state=False).removal_taint == RemovalTaint(at_s=5.0)


def test_a_dry_run_may_ignore_what_is_real() -> None:
    real = [node(0, tainted_ago_s=9.0), node(1, is_cordoned=True), node(2, is_force_tainted=True)]
    seen = [as_in_dry_mode(one, {}, ignore_real_state=True) for one in real]
    assert {state_of(one) for one in seen} == {NodeState.UNTAINTED}
