"""The taints of a node after an effect."""

from typing import Any

import pytest

from serving.nodes.nodegroup.io.actor import taints_after
from serving.nodes.nodegroup.plan import Taint, Untaint
from tests.unit.nodes.nodegroup.objects import node_object

TAINT = Taint(node_name="a", at_s=42, effect="NoSchedule")
UNTAINT = Untaint(node_name="a")
OTHER = {"key": "other", "effect": "NoExecute"}
FORCED = {"key": "atlassian.com/escalator-force", "value": "1", "effect": "NoSchedule"}


def node(*taints: dict[str, Any], **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return node_object("a", taints=list(taints), **spec)


def test_taint_is_appended_to_existing_taints() -> None:
    written = {"key": "atlassian.com/escalator", "value": "42", "effect": "NoSchedule"}
    assert taints_after(node(OTHER), TAINT) == [OTHER, written]


def test_untaint_preserves_other_taints() -> None:
    assert taints_after(node_object("a", tainted_at_s=7), UNTAINT) == []
    tainted = {"key": "atlassian.com/escalator", "value": "7", "effect": "NoSchedule"}
    assert taints_after(node(tainted, OTHER), UNTAINT) == [OTHER]


@pytest.mark.parametrize("effect", [TAINT, UNTAINT])
def test_taints_of_cordoned_or_force_tainted_node_are_not_changed(effect: Taint | Untaint) -> None:
    assert taints_after(node(unschedulable=True), effect) is None
    assert taints_after(node(FORCED), effect) is None


def test_taint_and_untaint_are_skipped_if_already_done() -> None:
    assert taints_after(node_object("a", tainted_at_s=7), TAINT) is None
    assert taints_after(node(), UNTAINT) is None
