"""One pass of the node group daemon over a case: Nodes and Pods as API objects, a NodeGroup, and the memory cloud.

The case's nodes and pods are created in the store with the times that the case gives; the daemon follows them by its
reflectors, decides, taints, untaints and deletes through the cluster port and the cloud port. What is compared is read
back from the store and the cloud, so every step between a Node object and a deleted machine takes part.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from serving.core.model.objects import Object
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NODE, NODE_GROUP, POD
from serving.nodes.nodegroup.facts import node_of
from serving.nodes.nodegroup.group_memory import NodeGroupState
from serving.nodes.nodegroup.groups import GroupReading, WrittenGroup
from serving.nodes.nodegroup.io.clouds.memory import MemoryCloud
from serving.nodes.nodegroup.io.passes import GroupPass, NodeGroupPasses
from serving.nodes.nodegroup.records import CloudGroup
from serving.nodes.nodegroup.states import Partition, as_in_dry_mode, partition
from serving.nodes.nodegroup.status import state_from, written_state

_DAEMON_SET = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]


class StagedPass:
    """The state after the pass."""

    def __init__(self, group_pass: GroupPass, cloud: MemoryCloud, *, parts: Partition, left: set[str]) -> None:
        self.group_pass = group_pass
        self.cloud = cloud
        self.parts = parts
        self.left = left


def staged_pass(
    fields: Mapping[str, Any], settings: NodeGroupSettings, state: NodeGroupState, now_s: float
) -> StagedPass:
    """Run one pass over a case."""
    return asyncio.run(_staged_pass(fields, settings, state, now_s))


async def _staged_pass(
    entry: Mapping[str, Any], settings: NodeGroupSettings, state: NodeGroupState, now_s: float
) -> StagedPass:
    wall_s = [now_s]
    cluster = MemoryCluster(wall_s=lambda: wall_s[0])
    group = settings.cloud_provider_group_name
    bounds = CloudGroup(target_size=entry["cloud_target"], min_size=entry["cloud_min"], max_size=entry["cloud_max"])
    cloud = MemoryCloud({group: bounds})
    before: list[Object] = []
    for raw in entry.get("nodes") or ():
        wall_s[0] = now_s - raw.get("age_s", 0)
        before.append(await _put_node(cluster, raw, settings, now_s=now_s))
    wall_s[0] = now_s
    for number, raw in enumerate(entry.get("pods") or ()):
        for index in range(raw.get("count", 1)):
            await _put_pod(cluster, f"p{number}-{index}", raw)
    await cluster.create(NODE_GROUP, {"metadata": {"name": settings.name}, "spec": {}})
    status = {"state": written_state(state)}
    await cluster.patch(NODE_GROUP, "", settings.name, patch={"status": status}, subresource="status")
    await cluster.patch(
        NODE_GROUP, "", settings.name, patch={"metadata": {"labels": {"serving.dev/managed-by": "config-nodegroup"}}}
    )
    reading = GroupReading(groups=(WrittenGroup(settings=settings, options={}),))
    passes = NodeGroupPasses(cluster, cloud, written=lambda: reading, clock=lambda: now_s)
    following = asyncio.create_task(passes.watch())
    try:
        await passes.synced()
        (group_pass,) = await passes.run_once()
    finally:
        following.cancel()
        await asyncio.wait({following})
    remaining = {node["metadata"]["name"]: node for node in (await cluster.list(NODE)).items}
    # The cases list deleted nodes where they were.
    nodes = [node_of(remaining.get(resource["metadata"]["name"], resource)) for resource in before]
    stored = state_from(await cluster.get(NODE_GROUP, "", settings.name))
    assert stored == group_pass.state, "the state survives in the status"
    if settings.dry_mode:
        nodes = [as_in_dry_mode(node, stored.dry_taints, ignore_real_state=True) for node in nodes]
    await cluster.close()
    return StagedPass(group_pass, cloud, parts=partition(nodes), left=set(remaining))


async def _put_node(
    cluster: MemoryCluster, raw: Mapping[str, Any], settings: NodeGroupSettings, *, now_s: float
) -> Object:
    taints = []
    if raw.get("tainted_ago_s") is not None:
        at_s = str(int(now_s - raw["tainted_ago_s"]))
        taints.append({"key": "atlassian.com/escalator", "value": at_s, "effect": "NoSchedule"})
    if raw.get("force_tainted"):
        taints.append({"key": "atlassian.com/escalator-force", "value": "1", "effect": "NoSchedule"})
    metadata: Object = {"name": raw["name"], "labels": {settings.label_key: settings.label_value}}
    if raw.get("no_delete"):
        metadata["annotations"] = {"atlassian.com/no-delete": "yes"}
    spec: Object = {"providerID": f"memory:///{raw['name']}", "taints": taints}
    if raw.get("cordoned"):
        spec["unschedulable"] = True
    await cluster.create(NODE, {"metadata": metadata, "spec": spec})
    status = {
        "allocatable": {"cpu": f"{raw['cpu_m']}m", "memory": str(raw["mem_bytes"])},
        "conditions": [{"type": "Ready", "status": "False" if raw.get("not_ready") else "True"}],
    }
    return await cluster.patch(NODE, "", raw["name"], patch={"status": status}, subresource="status")


async def _put_pod(cluster: MemoryCluster, name: str, raw: Mapping[str, Any]) -> None:
    metadata: Object = {"name": name, "namespace": "default"}
    if raw.get("daemonset"):
        metadata["ownerReferences"] = _DAEMON_SET
    if raw.get("static"):
        metadata["annotations"] = {"kubernetes.io/config.source": "file"}
    requests = {"cpu": f"{raw['cpu_m']}m", "memory": str(raw["mem_bytes"])}
    spec: Object = {"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}
    if raw.get("node"):
        spec["nodeName"] = raw["node"]
    await cluster.create(POD, {"metadata": metadata, "spec": spec})
    status: Object = {"conditions": [{"type": "PodScheduled", "status": "True" if raw.get("scheduled") else "False"}]}
    # A pod without a phase is neither pending nor running; the store gives every new pod one.
    status["phase"] = raw.get("phase") or None
    await cluster.patch(POD, "default", name, patch={"status": status}, subresource="status")
