"""Single passes of the node group daemon over a store and the memory cloud, with a simulated clock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from serving.core.model.knative import REMOVAL_TAINT
from serving.core.model.objects import Object, condition_of, name_of, nested
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import EVENT, NODE, NODE_GROUP, POD
from serving.net.cluster.port import Cluster
from serving.net.metrics.nodegroup import NodeGroupMetrics
from serving.nodes.nodegroup.book import NodeGroupBook
from serving.nodes.nodegroup.groups import GroupReading
from serving.nodes.nodegroup.io.clouds.memory import MemoryCloud
from serving.nodes.nodegroup.io.loop import PassCounts
from serving.nodes.nodegroup.io.passes import GroupPass, NodeGroupPasses
from serving.nodes.nodegroup.records import CloudGroup
from tests.eventually import until
from tests.unit.nodes.nodegroup.objects import GROUP_SPEC, node_object, pod_object

BEGIN_S = 1_700_000_000.0


class NodeGroupStage:
    """A store, a cloud and the daemon's passes; ``now_s`` is the time of all of them."""

    def __init__(self, cluster: MemoryCluster, cloud: MemoryCloud) -> None:
        self.cluster, self.cloud = cluster, cloud
        self.now_s = BEGIN_S
        self.through: Cluster = cluster
        self.check: Callable[[], None] = lambda: None
        self.reading = GroupReading()
        self.is_dry = False
        self.metrics = NodeGroupMetrics()
        self.counts = PassCounts(self.metrics, cloud=lambda: "memory")
        self.finished: list[GroupPass] = []
        self.passes = self._passes()
        self._following: asyncio.Task[None] | None = None

    def _passes(self) -> NodeGroupPasses:
        return NodeGroupPasses(
            self.through,
            self.cloud,
            written=lambda: self.reading,
            check=self.check,
            dry_mode=lambda: self.is_dry,
            clock=lambda: self.now_s,
            on_pass=self._passed,
            on_cloud_error=self.counts.count_cloud_error,
        )

    def _passed(self, group_pass: GroupPass, book: NodeGroupBook) -> None:
        self.finished.append(group_pass)
        self.counts.count(group_pass, book)

    async def restart(self) -> None:
        """Replace the daemon, which loses its memory."""
        await self.stop()
        self.passes = self._passes()
        self._following = asyncio.create_task(self.passes.watch())
        await self.passes.synced()

    async def stop(self) -> None:
        """Stop the watches, so that the objects of a pass become stale."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
            self._following = None

    async def group(self, name: str = "shared", **spec: Any) -> None:  # noqa: ANN401 - JSON
        """Create a NodeGroup and the cloud's group."""
        await self.cluster.create(NODE_GROUP, {"metadata": {"name": name}, "spec": {**GROUP_SPEC, **spec}})

    async def node(self, name: str, **more: Any) -> None:  # noqa: ANN401 - of the builder
        """Create a ready node with 4 cores."""
        body = node_object(name, **more)
        status = body.pop("status")
        await self.cluster.create(NODE, body)
        await self.cluster.patch(NODE, "", name, patch={"status": status}, subresource="status")

    async def pod(self, name: str, **more: Any) -> None:  # noqa: ANN401 - of the builder
        """Create a pod that runs on a node or is pending."""
        body = pod_object(name, **more)
        status = body.pop("status")
        await self.cluster.create(POD, body)
        await self.cluster.patch(POD, "default", name, patch={"status": status}, subresource="status")

    async def run(self, *, after_s: float = 0.0) -> list[GroupPass]:
        """Run a pass at a later time, after the reflectors have received all objects."""
        self.now_s += after_s
        if self._following is not None:
            await self._seen_all()
        return await self.passes.run_once()

    async def run_one(self, *, after_s: float = 0.0) -> GroupPass:
        """Run a pass; return the result of the only group."""
        (group_pass,) = await self.run(after_s=after_s)
        return group_pass

    async def _seen_all(self) -> None:
        for reflector in (self.passes._nodes, self.passes._pods, self.passes._groups):
            items = (await self.cluster.list(reflector.kind)).items
            wanted = {name_of(item): item["metadata"]["resourceVersion"] for item in items}
            await until(lambda reflector=reflector, wanted=wanted: _versions(reflector.cache) == wanted)  # type: ignore[misc]

    async def tainted(self) -> set[str]:
        """Names of nodes with the removal taint."""
        nodes = (await self.cluster.list(NODE)).items
        return {
            name_of(node)
            for node in nodes
            if any(taint["key"] == REMOVAL_TAINT for taint in nested(node, "spec", "taints") or ())
        }

    async def names(self) -> set[str]:
        """Names of all nodes."""
        return {name_of(node) for node in (await self.cluster.list(NODE)).items}

    async def condition(self, kind: str, name: str = "shared") -> Object:
        """A condition of a NodeGroup."""
        return condition_of(await self.cluster.get(NODE_GROUP, "", name), kind)

    async def events(self) -> list[str]:
        """Messages of all Events."""
        return [event["message"] for event in (await self.cluster.list(EVENT, "default")).items]

    async def status(self, name: str = "shared") -> Object:
        """The status of a NodeGroup."""
        return (await self.cluster.get(NODE_GROUP, "", name)).get("status") or {}


def _versions(cache: Any) -> dict[str, str]:  # noqa: ANN401 - a cache of a reflector
    return {key[1]: value["metadata"]["resourceVersion"] for key, value in cache.items()}


@contextlib.asynccontextmanager
async def staged_groups(
    *,
    target: int = 3,
    low: int = 0,
    high: int = 10,
    group: bool = True,
    **spec: Any,  # noqa: ANN401 - JSON
) -> AsyncIterator[NodeGroupStage]:
    """A store, the cloud's group ``asg``, and, by default, the NodeGroup ``shared``."""
    wall: list[NodeGroupStage] = []
    cluster = MemoryCluster(wall_s=lambda: wall[0].now_s if wall else BEGIN_S)
    cloud = MemoryCloud({"asg": CloudGroup(target_size=target, min_size=low, max_size=high)})
    stage = NodeGroupStage(cluster, cloud)
    wall.append(stage)
    if group:
        await stage.group(**spec)
    await stage.restart()
    try:
        yield stage
    finally:
        await stage.stop()
        await cluster.close()
