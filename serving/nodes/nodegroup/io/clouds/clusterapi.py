"""Cluster API as a cloud: MachineDeployments, MachineSets and MachinePools, over the Kubernetes API.

A group is named "KIND/NAMESPACE/NAME", or "NAMESPACE/NAME" for a MachineDeployment. The target is ``spec.replicas``,
the bounds are the annotations that cluster-autoscaler reads. Growing writes ``/scale``. Deleting marks the nodes'
Machines with the annotation delete-machine, then lowers ``/scale``. A repeated call finds the marks, and does not lower
``/scale`` again.

Source of names: kubernetes-sigs/cluster-api, api/v1beta1 (annotations of Machine and of the cluster-autoscaler
provider).
"""

from collections.abc import Sequence

import msgspec

from serving.core.model.errors import (
    CloudRefused,
    CloudUnavailable,
    ClusterError,
    Forbidden,
    Invalid,
    NotFound,
    NotLeading,
)
from serving.core.model.objects import Object, annotations_of, is_being_deleted, name_of, nested, version_of
from serving.net.cluster.kinds import MACHINE, MACHINE_DEPLOYMENT, MACHINE_POOL, MACHINE_SET, Kind
from serving.net.cluster.port import Cluster
from serving.nodes.nodegroup.cloud import CloudMachine, Deletion
from serving.nodes.nodegroup.records import CloudGroup

_MIN = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
_MAX = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
_DELETE = "cluster.x-k8s.io/delete-machine"
_YES = "yes"
_KINDS = {kind.name: kind for kind in (MACHINE_DEPLOYMENT, MACHINE_SET, MACHINE_POOL)}
_OWNER_LABELS = {
    MACHINE_DEPLOYMENT: "cluster.x-k8s.io/deployment-name",
    MACHINE_SET: "cluster.x-k8s.io/set-name",
    MACHINE_POOL: "cluster.x-k8s.io/pool-name",
}
_EXPECTED = "NAMESPACE/NAME of a MachineDeployment, or KIND/NAMESPACE/NAME with " + ", ".join(_KINDS)


class _MachineOwner(msgspec.Struct, frozen=True):
    kind: Kind
    namespace: str
    name: str


class ClusterApiCloud:
    """The machines in the management cluster ``cluster``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, group: str) -> CloudGroup:
        """Read the target and bounds of a group. Without annotated bounds, a group may shrink to 0 but not grow."""
        pool = await self._read(_owner_of(group))
        return _group_of(pool)

    async def increase(self, group: str, count: int) -> None:
        """Raise the target of a group."""
        owner = _owner_of(group)
        pool = await self._read(owner)
        size = _group_of(pool)
        if count < 1 or size.target_size + count > size.max_size:
            raise CloudRefused(f"{group}: {size.target_size} + {count} is above the maximum {size.max_size}")
        await self._scale(owner, pool, size.target_size + count)

    async def delete(self, group: str, machines: Sequence[CloudMachine]) -> Deletion:
        """Terminate machines and lower the target."""
        owner = _owner_of(group)
        pool, owned = await self._read(owner), await self._machines(owner)
        by_node = {str(nested(machine, "status", "nodeRef", "name") or ""): machine for machine in owned}
        ours = [machine for machine in machines if machine.node_name in by_node]
        failed = {
            machine.node_name: f"has no Machine of {group}" for machine in machines if machine.node_name not in by_node
        }
        size = _group_of(pool)
        going = [by_node[our.node_name] for our in ours if not _is_going(by_node[our.node_name])]
        if going and size.target_size - len(going) < size.min_size:
            raise CloudRefused(f"{group}: {size.target_size} - {len(going)} is below the minimum {size.min_size}")
        for machine in going:
            patch = {"metadata": {"annotations": {_DELETE: _YES}}}
            await self._patch(MACHINE, owner.namespace, name_of(machine), patch=patch)
        # Marked machines that still count as replicas, including those marked before a crash.
        living = [machine for machine in owned if not is_being_deleted(machine)]
        names = {name_of(machine) for machine in going}
        marked = [
            machine for machine in living if name_of(machine) in names or annotations_of(machine).get(_DELETE) == _YES
        ]
        surplus = len(living) - size.target_size
        if len(marked) > surplus:
            await self._scale(owner, pool, max(size.min_size, len(living) - len(marked)))
        return Deletion(deleted=tuple(our.node_name for our in ours), failed=failed)

    async def _read(self, owner: _MachineOwner) -> Object:
        try:
            return await self._cluster.get(owner.kind, owner.namespace, owner.name)
        except NotFound as error:
            raise CloudRefused(f"there is no {owner.kind.name} {owner.namespace}/{owner.name}") from error
        except ClusterError as error:
            raise _cloud_error(error) from error

    async def _machines(self, owner: _MachineOwner) -> list[Object]:
        selector = f"{_OWNER_LABELS[owner.kind]}={owner.name}"
        try:
            return (await self._cluster.list(MACHINE, owner.namespace, label_selector=selector)).items
        except ClusterError as error:
            raise _cloud_error(error) from error

    async def _scale(self, owner: _MachineOwner, pool: Object, replicas: int) -> None:
        patch = {"metadata": {"resourceVersion": version_of(pool)}, "spec": {"replicas": replicas}}
        try:
            await self._cluster.patch(owner.kind, owner.namespace, owner.name, patch=patch, subresource="scale")
        except NotLeading:
            raise
        except ClusterError as error:
            raise _cloud_error(error) from error

    async def _patch(self, kind: Kind, namespace: str, name: str, *, patch: Object) -> None:
        try:
            await self._cluster.patch(kind, namespace, name, patch=patch)
        except NotLeading:
            raise
        except ClusterError as error:
            raise _cloud_error(error) from error


def _owner_of(group: str) -> _MachineOwner:
    parts = group.split("/")
    if len(parts) == 2:
        parts = [MACHINE_DEPLOYMENT.name, *parts]
    if len(parts) != 3 or parts[0] not in _KINDS:
        raise CloudRefused(f"{group!r} is no group of Cluster API; expected {_EXPECTED}")
    return _MachineOwner(_KINDS[parts[0]], parts[1], parts[2])


def _group_of(pool: Object) -> CloudGroup:
    annotations, replicas = annotations_of(pool), nested(pool, "spec", "replicas")
    target = 1 if replicas is None else int(replicas)
    low, high = annotations.get(_MIN, ""), annotations.get(_MAX, "")
    return CloudGroup(
        target_size=target,
        min_size=int(low) if low.isdecimal() else 0,
        max_size=int(high) if high.isdecimal() else target,
    )


def _is_going(machine: Object) -> bool:
    return is_being_deleted(machine) or annotations_of(machine).get(_DELETE) == _YES


def _cloud_error(error: ClusterError) -> CloudRefused | CloudUnavailable:
    refused = isinstance(error, Forbidden | Invalid | NotFound)
    return CloudRefused(str(error)) if refused else CloudUnavailable(str(error))
