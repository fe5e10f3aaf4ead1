"""One pod of this machine, from its first process to its last.

App and queue-proxy are started side by side; readiness comes from the queue-proxy and is in the status at once. When the
pod is deleted, the queue-proxy drains first, so that whoever is in flight is answered before the app that answers goes.
Its processes belong to the template, and so does a note with all that is needed to go on: when this control process
ends, the pod does not, and the next one takes it over under the same name and address.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.aio.clock import now_s, stamp
from serving.aio.periodic import wait_for
from serving.cluster.kinds import EVENT, POD, REVISION
from serving.cluster.port import Cluster, Object
from serving.cluster.reflector import Key
from serving.local.container import ContainerKeeper, ContainerSpec
from serving.local.explaining import ReadinessExplainer
from serving.local.limits import memory_limit_bytes, warnings_of
from serving.local.locations import PodLocation
from serving.local.orders import StartProcess
from serving.local.podevents import pod_event
from serving.local.podfolder import make_folder, mount, mount_points, remove_folder, root_folder
from serving.local.podplan import ContainerState, app_plan, name_of, pod_status, proxy_environment, serves, speaks_http2
from serving.local.probeplan import listening_probe, probe_plans, sidecar_probe_plans
from serving.local.processruntime import ProcessRuntime
from serving.local.snapshot import path_of_snapshot
from serving.local.sources import Sources, container_environment, references, volume_files
from serving.local.unready import Unready
from serving.local.volumes import follow_sources, read_sources
from serving.model.errors import AlreadyExists, ClusterError, InvalidValue, NotFound
from serving.model.knative import REVISION_LABEL, SNAPSHOT_ANNOTATION
from serving.model.objects import annotations_of
from serving.wire.tokens import pod_secret, pod_token

__all__ = ["QUEUE_PROXY", "NodeContext", "PodNote", "PodRun"]

_log = logging.getLogger("kubelet")

QUEUE_PROXY = "queue-proxy"
# What a pod names and is not there yet is looked for again.
_SOURCES_PAUSE_S = 1.0
# After the queue-proxy has drained the app holds no request; it has this long to end by itself.
_APP_GRACE_S = 5.0
_GRACE_DEFAULT_S = 30.0
# News that is not about readiness waits for more of it.
_STATUS_LAG_S = 0.05


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the pods of this machine share: the store, the template, folders, where stats go, the cluster key.

    ``name`` is the node's. ``reported_network`` is what the status of a pod tells in the place of the "127." of its address,
    for servers that take no loopback addresses; activators must know (``pod_address_override``).
    """

    cluster: Cluster
    runtime: ProcessRuntime
    pods: Path
    logs: Path
    snapshots: Path
    stats_url: str
    key: bytes
    name: str = "local"
    reported_network: str = "127."


class PodNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the next control process must know of a pod. ``is_draining`` says that it has been told to end."""

    manifest: Object
    location: PodLocation
    lives: dict[str, ContainerState]
    is_draining: bool = False


class PodRun:
    """A pod. ``id`` is what the template knows it by; ``stop`` ends it."""

    def __init__(
        self, node: NodeContext, manifest: Object, *, pod_id: str, location: PodLocation, note: PodNote | None = None
    ) -> None:
        metadata = manifest["metadata"]
        self.id, self.location = pod_id, location
        self.key: Key = (metadata["namespace"], metadata["name"])
        self.stop = asyncio.Event()
        self.grace_s: float | None = None
        self._node, self._manifest, self._note = node, manifest, note
        self._folder = node.pods / pod_id
        self._logs = node.logs / self.key[0] / self.key[1]
        self._keepers: dict[str, ContainerKeeper] = {}
        self._lives: dict[str, ContainerState] = {}
        self._is_proxy_ready = False
        self._unready: Unready | None = None
        self._is_dirty = asyncio.Event()
        self._is_urgent = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    def __repr__(self) -> str:
        return f"PodRun({self.key[0]}/{self.key[1]}, {'ready' if self.is_ready else 'not ready'})"

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent to it."""
        apps = [keeper for name, keeper in self._keepers.items() if name != QUEUE_PROXY]
        return self._is_proxy_ready and all(keeper.is_fine for keeper in apps)

    @property
    def logs(self) -> Path:
        """The folder of its logs."""
        return self._logs

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        found: Mapping[str, str] = self._manifest["metadata"].get("labels") or {}
        return found

    @property
    def sessions(self) -> Mapping[str, int]:
        """The session of each container that runs, which is the process id of its first process."""
        return {
            name: process.pid
            for name, keeper in self._keepers.items()
            if (process := keeper.process) is not None and process.pid and not process.ended.done()
        }

    async def run(self) -> None:
        """Live until told to stop, then drain and disappear. Cancelled, leave everything as it is."""
        make_folder(self._folder)
        make_folder(self._logs)
        async with asyncio.TaskGroup() as group:
            self._group = group
            telling = group.create_task(self._tell(), name="tell")
            explaining = group.create_task(self._explainer().run(), name="explain")
            begun = group.create_task(self._begin(group), name="begin")
            if self._note is not None:
                # What is taken over must be known before it can be ended.
                await begun
            await self.stop.wait()
            begun.cancel()
            explaining.cancel()
            await self._drain()
            telling.cancel()
        self._node.runtime.forget(self.id)
        await self._forget()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        """Start all processes, as soon as what they need is there."""
        is_old = self._note is not None
        if is_old:
            self._lives.update(self._note.lives if self._note else {})
        revision, sources = await self._revision(), await self._sources()
        containers = self._manifest["spec"]["containers"]
        apps = [kept for container in containers if (kept := self._app_kept(container, sources)) is not None]
        self._keep_note()
        if not apps:
            # Nothing can be run: a queue-proxy alone would wait for ever.
            return
        # The app first: it takes longer, and a queue-proxy is forked in the meantime.
        for kept in (*apps, self._proxy_kept(revision)):
            keeper = self._keepers[kept.start.name] = ContainerKeeper(self._node.runtime, kept, self.stop)
            if is_old:
                keeper.take_over()
            group.create_task(keeper.run(), name=kept.start.name)
        if sources and self._manifest["spec"].get("volumes"):
            following = follow_sources(self._read_sources, self._check, known=sources, stop=self.stop)
            group.create_task(following, name="volumes")
        if not is_old:
            for warning in (one for container in containers for one in warnings_of(container)):
                await self._warn(*warning)

    async def _revision(self) -> Object:
        name = self._manifest["metadata"].get("labels", {}).get(REVISION_LABEL, "")
        try:
            return await self._node.cluster.get(REVISION, self.key[0], name)
        except NotFound:
            return {}

    async def _read_sources(self) -> Sources:
        return await read_sources(self._node.cluster, self.key[0], references(self._manifest))

    async def _sources(self) -> Sources:
        """The ConfigMaps and Secrets that it names, and its volumes written. Waits for those that are missing."""
        while True:
            found = await self._read_sources()
            try:
                self._check(found)
            except (InvalidValue, OSError) as error:
                if self.stop.is_set():
                    return found
                life = ContainerState(waiting_reason="CreateContainerConfigError", waiting_message=str(error))
                self._note_life(name_of(self._manifest["spec"]["containers"][0]), life)
            else:
                return found
            await wait_for(self.stop, until_s=now_s() + _SOURCES_PAUSE_S)

    def _check(self, sources: Sources) -> None:
        """Write the volumes. Raises where something is missing."""
        spec = self._manifest["spec"]
        for container in spec["containers"]:
            container_environment(self._manifest, container, sources=sources, address=self.location.address)
        if not spec.get("volumes"):
            return
        volumes = {volume["name"]: volume_files(self._manifest, volume, sources) for volume in spec["volumes"]}
        mounts = [one for container in spec["containers"] for one in container.get("volumeMounts", ())]
        mount(self._folder, volumes, mounts)

    def _app_kept(self, container: Object, sources: Sources) -> ContainerSpec | None:
        name, address = name_of(container), self.location.address
        is_serving = serves(self._manifest, container)
        try:
            given = container_environment(self._manifest, container, sources=sources, address=address)
            snapshot = annotations_of(self._manifest).get(SNAPSHOT_ANNOTATION, "")
            plan = app_plan(
                self._manifest,
                container,
                port=self.location.port,
                home=str(self._folder),
                given=given,
                snapshot=str(path_of_snapshot(self._node.snapshots, snapshot)) if snapshot else "",
            )
        except InvalidValue as error:
            message = f"container {name} cannot be run here; expected {error.expected}"
            self._note_life(name, ContainerState(waiting_reason="CreateContainerConfigError", waiting_message=message))
            return None
        return ContainerSpec(
            start=StartProcess(
                pod=self.id,
                name=name,
                arguments=plan.arguments,
                environment=plan.environment,
                folder=plan.folder,
                log=str(self._logs / f"{name}.log"),
                mounts=mount_points(self._folder, container, self._manifest["spec"].get("volumes", ())),
                new_root=str(root_folder(self._folder)),
                hostname=self.key[1],
            ),
            on_life=lambda life: self._note_life(name, life),
            on_warning=self._warn_later,
            probes=tuple(probe_plans(container) if is_serving else sidecar_probe_plans(container)),
            listening=listening_probe(container) if is_serving else None,
            is_http2=speaks_http2(container),
            port=self.location.port,
            first=self._lives.get(name, ContainerState()),
        )

    def _proxy_kept(self, revision: Object) -> ContainerSpec:
        namespace, name = self.key
        key, of = self._node.key, self._manifest["metadata"]["labels"][REVISION_LABEL]
        environment = {
            **proxy_environment(self._manifest, revision, app_port=self.location.port, address=self.location.address),
            "SERVING_POD_STATS_URL": self._node.stats_url,
            "SERVING_POD_STATS_TOKEN": pod_token(key, namespace=namespace, revision=of, pod=name),
            "SERVING_POD_SECRET": pod_secret(key, namespace=namespace, pod=name),
        }
        return ContainerSpec(
            start=StartProcess(
                pod=self.id, name=QUEUE_PROXY, environment=environment, log=str(self._logs / f"{QUEUE_PROXY}.log")
            ),
            on_life=lambda life: self._note_life(QUEUE_PROXY, life),
            on_ready=self._readiness_changed,
            on_warning=self._warn_later,
            first=self._lives.get(QUEUE_PROXY, ContainerState()),
        )

    def _readiness_changed(self, is_ready: bool) -> None:  # noqa: FBT001 - it is what the queue-proxy says
        self._is_proxy_ready = is_ready
        self._is_dirty.set()
        self._is_urgent.set()

    def _note_life(self, name: str, life: ContainerState) -> None:
        """Take a life over into the status; a queue-proxy that runs is nobody's business."""
        before = self._lives.get(name)
        if name == QUEUE_PROXY and life.is_running:
            self._lives.pop(name, None)
        else:
            self._lives[name] = life
            if name == QUEUE_PROXY:
                self._is_proxy_ready = False
            if before is not None and before.restart_count != life.restart_count:
                self._keep_note()
        self._is_dirty.set()
        if before is not None or not life.is_running:
            self._is_urgent.set()

    def _keep_note(self) -> None:
        metadata = self._manifest["metadata"]
        kept = ("name", "generateName", "namespace", "labels", "annotations")
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {key: metadata[key] for key in kept if key in metadata},
            "spec": self._manifest["spec"],
        }
        note = PodNote(manifest=manifest, location=self.location, lives=self._lives, is_draining=self.stop.is_set())
        self._node.runtime.keep(self.id, msgspec.to_builtins(note))

    def check_memory(self, resident_bytes: dict[int, int]) -> None:
        """Kill each container that holds more than its limit. ``resident_bytes`` is by session."""
        for container in self._manifest["spec"]["containers"]:
            limit, keeper = memory_limit_bytes(container), self._keepers.get(name_of(container))
            if limit and keeper and keeper.process and resident_bytes.get(keeper.process.pid, 0) > limit:
                keeper.kill("OOMKilled")

    def has_memory_limit(self) -> bool:
        """Whether ``check_memory`` is of any use."""
        return any(memory_limit_bytes(container) for container in self._manifest["spec"]["containers"])

    async def _tell(self) -> None:
        """Write the status whenever it has changed; readiness at once."""
        while True:
            await self._is_dirty.wait()
            if not self._is_urgent.is_set():
                await wait_for(self._is_urgent, until_s=now_s() + _STATUS_LAG_S)
            self._is_dirty.clear()
            self._is_urgent.clear()
            address = self._node.reported_network + self.location.address.removeprefix("127.")
            status = pod_status(
                self._manifest,
                self._lives,
                address=address,
                ready=self.is_ready,
                stamp=stamp(),
                unready=self._unready,
            )
            try:
                written = await self._node.cluster.patch(POD, *self.key, patch={"status": status}, subresource="status")
                self._manifest = {**self._manifest, "status": written["status"]}
            except NotFound:
                self.stop.set()
                return

    def _explainer(self) -> ReadinessExplainer:
        def changed(unready: Unready | None) -> None:
            self._unready = unready
            self._is_dirty.set()

        return ReadinessExplainer(
            lambda: [keeper for name, keeper in self._keepers.items() if name != QUEUE_PROXY],
            is_ready=lambda: self.is_ready,
            on_change=changed,
            on_event=self._warn_later,
        )

    async def _drain(self) -> None:
        """Drain the queue-proxy, and end the apps as soon as it allows.

        It allows that when no request runs. Open tunnels (websockets) hold the apps back only for a while: an app that
        gets SIGTERM can close them properly, through a queue-proxy that lives on until they have ended.
        """
        was_draining = self._note is not None and self._note.is_draining
        self._keep_note()
        grace_s = self.grace_s
        if grace_s is None:
            grace_s = self._manifest["spec"].get("terminationGracePeriodSeconds", _GRACE_DEFAULT_S)
        end_s = now_s() + grace_s
        keeper = self._keepers.pop(QUEUE_PROXY, None)
        proxy = None if keeper is None else keeper.process
        if proxy is not None and grace_s > 0:
            if not was_draining:
                # A second SIGTERM would cancel its drain.
                proxy.send(signal.SIGTERM)
            allowed: list[asyncio.Future[Any]] = [proxy.ended, proxy.drained]
            await asyncio.wait(allowed, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        apps = [keeper.process for keeper in self._keepers.values() if keeper.process is not None]
        if grace_s > 0:
            for app in apps:
                app.send(signal.SIGTERM)
        if proxy is not None:
            await proxy.outlast(end_s - now_s())
        await asyncio.gather(*(app.outlast(min(grace_s, _APP_GRACE_S)) for app in apps))

    async def _forget(self) -> None:
        """The processes are gone; so are its folder and the object."""
        await asyncio.to_thread(remove_folder, self._folder)
        try:
            await self._node.cluster.delete(POD, *self.key, grace_s=0, uid=self._manifest["metadata"]["uid"])
        except ClusterError as error:
            _log.debug("pod.forgotten", extra={"pod": self.key[1], "error": str(error)})

    def _warn_later(self, reason: str, message: str) -> None:
        assert self._group is not None, "it warns while it runs"
        self._group.create_task(self._warn(reason, message), name="warn")

    async def _warn(self, reason: str, message: str) -> None:
        try:
            await self._node.cluster.create(
                EVENT, pod_event(self._manifest, reason=reason, message=message, now=stamp())
            )
        except AlreadyExists:
            return
        except ClusterError as error:
            _log.warning("event.failed", extra={"pod": self.key[1], "error": str(error)})
