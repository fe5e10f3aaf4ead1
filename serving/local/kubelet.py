"""The kubelet's part: runs each pod that is bound to this machine, enforces memory limits, rotates logs.

The runtime owns the processes of pods. Pods that it has when this process starts are taken over: their objects are created
again in the store, without an owner, and the Deployment that selects them adopts them, as in a cluster.
"""

import asyncio
import logging
import random
from collections.abc import Collection
from pathlib import Path

import msgspec

from serving.cluster.kinds import POD, REVISION
from serving.cluster.port import Object
from serving.cluster.reflector import CacheChange, Key, Reflector
from serving.local.containers.aheadnetworks import AheadNetworks
from serving.local.containers.choosing import has_own_network, runs_images
from serving.local.localnodes import LocalNodes
from serving.local.locations import PodLocation, PodLocations
from serving.local.machine import read_machine
from serving.local.nodecontext import NodeContext
from serving.local.orders import HeldPod
from serving.local.pod import PodNote, PodRun
from serving.local.podfolder import remove_folder, rotate
from serving.local.resident_memory import resident_bytes_by_session
from serving.local.usage import UsageReporter
from serving.local.virtualnodes import network_of
from serving.model.errors import ClusterError, NotFound
from serving.model.knative import REVISION_LABEL

__all__ = ["Kubelet"]

_log = logging.getLogger("kubelet")

_MEMORY_PERIOD_S = 1.0
_ROTATION_PERIOD_S = 10.0
# Pods that are gone, of which the logs can still be read on disk.
_GONE_LOGS_KEPT = 100


class Kubelet:
    """All pods of this machine. Call ``take_over`` before pods are created; ``run`` lasts until cancelled."""

    def __init__(self, node: NodeContext, *, dice: random.Random | None = None) -> None:
        self._node = node
        self._locations = PodLocations(dice or random.Random())  # noqa: S311 - spreads addresses
        # All pods of virtual nodes run here: every pod that has a node.
        bound = "spec.nodeName!=" if node.virtual else f"spec.nodeName={node.name}"
        self._pods = Reflector(node.cluster, POD, field_selector=bound)
        self._pods.on_change(self._changed)
        self._ahead = AheadNetworks(self._locations, node.containers.networks if node.containers else None)
        self._running: dict[str, PodRun] = {}
        self._machine = read_machine()
        self._usage = UsageReporter(
            node.cluster,
            self._running.values,
            machine=self._machine,
            node_name=node.name,
            is_per_node=node.virtual is not None,
        )
        self._nodes = LocalNodes(node.cluster, self._machine, name=node.name, virtual=node.virtual)
        self._group: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"Kubelet({len(self._running)} pods, {self._locations})"

    @property
    def pod_count(self) -> int:
        """Pods that run, those that start or end included."""
        return len(self._running)

    def find(self, namespace: str, name: str) -> PodRun:
        """A pod that runs here. Raises ``NotFound``."""
        for pod in self._running.values():
            if pod.key == (namespace, name):
                return pod
        raise NotFound(f'pod "{name}" does not run on this machine')

    async def take_over(self) -> None:
        """Make the objects of pods that the template has. Waits for the template."""
        await self._node.runtime.connected.wait()
        for held in self._node.runtime.held:
            try:
                note = msgspec.convert(held.note, PodNote)
                await self._take_over_one(held, note)
            except (msgspec.ValidationError, ClusterError) as error:
                _log.warning("pod.not_taken_over", extra={"pod": held.pod, "error": str(error)})
                self._node.runtime.forget(held.pod)

    async def _take_over_one(self, held: HeldPod, note: PodNote) -> None:
        metadata = note.manifest["metadata"]
        # An orphaned pod is never deleted: one whose revision is gone is not taken over, nor one of a Deployment that a user
        # made, which is not on disk.
        revision = (metadata.get("labels") or {}).get(REVISION_LABEL, "")
        await self._node.cluster.get(REVISION, metadata["namespace"], revision)
        manifest = await self._node.cluster.create(POD, note.manifest)
        location = self._locations.occupy(note.location)
        pod = PodRun(self._node, manifest, pod_id=held.pod, location=location, note=note)
        self._running[manifest["metadata"]["uid"]] = pod
        if note.is_draining:
            await self._node.cluster.delete(POD, *pod.key)

    async def run(self) -> None:
        """Run pods until cancelled; they go on without us."""
        await self._nodes.register()
        async with asyncio.TaskGroup() as group:
            self._group = group
            for uid, pod in self._running.items():
                group.create_task(self._run_pod(uid, pod), name=f"pod {pod.key[0]}/{pod.key[1]}")
            group.create_task(self._nodes.run(), name="nodes")
            group.create_task(self._watch_memory(), name="memory")
            group.create_task(self._rotate_logs(), name="logs")
            group.create_task(self._usage.run(), name="usage")
            group.create_task(self._ahead.run(), name="networks")
            await self._pods.run()

    def _changed(self, change: CacheChange) -> None:
        metadata = change.new["metadata"]
        uid, key = metadata["uid"], change.key
        self._forget_others(key, uid)
        pod = self._running.get(uid)
        is_there = key in self._pods.cache
        if pod is None and is_there:
            assert self._group is not None, "changes come while it runs"
            pod = PodRun(self._node, change.new, pod_id=uid, location=self._location_for(change.new))
            self._running[uid] = pod
            self._group.create_task(self._run_pod(uid, pod), name=f"pod {key[0]}/{key[1]}")
        if pod is not None and (metadata.get("deletionTimestamp") or not is_there):
            # An object that is gone already was deleted by force.
            pod.grace_s = float(metadata.get("deletionGracePeriodSeconds") or 0) if is_there else 0.0
            pod.stop.set()

    def _location_for(self, pod: Object) -> PodLocation:
        is_boxed = self._node.containers is not None and (runs_images(pod) or has_own_network(pod))
        if is_boxed and self._node.virtual is None:
            return self._ahead.take()
        return self._locations.take(network_of(pod["spec"]["nodeName"]))

    def _forget_others(self, key: Key, uid: str) -> None:
        """Stop a pod of the same name with another uid: its deletion was missed."""
        for other_uid, pod in self._running.items():
            if pod.key == key and other_uid != uid:
                pod.stop.set()

    async def _run_pod(self, uid: str, pod: PodRun) -> None:
        try:
            await pod.run()
        except Exception as error:  # noqa: BLE001 - the outermost frame of a pod
            # One pod that cannot be run must not end the others; its Deployment makes another.
            _log.exception("pod.failed", extra={"pod": pod.key[1], "namespace": pod.key[0], "error": str(error)})
            self._node.runtime.forget(pod.id)
            await self._delete(pod.key, uid)
        self._locations.leave(pod.location)
        del self._running[uid]

    async def _delete(self, key: Key, uid: str) -> None:
        try:
            await self._node.cluster.delete(POD, *key, grace_s=0, uid=uid)
        except NotFound:
            return
        except ClusterError as error:
            _log.warning("pod.not_deleted", extra={"pod": key[1], "error": str(error)})

    async def _watch_memory(self) -> None:
        """Kill what holds more than its limit."""
        while True:
            await asyncio.sleep(_MEMORY_PERIOD_S)
            limited = [pod for pod in self._running.values() if pod.has_memory_limit()]
            if limited:
                resident_bytes = await asyncio.to_thread(resident_bytes_by_session)
                for pod in limited:
                    pod.check_memory(resident_bytes)

    async def _rotate_logs(self) -> None:
        """Keep logs of pods below their size."""
        while True:
            await asyncio.sleep(_ROTATION_PERIOD_S)
            await asyncio.to_thread(_look_after, self._node.logs, {pod.logs for pod in self._running.values()})


def _look_after(logs: Path, present: Collection[Path]) -> None:
    """Rotate the logs of pods that are there, and keep those of a bounded number that are gone."""
    for folder in present:
        for log in folder.glob("*.log"):
            rotate(log)
    gone = [folder for folder in logs.glob("*/*") if folder not in present]
    for folder in sorted(gone, key=_changed_at_s)[: max(0, len(gone) - _GONE_LOGS_KEPT)]:
        remove_folder(folder)


def _changed_at_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
