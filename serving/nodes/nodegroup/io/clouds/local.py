"""The cloud of ``serving up --nodes``: virtual nodes of this machine in one group, ``local``.

Machines are entries of a ConfigMap. Each write has the ConfigMap's version, so that two writers never lose a machine.
The process that runs the pods watches the ConfigMap. A machine becomes a node after the boot time. The node of a
removed machine is removed with its pods.
"""

from collections.abc import Callable, Sequence

from serving.core.model.errors import CloudRefused, CloudUnavailable, ClusterError, NotFound, NotLeading
from serving.net.aio.clock import wall_s
from serving.net.cluster.kinds import CONFIG_MAP
from serving.net.cluster.port import Cluster
from serving.nodes.nodegroup.cloud import CloudMachine, Deletion
from serving.nodes.nodegroup.localmachines import LOCAL_GROUP, LOCAL_MACHINES, LocalMachines, machines_of
from serving.nodes.nodegroup.records import CloudGroup


class LocalCloud:
    """The machines in a ConfigMap in the system namespace of ``cluster``."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    async def describe(self, group: str) -> CloudGroup:
        """Read the target and bounds of a group."""
        return (await self._read(group))[0].group

    async def increase(self, group: str, count: int) -> None:
        """Raise the target of a group."""
        await self._change(group, lambda current: current.increased(count, now_s=wall_s()))

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines and lower the target. A machine that is not in the ConfigMap is already gone."""
        names = [machine.node_name for machine in machines]
        await self._change(group, lambda current: current.without(names))
        return Deletion(deleted=tuple(names))

    async def _change(self, group: str, change: Callable[[LocalMachines], LocalMachines]) -> None:
        before, version = await self._read(group)
        changed = change(before)
        if changed == before:
            return
        patch = {"metadata": {"resourceVersion": version}, "data": changed.data()}
        try:
            await self._cluster.patch(CONFIG_MAP, self._namespace, LOCAL_MACHINES, patch=patch)
        except NotLeading:
            raise
        except ClusterError as error:
            raise CloudUnavailable(str(error)) from error

    async def _read(self, group: str) -> tuple[LocalMachines, str]:
        if group != LOCAL_GROUP:
            raise CloudRefused(f"there is no group {group}; the group of this machine is {LOCAL_GROUP}")
        try:
            config_map = await self._cluster.get(CONFIG_MAP, self._namespace, LOCAL_MACHINES)
        except NotFound as error:
            raise CloudRefused("there are no virtual nodes: start with serving up --nodes") from error
        except ClusterError as error:
            raise CloudUnavailable(str(error)) from error
        return machines_of(config_map.get("data") or {}), config_map["metadata"].get("resourceVersion", "")
