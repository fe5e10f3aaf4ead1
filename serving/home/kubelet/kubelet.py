"""The kubelet: runs each pod bound to this machine, enforces memory limits, rotates logs.

The runtime owns the processes of pods. Pods that run at the start are adopted: their objects are created again in the
store without an owner. The Deployment that selects them then adopts them, as in a cluster.
"""

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from serving.core.model.errors import ClusterError, Conflict, NotFound
from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Key, Object, tcp_ports_of
from serving.core.model.versions import NEWER_PODS, POD_RECORDS, refuse_newer
from serving.home.containers.network import AheadNetworks
from serving.home.kubelet.container import RestartPauses, RestartSettings
from serving.home.kubelet.diskwatch import DiskWatch
from serving.home.kubelet.localnodes import LocalNodes, instance_of
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.pod import PodNote, PodRun
from serving.home.kubelet.replacements import ReplacementPauses, lineage_of, read_pauses
from serving.home.kubelet.virtualnodes import network_of
from serving.home.pods.diskbudget import surplus_evicted
from serving.home.pods.locations import PodLocation, PodLocations
from serving.home.pods.machine import read_machine
from serving.home.pods.podfolder import disk_error, sweep_folders
from serving.home.pods.podlogs import LogTimes, tidy_logs
from serving.home.pods.podplan import has_own_network, has_own_users, named_ports, runs_images
from serving.home.pods.podstatus import BROKEN, broken_status, evicted_status
from serving.home.pods.usage import UsageReporter, read_sessions
from serving.home.processes.orders import InventoryPod
from serving.net.aio.clock import now_s, stamp, wall_s
from serving.net.aio.periodic import next_beat, wait_for
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import POD, REVISION
from serving.net.cluster.reflector import CacheChange, Reflector

_log = logging.getLogger("kubelet")

_MEMORY_PERIOD_S = 1.0
_ROTATION_PERIOD_S = 10.0
_LOG_TIMES_PERIOD_S = 1.0
# Most evicted pods listed, as kube-controller-manager keeps terminated ones: each has its Event and log.
_EVICTED_PER_OWNER, _EVICTED_KEPT = 5, 50
# Pause between attempts at a pod that raises, like a kubelet's CrashLoopBackOff, in seconds.
_PATIENCE = RestartSettings(pause_first_s=10.0, pause_max_s=300.0, sound_s=600.0)
_CHORE_PAUSE_S = 10.0
_DELETE_PAUSE_S = 1.0


class Kubelet:
    """Runs all pods of this machine. Call ``take_over`` before pods are created; ``run`` lasts until cancelled."""

    def __init__(self, node: NodeContext, *, dice: random.Random | None = None) -> None:
        self._node = node
        self._locations = PodLocations(dice or random.SystemRandom())
        # All pods of virtual nodes run here, so every pod with a node.
        bound = "spec.nodeName!=" if node.virtual else f"spec.nodeName={node.name}"
        self._pods = Reflector(node.cluster, POD, field_selector=bound, on_change=self._changed)
        self._ahead = AheadNetworks(self._locations, node.containers.networks if node.containers else None)
        self._running: dict[str, PodRun] = {}
        self._uids: defaultdict[Key, set[str]] = defaultdict(set)
        self._taken_over: dict[str, PodLocation] = {}
        # By uid: pods whose objects are deleted but still cached.
        self._gone: set[str] = set()
        self._machine = read_machine()
        self._usage = UsageReporter(
            node.cluster,
            self._running.values,
            machine=self._machine,
            node_name=node.name,
            is_per_node=node.virtual is not None,
        )
        self._nodes = (
            LocalNodes(
                node.cluster, self._machine, name=node.name, instance=instance_of(node.key), virtual=node.virtual
            )
            if node.registers
            else None
        )
        self._replacements = ReplacementPauses(_PATIENCE)
        self._group: SupervisedTasks | None = None

    @property
    def pod_count(self) -> int:
        """The number of pods, including starting and ending ones."""
        return len(self._running)

    def find(self, namespace: str, name: str) -> PodRun:
        """A pod that runs here. Raises ``NotFound``."""
        uid = next(iter(self._uids.get((namespace, name), ())), "")
        if uid in self._running:
            return self._running[uid]
        raise NotFound(f'pod "{name}" does not run on this machine')

    def reach(self, namespace: str, name: str, port: int) -> tuple[str, int] | None:
        """The address at which processes of this machine reach a container port; None while the network is unknown."""
        try:
            kind = self.find(namespace, name).kind
        except NotFound:
            return None
        return None if kind is None else kind.reach(port)

    async def adopt(self) -> None:
        """Adopt the pods that run in the process template, and create their objects again. Waits for the template.

        Raises ``NewerFormat`` if a newer version of this program has left a pod.
        """
        await self._node.runtime.connected.wait()
        read_pauses(self._replacements, self._node.evictions, now_s=now_s(), wall_s=wall_s())
        for stored_pod in self._node.runtime.inventory_pods:
            version = stored_pod.note.get("version")
            if isinstance(version, int):
                refuse_newer(f"the note about pod {stored_pod.pod}", version, known=POD_RECORDS, action=NEWER_PODS)
            try:
                note = msgspec.convert(stored_pod.note, PodNote)
                await self._adopt_pod(stored_pod, note)
            except Exception as error:  # noqa: BLE001 - one note that cannot be used must not end the others' pods
                _log.warning("pod.not_taken_over", extra={"pod": stored_pod.pod, "error": str(error)})
                self._node.runtime.forget(stored_pod.pod)

    async def _adopt_pod(self, stored_pod: InventoryPod, note: PodNote) -> None:
        metadata = note.manifest["metadata"]
        # A pod without an owner is never deleted, so pods of deleted revisions are not adopted, nor those of a user's
        # Deployment, which is not on disk.
        revision = (metadata.get("labels") or {}).get(REVISION_LABEL, "")
        await self._node.cluster.get(REVISION, metadata["namespace"], revision)
        manifest = await (self._node.restore or self._node.cluster.create)(POD, note.manifest)
        self._taken_over[stored_pod.pod] = self._locations.occupy(note.location)
        pod = PodRun(self._node, manifest, pod_id=stored_pod.pod, note=note)
        self._running[manifest["metadata"]["uid"]] = pod
        self._uids[pod.key].add(manifest["metadata"]["uid"])
        # As in a cluster, a pod with the wrong strictness about plain HTTP is replaced.
        if note.is_draining or note.is_strict is not self._node.proxy().inner_tls.is_strict:
            await self._node.cluster.delete(POD, *pod.key)

    async def sweep(self) -> None:
        """Remove the folders, networks and cgroups of pods that no longer exist. Call it after ``take_over``."""
        pod_ids = [pod.id for pod in self._running.values()]
        removed = await asyncio.to_thread(sweep_folders, self._node.pods, pod_ids)
        if removed:
            _log.info("pods.swept", extra={"pods": removed})
        if self._node.containers is not None:
            await asyncio.to_thread(self._node.containers.sweep, pod_ids)
        elif self._node.cgroups is not None:
            await asyncio.to_thread(self._node.cgroups.sweep, pod_ids)

    async def run(self) -> None:
        """Run pods until cancelled. The pods themselves keep running."""
        if self._nodes is not None:
            await self._nodes.register()
        async with supervise() as group:
            self._group = group
            for uid, pod in self._running.items():
                group.start(self._run_pod(uid, pod), name=f"pod {pod.key[0]}/{pod.key[1]}")
            chores = {
                **({"nodes": self._nodes.run} if self._nodes is not None else {}),
                "memory": self._watch_memory,
                "logs": self._rotate_logs,
                "times of logs": self._record_log_times,
                "disk": DiskWatch(self._node, self._running.values, self._replacements).run,
                "usage": self._usage.run,
                "networks": self._ahead.run,
            }
            for name, chore in chores.items():
                group.start(_repeated(name, chore), name=name)
            await self._pods.run()

    def _changed(self, change: CacheChange) -> None:
        metadata = change.new["metadata"]
        uid, key = metadata["uid"], change.key
        self._forget_others(key, uid)
        pod = self._running.get(uid)
        is_there = key in self._pods.cache
        if uid in self._gone:
            # Output written before its end and read after it.
            if not is_there:
                self._gone.discard(uid)
            return
        if pod is None and is_there:
            assert self._group is not None, "changes come while it runs"
            pod = PodRun(self._node, change.new, pod_id=uid)
            self._running[uid] = pod
            self._uids[key].add(uid)
            self._group.start(self._run_pod(uid, pod), name=f"pod {key[0]}/{key[1]}")
        if pod is not None and (metadata.get("deletionTimestamp") or not is_there):
            # The object was already deleted by force.
            pod.end(grace_s=float(metadata.get("deletionGracePeriodSeconds") or 0) if is_there else 0.0)

    def _location_for(self, pod: PodRun) -> PodLocation:
        taken_over = self._taken_over.pop(pod.id, None)
        count = len(tcp_ports_of(pod.manifest["spec"]["containers"]))
        location = self._locations.with_tcp_ports(taken_over or self._free_location(pod), count)
        location = self._locations.with_named_ports(location, named_ports(pod.manifest))
        return self._locations.with_users(location) if _gets_users(pod.manifest, self._node) else location

    def _free_location(self, pod: PodRun) -> PodLocation:
        is_boxed = self._node.containers is not None and (runs_images(pod.manifest) or has_own_network(pod.manifest))
        if is_boxed and self._node.virtual is None:
            return self._ahead.reserve()
        return self._locations.reserve(network_of(pod.node_name))

    def _forget_others(self, key: Key, uid: str) -> None:
        """Stop a pod with the same name but another uid, whose deletion was missed."""
        for other_uid in self._uids.get(key, ()):
            if other_uid != uid and (pod := self._running.get(other_uid)) is not None:
                pod.end()

    async def _run_pod(self, uid: str, pod: PodRun) -> None:
        """Run a pod until it has ended and is deleted.

        A pod whose start or run raises does not affect other pods. It releases its resources, has the reason in its
        status, and is retried after a pause. Its object stays, so that its Deployment creates no replacement.
        """
        location, pauses = None, RestartPauses(_PATIENCE)
        may_start = pod.id in self._taken_over or await self._may_start(pod)
        while may_start:
            began_s = now_s()
            try:
                location = location or self._location_for(pod)
                await pod.run(location)
                break
            except Exception as error:  # noqa: BLE001 - the outermost frame of a pod
                _log.exception("pod.failed", extra={"pod": pod.key[1], "namespace": pod.key[0], "error": str(error)})
                await pod.free()
                why = f"the pod cannot be run: {_error_text(error, self._node.pods)}"
                await pod.write_status(broken_status(pod.manifest, message=why, stamp=stamp(), reason=BROKEN))
            if await wait_for(pod.stop, until_s=now_s() + pauses.after(now_s() - began_s)):
                break
            pod = self._running[uid] = pod.again()
        pod.turn.release()
        # The object is removed last.
        if location is not None:
            await pod.free()
            self._locations.release(location)
        if not (pod.evicted and await self._write_evicted(pod, uid)):
            await self._delete(pod, uid)
        del self._running[uid]
        self._uids[pod.key].discard(uid)
        if not self._uids[pod.key]:
            del self._uids[pod.key]
        if (seen := self._pods.cache.get(pod.key)) and seen["metadata"]["uid"] == uid:
            self._gone.add(uid)

    async def _may_start(self, pod: PodRun) -> bool:
        """Wait for the owner's back-off after evictions and for a start slot; False if the pod is deleted meanwhile."""
        due_s = self._replacements.due_s(lineage_of(pod.manifest))
        if due_s > now_s():
            message = f"its predecessors were evicted repeatedly; starts in {due_s - now_s():.0f} s"
            status = broken_status(pod.manifest, message=message, stamp=stamp(), reason="CrashLoopBackOff")
            await pod.write_status(status)
            if await wait_for(pod.stop, until_s=due_s):
                return False
        is_started = await pod.turn.acquire(pod.stop)
        pod.began_s = now_s()
        return is_started

    async def _write_evicted(self, pod: PodRun, uid: str) -> bool:
        """Write the final status of an evicted pod, whose object remains, and delete the oldest such objects.

        Return False if this pod's object must be deleted, because it was deleted meanwhile or cannot be written.
        """
        empty: Object = {"podIP": None, "podIPs": None, "containerStatuses": [], "initContainerStatuses": []}
        status = {**evicted_status(pod.manifest, message=pod.evicted, stamp=stamp()), **empty}
        patch = {"metadata": {"uid": uid}, "status": status}
        try:
            written = await self._node.cluster.patch(POD, *pod.key, patch=patch, subresource="status")
            for key in surplus_evicted(
                [*self._pods.cache.values(), written], per_owner=_EVICTED_PER_OWNER, count_max=_EVICTED_KEPT
            ):
                with contextlib.suppress(NotFound):
                    await self._node.cluster.delete(POD, *key)
        except ClusterError as error:
            _log.warning("pod.eviction_not_kept", extra={"pod": pod.key[1], "error": str(error)})
            return False
        # An object deleted meanwhile waits for this kubelet.
        return not written["metadata"].get("deletionTimestamp")

    async def _delete(self, pod: PodRun, uid: str) -> None:
        while True:
            try:
                await self._node.cluster.delete(POD, *pod.key, grace_s=0, uid=uid)
            except (NotFound, Conflict):
                return
            except ClusterError as error:
                _log.warning("pod.not_deleted", extra={"pod": pod.key[1], "error": str(error)})
                await asyncio.sleep(_DELETE_PAUSE_S)
            else:
                return

    async def _watch_memory(self) -> None:
        """Kill containers that exceed their memory limit and have no cgroup for it, until cancelled."""
        while True:
            await next_beat(_MEMORY_PERIOD_S)
            limited = [pod for pod in self._running.values() if pod.watched_memory]
            if limited:
                sessions = await asyncio.to_thread(read_sessions)
                for pod in limited:
                    pod.kill_above_limits(sessions)

    async def _rotate_logs(self) -> None:
        """Rotate the logs of pods, and remove old logs of deleted pods, until cancelled."""
        while True:
            await next_beat(_ROTATION_PERIOD_S)
            present, limits = {pod.logs for pod in self._running.values()}, self._node.gone_logs()
            await asyncio.to_thread(tidy_logs, self._node.logs, present, limits, wall_s=wall_s())

    async def _record_log_times(self) -> None:
        """Record when the logs of pods grow, until cancelled."""
        times, before = LogTimes(), set[Path]()
        while True:
            await next_beat(_LOG_TIMES_PERIOD_S)
            logs = {pod.logs for pod in self._running.values()}
            if logs or before:
                await asyncio.to_thread(times.record, logs, wall_s=wall_s())
            before = logs


def _gets_users(pod: Object, node: NodeContext) -> bool:
    is_possible = node.containers is not None and bool(node.containers.users_place)
    return is_possible and runs_images(pod) and has_own_users(pod)


async def _repeated(name: str, chore: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a periodic task until cancelled; retry after a pause if it fails, so that no task ends the kubelet."""
    while True:
        try:
            return await chore()
        except Exception as error:  # noqa: BLE001 - the outermost frame of a chore
            _log.exception("kubelet.chore_failed", extra={"chore": name, "error": _error_text(error)})
        await asyncio.sleep(_CHORE_PAUSE_S)


def _error_text(error: BaseException, folder: Path | None = None) -> str:
    """The type and text of an error. Of an exception group, it is the first exception.

    For a disk error it is the path and the reason; ``folder`` is named if the error has no path.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and folder is not None:
        return disk_error(error, folder)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
