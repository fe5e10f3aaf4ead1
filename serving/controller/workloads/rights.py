"""The right to scale: a RoleBinding in each namespace whose ScaledWorkloads may be scaled.

Input: a namespace, whether it has ScaledWorkloads and the label, and its RoleBinding. Output: writes. The RoleBinding
grants the ClusterRole ``serving-scaled-workloads`` to autoscaler and controller in this namespace. The controller may
bind no other role.
"""

from collections.abc import Iterator

from serving.controller.values.writes import deletion_of
from serving.core.model.knative import SCALED_WORKLOADS_LABEL
from serving.core.model.objects import Object
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write

RIGHTS = "serving-scaled-workloads"
"""The name of the ClusterRole, and of each RoleBinding."""

SELECTOR = f"{SCALED_WORKLOADS_LABEL}=enabled"
"""Selects namespaces whose ScaledWorkloads may be scaled."""

_LABELS = {"app.kubernetes.io/part-of": "serving", "app.kubernetes.io/component": "scaled-workloads"}
BINDING_SELECTOR = ",".join(f"{key}={value}" for key, value in _LABELS.items())
"""Selects the RoleBindings that the controller creates."""

_GROUP = "rbac.authorization.k8s.io"


def rights_writes(namespace: str, binding: Object | None, *, is_wanted: bool, system_namespace: str) -> Iterator[Write]:
    """Yield the write that brings a namespace's RoleBinding in line with ``is_wanted``; none if nothing is to be done.

    The RoleBinding gives the autoscaler and the controller in ``system_namespace`` their rights to scale workloads of
    the namespace.
    """
    if binding is not None and not is_wanted:
        yield deletion_of(kinds.ROLE_BINDING, binding)
    if binding is None and is_wanted:
        accounts = ("autoscaler", "controller")
        body = {
            "apiVersion": kinds.ROLE_BINDING.api_version,
            "kind": kinds.ROLE_BINDING.name,
            "metadata": {"name": RIGHTS, "namespace": namespace, "labels": {**_LABELS}},
            "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": RIGHTS},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": system_namespace} for name in accounts],
        }
        yield Create(kind=kinds.ROLE_BINDING, body=body)
