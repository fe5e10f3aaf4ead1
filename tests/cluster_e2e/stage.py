"""All parts against one server: the daemons as processes, a kubelet, and a source of fake load.

Daemons reach the server through a gate, with their own accounts and a record of what they call; the suite has the
server itself. Waiting ends with an event of a watch, and fails with the object's last state. All sockets are the
stage's own and handed down, so that no port is lost between two starts of a daemon; an early request waits for the
daemon's first answer.
"""

import asyncio
import base64
import contextlib
import functools
import http
import json
import os
import random
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.activator.io.reports import StatsClient
from serving.activator.queueing.wake import RevisionLoad
from serving.core.model.errors import AlreadyExists, NotFound, Unavailable
from serving.core.model.knative import SCALED_WORKLOADS_LABEL
from serving.core.model.objects import Object, condition_of, name_of
from serving.core.settings.activator import ActivatorSettings
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DOMAIN_MAPPING,
    ENDPOINT_SLICE,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    KEDA_SCALED_OBJECT,
    NAMESPACE,
    NODE,
    POD,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SECRET,
    SERVICE,
    SERVING_SERVICE,
    Kind,
)
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.port import Cluster, EventType, WatchEvent
from serving.net.wire.tokens import KEY_SECRET
from tests.cluster_e2e.gate import Gate, opened
from tests.cluster_e2e.own_server import REFUSED, WRITES
from tests.cluster_e2e.server import SPACE, Server, is_real, only_here, started
from tests.cluster_e2e.status_kubelet import StatusKubelet, repeated
from tests.tidy.sources import ROOT

KEY = b"e" * 32
QUERY_TOKEN = "q" * 43
SYSTEM = "knative-serving"
# The extender of kube-scheduler keeps the name of its rights and its image, placement.
_PACKAGES = {"placement": "nodes.extender", "nodegroup": "nodes.nodegroup", "dashboard": "tools.dashboard"}
# A real server refuses loopback addresses in slices.
ACTIVATOR_ADDRESSES = ("10.78.0.1", "10.78.0.2") if is_real() else ("127.0.0.1",)
# Waiting ends with an event; this long only where something is broken, also on a machine that has much else to do.
_PATIENCE_S = 240.0
# Where each daemon answers when it works: the name of a socket, and a path.
_PAGES = {
    "activator": ("activator-metrics", "/healthz"),
    "autoscaler": ("stats", "/healthz"),
    "controller": ("controller-metrics", "/healthz"),
    "dashboard": ("dashboard", "/healthz"),
    "placement": ("placement", "/healthz"),
}
_LISTENERS = {"activator": ("public", "inner")}
# Those that others reach: bound before anything starts.
_SOCKETS = ("public", "inner", "stats", "activator-metrics")
# Each report is of a second; two in one would add up.
_LOAD_PERIOD_S = 1.0
# What tests create, routes before what they point to.
_CLEARED = (
    *(INTERCEPTOR_ROUTE, KEDA_SCALED_OBJECT, HTTP_SCALED_OBJECT, SCALED_WORKLOAD, DOMAIN_MAPPING, SCALING_POLICY),
    *(SERVING_SERVICE, DEPLOYMENT, SERVICE, CONFIG_MAP),
)
# Windows as short as they may be; what is shown does not hang on their length.
_SETTINGS = {
    "SERVING_AUTOSCALER_STABLE_WINDOW_S": "6",
    # A report that comes late is in one second with the next: a window of one second would take it for a burst.
    "SERVING_AUTOSCALER_PANIC_WINDOW_RATIO": "0.5",
    "SERVING_AUTOSCALER_DECISION_PERIOD_S": "0.5",
    "SERVING_AUTOSCALER_SCALE_TO_ZERO_GRACE_PERIOD_S": "1",
    "SERVING_AUTOSCALER_MAX_SCALE_DOWN_RATE": "100",
    "SERVING_CONTROLLER_PUBLIC_SERVICES": "true",
    # It does not exist.
    "SERVING_CONTROLLER_REGISTRIES_SKIPPING_TAG_RESOLVING": "registry.example",
}
_WRITE_COUNTS = (
    "serving_controller_writes_total",
    "autoscaler_scale_writes_total",
    "autoscaler_reserve_writes_total",
    "autoscaler_victim_writes_total",
)
# As on every cluster. The kubelets of processes run no container of it.
SIDECAR = {
    "SERVING_CONTROLLER_SIDECAR_ENABLED": "true",
    "SERVING_CONTROLLER_SIDECAR_IMAGE": "registry.example/serving:e2e",
}


class Daemon:
    """One process. ``calls`` are its verbs and resources so far."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.name, self.process = name, process
        self._calls, self._log = folder / f"{name}.calls", folder / f"{name}.log"

    @property
    def calls(self) -> set[str]:
        """Calls in the notation of Roles: "patch deployments.apps/scale"."""
        return set(self._calls.read_text().splitlines()) if self._calls.exists() else set()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Complete lines of its output."""
        lines = [line for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def stop(self) -> int:
        """End it in peace; its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return await self.process.wait()


class Stage:
    """The daemons, the server and the kubelet of a test."""

    def __init__(
        self, server: Server, cluster: KubeCluster, *, gate: Gate, folder: Path, settings: Mapping[str, str]
    ) -> None:
        self.server, self.cluster, self.gate, self.folder = server, cluster, gate, folder
        self.daemons: dict[str, Daemon] = {}
        self._settings = settings
        self.kubelet = StatusKubelet(cluster, server.node)
        self.sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in _SOCKETS}
        (folder / "key").write_bytes(KEY)
        (folder / "query-token").write_text(QUERY_TOKEN)
        url = f"ws://127.0.0.1:{self.port('stats')}/stats"
        reporter = ActivatorSettings(stats_url=url, name="e2e")
        self._client = StatsClient(reporter, key=KEY, draw=random.Random(1).random, on_connected=lambda: None)
        self._loads: dict[str, float] = {}

    def port(self, name: str) -> int:
        """The port of a listener: public, inner, stats, or a daemon's page."""
        port: int = self.sockets[name].getsockname()[1]
        return port

    async def start(self, name: str, *, module: str = "", instance: str = "") -> Daemon:
        """Start a daemon, and wait until it responds; ``instance`` names one of several."""
        label = instance or name
        page, path = _PAGES[name]
        # Each instance has its own, by which others reach it.
        own = f"{page}-{instance}" if instance else page
        if own not in self.sockets:
            self.sockets[own] = socket.create_server(("127.0.0.1", 0))
        sockets = {
            **{listener_name: self.sockets[listener_name] for listener_name in _LISTENERS.get(name, ())},
            page: self.sockets[own],
        }
        descriptors = {result: listener.fileno() for result, listener in sockets.items()}
        kubeconfig = await self.server.kubeconfig_of(name, self.folder, port=self.gate.port)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SERVING_")},
            **_SETTINGS,
            **self._settings,
            "KUBECONFIG": str(kubeconfig),
            # The controller reads the key from its Secret.
            "SERVING_KEY_FILE": "" if name == "controller" else str(self.folder / "key"),
            "SERVING_QUERY_TOKEN_FILE": str(self.folder / "query-token"),
            "SERVING_POD_NAME": label,
            "SERVING_ACTIVATOR_NAME": label,
            "SERVING_KUBE_RECORD": str(self.folder / f"{label}.calls"),
            "SERVING_LISTEN_FDS": json.dumps(descriptors),
            "SERVING_ACTIVATOR_STATS_URL": f"ws://127.0.0.1:{self.port('stats')}/stats",
            "SERVING_CONTROLLER_SIDECAR_STATS_URL": f"ws://127.0.0.1:{self.port('stats')}/stats",
            "SERVING_AUTOSCALER_ACTIVATOR_ADDRESS": f"127.0.0.1:{self.port('public')}",
            **(self._pages() if is_real() else {}),
        }
        with (self.folder / f"{label}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", module or f"serving.{_PACKAGES.get(name, name)}.main"),
                cwd=ROOT,
                env=environment,
                pass_fds=list(descriptors.values()),
                stderr=log,
            )
        self.daemons[label] = Daemon(label, process, self.folder)
        await self._at_work(self.daemons[label], f"http://127.0.0.1:{self.port(own)}{path}")
        return self.daemons[label]

    def _pages(self) -> dict[str, str]:
        """The page of the activator where slices do not lead to it."""
        return {"SERVING_CONTROLLER_ACTIVATOR_PAGES": f"127.0.0.1:{self.port('activator-metrics')}"}

    async def _at_work(self, daemon: Daemon, url: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while not await asyncio.to_thread(_is_well, url):
                    if daemon.process.returncode is not None:
                        break
                    await asyncio.sleep(0.05)
                else:
                    return
        raise AssertionError(
            f"{daemon.name} (exit code {daemon.process.returncode}) does not answer: {daemon.log[-3:]}"
        )

    async def run(self, *, runs_nothing: bool) -> None:
        """Kubelet and load, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if runs_nothing:
                group.create_task(self.kubelet.run())
            group.create_task(self._client.link.run())
            while True:
                for name, concurrency in self._loads.items():
                    self._report(name, concurrency)
                await asyncio.sleep(_LOAD_PERIOD_S)

    def load(self, revision: str, concurrency: float) -> None:
        """Report so many requests of a revision as an activator from now on."""
        self._loads[revision] = concurrency

    def _report(self, revision: str, concurrency: float) -> None:
        self._client.report([((SPACE, revision), RevisionLoad(concurrency=concurrency, request_count=concurrency))])

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
        """Wait until an object fulfils a condition; the object."""
        last: Object = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                async for event_type, last in _seen(self.cluster, kind, name):
                    if event_type is not EventType.DELETED and holds(last):
                        return last
        reported = {daemon: self.daemons[daemon].log[-3:] for daemon in self.daemons}
        raise AssertionError(f"{kind.name} {name} stays {json.dumps(last)}; daemons: {reported}")

    async def until_all(self, kind: Kind, names: set[str], holds: Callable[[Object], bool]) -> None:
        """Wait until all objects of these names fulfil a condition, however long a crowd takes."""
        remaining = set(names)
        while remaining:
            listing = await repeated(functools.partial(self.cluster.list, kind, SPACE))
            remaining.difference_update(name_of(item) for item in listing.items if holds(item))
            if not remaining:
                return
            with contextlib.suppress(Unavailable):
                async with self.cluster.watch(kind, SPACE, resource_version=listing.resource_version) as events:
                    async for event in of_objects(events):
                        if holds(event.object):
                            remaining.discard(name_of(event.object))
                        if not remaining:
                            return

    async def until_gone(self, kind: Kind, name: str, *, namespace: str = SPACE) -> None:
        """Wait until an object does not exist."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    await self.cluster.get(kind, namespace, name)
                except NotFound:
                    return
                await asyncio.sleep(0.05)

    async def ready(self, name: str, *, generation: int = 0) -> Object:
        """A service that is ready, of its latest generation."""
        return await self.until(
            SERVING_SERVICE,
            name,
            lambda current_service: (
                is_ready(current_service) and current_service["metadata"]["generation"] >= generation
            ),
        )

    async def scaled(self, revision: str, count: int, *, within_s: float = _PATIENCE_S) -> Object:
        """Wait until a revision's Deployment has so many pods, all ready."""

        def is_so(resource: Object) -> bool:
            ready_count = (resource.get("status") or {}).get("readyReplicas", 0)
            return bool(resource["spec"]["replicas"] == ready_count == count)

        return await self.until(DEPLOYMENT, f"{revision}-deployment", is_so, within_s=within_s)

    async def numbers(self, name: str) -> dict[str, float]:
        """Metrics of the controller or the autoscaler, by name, summed over labels."""
        text = await asyncio.to_thread(_read, f"http://127.0.0.1:{self.port(_PAGES[name][0])}/metrics")
        result: dict[str, float] = {}
        for line in text.splitlines():
            if match := re.match(r"(\w+)(?:\{.*\})? ([0-9.e+]+)$", line):
                result[match[1]] = result.get(match[1], 0.0) + float(match[2])
        return result

    async def own_writes(self) -> float:
        """Writes of the controller, with its Events, and of the autoscaler so far; without leases."""
        numbers = [await self.numbers(name) for name in ("controller", "autoscaler")]
        return sum(number.get(name, 0.0) for number in numbers for name in _WRITE_COUNTS)

    def writes_of(self, instance: str, *, since: int = 0) -> list[str]:
        """Writes of one daemon without leases: "PATCH /path". Our own server records them."""
        lines = (self.folder / WRITES).read_text().splitlines()[since:]
        reported = [line.split(" ", 1) for line in lines if "coordination.k8s.io" not in line]
        return [what for agent, what in reported if agent.partition("/")[2].startswith(f"{instance}_")]

    def write_count(self) -> int:
        """The number of all writes, as a start for ``writes_of``."""
        return len((self.folder / WRITES).read_text().splitlines())

    async def set_activators(self, addresses: Sequence[str]) -> None:
        """Set the activators as endpoints of their Service; on our own server they carry traffic."""
        name = "activator-service"
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-e2e",
                "namespace": SYSTEM,
                "labels": {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "e2e"},
            },
            "addressType": "IPv4",
            "ports": [
                {"name": name, "port": self.port(socket), "protocol": "TCP"}
                for name, socket in (("http", "inner"), ("metrics", "activator-metrics"))
            ],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        }
        try:
            await self.cluster.create(ENDPOINT_SLICE, body)
        except AlreadyExists:
            changed = {key: body[key] for key in ("ports", "endpoints")}
            await self.cluster.patch(ENDPOINT_SLICE, SYSTEM, f"{name}-e2e", patch=changed)

    async def clear(self) -> None:
        """Delete all objects that no other object owns, and wait until their dependents are gone."""
        self._loads.clear()
        for kind in _CLEARED:
            for resource in (await self.cluster.list(kind, SPACE)).items:
                if not resource["metadata"].get("ownerReferences"):
                    with contextlib.suppress(NotFound):
                        await self.cluster.delete(kind, SPACE, name_of(resource))
        await self.until_none(DEPLOYMENT)
        await self.until_none(POD)

    async def until_none(self, kind: Kind, *, label_selector: str = "") -> None:
        """Wait until a kind has no objects. A real garbage collector makes 40 calls a second, which can take long."""
        count, remaining = 0, await self._count(kind, label_selector)
        while remaining:
            count = remaining
            async with asyncio.timeout(_PATIENCE_S):
                while (remaining := await self._count(kind, label_selector)) >= count:  # noqa: ASYNC110 - a list is polled
                    # A list of thousands takes the time in which the kubelet of this process would end them.
                    await asyncio.sleep(0.05 + count / 500)

    async def _count(self, kind: Kind, label_selector: str) -> int:
        listing = await repeated(functools.partial(self.cluster.list, kind, SPACE, label_selector=label_selector))
        return len(listing.items)


@contextlib.asynccontextmanager
async def staged(
    folder: Path,
    *,
    daemons: Sequence[str] = ("controller", "autoscaler", "activator"),
    settings: Mapping[str, str] | None = None,
    runs_nothing: bool = True,
) -> AsyncIterator[Stage]:
    """All parts at work until the end of the context. The default kubelet runs no processes."""
    async with (
        started(folder) as server,
        opened(server.host, server.port) as gate,
        KubeCluster(server.kubeconfig) as cluster,
        _without_our_node(cluster, server.node),
        key_set(cluster),
    ):
        stage = Stage(server, cluster, gate=gate, folder=folder, settings=settings or {})
        labelled = {"metadata": {"name": SPACE, "labels": {SCALED_WORKLOADS_LABEL: "enabled"}}}
        try:
            await cluster.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", **labelled})
        except AlreadyExists:
            await cluster.patch(NAMESPACE, "", SPACE, patch=labelled)
        await stage.set_activators(ACTIVATOR_ADDRESSES)
        running = asyncio.create_task(stage.run(runs_nothing=runs_nothing))
        try:
            async with asyncio.TaskGroup() as group:
                for name in daemons:
                    group.create_task(stage.start(name))
                if runs_nothing:
                    group.create_task(stage.kubelet.until_schedulable())
            try:
                yield stage
            finally:
                await stage.clear()
            if not is_real():
                refused = (folder / REFUSED).read_text()
                assert refused == "", f"a real server would have refused: {refused}"
        finally:
            for daemon in stage.daemons.values():
                await daemon.stop()
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            for listener in stage.sockets.values():
                listener.close()


@contextlib.asynccontextmanager
async def _without_our_node(cluster: Cluster, node: str) -> AsyncIterator[None]:
    """Delete the suite's node from a real server: it would have no kubelet."""
    try:
        yield
    finally:
        if is_real():
            with contextlib.suppress(NotFound):
                await cluster.delete(NODE, "", node)


@contextlib.asynccontextmanager
async def key_set(cluster: Cluster) -> AsyncIterator[None]:
    """Set the cluster key of the daemons that have it as a file, and restore the server's own at the end."""
    data: dict[str, str | None] = {"key": base64.b64encode(KEY).decode()}
    before: dict[str, str | None] | None = None
    try:
        await cluster.create(SECRET, {"metadata": {"name": KEY_SECRET, "namespace": SYSTEM}, "data": data})
    except AlreadyExists:
        # A merge patch removes a field that is null.
        entry = (await cluster.get(SECRET, SYSTEM, KEY_SECRET)).get("data") or {}
        before = {"key": entry.get("key")}
        await cluster.patch(SECRET, SYSTEM, KEY_SECRET, patch={"data": data})
    try:
        yield
    finally:
        with contextlib.suppress(NotFound):
            if before is None:
                await cluster.delete(SECRET, SYSTEM, KEY_SECRET)
            else:
                await cluster.patch(SECRET, SYSTEM, KEY_SECRET, patch={"data": before})


async def _seen(cluster: Cluster, kind: Kind, name: str) -> AsyncIterator[tuple[EventType, Object]]:
    """An object as it is, and as it changes."""
    selector = f"metadata.name={name}"
    listing = await cluster.list(kind, SPACE, field_selector=selector)
    for item in listing.items:
        yield EventType.MODIFIED, item
    async with cluster.watch(kind, SPACE, resource_version=listing.resource_version, field_selector=selector) as events:
        async for event in of_objects(events):
            yield event.type, event.object


async def of_objects(events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
    """Events of a watch without bookmarks; a real server sends one a minute."""
    async for event in events:
        if event.type is not EventType.BOOKMARK:
            yield event


def _read(url: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {QUERY_TOKEN}"})  # noqa: S310 - a daemon of this machine
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:  # noqa: S310 - as above
        text: str = response.read().decode()
        return text


def _is_well(url: str) -> bool:
    """Whether it says so. A process that starts answers later; a dead one is tried again."""
    try:
        _read(url)
    except urllib.error.HTTPError as error:
        return error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
    except OSError:
        return False
    return True


def service(name: str, *, version: str = "1", annotations: dict[str, str] | None = None, **spec: Any) -> Object:  # noqa: ANN401 - JSON
    """A manifest of a service. By default a pod takes one request at a time, and its target is all of it."""
    requests = {"autoscaling.knative.dev/target": "1", "autoscaling.knative.dev/target-utilization-percentage": "100"}
    container = {"image": "registry.example/hello", "env": [{"name": "VERSION", "value": version}]}
    pod = {"containers": [container], **only_here()}
    template = {"metadata": {"annotations": {**requests, **(annotations or {})}}, "spec": pod}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"template": template, **spec},
    }


def is_ready(resource: Object) -> bool:
    """The condition of ``kubectl wait --for=condition=Ready``, for the latest generation."""
    status = resource.get("status") or {}
    is_so = condition_of(resource, "Ready").get("status") == "True"
    return bool(is_so and status.get("observedGeneration") == resource["metadata"]["generation"])
