"""Which pods count for which group."""

import pytest

from serving.nodegroup.membership import holds_a_node, is_finished, node_belongs, pod_belongs
from serving.nodegroup.records import Affinity, Expression, Placement, PodPhase


def labelled(placement: Placement) -> bool:
    return pod_belongs(placement, group_name="shared", label_key="customer", label_value="shared")


def default(placement: Placement) -> bool:
    return pod_belongs(placement, group_name="default", label_key="customer", label_value="shared")


def affine(*expressions: Expression) -> Affinity:
    return Affinity(required_node_terms=((Expression(key="zone", operator="Exists"),), expressions))


IN = Expression(key="customer", operator="In", values=("dev", "shared"))


def test_a_node_belongs_by_its_label() -> None:
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
def test_a_labelled_group_takes_pods_that_ask_for_its_nodes(placement: Placement, *, belongs: bool) -> None:
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
def test_the_default_group_takes_pods_that_ask_for_nothing(placement: Placement, *, belongs: bool) -> None:
    assert default(placement) is belongs


def test_pods_of_daemon_sets_and_static_pods_hold_no_node() -> None:
    assert holds_a_node(Placement(node_selector={"disk": "ssd"}))
    assert not holds_a_node(Placement(owner_kind="DaemonSet"))
    assert not holds_a_node(Placement(is_static=True))


def test_a_pod_has_finished_when_it_succeeded_or_failed() -> None:
    assert {phase for phase in PodPhase if is_finished(phase)} == {PodPhase.SUCCEEDED, PodPhase.FAILED}
