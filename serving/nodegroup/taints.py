"""The taints of a node after an effect: what the daemon writes, or None where the effect no longer applies.

Input: the Node as the server has it now, which may differ from what the pass saw; output: the whole list of taints. A cordoned or
force-tainted node is left alone, and a node that is tainted keeps its timestamp. Source: atlassian/escalator 043bb1b,
pkg/k8s/taint.go.
"""

from collections.abc import Mapping
from typing import Any

from serving.model.knative import REMOVAL_TAINT
from serving.model.objects import Object, nested
from serving.nodegroup.facts import node_of
from serving.nodegroup.plan import Taint, Untaint
from serving.nodegroup.states import NodeState, state_of


def taints_after(found: Mapping[str, Any], effect: Taint | Untaint) -> list[Object] | None:
    """All taints of the node once the effect is carried out; None if there is nothing to do."""
    taints: list[Object] = list(nested(found, "spec", "taints") or ())
    state = state_of(node_of(found))
    if isinstance(effect, Taint):
        if state is not NodeState.UNTAINTED:
            return None
        return [*taints, {"key": REMOVAL_TAINT, "value": str(effect.at_s), "effect": effect.effect}]
    if state is not NodeState.TAINTED:
        return None
    return [one for one in taints if one.get("key") != REMOVAL_TAINT]
