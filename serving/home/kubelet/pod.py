"""One pod of this machine, from its first process to its last: executes the actions of its state (``podstate``).

Init containers run one after another, each until it exits with 0. A failed one is restarted after a pause, unless the
pod's ``restartPolicy`` is Never. Then app and queue-proxy start in parallel. The queue-proxy reports readiness, which
is immediately written to the pod's status. When a pod is deleted, its queue-proxy drains first, so that requests in
flight are answered before the app ends.

The runtime owns the processes, and stores a note with the state of the pod. So the pod survives the end of this control
process, and the next one adopts it under the same name and address.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from serving.core.model.errors import ClusterError, InvalidValue, NotFound
from serving.core.model.event import OOM_KILLED_REASON
from serving.core.model.knative import QUEUE_PROXY
from serving.core.model.objects import Key, Object
from serving.core.model.versions import POD_RECORDS, FormatVersion
from serving.home.kubelet.container import ContainerKeeper, ContainerSpec
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.podkinds import PodSetup, ProcessPod, choose_kind
from serving.home.kubelet.podsleep import AppSleep
from serving.home.kubelet.podstate import PodEvent, PodState, advance, observation
from serving.home.kubelet.podwarnings import PodWarnings
from serving.home.kubelet.stdio import ContainerInput, input_of
from serving.home.pods.locations import QUEUE_PORTS, PodLocation
from serving.home.pods.podfolder import count_oom_kill, disk_error, make_folder, remove_folder, tail
from serving.home.pods.podplan import (
    ContainerState,
    as_new,
    container_name_of,
    init_containers,
)
from serving.home.pods.podstatus import evicted_status, pod_status, with_dormancy, with_isolation
from serving.home.pods.sources import Sources
from serving.home.pods.unready import Unready, explain, with_log
from serving.home.pods.usage import SessionTotals
from serving.home.processes.orders import ReadinessChanged, StartProcess
from serving.net.aio.clock import now_s, stamp
from serving.net.aio.periodic import wait_for
from serving.net.aio.supervise import SupervisedTasks, TaskOwner, supervise
from serving.net.cluster.kinds import POD

_log = logging.getLogger("kubelet")

_OWN_USER_MODE, _ENTERED_MODE = 0o1777, 0o711
# Retry for missing ConfigMaps and Secrets, and for statuses that the store refused, in seconds.
_RETRY_S = 1.0
_GRACE_DEFAULT_S = 30.0
# Delay of changes unrelated to readiness, which waits for further changes, in seconds.
_STATUS_LAG_S = 0.05
# The same for a pod with a queue-proxy that is not ready, in seconds: most are ready sooner, and then one write is enough.
_STARTING_LAG_S = 1.0
# The same for a pod that ends, in seconds. Requests are no longer sent to it, and most pods are removed before.
_END_STATUS_LAG_S = 2.0
# Longest wait for the end of a process after SIGKILL, in seconds; then the template ends it.
_KILL_MAX_S = 5.0
# Time for the app to end by itself after the queue-proxy has drained, in seconds.
_APP_GRACE_S = 5.0
_CHECK_PERIOD_S = 2.0
_CHECKS_BEFORE_EVENT = 3
# A pod unready for a minute is checked less often.
_CHECKS_OFTEN = 30
_CHECK_PERIOD_LATER_S = 10.0


class PodNote(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's state for the next control process.

    ``is_draining``: its drain has begun. ``is_boxed``: it runs as containers. ``is_strict``: its queue-proxy refuses
    requests without inner TLS.
    """

    manifest: Object
    location: PodLocation
    states: dict[str, ContainerState]
    is_draining: bool = False
    is_boxed: bool = False
    is_strict: bool = False
    version: FormatVersion = POD_RECORDS


class PodRun:
    """Runs one pod. ``pod_id`` is its name in the runtime; ``note`` is from an earlier control process, if any."""

    location: PodLocation
    _setup: PodSetup

    def __init__(self, node: NodeContext, manifest: Object, *, pod_id: str, note: PodNote | None = None) -> None:
        metadata = manifest["metadata"]
        self.id = pod_id
        self.key: Key = (metadata["namespace"], metadata["name"])
        self.node_name: str = manifest["spec"].get("nodeName", "")
        self.stop = asyncio.Event()
        self.evicted = ""
        """Why it is evicted."""
        self.began_s = now_s()
        self._node = node
        self.manifest = manifest
        self._note = note
        self._grace_s: float | None = None
        self.keepers: dict[str, ContainerKeeper] = {}
        self.inputs: dict[str, ContainerInput] = {}
        self._states: dict[str, ContainerState] = {}
        self.kind: ProcessPod | None = None
        """None until its images are there."""
        self.state = PodState.PLANNED
        self._is_proxy_ready = False
        self.sleep = AppSleep()
        """Whether its app sleeps."""
        self._unready: Unready | None = None
        self.turn = node.pacer.turn_of(manifest, runs_already=note is not None)
        self._is_dirty = asyncio.Event()
        self._is_urgent = asyncio.Event()

    def __repr__(self) -> str:
        return f"PodRun({self.key[0]}/{self.key[1]}, {self.state})"

    @property
    def is_ready(self) -> bool:
        """Whether the pod can receive requests."""
        return self.state is PodState.READY

    @property
    def folder(self) -> Path:
        """The folder of the pod's files."""
        return self._node.folder_of(self.manifest, self.id)

    @property
    def logs(self) -> Path:
        """The folder of the pod's logs."""
        return self._node.logs / self.key[0] / self.key[1]

    @property
    def cgroups(self) -> Mapping[str, SessionTotals]:
        """The usage of containers with cgroups, by name."""
        return self.kind.totals() if self.kind is not None else {}

    @property
    def sessions(self) -> Mapping[str, int]:
        """The session id of each running container: the process id of its first process."""
        return {
            name: process.pid
            for name, keeper in self.keepers.items()
            if (process := keeper.process) is not None and process.pid and not process.ended.done()
        }

    @property
    def watched_memory(self) -> dict[str, int]:
        """The memory limits of started containers that no cgroup enforces, in bytes."""
        limits = self.kind.watched_memory() if self.kind is not None else {}
        return {name: limit for name, limit in limits.items() if name in self.keepers}

    def kill_above_limits(self, sessions: Mapping[int, SessionTotals]) -> None:
        """Kill each container whose session uses more memory than ``watched_memory`` allows."""
        for name, limit in self.watched_memory.items():
            keeper = self.keepers[name]
            totals = sessions.get(keeper.process.pid) if keeper.process is not None else None
            if totals is not None and totals.resident_bytes > limit:
                count_oom_kill(self.logs)
                keeper.kill(OOM_KILLED_REASON)

    def end(self, *, grace_s: float | None = None) -> None:
        """Begin to drain the pod, which then ends within ``grace_s`` seconds.

        None keeps the period of an earlier call, or else uses the pod's ``terminationGracePeriodSeconds``.
        """
        if grace_s is not None:
            self._grace_s = grace_s
        self.stop.set()

    async def evict(self, message: str, *, grace_s: float) -> None:
        """Report the eviction, and end the pod."""
        self.evicted = message
        # Immediately, so that its Deployment replaces it and it gets no requests while it ends.
        await self.write_status(evicted_status(self.manifest, message=message, stamp=stamp()))
        self.end(grace_s=grace_s)

    async def run(self, location: PodLocation) -> None:
        """Run the pod until ``stop`` is set, then drain it; ``free`` must follow. If cancelled, leave it running."""
        self._advance(PodEvent.ADMITTED)
        self.location = location
        self._setup = PodSetup(node=self._node, manifest=self.manifest, pod_id=self.id, location=location)
        if self._setup.has_proxy and self._setup.scaling_spec.dormant_after_s is not None:
            self.sleep.reach((location.address, QUEUE_PORTS[1]), secret=self._setup.secret)
        if not (containers := self.manifest["spec"]["containers"]):
            raise InvalidValue(text=str(containers), expected="a list of containers")
        self._make_folders()
        async with supervise() as group:
            warnings = PodWarnings(self._node.cluster, self.manifest, group)
            reporting = group.start(self._report_status(), name="status")
            explaining = group.start(self._explain(warnings), name="explain")
            starting = group.start(self._start(group, warnings), name="start")
            if self._note is not None:
                # A pod is adopted before it can be ended.
                await starting
            else:
                self.turn.watch(group, self._process_ids)
            await self.stop.wait()
            self.turn.release()
            starting.cancel()
            explaining.cancel()
            await self._drain()
            reporting.cancel()

    def _make_folders(self) -> None:
        make_folder(self.folder)
        if self._node.isolation is not None and self._node.isolation.user_of(self.location.address):
            # The pod writes in it, and leaves other files unchanged.
            self.folder.chmod(_OWN_USER_MODE)
            if self.folder.parent != self._node.pods:
                self.folder.parent.chmod(_ENTERED_MODE)
        make_folder(self.logs)

    def _process_ids(self) -> list[int] | None:
        """The main processes of the pod's containers; None before the first container may start."""
        return None if self.kind is None else list(self.sessions.values())

    async def free(self) -> None:
        """Kill remaining processes, and remove the pod's networks, cgroups and folder."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_MAX_S):
                await asyncio.gather(*(keeper.process.outlast(0) for keeper in self.keepers.values() if keeper.process))
        # Each refers to this pod: without cycles its memory is released immediately (``serving.net.aio.daemon``).
        self.keepers.clear()
        self._node.runtime.forget(self.id)
        try:
            if self._node.containers is not None:
                await asyncio.to_thread(self._node.containers.remove, self.id)
            elif self._node.cgroups is not None:
                await asyncio.to_thread(self._node.cgroups.remove, self.id)
            await asyncio.to_thread(remove_folder, self.folder)
        except OSError as error:
            _log.warning("pod.not_freed", extra={"pod": self.key[1], "error": str(error)})
        self._advance(PodEvent.FREED)

    def again(self) -> "PodRun":
        """A new attempt to run the same pod, after a failure. It has the same stop event."""
        other = PodRun(self._node, self.manifest, pod_id=self.id)
        other.stop, other.turn, other._grace_s = self.stop, self.turn, self._grace_s
        return other

    def _advance(self, event: PodEvent) -> None:
        self.state = advance(self.state, event)
        if self.is_ready:
            self.turn.settle()

    def _observe(self) -> None:
        """Advance the state of the pod by the latest readiness of its containers and its queue-proxy."""
        apps = self._apps
        is_fit = bool(apps) and all(keeper.is_fine for keeper in apps)
        self._advance(observation(is_reached=self._is_proxy_ready if self._setup.has_proxy else is_fit, is_fit=is_fit))

    async def _start(self, group: SupervisedTasks, warnings: PodWarnings) -> None:
        """Start all containers as soon as their sources exist, or adopt running ones."""
        if self._note is not None:
            # Its keeper reports a running container again.
            of_note = self._note.states.items()
            self._states |= {name: msgspec.structs.replace(state, is_running=False) for name, state in of_note}
        kind = await self._prepare(warnings)
        if kind is None:
            return
        self._advance(PodEvent.PREPARED)
        first = [self._app(kind, container, warnings) for container in init_containers(self.manifest)]
        specs = (self._app(kind, container, warnings) for container in self.manifest["spec"]["containers"])
        apps = [spec for spec in specs if spec is not None]
        self._save_note()
        if not apps or None in first:
            # Nothing can run: a queue-proxy alone would wait forever.
            return
        await self.turn.acquire_again(self.stop, group, self._process_ids)
        if not await self._run_init_containers([spec for spec in first if spec is not None], group):
            return
        has_proxy_process = self._setup.has_proxy and self._setup.proxy_name == QUEUE_PROXY
        proxies = [self._spec(kind.start_proxy(), warnings)] if has_proxy_process else []
        for spec in (*proxies, *apps) if kind.is_proxy_first else (*apps, *proxies):
            self._advance(PodEvent.PROXY_STARTED if spec in proxies else PodEvent.APP_STARTED)
            keeper = ContainerKeeper(self._node.runtime, spec, self.stop, niceness=self.turn.niceness, sleep=self.sleep)
            self._run_container(keeper, spec.start.name, group)
        if not proxies:
            self._advance(PodEvent.PROXY_STARTED)
        self._observe()
        if self._setup.sources and self.manifest["spec"].get("volumes"):
            group.start(self._setup.update_volumes(self.stop), name="volumes")
        if self._note is None:
            await warnings.send_not_enforced(
                kind.refused_limits, has_images=kind.has_images, is_rootless=kind.is_rootless
            )

    def _run_container(self, keeper: ContainerKeeper, name: str, group: SupervisedTasks) -> asyncio.Task[None]:
        self.keepers[name] = keeper
        if self._note is not None:
            keeper.adopt()
        return group.start(keeper.run(), name=name)

    async def _prepare(self, warnings: PodWarnings) -> ProcessPod | None:
        """Wait for sources and images, and create volumes and network.

        None if the pod is deleted before its sources exist.
        """
        revision, sources = await self._setup.read_revision(), await self._sources()
        if sources is None:
            return None
        setup = self._setup = msgspec.structs.replace(self._setup, revision=revision, sources=sources)
        kind = self.kind = await choose_kind(
            setup,
            was_boxed=None if self._note is None else self._note.is_boxed,
            on_state=self._set_state,
            warn=warnings.send,
            stop=self.stop,
        )
        user = self._node.isolation.user_of(self.location.address) if self._node.isolation else 0
        if user and not kind.has_images:
            # Its processes have that user, who may read closed files.
            self._setup = msgspec.structs.replace(setup, user=user)
            self._setup.write_volumes(sources)
        return kind

    async def _run_init_containers(self, specs: Sequence[ContainerSpec], group: SupervisedTasks) -> bool:
        """Run the init containers; return whether all exited with 0.

        False if one has finally failed, or the pod is deleted.

        In an adopted pod, containers that exited with 0 are not run again.
        """
        for spec in specs:
            if spec.first.is_over and spec.first.exit_code == 0:
                continue
            name, keeper = spec.start.name, ContainerKeeper(self._node.runtime, spec, self.stop)
            running = self._run_container(keeper, name, group)
            async with TaskOwner() as tasks:
                stopping = tasks.start(self.stop.wait(), name="stop")
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self.stop.is_set():
                return False
            del self.keepers[name]
            if keeper.state.exit_code:
                return False
        return True

    async def _sources(self) -> Sources | None:
        """The sources once all of them exist; None if the pod is deleted before.

        A deleted pod also reads them once, because an adopted draining pod needs them for its containers.
        """
        while True:
            sources = await self._setup.read_sources()
            try:
                self._setup.write_volumes(sources)
            except (InvalidValue, OSError) as error:
                why = disk_error(error, self._node.pods)
                state = ContainerState(waiting_reason="CreateContainerConfigError", waiting_message=why)
                self._set_state(container_name_of(self.manifest["spec"]["containers"][0]), state)
            else:
                return sources
            if await wait_for(self.stop, until_s=now_s() + _RETRY_S):
                return None

    def _app(self, kind: ProcessPod, container: Object, warnings: PodWarnings) -> ContainerSpec | None:
        """The spec of one app container; None, with the reason in the status, if it cannot run here."""
        name = container_name_of(container)
        try:
            order = kind.start(container)
            container_input = input_of(container, self.folder, name=name)
            if container_input is not None:
                self.inputs[name], order = container_input, container_input.ordered(order, is_new=self._note is None)
        except (InvalidValue, OSError) as error:
            why = (
                f"expected {error.expected}" if isinstance(error, InvalidValue) else disk_error(error, self._node.pods)
            )
            message = f"container {name} cannot be run here; {why}"
            state = ContainerState(waiting_reason="CreateContainerConfigError", waiting_message=message)
            self._set_state(name, state)
            return None
        return kind.completed(container, self._spec(order, warnings))

    def _spec(self, start: StartProcess, warnings: PodWarnings) -> ContainerSpec:
        name = start.name
        return ContainerSpec(
            start=start,
            on_state=lambda state: self._set_state(name, state),
            on_ready=self._set_proxy_ready if name == self._setup.proxy_name else None,
            on_warning=warnings.send_later,
            first=self._states.get(name, ContainerState()),
        )

    def _set_proxy_ready(self, report: ReadinessChanged) -> None:
        self._is_proxy_ready = report.is_ready
        self.sleep.report(is_dormant=report.is_dormant)
        self._observe()
        if not self.is_ready:
            self.sleep.wake_unready()
        self._is_dirty.set()
        self._is_urgent.set()

    def _set_state(self, name: str, state: ContainerState) -> None:
        """Store a container's state for the status. A running queue-proxy is not listed there."""
        before = self._states.get(name)
        if name == QUEUE_PROXY and state.is_running:
            self._states.pop(name, None)
        else:
            self._states[name] = state
            if name == self._setup.proxy_name and not state.is_running:
                self._is_proxy_ready = False
                self.sleep.report(is_dormant=False)
            if (before or ContainerState()).progress != state.progress:
                self._save_note()
        self._observe()
        if state.has_failed:
            self.turn.settle()
        self._is_dirty.set()
        if before is not None or not state.is_running:
            self._is_urgent.set()

    @property
    def _was_draining(self) -> bool:
        """Whether an earlier control process has begun the drain."""
        return self._note is not None and self._note.is_draining

    def _save_note(self) -> None:
        note = PodNote(
            manifest=as_new(self.manifest),
            location=self.location,
            states=self._states,
            is_draining=self._was_draining or self.state is PodState.TERMINATING,
            is_boxed=self.kind is not None and self.kind.is_boxed,
            is_strict=self._node.proxy().inner_tls.is_strict,
        )
        self._node.runtime.store_note(self.id, msgspec.to_builtins(note))

    async def _report_status(self) -> None:
        """Write the status after each change: a change of readiness immediately, other changes after a short time."""
        while True:
            await self._is_dirty.wait()
            if self.state is PodState.TERMINATING and not self.evicted:
                await asyncio.sleep(_END_STATUS_LAG_S)
            elif not self._is_urgent.is_set():
                is_starting = self._setup.has_proxy and not self.is_ready
                lag_s = _STARTING_LAG_S if is_starting else _STATUS_LAG_S
                await wait_for(self._is_urgent, until_s=now_s() + lag_s)
            self._is_dirty.clear()
            self._is_urgent.clear()
            if not await self.write_status(self._status()):
                self._is_dirty.set()
                await asyncio.sleep(_RETRY_S)

    def _status(self) -> Object:
        if self.evicted:
            return evicted_status(self.manifest, message=self.evicted, stamp=stamp())
        status = pod_status(
            self.manifest,
            self._states,
            address=self._node.reported_network + self.location.address.removeprefix("127."),
            ready=self.is_ready,
            stamp=stamp(),
            unready=self._unready,
            image_ids=self.kind.image_ids if self.kind else None,
        )
        if self.sleep.can_sleep:
            status = with_dormancy(status, self.manifest, is_dormant=self.sleep.is_dormant, stamp=stamp())
        if self._node.isolation_gap and self.kind and not self.kind.has_images:
            status = with_isolation(status, self.manifest, gap=self._node.isolation_gap, stamp=stamp())
        return status

    async def write_status(self, status: Object) -> bool:
        """Write the pod's status; return False if the store refuses it. If the pod's object is gone, end the pod."""
        try:
            written = await self._node.cluster.patch(POD, *self.key, patch={"status": status}, subresource="status")
        except NotFound:
            self.stop.set()
        except ClusterError as error:
            # A pod continues even if the store accepts no status, as on a full disk.
            _log.warning("pod.status_not_written", extra={"pod": self.key[1], "error": str(error)})
            return False
        else:
            self.manifest = {**self.manifest, "status": written["status"]}
        return True

    @property
    def _apps(self) -> list[ContainerKeeper]:
        """The keepers of all containers except the queue-proxy."""
        return [keeper for name, keeper in self.keepers.items() if name != QUEUE_PROXY]

    async def _explain(self, warnings: PodWarnings) -> None:
        """Report why the pod is not ready: a changed reason in its status, a lasting reason as an Event."""
        before: Unready | None = None
        seen_count = check_count = 0
        while True:
            await asyncio.sleep(_CHECK_PERIOD_S if check_count < _CHECKS_OFTEN else _CHECK_PERIOD_LATER_S)
            check_count = 0 if self.is_ready else check_count + 1
            unready, log = (None, None) if self.is_ready else await self._find_unready()
            seen_count = seen_count + 1 if unready == before else 1
            if unready != before or (unready and seen_count == _CHECKS_BEFORE_EVENT):
                lines = await asyncio.to_thread(tail, log) if log else ""
                text = unready and Unready(reason=unready.reason, message=with_log(unready.message, lines))
                if unready != before:
                    self._unready = text
                    self._is_dirty.set()
                elif text:
                    warnings.send_later(text.reason, text.message)
            before = unready

    async def _find_unready(self) -> tuple[Unready | None, Path | None]:
        """Why a container is not ready, and the path of its log; (None, None) if no reason is known."""
        for keeper in self._apps:
            observed = await keeper.observe()
            if unready := observed and explain(observed):
                return unready, keeper.log
        return None, None

    async def _drain(self) -> None:
        """Drain the queue-proxy, and end the apps as soon as it allows; return when all have ended.

        The queue-proxy allows this when no request runs. Open tunnels (websockets) delay the end only for a while. An
        app that gets SIGTERM can close them properly, because the queue-proxy runs until they have ended.
        """
        self._advance(PodEvent.STOPPED)
        self._save_note()
        grace_s = self._grace_s
        if grace_s is None:
            grace_s = self.manifest["spec"].get("terminationGracePeriodSeconds", _GRACE_DEFAULT_S)
        end_s = now_s() + grace_s
        keeper = self.keepers.pop(self._setup.proxy_name, None)
        proxy = None if keeper is None else keeper.process
        apps = [app.process for app in self.keepers.values() if app.process is not None]
        if proxy is not None and grace_s > 0:
            if not self._was_draining:
                # A second SIGTERM would cancel its drain.
                proxy.send(signal.SIGTERM)
            allowed: list[asyncio.Future[Any]] = [proxy.ended, proxy.drained]
            await asyncio.wait(allowed, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        if grace_s > 0:
            for app in apps:
                app.send(signal.SIGTERM)
        if proxy is not None:
            await proxy.outlast(end_s - now_s())
        await asyncio.gather(*(app.outlast(min(grace_s, _APP_GRACE_S)) for app in apps))
