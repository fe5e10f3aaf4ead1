"""The state and order of nodes, and the group of nodes and pods."""

import itertools

import pytest

from serving.nodes.nodegroup.records import Affinity, Expression, GroupNode, Placement, PodPhase, RemovalTaint
from serving.nodes.nodegroup.states import (
    NodeState,
    Partition,
    as_in_dry_mode,
    holds_a_node,
    is_finished,
    newest_first,
    node_belongs,
    oldest_first,
    partition,
    pod_belongs,
    state_of,
)
from tests.unit.nodes.nodegroup.builders import NOW_S, node

IN = Expression(key="customer", operator="In", values=("dev", "shared"))


@pytest.mark.parametrize(("cordoned", "forced", "tainted"), [*itertools.product([False, True], repeat=3)])
def test_node_has_the_highest_ranked_state_that_applies(*, cordoned: bool, forced: bool, tainted: bool) -> None:
    group_node = node(0, is_cordoned=cordoned, is_force_tainted=forced, tainted_ago_s=5.0 if tainted else None)
    ranked = [
        (cordoned, NodeState.CORDONED),
        (forced, NodeState.FORCE_TAINTED),
        (tainted, NodeState.TAINTED),
        (True, NodeState.UNTAINTED),
    ]
    assert state_of(group_node) == next(state for applies, state in ranked if applies)


def test_node_with_taint_without_timestamp_is_tainted() -> None:
    assert state_of(node(0, removal_taint=RemovalTaint(at_s=None))) is NodeState.TAINTED


def test_partition_preserves_node_order() -> None:
    group = (node(3), node(1, tainted_ago_s=1.0), node(2, is_cordoned=True), node(0), node(4, is_force_tainted=True))
    assert partition(group) == Partition(
        untainted=(group[0], group[3]), tainted=(group[1],), cordoned=(group[2],), force_tainted=(group[4],)
    )


def names(picked: list[GroupNode]) -> list[str]:
    return [group_node.name for group_node in picked]


def test_nodes_are_ordered_by_age_then_by_name() -> None:
    same = NOW_S - 50.0
    group = [node(2, created_at_s=same), node(1, created_at_s=same), node(3, age_s=100.0), node(0, age_s=10.0)]
    assert names(oldest_first(group)) == ["n003", "n001", "n002", "n000"]
    assert names(newest_first(group)) == ["n000", "n001", "n002", "n003"]


def test_nodes_with_failed_effects_are_ordered_last() -> None:
    group = [node(0), node(1), node(2)]
    assert names(oldest_first(group, last={"n000"})) == ["n001", "n002", "n000"]
    assert names(newest_first(group, last={"n002"})) == ["n001", "n000", "n002"]


def test_dry_mode_overlays_its_taints_on_node_state() -> None:
    tainted, cordoned = node(0, tainted_ago_s=9.0), node(1, is_cordoned=True)
    seen = [
        as_in_dry_mode(group_node, {"n000": None, "n002": 5.0}, ignore_real_state=False)
        for group_node in (tainted, cordoned)
    ]
    assert [state_of(group_node) for group_node in seen] == [NodeState.UNTAINTED, NodeState.CORDONED]
    assert as_in_dry_mode(node(2), {"n002": 5.0}, ignore_real_state=False).removal_taint == RemovalTaint(at_s=5.0)


def test_dry_mode_quirk_ignores_real_node_state() -> None:
    real = [node(0, tainted_ago_s=9.0), node(1, is_cordoned=True), node(2, is_force_tainted=True)]
    seen = [as_in_dry_mode(group_node, {}, ignore_real_state=True) for group_node in real]
    assert {state_of(group_node) for group_node in seen} == {NodeState.UNTAINTED}


def labelled(placement: Placement) -> bool:
    return pod_belongs(placement, group_name="shared", label_key="customer", label_value="shared")


def default(placement: Placement) -> bool:
    return pod_belongs(placement, group_name="default", label_key="customer", label_value="shared")


def affine(*expressions: Expression) -> Affinity:
    return Affinity(required_node_terms=((Expression(key="zone", operator="Exists"),), expressions))


def test_node_belongs_to_group_by_label() -> None:
    assert node_belongs({"customer": "shared"}, label_key="customer", label_value="shared")
    assert not node_belongs({"customer": "dev"}, label_key="customer", label_value="shared")
    assert not node_belongs({}, label_key="customer", label_value="shared")


@pytest.mark.parametrize(
    ("placement", "belongs"),
    [
        (Placement(), False),
        (Placement(node_selector={"customer": "shared"}), True),
        (Placement(node_selector={"customer": "dev"}), False),
        (Placement(affinity=affine(IN)), True),
        (Placement(affinity=affine(Expression(key="customer", operator="NotIn", values=("shared",)))), False),
        (Placement(affinity=affine(Expression(key="customer", operator="In", values=("dev",)))), False),
        (Placement(affinity=Affinity()), False),
        (Placement(node_selector={"customer": "dev"}, affinity=affine(IN)), True),
        (Placement(node_selector={"customer": "shared"}, owner_kind="DaemonSet"), False),
        (Placement(node_selector={"customer": "shared"}, is_static=True), True),
    ],
)
def test_labelled_group_owns_pods_that_select_its_nodes(placement: Placement, *, belongs: bool) -> None:
    assert labelled(placement) is belongs


@pytest.mark.parametrize(
    ("placement", "belongs"),
    [
        (Placement(), True),
        (Placement(owner_kind="ReplicaSet"), True),
        (Placement(affinity=Affinity()), True),
        (Placement(owner_kind="DaemonSet"), False),
        (Placement(is_static=True), False),
        (Placement(node_selector={"disk": "ssd"}), False),
        (Placement(affinity=Affinity(required_node_terms=())), False),
        (Placement(affinity=Affinity(has_pod_affinity=True)), False),
        (Placement(affinity=Affinity(has_pod_anti_affinity=True)), False),
    ],
)
def test_default_group_owns_pods_without_placement_constraints(placement: Placement, *, belongs: bool) -> None:
    assert default(placement) is belongs


def test_daemon_set_and_static_pods_do_not_hold_a_node() -> None:
    assert holds_a_node(Placement(node_selector={"disk": "ssd"}))
    assert not holds_a_node(Placement(owner_kind="DaemonSet"))
    assert not holds_a_node(Placement(is_static=True))


def test_pod_is_finished_if_succeeded_or_failed() -> None:
    assert {phase for phase in PodPhase if is_finished(phase)} == {PodPhase.SUCCEEDED, PodPhase.FAILED}
