"""Which nodes of this machine take a pod, as kube-scheduler's filters say it; the words are kube-scheduler's too.

Input: a Node and a Pod; output: why the node does not take the pod, "" if it does, room left out: that is ``placing``'s. Filters:
cordoned, untolerated taints, node selector and required node affinity.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from serving.cluster.selectors import written_selector
from serving.home.admission.quotas import pod_sums
from serving.model.amounts import amounts_of
from serving.model.errors import InvalidValue
from serving.model.objects import labels_of, name_of, nested

_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_BINDING_EFFECTS = ("NoSchedule", "NoExecute")


def refusal(node: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Why a node does not take a pod, whatever room it has; "" if it does."""
    tolerations = nested(pod, "spec", "tolerations") or ()
    if nested(node, "spec", "unschedulable") and not _is_tolerated(_UNSCHEDULABLE_TAINT, tolerations):
        return "node(s) were unschedulable"
    if not _is_selected(node, pod):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in nested(node, "spec", "taints") or ():
        if taint.get("effect") in _BINDING_EFFECTS and not _is_tolerated(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint.get('key')}: {taint.get('value', '')}}}"
    return ""


def unschedulable_message(reasons: Iterable[str]) -> str:
    """The message of a pod that no node takes, from the reason of each node.

    "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
    """
    counts = Counter(reasons)
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda one: one[0]))
    return f"0/{counts.total()} nodes are available: {listed or 'there is no node'}."


def excess_message(node: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """What a pod requests beyond all that the node has, and that it starts all the same; "" if it could fit."""
    try:
        has, asks = amounts_of(nested(node, "status", "allocatable")), pod_sums(nested(pod, "spec") or {}, "requests")
    except InvalidValue:
        return ""
    over = [
        f"{asks[name]} {name} of {has[name]}" for name in has if name in asks and asks[name].nanos > has[name].nanos
    ]
    if not over:
        return ""
    return (
        f"the pod requests {' and '.join(over)} that {name_of(node)} has; it starts all the same, "
        "as requests are only held to with virtual nodes (serving up --nodes)"
    )


def _is_tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    return any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Kubernetes' rule: no effect means every effect, no key with Exists means every taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, exists = toleration.get("key"), toleration.get("operator") == "Exists"
    if not key:
        return exists
    return key == taint.get("key") and (exists or toleration.get("value", "") == taint.get("value", ""))


def _is_selected(node: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    labels = labels_of(node)
    wanted = nested(pod, "spec", "nodeSelector") or {}
    if not wanted.items() <= labels.items():
        return False
    required = nested(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") or ()
    return any(_matches(term, node, labels) for term in terms)


def _matches(term: Mapping[str, Any], node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a node satisfies all expressions of one term; a term without any selects no node."""
    fields = term.get("matchFields") or ()
    expressions = term.get("matchExpressions") or ()
    if not fields and not expressions:
        return False
    names = written_selector({"matchExpressions": fields})
    return written_selector({"matchExpressions": expressions}).matches(labels) and names.matches(
        {"metadata.name": name_of(node)}
    )
