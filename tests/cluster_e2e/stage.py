"""Everything at work against one server: the daemons as processes, a kubelet, and somebody who pretends to have load.

Daemons reach the server through a gate, with their own accounts and a record of what they call; the suite has the server
itself. Whoever waits here waits for events of a watch, and fails with what it saw last.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.activator.client import StatsClient
from serving.activator.wake import Load
from serving.cluster.kinds import DEPLOYMENT, ENDPOINT_SLICE, NAMESPACE, SERVING_SERVICE, Kind
from serving.cluster.kube import KubeCluster
from serving.cluster.port import Cluster, EventType, Object
from serving.controller.objects import condition_of
from serving.model.errors import AlreadyExists, NotFound
from serving.settings.activator import ActivatorSettings
from tests.cluster_e2e.gate import Gate, opened
from tests.cluster_e2e.own_server import WRITES
from tests.cluster_e2e.server import Server, is_real, started
from tests.cluster_e2e.status_kubelet import StatusKubelet
from tests.tidy.sources import ROOT

__all__ = ["KEY", "SPACE", "Daemon", "Stage", "is_ready", "service", "staged"]

KEY = b"e" * 32
SPACE = "serving-e2e"
SYSTEM = "knative-serving"
# A real server refuses loopback addresses in slices.
ACTIVATOR_ADDRESSES = ("10.78.0.1", "10.78.0.2") if is_real() else ("127.0.0.1",)
_PATIENCE_S = 20.0
# Each report is of a second; two in one would add up.
_LOAD_PERIOD_S = 1.0
# Windows as short as they may be; what is shown does not hang on their length.
_SETTINGS = {
    "SERVING_AUTOSCALER_STABLE_WINDOW_S": "6",
    "SERVING_AUTOSCALER_DECISION_PERIOD_S": "0.5",
    "SERVING_AUTOSCALER_SCALE_TO_ZERO_GRACE_PERIOD_S": "1",
    "SERVING_AUTOSCALER_MAX_SCALE_DOWN_RATE": "100",
    "SERVING_CONTROLLER_PUBLIC_SERVICES": "true",
    "SERVING_DASHBOARD_ADDRESS": "127.0.0.1:0",
    "SERVING_PLACEMENT_LISTEN_ADDRESS": "127.0.0.1:0",
}


class Daemon:
    """One process. ``calls`` are its verbs and resources so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.name, self.process = name, process
        self._calls, self._log = folder / f"{name}.calls", folder / f"{name}.log"

    @property
    def calls(self) -> set[str]:
        """As Roles write them: "patch deployments.apps/scale"."""
        return set(self._calls.read_text().splitlines()) if self._calls.exists() else set()

    @property
    def log(self) -> list[dict[str, Any]]:
        """What it has said."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def stop(self) -> int:
        """End it in peace; its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return await self.process.wait()


class Stage:
    """What tests have."""

    def __init__(
        self, server: Server, cluster: KubeCluster, *, gate: Gate, folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.server, self.cluster, self.gate, self.folder = server, cluster, gate, folder
        self.daemons: dict[str, Daemon] = {}
        self._settings = settings
        self.kubelet = StatusKubelet(cluster, server.node)
        self.sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("public", "inner", "stats")}
        self._controller_page = _free_port()
        (folder / "key").write_bytes(KEY)
        url = f"ws://127.0.0.1:{self.port('stats')}/stats"
        teller = ActivatorSettings(stats_url=url, name="e2e")
        self._client = StatsClient(teller, key=KEY, draw=random.Random(1).random, on_connected=lambda: None)
        self._loads: dict[str, float] = {}

    def port(self, name: str) -> int:
        """Of a listener: public, inner or stats."""
        port: int = self.sockets[name].getsockname()[1]
        return port

    async def start(self, name: str, *, module: str = "", instance: str = "") -> Daemon:
        """Start a daemon; ``instance`` is what one of several of it goes by."""
        label = instance or name
        controller_page = 0 if instance else self._controller_page
        listeners = {"activator": ("public", "inner"), "autoscaler": ("stats",)}.get(name, ())
        sockets = {one: self.sockets[one] for one in listeners}
        if instance and name == "autoscaler":
            # Each has its own, by which the others reach it.
            own = f"stats-{instance}"
            if own not in self.sockets:
                self.sockets[own] = socket.create_server(("127.0.0.1", 0))
            sockets["stats"] = self.sockets[own]
        descriptors = {one: listener.fileno() for one, listener in sockets.items()}
        kubeconfig = await self.server.kubeconfig_of(name, self.folder, port=self.gate.port)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SERVING_")},
            **_SETTINGS,
            **self._settings,
            "KUBECONFIG": str(kubeconfig),
            "SERVING_KEY_FILE": str(self.folder / "key"),
            "SERVING_POD_NAME": label,
            "SERVING_KUBE_RECORD": str(self.folder / f"{label}.calls"),
            "SERVING_LISTEN_FDS": json.dumps(descriptors),
            "SERVING_ACTIVATOR_METRICS_ADDRESS": "127.0.0.1:0",
            "SERVING_CONTROLLER_METRICS_ADDRESS": f"127.0.0.1:{controller_page}",
            "SERVING_ACTIVATOR_STATS_URL": f"ws://127.0.0.1:{self.port('stats')}/stats",
            "SERVING_CONTROLLER_SIDECAR_STATS_URL": f"ws://127.0.0.1:{self.port('stats')}/stats",
            "SERVING_AUTOSCALER_ACTIVATOR_ADDRESS": f"127.0.0.1:{self.port('public')}",
        }
        with (self.folder / f"{label}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", module or f"serving.{name}.main"),
                cwd=ROOT,
                env=environment,
                pass_fds=list(descriptors.values()),
                stderr=log,
            )
        self.daemons[label] = Daemon(label, process, self.folder)
        return self.daemons[label]

    async def run(self, *, runs_nothing: bool) -> None:
        """Kubelet and load, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if runs_nothing:
                group.create_task(self.kubelet.run())
            group.create_task(self._client.link.run())
            while True:
                for name, concurrency in self._loads.items():
                    self._tell(name, concurrency)
                await asyncio.sleep(_LOAD_PERIOD_S)

    def load(self, revision: str, concurrency: float) -> None:
        """Pretend that an activator holds so many requests of a revision from now on."""
        self._loads[revision] = concurrency

    def _tell(self, revision: str, concurrency: float) -> None:
        self._client.tell([((SPACE, revision), Load(concurrency=concurrency, request_count=concurrency))])

    async def apply(self, body: Object) -> Object:
        """Create a service, or change its spec."""
        try:
            return await self.cluster.create(SERVING_SERVICE, body)
        except AlreadyExists:
            name = body["metadata"]["name"]
            return await self.cluster.patch(SERVING_SERVICE, SPACE, name, patch={"spec": body["spec"]})

    async def until(
        self, kind: Kind, name: str, holds: Callable[[Object], Any], *, within_s: float = _PATIENCE_S
    ) -> Object:
        """The object as it is when something holds of it first."""
        last: Object = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                async for event_type, last in _seen(self.cluster, kind, name):
                    if event_type is not EventType.DELETED and holds(last):
                        return last
        told = {one: self.daemons[one].log[-3:] for one in self.daemons}
        raise AssertionError(f"{kind.name} {name} stays {json.dumps(last)}; daemons: {told}")

    async def until_gone(self, kind: Kind, name: str) -> None:
        """Wait until there is no such object."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    await self.cluster.get(kind, SPACE, name)
                except NotFound:
                    return
                await asyncio.sleep(0.05)

    async def ready(self, name: str, *, generation: int = 0) -> Object:
        """A service that is ready, of its latest generation."""
        return await self.until(
            SERVING_SERVICE, name, lambda one: is_ready(one) and one["metadata"]["generation"] >= generation
        )

    async def scaled(self, revision: str, count: int, *, within_s: float = _PATIENCE_S) -> Object:
        """A revision's Deployment that asks for so many pods, and has them ready."""

        def is_so(one: Object) -> bool:
            ready_count = (one.get("status") or {}).get("readyReplicas", 0)
            return bool(one["spec"]["replicas"] == ready_count == count)

        return await self.until(DEPLOYMENT, f"{revision}-deployment", is_so, within_s=within_s)

    async def numbers(self, name: str) -> dict[str, float]:
        """What the controller or the autoscaler counts, by name, summed over labels."""
        port = self.port("stats") if name == "autoscaler" else self._controller_page
        text = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
        found: dict[str, float] = {}
        for line in text.splitlines():
            if match := re.match(r"(\w+)(?:\{.*\})? ([0-9.e+]+)$", line):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        return found

    def writes_of(self, instance: str, *, since: int = 0) -> list[str]:
        """What one of the daemons has written, leases left out: "PATCH /path". Our own server keeps it."""
        lines = (self.folder / WRITES).read_text().splitlines()[since:]
        told = [line.split(" ", 1) for line in lines if "coordination.k8s.io" not in line]
        return [what for agent, what in told if agent.partition("/")[2].startswith(f"{instance}_")]

    def write_count(self) -> int:
        """How many writes there were of all, from which ``writes_of`` goes on."""
        return len((self.folder / WRITES).read_text().splitlines())

    async def set_activators(self, addresses: Sequence[str]) -> None:
        """Say who the activators are, as the endpoints of their Service; on our own server they carry traffic."""
        name = "activator-internal"
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-e2e",
                "namespace": SYSTEM,
                "labels": {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "e2e"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": self.port("inner"), "protocol": "TCP"}],
            "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
        }
        try:
            await self.cluster.create(ENDPOINT_SLICE, body)
        except AlreadyExists:
            changed = {key: body[key] for key in ("ports", "endpoints")}
            await self.cluster.patch(ENDPOINT_SLICE, SYSTEM, f"{name}-e2e", patch=changed)

    async def clear(self) -> None:
        """Delete all services, and wait until all beneath them is gone."""
        self._loads.clear()
        for one in (await self.cluster.list(SERVING_SERVICE, SPACE)).items:
            with contextlib.suppress(NotFound):
                await self.cluster.delete(SERVING_SERVICE, SPACE, one["metadata"]["name"])
        await self.until_none(DEPLOYMENT)

    async def until_none(self, kind: Kind, *, label_selector: str = "") -> None:
        """Wait until there is nothing of a kind."""
        async with asyncio.timeout(_PATIENCE_S):
            while (await self.cluster.list(kind, SPACE, label_selector=label_selector)).items:  # noqa: ASYNC110 - a list is polled
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def staged(
    folder: Path,
    *,
    daemons: Sequence[str] = ("controller", "autoscaler", "activator"),
    settings: Mapping[str, str] | None = None,
    runs_nothing: bool = True,
) -> AsyncIterator[Stage]:
    """Everything at work until the end of the context. The kubelet runs nothing, unless the test brings another."""
    async with (
        started(folder) as server,
        opened(server.host, server.port) as gate,
        KubeCluster.from_kubeconfig(server.kubeconfig) as cluster,
    ):
        stage = Stage(server, cluster, gate=gate, folder=folder, settings=settings or {})
        with contextlib.suppress(AlreadyExists):
            await cluster.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        await stage.set_activators(ACTIVATOR_ADDRESSES)
        running = asyncio.create_task(stage.run(runs_nothing=runs_nothing))
        try:
            for name in daemons:
                await stage.start(name)
            yield stage
            await stage.clear()
        finally:
            for one in stage.daemons.values():
                await one.stop()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            for listener in stage.sockets.values():
                listener.close()


async def _seen(cluster: Cluster, kind: Kind, name: str) -> AsyncIterator[tuple[EventType, Object]]:
    """An object as it is, and as it changes."""
    selector = f"metadata.name={name}"
    listing = await cluster.list(kind, SPACE, field_selector=selector)
    for one in listing.items:
        yield EventType.MODIFIED, one
    async with cluster.watch(kind, SPACE, resource_version=listing.resource_version, field_selector=selector) as events:
        async for event in events:
            yield event.type, event.object


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - a daemon of this machine
        text: str = answer.read().decode()
        return text


def service(name: str, *, version: str = "1", annotations: dict[str, str] | None = None, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    """A manifest. By default a pod is for one request at a time, and all of it is aimed at."""
    asked = {"autoscaling.knative.dev/target": "1", "autoscaling.knative.dev/target-utilization-percentage": "100"}
    container = {"image": "registry.example/hello", "env": [{"name": "VERSION", "value": version}]}
    template = {"metadata": {"annotations": {**asked, **(annotations or {})}}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"template": template, **spec},
    }


def is_ready(one: Object) -> bool:
    """What ``kubectl wait --for=condition=Ready`` waits for, of what was asked last."""
    status = one.get("status") or {}
    is_so = condition_of(one, "Ready").get("status") == "True"
    return bool(is_so and status.get("observedGeneration") == one["metadata"]["generation"])
