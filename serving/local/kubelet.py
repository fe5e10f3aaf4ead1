"""The kubelet's part: runs the pods of this machine as groups of processes, and says in their status how they are.

Each pod is a task of its own: it finds addresses, starts app and queue-proxy side by side, hears of readiness through a
pipe, starts an app again that ended (with a pause that doubles), and ends all when the pod is deleted: the queue-proxy
drains first, so that nothing in flight is cut. Pods end with this process.
"""

import asyncio
import logging
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from serving.aio.clock import now_s, stamp
from serving.aio.periodic import wait_for
from serving.cluster.kinds import POD, REVISION
from serving.cluster.port import Cluster, Object
from serving.cluster.reflector import CacheChange, Key, Reflector
from serving.local.podplan import Life, app_plan, pod_status, proxy_environment
from serving.local.processes import end, free_port, start_app, start_queue_proxy, tail
from serving.model.errors import ClusterError, InvalidValue, NotFound
from serving.wire.tokens import pod_secret, pod_token

__all__ = ["Kubelet", "NodeSettings"]

_log = logging.getLogger("kubelet")

_QUEUE_PROXY = "queue-proxy"
_REVISION_LABEL = "serving.knative.dev/revision"
_BACK_OFF_FIRST_S = 1.0
_BACK_OFF_MAX_S = 60.0
# An app that ran this long was sound; its next end is answered at once.
_SOUND_S = 30.0
# After the queue-proxy has drained the app holds no request; it has this long to end by itself.
_APP_GRACE_S = 5.0
_GRACE_DEFAULT_S = 30.0


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the pods of this machine share: folders for files and logs, where stats go, the cluster key."""

    pods: Path
    logs: Path
    stats_url: str
    key: bytes


class Kubelet:
    """All pods of this machine. ``run`` lasts until cancelled."""

    def __init__(self, cluster: Cluster, settings: NodeSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pods = Reflector(cluster, POD, field_selector="spec.nodeName=local")
        self._pods.on_change(self._changed)
        self._running: dict[str, _Pod] = {}
        self._addresses = _addresses()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run pods until cancelled; they end with it."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._pods.run()

    def _changed(self, change: CacheChange) -> None:
        uid = change.new["metadata"]["uid"]
        pod = self._running.get(uid)
        is_going = change.key not in self._pods.cache or change.new["metadata"].get("deletionTimestamp")
        if pod is not None:
            if is_going:
                pod.stop.set()
            return
        if change.key not in self._pods.cache:
            return
        assert self._group is not None, "changes come while it runs"
        made = _Pod(self._cluster, self._settings, change.new, address=next(self._addresses))
        self._running[uid] = made
        if is_going:
            made.stop.set()
        self._group.create_task(self._run_pod(uid, made), name=f"pod {change.key[0]}/{change.key[1]}")

    async def _run_pod(self, uid: str, pod: "_Pod") -> None:
        try:
            await pod.run()
        except (ClusterError, OSError) as error:
            _log.warning("pod.failed", extra={"pod": pod.key[1], "namespace": pod.key[0], "error": str(error)})
        finally:
            del self._running[uid]


class _Pod:
    """One pod from its first process to its last."""

    def __init__(self, cluster: Cluster, settings: NodeSettings, manifest: Object, *, address: str) -> None:
        metadata = manifest["metadata"]
        self.key: Key = (metadata["namespace"], metadata["name"])
        self.stop = asyncio.Event()
        self._cluster, self._settings, self._manifest, self._address = cluster, settings, manifest, address
        self._port = free_port()
        self._folder = settings.pods / metadata["uid"]
        self._logs = settings.logs / "pods" / metadata["namespace"] / metadata["name"]
        self._lives: dict[str, Life] = {}
        self._is_ready = False
        self._is_dirty = asyncio.Event()

    async def run(self) -> None:
        """Live until told to stop, then drain and disappear."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        revision = await self._revision()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._keep(one)) for one in self._manifest["spec"]["containers"]]
                proxy = group.create_task(self._keep_proxy(revision))
                tasks.append(group.create_task(self._tell()))
                await self.stop.wait()
                # Whoever is in flight is answered before the app that answers goes.
                await proxy
                for task in tasks:
                    task.cancel()
        finally:
            await self._forget()

    async def _revision(self) -> Object:
        name = self._manifest["metadata"]["labels"].get(_REVISION_LABEL, "")
        try:
            return await self._cluster.get(REVISION, self.key[0], name)
        except NotFound:
            return {}

    async def _keep_proxy(self, revision: Object) -> None:
        """Run the queue-proxy until the pod is to stop, then let it drain."""
        environment = self._proxy_environment(revision)
        log = self._logs / f"{_QUEUE_PROXY}.log"
        grace_s = self._manifest["spec"].get("terminationGracePeriodSeconds", _GRACE_DEFAULT_S)
        pause_s = _BACK_OFF_FIRST_S
        while not self.stop.is_set():
            mine, its = socket.socketpair()
            environment["SERVING_READY_FD"] = str(its.fileno())
            process = await start_queue_proxy(environment, descriptors=[its.fileno()], log=log)
            its.close()
            try:
                async with asyncio.TaskGroup() as group:
                    ended = group.create_task(process.wait())
                    stopped = group.create_task(self.stop.wait())
                    hearing = group.create_task(self._hear(mine))
                    await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
                    if self.stop.is_set():
                        await end(process, grace_s=grace_s)
                    for task in (stopped, hearing):
                        task.cancel()
            finally:
                await end(process, grace_s=0)
            self._is_ready = False
            if not self.stop.is_set():
                message = f"ended with exit code {process.returncode}: {tail(log)}"
                self._note(_QUEUE_PROXY, Life(waiting_reason="CrashLoopBackOff", waiting_message=message))
                await wait_for(self.stop, until_s=now_s() + pause_s)
                pause_s = min(pause_s * 2, _BACK_OFF_MAX_S)

    def _proxy_environment(self, revision: Object) -> dict[str, str]:
        namespace, name = self.key
        key, labels = self._settings.key, self._manifest["metadata"]["labels"]
        return {
            **proxy_environment(self._manifest, revision, app_port=self._port, address=self._address),
            "SERVING_POD_STATS_URL": self._settings.stats_url,
            "SERVING_POD_STATS_TOKEN": pod_token(key, namespace=namespace, revision=labels[_REVISION_LABEL], pod=name),
            "SERVING_POD_SECRET": pod_secret(key, namespace=namespace, pod=name),
        }

    async def _hear(self, mine: socket.socket) -> None:
        """Take each line of readiness over into the status."""
        reader, writer = await asyncio.open_connection(sock=mine)
        try:
            while line := await reader.readline():
                self._is_ready = bool(msgspec.json.decode(line, type=dict[str, bool]).get("ready"))
                if self._is_ready:
                    self._lives.pop(_QUEUE_PROXY, None)
                self._is_dirty.set()
        finally:
            writer.close()

    async def _keep(self, container: Object) -> None:
        """Run one container's command, again and again, until cancelled; then end it."""
        name = container.get("name") or "user-container"
        life, pause_s = Life(), _BACK_OFF_FIRST_S
        self._note(name, life)
        try:
            plan = app_plan(self._manifest, container, port=self._port)
        except InvalidValue as error:
            message = f"container {name} cannot be run here; expected {error.expected}"
            self._note(name, Life(waiting_reason="CreateContainerConfigError", waiting_message=message))
            return
        log = self._logs / f"{name}.log"
        while True:
            began_s = now_s()
            try:
                process = await start_app(plan, folder=self._folder, log=log)
            except OSError as error:
                message = f"{plan.arguments[0]}: {error.strerror}"
                self._note(
                    name, msgspec.structs.replace(life, waiting_reason="RunContainerError", waiting_message=message)
                )
                return
            try:
                self._note(name, msgspec.structs.replace(life, is_running=True))
                exit_code = await process.wait()
            finally:
                await end(process, grace_s=_APP_GRACE_S)
            pause_s = _BACK_OFF_FIRST_S if now_s() - began_s >= _SOUND_S else min(pause_s * 2, _BACK_OFF_MAX_S)
            life = Life(
                restart_count=life.restart_count + 1,
                exit_code=exit_code,
                last_lines=tail(log),
                waiting_reason="CrashLoopBackOff",
                waiting_message=f"ended with exit code {exit_code}; starts again in {pause_s:g} s",
            )
            self._note(name, life)
            if await wait_for(self.stop, until_s=now_s() + pause_s):
                return

    def _note(self, name: str, life: Life) -> None:
        self._lives[name] = life
        self._is_dirty.set()

    async def _tell(self) -> None:
        """Write the status whenever it has changed."""
        while True:
            await self._is_dirty.wait()
            self._is_dirty.clear()
            status = pod_status(self._manifest, self._lives, address=self._address, ready=self._is_ready, stamp=stamp())
            try:
                written = await self._cluster.patch(POD, *self.key, patch={"status": status}, subresource="status")
                self._manifest = {**self._manifest, "status": written["status"]}
            except NotFound:
                self.stop.set()
                return

    async def _forget(self) -> None:
        """The processes are gone; so is the object."""
        try:
            await self._cluster.delete(POD, *self.key, grace_s=0, uid=self._manifest["metadata"]["uid"])
        except ClusterError as error:
            _log.debug("pod.forgotten", extra={"pod": self.key[1], "error": str(error)})
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _addresses() -> Iterator[str]:
    """Loopback addresses for pods: 127.64.0.1, 127.64.0.2, ..., 127.127.255.254, and again."""
    while True:
        for high in range(64, 128):
            for middle in range(256):
                for low in range(1, 255):
                    yield f"127.{high}.{middle}.{low}"
