"""Nodes, Pods and NodeGroups as API objects, for tests of the daemon."""

from typing import Any

from serving.core.model.knative import REMOVAL_TAINT
from serving.core.model.objects import Object

GROUP_SPEC: Object = {
    "labelKey": "customer",
    "labelValue": "shared",
    "cloudProviderGroupName": "asg",
    "taintLowerCapacityThresholdPercent": 10,
    "taintUpperCapacityThresholdPercent": 40,
    "scaleUpThresholdPercent": 70,
    "slowNodeRemovalRate": 1,
    "fastNodeRemovalRate": 2,
    "softDeleteGracePeriod": "1m",
    "hardDeleteGracePeriod": "10m",
    "scaleUpCoolDownPeriod": "2m",
    "minNodes": 1,
    "maxNodes": 10,
}


def node_object(
    name: str,
    *,
    tainted_at_s: int | None = None,
    annotations: Object | None = None,
    **spec: Any,  # noqa: ANN401 - JSON
) -> Object:
    """A Ready node of 4 cores and 16 GiB, in the group shared."""
    taints = (
        [] if tainted_at_s is None else [{"key": REMOVAL_TAINT, "value": str(tainted_at_s), "effect": "NoSchedule"}]
    )
    metadata: Object = {"name": name, "labels": {"customer": "shared"}, "annotations": annotations or {}}
    status = {
        "allocatable": {"cpu": "4", "memory": "16Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    whole = {"taints": taints, "providerID": f"memory:///{name}", **spec}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": whole, "status": status}


def pod_object(name: str, *, on: str = "", cpu: str = "1", owner: str = "", ready: bool = True) -> Object:
    """A pod for nodes of the group shared: running on a node, or pending."""
    metadata: Object = {"name": name, "namespace": "default", "labels": {"app": "a"}}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o"}]
    requests = {"cpu": cpu, "memory": "1Gi"}
    spec: Object = {
        "nodeSelector": {"customer": "shared"},
        "containers": [{"name": "c", "resources": {"requests": requests}}],
    }
    conditions = [{"type": "PodScheduled", "status": "True" if on else "False"}]
    if on:
        spec["nodeName"] = on
        conditions.append({"type": "Ready", "status": "True" if ready else "False"})
    status = {"phase": "Running" if on else "Pending", "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
