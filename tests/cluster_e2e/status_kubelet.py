"""A kubelet without processes: it reports each pod of its node ready, at an address of its own.

The addresses carry no traffic. ``hold`` makes it say of new pods that they are not ready; ``set_ready`` changes what it
says of one. On a server with a scheduler it is a node of its own with room for all.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from serving.core.model.errors import AlreadyExists, ClusterError, Conflict, NotFound, TooManyRequests, Unavailable
from serving.core.model.objects import Key, Object
from serving.net.aio.clock import stamp
from serving.net.cluster.kinds import NODE, POD
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.port import Cluster, EventType
from serving.net.cluster.reflector import CacheChange, Reflector
from tests.cluster_e2e.server import HOST_NAME, SPACE, TAINT, is_real

Found = TypeVar("Found")

# A node of which nothing was heard for 40 s is not ready.
_HEARTBEAT_S = 10.0
_RETRY_S = 1.0
# Only where something is broken, also on a machine that has much else to do.
_SCHEDULABLE_S = 240.0
_ROOM = {"cpu": "10000", "memory": "10Ti", "pods": "20000", "ephemeral-storage": "10Ti"}


class StatusKubelet:
    """A node whose pods are ready without running. It works until cancelled."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.hold = False
        self.taints = [TAINT]
        # Of pods that were said to be ready at some time.
        self.ready_addresses: set[str] = set()
        self._cluster, self._node = cluster, node
        # Where there are DaemonSets their pods are on every node; they are not ours to speak for.
        self._pods = Reflector(cluster, POD, SPACE, field_selector=f"spec.nodeName={node}", on_change=self._changed)
        self._numbers = itertools.count(1)
        self._done: set[tuple[str, bool]] = set()
        self._group: asyncio.TaskGroup | None = None

    @property
    def pods(self) -> list[Object]:
        """The pods of its node that are not being deleted."""
        return [pod for pod in self._pods.cache.values() if not pod["metadata"].get("deletionTimestamp")]

    async def run(self) -> None:
        """Serve as a node until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self.beat(), name="node")
            await self._pods.run()

    async def until_schedulable(self) -> None:
        """Wait until pods can be placed on the node.

        A real server taints a new node until its controllers have seen the first heartbeat. A pod that is created before
        is unschedulable, and so is its revision.
        """
        async with asyncio.timeout(_SCHEDULABLE_S):
            while True:
                with contextlib.suppress(NotFound):
                    node = await self._cluster.get(NODE, "", self._node)
                    taints = (node.get("spec") or {}).get("taints") or ()
                    is_tainted = any(taint["key"] != TAINT["key"] for taint in taints)
                    if (node.get("status") or {}).get("conditions") and not is_tainted:
                        return
                await asyncio.sleep(0.05)

    async def set_ready(self, pod: Object, *, ready: bool) -> None:
        """Set whether a pod is ready."""
        await self._notify(pod, ready=ready, address=pod["status"]["podIP"])

    async def release(self) -> None:
        """Report all held pods ready."""
        self.hold = False
        for pod in self.pods:
            if (pod.get("status") or {}).get("podIP"):
                await self.set_ready(pod, ready=True)

    def _changed(self, change: CacheChange) -> None:
        pod, uid = change.new, change.new["metadata"]["uid"]
        if change.type is EventType.DELETED or self._group is None:
            return
        is_going = bool(pod["metadata"].get("deletionTimestamp"))
        if (is_going or not (pod.get("status") or {}).get("podIP")) and (uid, is_going) not in self._done:
            self._done.add((uid, is_going))
            self._group.create_task(self._end(change.key, uid) if is_going else self._start(pod))

    async def _start(self, pod: Object) -> None:
        number = next(self._numbers)
        address, is_held = f"10.77.{number // 250}.{number % 250 + 1}", self.hold
        with contextlib.suppress(NotFound, Conflict):
            await self._notify(pod, ready=not is_held, address=address)
            if is_held and not self.hold:
                # It was let go before it was known to be held.
                await self._notify(pod, ready=True, address=address)

    async def _end(self, key: Key, uid: str) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await repeated(lambda: self._cluster.delete(POD, *key, grace_s=0, uid=uid))

    async def _notify(self, pod: Object, *, ready: bool, address: str) -> None:
        if ready:
            self.ready_addresses.add(address)
        message, now = "True" if ready else "False", stamp()
        conditions = [
            {"type": name, "status": value, "lastTransitionTime": now}
            for name, value in (
                ("PodScheduled", "True"),
                ("Initialized", "True"),
                ("ContainersReady", message),
                ("Ready", message),
            )
        ]
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": ready,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for container in pod["spec"]["containers"]
        ]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": conditions,
            "containerStatuses": containers,
            "startTime": now,
        }
        metadata = pod["metadata"]
        place = (metadata["namespace"], metadata["name"])
        await repeated(
            lambda: self._cluster.patch(POD, *place, patch={"status": status}, subresource="status"),
        )

    async def beat(self) -> None:
        """Register the node and report it ready, until cancelled."""
        labels = {"labels": {HOST_NAME: self._node}}
        spec = {"taints": self.taints} if is_real() else {}
        try:
            await self._cluster.create(NODE, {"metadata": {"name": self._node, **labels}, "spec": spec})
        except AlreadyExists:
            await self._cluster.patch(NODE, "", self._node, patch={"metadata": labels, "spec": spec})
        while True:
            now = stamp()
            condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it says so"}
            status = {
                "capacity": _ROOM,
                "allocatable": _ROOM,
                "conditions": [{**condition, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            }
            with contextlib.suppress(ClusterError):
                await self._cluster.patch(NODE, "", self._node, patch={"status": status}, subresource="status")
            await asyncio.sleep(_HEARTBEAT_S)


async def repeated(call: Callable[[], Awaitable[Found]]) -> Found:
    """Make a call until the server responds: a busy one may be too late."""
    while True:
        try:
            return await call()
        except (Unavailable, TooManyRequests):
            await asyncio.sleep(_RETRY_S)


async def main(kubeconfig: str, node: str) -> None:
    """Serve as a node until the process is ended."""
    async with KubeCluster(Path(kubeconfig)) as cluster:
        await StatusKubelet(cluster, node).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
