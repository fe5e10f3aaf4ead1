"""A kubelet whose pods are dictionary entries: it reports starts, readiness and ends."""

import asyncio
import contextlib
import itertools
import random

from serving.core.model.errors import ClusterError, NotFound
from serving.core.model.knative import REVISION_LABEL, RevisionKey
from serving.core.model.objects import Object, labels_of, nested
from serving.net.cluster.kinds import POD
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector

_START_MIN_S, _START_MAX_S = 0.5, 4.0
_RETRY_S = 0.5


class SimulatedPod:
    """A running pod. ``inside`` are its requests; ``arrived_count`` are those since the last report."""

    def __init__(self, name: str, revision: RevisionKey, address: str) -> None:
        self.name = name
        self.revision = revision
        self.address = address
        self.inside: set[object] = set()
        self.arrived_count = 0
        self.is_alive = True


class SimulatedNode:
    """Runs until cancelled. ``pods`` are the running ones, by address and port."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self.pods: dict[str, SimulatedPod] = {}
        self._cluster = cluster
        self._dice = dice
        self._numbers = itertools.count(1)
        self._known: set[str] = set()
        self._by_uid: dict[str, SimulatedPod] = {}
        self._reflector = Reflector(cluster, POD, on_change=self._changed)
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Start and end pods until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            await self._reflector.run()

    def kill(self) -> None:
        """End one pod as if its process were killed; the kubelet starts its container again."""
        if self.pods:
            pod = self.pods[self._dice.choice(sorted(self.pods))]
            pod.is_alive = False
            asyncio.get_running_loop().call_later(self._dice.uniform(_START_MIN_S, _START_MAX_S), self._revive, pod)

    def _revive(self, pod: SimulatedPod) -> None:
        pod.is_alive = True

    def _changed(self, change: CacheChange) -> None:
        metadata = change.new["metadata"]
        uid = metadata["uid"]
        assert self._group is not None
        if change.type is EventType.DELETED:
            self._drop(uid)
        elif metadata.get("deletionTimestamp"):
            if (uid + "/end") not in self._known:
                self._known.add(uid + "/end")
                self._group.create_task(self._end(change.new))
        elif uid not in self._known and nested(change.new, "spec", "nodeName"):
            self._known.add(uid)
            self._group.create_task(self._start(change.new))

    async def _start(self, pod: Object) -> None:
        number = next(self._numbers)
        address = f"10.0.{number // 250}.{number % 250 + 1}"
        await asyncio.sleep(self._dice.uniform(_START_MIN_S, _START_MAX_S))
        metadata = pod["metadata"]
        revision = metadata["namespace"], labels_of(pod).get(REVISION_LABEL, "")
        simulated_pod = SimulatedPod(metadata["name"], revision, f"{address}:8012")
        self.pods[simulated_pod.address] = self._by_uid[metadata["uid"]] = simulated_pod
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": name, "status": "True"} for name in ("PodScheduled", "ContainersReady", "Ready")],
            "containerStatuses": [
                {"name": container["name"], "ready": True, "restartCount": 0, "state": {"running": {}}}
                for container in pod["spec"]["containers"]
            ],
        }
        await self._until_done(pod, status)

    async def _until_done(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        while True:
            try:
                await self._cluster.patch(
                    POD, metadata["namespace"], metadata["name"], patch={"status": status}, subresource="status"
                )
            except NotFound:
                self._drop(metadata["uid"])
                return
            except ClusterError:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _end(self, pod: Object) -> None:
        metadata = pod["metadata"]
        # The drain: running requests may finish.
        await asyncio.sleep(self._dice.uniform(0.2, 2.0))
        self._drop(metadata["uid"])
        while True:
            with contextlib.suppress(ClusterError):
                await self._cluster.delete(POD, metadata["namespace"], metadata["name"], uid=metadata["uid"], grace_s=0)
                return
            try:
                await self._cluster.get(POD, metadata["namespace"], metadata["name"])
            except NotFound:
                return
            except ClusterError:
                pass
            await asyncio.sleep(_RETRY_S)

    def _drop(self, uid: str) -> None:
        pod = self._by_uid.pop(uid, None)
        if pod is not None:
            pod.is_alive = False
            self.pods.pop(pod.address, None)
