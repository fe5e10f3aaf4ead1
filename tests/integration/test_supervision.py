"""Each task of each daemon fails once: the daemon ends with the reason, or the task continues and logs it."""

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from serving.activator.main import Activator
from serving.autoscaler.main import AutoscalerDaemon
from serving.controller.io.controller import Controller
from serving.core.settings.activator import ActivatorSettings
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.dashboard import DashboardSettings
from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.core.settings.placement import PlacementSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.home.controllers.garbage import collect_garbage
from serving.home.controllers.manager import Manager
from serving.home.controllers.namespaceobjects import NamespaceObjects
from serving.home.controllers.podscaler import PodScaler
from serving.home.kubelet.kubelet import Kubelet
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.processes.processruntime import ProcessRuntime
from serving.home.store.memory import MemoryCluster
from serving.net.aio.supervise import supervise, task_of
from serving.net.cluster.kinds import POD
from serving.net.metrics.nodegroup import NodeGroupMetrics
from serving.nodes.extender.main import PlacementDaemon
from serving.nodes.nodegroup.groups import GroupReading
from serving.nodes.nodegroup.io.clouds.memory import MemoryCloud
from serving.nodes.nodegroup.io.loop import NodeGroupLoop
from serving.nodes.nodegroup.io.passes import NodeGroupPasses
from serving.queueproxy.main import serve
from serving.queueproxy.podspec import PodSpec
from serving.tools.dashboard.main import Dashboard
from tests.eventually import until
from tests.integration.local_stage import manifest
from tests.integration.proxy.peers import free_socket

KEY = bytes(range(32))
_SAMPLE_COUNT = 40
Run = Callable[[MemoryCluster, asyncio.Event], Coroutine[Any, Any, None]]


class Killed(Exception):
    """The exception that is injected into a task."""


def activator(cluster: MemoryCluster, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    settings = ActivatorSettings(
        stats_url="ws://127.0.0.1:9/stats", public_address="127.0.0.1:0", inner_address="127.0.0.1:0", drain_grace_s=0.1
    )
    return Activator(settings, cluster, key=KEY).run(stop)


def autoscaler(cluster: MemoryCluster, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    return AutoscalerDaemon(AutoscalerSettings(stats_address="127.0.0.1:0"), cluster, key=KEY).run(stop)


def controller(cluster: MemoryCluster, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    return Controller(cluster).run(stop)


def nodegroup(cluster: MemoryCluster, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    passes = NodeGroupPasses(cluster, MemoryCloud({}), written=GroupReading)
    return NodeGroupLoop(passes, NodeGroupDaemonSettings, NodeGroupMetrics()).run(stop)


def extender(cluster: MemoryCluster, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    return PlacementDaemon(PlacementSettings(), cluster).run(stop, listener=socket.create_server(("127.0.0.1", 0)))


def manager(cluster: MemoryCluster, _: asyncio.Event) -> Coroutine[Any, Any, None]:
    return Manager(cluster).run()


def namespaces(cluster: MemoryCluster, _: asyncio.Event) -> Coroutine[Any, Any, None]:
    return NamespaceObjects(cluster).run()


def podscaler(cluster: MemoryCluster, _: asyncio.Event) -> Coroutine[Any, Any, None]:
    return PodScaler(cluster).run()


def garbage(cluster: MemoryCluster, _: asyncio.Event) -> Coroutine[Any, Any, None]:
    return collect_garbage(cluster)


async def kubelet(cluster: MemoryCluster, _: asyncio.Event) -> None:
    """A kubelet with a starting pod, without a template of processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runtime = ProcessRuntime(folder / "template")
        node = NodeContext(
            cluster=cluster,
            runtime=runtime,
            pods=folder / "pods",
            logs=folder / "logs",
            snapshots=folder / "snapshots",
            stats_url="ws://127.0.0.1:9/stats",
            key=KEY,
        )
        await cluster.create(POD, manifest())
        async with supervise() as tasks:
            tasks.start(runtime.run(), name="runtime")
            await Kubelet(node).run()


async def queueproxy(_: MemoryCluster, stop: asyncio.Event) -> None:
    """A queue-proxy in front of an app that only listens."""
    with free_socket() as app, free_socket() as requests, free_socket() as admin:
        for listening in (app, requests, admin):
            listening.listen()
        spec = PodSpec(
            namespace="default",
            revision="hello-00001",
            pod="hello-1",
            app=app.getsockname(),
            listen_fds={"requests": os.dup(requests.fileno()), "admin": os.dup(admin.fileno())},
            stats_url="ws://127.0.0.1:9/stats",
            gauges=("queue",),
            settings=QueueProxySettings(drain_lag_s=0.0, drain_grace_s=0.1),
        )
        await serve(spec, stop)


def dashboard(cluster: MemoryCluster, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    settings = DashboardSettings(
        address="127.0.0.1:0",
        autoscaler_url="http://127.0.0.1:9",
        activator_metrics_url="http://127.0.0.1:9",
        history_file="none",
    )
    return Dashboard(settings, cluster).run(stop)


DAEMONS: list[Run] = [
    *(activator, autoscaler, controller, nodegroup, extender, queueproxy, dashboard),
    # The components of the control process of one machine.
    *(kubelet, manager, namespaces, podscaler, garbage),
]


class Running:
    """A running daemon, and its tasks by name."""

    def __init__(self, task: asyncio.Task[None], before: set[asyncio.Task[Any]]) -> None:
        self.task = task
        self._before = before

    def tasks(self) -> dict[str, asyncio.Task[Any]]:
        """The tasks that do not wait for their own child tasks."""
        own = asyncio.all_tasks() - self._before - {self.task}
        return {task.get_name(): task for task in own if _is_leaf(task)}


def _is_leaf(task: asyncio.Task[Any]) -> bool:
    """Whether a task waits for something other than the end of its own task group."""
    waiter = task._fut_waiter  # type: ignore[attr-defined]
    at: Any = task.get_coro()
    while (inner := getattr(at, "cr_await", None)) is not None and hasattr(inner, "cr_await"):
        at = inner
    name = getattr(getattr(at, "cr_code", None), "co_qualname", "")
    return waiter is not None and not isinstance(waiter, asyncio.Task) and not name.startswith("TaskGroup.")


@contextlib.asynccontextmanager
async def running(run: Run) -> AsyncIterator[Running]:
    cluster, stop, before = MemoryCluster(), asyncio.Event(), asyncio.all_tasks()
    daemon = Running(asyncio.create_task(run(cluster, stop), name="daemon"), before)
    try:
        yield daemon
    finally:
        stop.set()
        daemon.task.cancel()
        await asyncio.wait([daemon.task])
        await cluster.close()


async def lasting_names(daemon: Running) -> list[str]:
    """The names of tasks that exist in most of 40 samples."""
    seen: Counter[str] = Counter()
    await until(daemon.tasks)
    for _ in range(_SAMPLE_COUNT):
        seen.update(daemon.tasks().keys())
        await asyncio.sleep(0.01)
    return sorted(name for name, count in seen.items() if count > _SAMPLE_COUNT / 2)


@pytest.mark.parametrize("run", DAEMONS, ids=lambda run: run.__name__)
async def test_failed_task_ends_its_daemon_or_is_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async with running(run) as daemon:
        names = await lasting_names(daemon)
    assert not [name for name in names if name.startswith("Task-")], "tasks have names"
    for name in names:
        await _fail(run, name, caplog)


async def _fail(run: Run, name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running(run) as daemon:

        def is_reported() -> bool:
            return daemon.task.done() or any("killed" in str(vars(record)) for record in caplog.records)

        def is_there() -> bool:
            return name in {task.get_name() for task in asyncio.all_tasks()}

        await until(lambda: name in daemon.tasks())
        caplog.clear()

        def fails_until_reported() -> bool:
            # A task that retries by itself, such as a connection, can handle one failure.
            if is_reported():
                return True
            waiter = getattr(daemon.tasks().get(name), "_fut_waiter", None)
            if waiter is not None and not waiter.done():
                waiter.set_exception(Killed(f"killed {name}"))
            return False

        await until(fails_until_reported)
        await until(lambda: daemon.task.done() or is_there())
        if daemon.task.done():
            error = daemon.task.exception()
            assert isinstance(error, Killed), name
            assert task_of(error) == name
        else:
            # The task was restarted or handled the failure, with the reason in the log.
            assert any(record.levelno >= logging.WARNING for record in caplog.records), name
