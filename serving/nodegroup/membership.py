"""Which nodes and pods belong to a node group.

A group is the nodes that share one label. Its pods are those that ask for such nodes, wherever they run. The group
named ``default`` takes the pods that ask for no nodes in particular. Inputs: labels and placements; output: yes or
no. It knows neither amounts nor states. Source: atlassian/escalator 043bb1b, pkg/controller/node_group.go.
"""

from collections.abc import Mapping

from serving.nodegroup.records import Affinity, Placement, PodPhase

DEFAULT_GROUP = "default"
_DAEMON_SET = "DaemonSet"
_IN = "In"


def node_belongs(labels: Mapping[str, str], *, label_key: str, label_value: str) -> bool:
    """Whether a node carries the group's label."""
    return labels.get(label_key) == label_value


def pod_belongs(placement: Placement, *, group_name: str, label_key: str, label_value: str) -> bool:
    """Whether a pod counts for the group.

    With the label customer=shared, a pod belongs whose node selector says customer: shared, and one with a required
    node affinity term that says customer In (shared, dev). A selector that names another value does not outvote such a
    term. Other operators and preferred terms do not count. Pods of DaemonSets belong to no group.
    """
    if placement.owner_kind == _DAEMON_SET:
        return False
    if group_name == DEFAULT_GROUP:
        return not placement.is_static and not placement.node_selector and _asks_for_nothing(placement.affinity)
    return placement.node_selector.get(label_key) == label_value or _affinity_names(
        placement.affinity, label_key=label_key, label_value=label_value
    )


def holds_a_node(placement: Placement) -> bool:
    """Whether a pod would be lost with its node: neither a DaemonSet's, which ends with it, nor the kubelet's own."""
    return placement.owner_kind != _DAEMON_SET and not placement.is_static


def is_finished(phase: PodPhase) -> bool:
    """Whether a pod has ended; such a pod asks for nothing and holds nothing."""
    return phase in {PodPhase.SUCCEEDED, PodPhase.FAILED}


def _asks_for_nothing(affinity: Affinity | None) -> bool:
    return affinity is None or (
        affinity.required_node_terms is None and not affinity.has_pod_affinity and not affinity.has_pod_anti_affinity
    )


def _affinity_names(affinity: Affinity | None, *, label_key: str, label_value: str) -> bool:
    terms = affinity.required_node_terms if affinity else None
    return any(
        expression.key == label_key and expression.operator == _IN and label_value in expression.values
        for term in terms or ()
        for expression in term
    )
