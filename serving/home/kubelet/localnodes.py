"""Maintains the Nodes of this machine: the machine itself, or virtual nodes of the local cloud.

A virtual node appears after the boot time of its machine. When the machine is removed, its Node and pods are deleted,
as in a cloud; a node group drains the node first. Nodes left by an earlier start are removed.

A Node created by this module has the label ``MACHINE_LABEL`` with the instance. No other Nodes are removed.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging

from serving.core.model.errors import AlreadyExists, CloudUnavailable, ClusterError, Forbidden, NotFound
from serving.core.model.knative import MACHINE_LABEL
from serving.core.model.objects import Object, labels_of, name_of, nested
from serving.home.kubelet.virtualnodes import VirtualNodes, default_group, due_names, node_status_of, virtual_node
from serving.home.pods.machine import Machine, node_status
from serving.net.aio.clock import stamp, wall_s
from serving.net.aio.supervise import supervise
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import CONFIG_MAP, NODE, NODE_GROUP, POD
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import Reflector
from serving.nodes.nodegroup.localmachines import LOCAL_MACHINES, LocalMachines, machines_of

_log = logging.getLogger("nodes")

_RETRY_S = 1.0
_INSTANCE_DIGITS = 16


def instance_of(key: bytes) -> str:
    """The name of an installation on one machine, derived from its cluster key without revealing the key."""
    return hmac.new(key, MACHINE_LABEL.encode(), hashlib.sha256).hexdigest()[:_INSTANCE_DIGITS]


class LocalNodes:
    """Maintains the Nodes of this machine: one Node ``name``, or the Nodes of its ``virtual`` nodes.

    ``instance`` is the value of the label that marks the Nodes of this installation.
    """

    def __init__(
        self, cluster: Cluster, machine: Machine, *, name: str, instance: str, virtual: VirtualNodes | None = None
    ) -> None:
        self._cluster = cluster
        self._machine = machine
        self._name = name
        self._instance = instance
        self._virtual = virtual
        self._changed = asyncio.Event()

    async def register(self) -> None:
        """Create the initial nodes, so that adopted pods find theirs.

        Raises:
            Forbidden: if the server has nodes of another kubelet. Nothing is changed then.
        """
        for node in (await self._cluster.list(NODE)).items:
            if nested(node, "status", "nodeInfo"):
                raise Forbidden(
                    f"node {name_of(node)} has another kubelet: the kubelet of a single machine works only with the API of `serving up`"
                )
        if self._virtual is None:
            await self._put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._name}})
            await self._remove_others({self._name})
            return
        group = default_group(self._virtual)
        try:
            await self._cluster.create(NODE_GROUP, group)
        except AlreadyExists:
            # Users may change the group; whether it anticipates is a flag of each start.
            patch = {"spec": {"anticipation": self._virtual.anticipates}}
            await self._cluster.patch(NODE_GROUP, "", group["metadata"]["name"], patch=patch)
        machines = await self._start_machines(self._virtual)
        await self._settle(machines, self._virtual)

    async def run(self) -> None:
        """Watch the machines of virtual nodes, and maintain their Nodes, until cancelled.

        Returns immediately if there are no virtual nodes.
        """
        virtual = self._virtual
        if virtual is None:
            return
        machines = Reflector(
            self._cluster,
            CONFIG_MAP,
            system_namespace(),
            field_selector=f"metadata.name={LOCAL_MACHINES}",
            on_change=lambda _: self._changed.set(),
        )
        async with supervise() as group:
            group.start(machines.run(), name="machines")
            await machines.synced.wait()
            while True:
                self._changed.clear()
                wait_s = _RETRY_S
                config_map = machines.cache.get((system_namespace(), LOCAL_MACHINES))
                try:
                    if config_map is not None:
                        wait_s = await self._settle(machines_of(config_map.get("data") or {}), virtual)
                except (ClusterError, CloudUnavailable) as error:
                    _log.warning("nodes.unsettled", extra={"error": str(error)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()

    async def _start_machines(self, virtual: VirtualNodes) -> LocalMachines:
        """Restore the machines of the previous run, adding or removing some to stay within the current bounds.

        Machines added here skip the boot time.
        """
        namespace, bounds = system_namespace(), {"min_size": virtual.count, "max_size": virtual.count_max}
        long_ago_s = wall_s() - virtual.boot_s
        try:
            config_map = await self._cluster.get(CONFIG_MAP, namespace, LOCAL_MACHINES)
            before = machines_of(config_map.get("data") or {})
        except (NotFound, CloudUnavailable):
            before = LocalMachines(asked_at_s={}, min_size=0, max_size=0, next_number=1)
            config_map = None
        machines = before.bounded(**bounds, now_s=long_ago_s)
        if config_map is None:
            body = {"metadata": {"namespace": namespace, "name": LOCAL_MACHINES}, "data": machines.data()}
            with contextlib.suppress(NotFound):
                await self._cluster.delete(CONFIG_MAP, namespace, LOCAL_MACHINES)
            await self._cluster.create(CONFIG_MAP, body)
        else:
            await self._cluster.patch(CONFIG_MAP, namespace, LOCAL_MACHINES, patch={"data": machines.data()})
        return machines

    async def _settle(self, machines: LocalMachines, virtual: VirtualNodes) -> float:
        """Add booted nodes and remove deleted ones; return the seconds until the next boot ends."""
        waits = due_names(machines, boot_s=virtual.boot_s, now_s=wall_s())
        registered = {name_of(node) for node in await self._own_nodes()}
        for name, wait_s in waits.items():
            if wait_s == 0 and name not in registered:
                await self._put(virtual_node(name))
                _log.info("node.up", extra={"node": name})
        await self._remove_others(set(waits))
        return min((wait_s for wait_s in waits.values() if wait_s > 0), default=3600.0)

    async def _put(self, node: Object) -> None:
        """Create a Node, or restore its label and status. They are not in the journal, so a restart loses them."""
        metadata = {"labels": labels_of(node) | {MACHINE_LABEL: self._instance}}
        try:
            await self._cluster.create(NODE, {**node, "metadata": node["metadata"] | metadata})
        except AlreadyExists:
            await self._cluster.patch(NODE, "", name_of(node), patch={"metadata": metadata})
        status = (
            node_status(self._machine, at=stamp())
            if self._virtual is None
            else node_status_of(self._virtual, at=stamp())
        )
        await self._cluster.patch(NODE, "", node["metadata"]["name"], patch={"status": status}, subresource="status")

    async def _remove_others(self, wanted: set[str]) -> None:
        """Remove this installation's Nodes with a name outside of ``wanted``, and the pods on them."""
        for name in {name_of(node) for node in await self._own_nodes()} - wanted:
            with contextlib.suppress(NotFound):
                await self._cluster.delete(NODE, "", name)
            for pod in (await self._cluster.list(POD, field_selector=f"spec.nodeName={name}")).items:
                with contextlib.suppress(NotFound):
                    await self._cluster.delete(POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
            _log.info("node.gone", extra={"node": name})

    async def _own_nodes(self) -> list[Object]:
        nodes = (await self._cluster.list(NODE)).items
        return [node for node in nodes if labels_of(node).get(MACHINE_LABEL) == self._instance]
