"""An activator in this process with its environment: a memory store, scripted pods, an autoscaler's websocket.

All sockets are real, on ephemeral ports of 127.0.0.1. A pod is a server that answers as it is told and remembers what
it was asked; its place in the store is a slice of its own.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection, serve

from serving.activator.main import Activator
from serving.activator.routing.sites import Listener
from serving.core.model.routehosts import HostRules
from serving.core.settings.activator import ActivatorSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import ENDPOINT_SLICE, REVISION, ROUTE
from serving.net.proxy.forwarding.exchange import UNDELIVERED
from serving.net.wire.frames import RevisionStat, decode_activator_stats
from tests.eventually import until

KEY = bytes(range(32))
HOST = "hello.default.localhost"


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response as received by a client."""

    status: int
    headers: dict[str, str]
    body: str


async def send_request(
    address: tuple[str, int],
    target: str = "/",
    *,
    host: str = HOST,
    method: str = "GET",
    headers: Sequence[str] = (),
    body: str = "",
) -> HttpResponse:
    """Send one request on its own connection."""
    reader, writer = await asyncio.open_connection(*address)
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *length, *headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
    try:
        raw = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, text = raw.partition("\r\n\r\n")
    status_line, *results = head.split("\r\n")
    pairs = [line.split(": ", 1) for line in results]
    return HttpResponse(
        status=int(status_line.split()[1]), headers={name.lower(): value for name, value in pairs}, body=text
    )


class PodServer:
    """A pod: responds to each request with its name, or ``response``, once ``gate`` is open.

    ``heads`` are the received requests.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.heads: list[str] = []
        self.running_count = 0
        self.running_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.dies_at_once = False
        self.has_no_app = False
        self.response = b""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        """The port of its listener."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, tls: ssl.SSLContext | None = None, *, port: int = 0) -> None:
        """Start listening, over TLS with a context."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls)

    async def stop(self) -> None:
        """Stop listening, and cut all connections."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    self.heads.append(head)
                    if self.dies_at_once:
                        writer.transport.abort()
                        return
                    if self.has_no_app:
                        writer.write(b"HTTP/1.1 503 Service Unavailable\r\n%bContent-Length: 2\r\n\r\nno" % UNDELIVERED)
                    else:
                        await self._respond(writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _respond(self, writer: asyncio.StreamWriter) -> None:
        self.running_count += 1
        self.running_max = max(self.running_max, self.running_count)
        try:
            await self.gate.wait()
        finally:
            self.running_count -= 1
        text = self.name.encode()
        writer.write(self.response or b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        await writer.drain()


class Autoscaler:
    """An autoscaler that records the stats of activators."""

    def __init__(self) -> None:
        self.stats: list[RevisionStat] = []
        self.frame_count = 0
        self.tokens: list[str] = []
        self.paths: list[str] = []
        self.connections: set[ServerConnection] = set()

    async def handle(self, connection: ServerConnection) -> None:
        """Record all frames of an activator."""
        assert connection.request is not None
        self.tokens.append(connection.request.headers.get("Authorization", ""))
        self.paths.append(connection.request.path)
        self.connections.add(connection)
        try:
            async for frame in connection:
                assert isinstance(frame, bytes)
                self.frame_count += 1
                self.stats += decode_activator_stats(frame).stats
        finally:
            self.connections.discard(connection)


class Store:
    """A memory store with the objects of a service."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.pods: list[PodServer] = []

    async def revision(self, name: str, *, state: str = "Active", slots: int = 1, **spec: Any) -> None:  # noqa: ANN401
        """Create a revision."""
        await self.cluster.create(
            REVISION,
            {
                "apiVersion": "serving.knative.dev/v1",
                "kind": "Revision",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"servingState": state, "containerConcurrency": slots, **spec},
            },
        )

    async def status(self, revision: str, **condition: str) -> None:
        """Set the Ready condition of a revision."""
        patch = {"status": {"conditions": [{"type": "Ready", **condition}]}}
        await self.cluster.patch(REVISION, "default", revision, patch=patch, subresource="status")

    async def route(
        self,
        *traffic: dict[str, Any],
        name: str = "hello",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> None:
        """Create a route with the status that a controller writes."""
        result = {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Route",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": labels or {},
                "annotations": annotations or {},
            },
            "spec": {},
        }
        await self.cluster.create(ROUTE, result)
        status = {"url": f"http://{name}.default.localhost:8080", "traffic": list(traffic)}
        await self.cluster.patch(ROUTE, "default", name, patch={"status": status}, subresource="status")

    async def service(self, *, state: str = "Active", slots: int = 1, **spec: Any) -> None:  # noqa: ANN401
        """Create a service with the revision hello-00001 and without pods."""
        await self.revision("hello-00001", state=state, slots=slots, **spec)
        await self.route({"revisionName": "hello-00001", "percent": 100})

    async def active(self, revision: str = "hello-00001") -> None:
        """Wait until a revision's state in the store is Active."""
        current_revision: dict[str, Any] = await self.cluster.get(REVISION, "default", revision)
        if current_revision["spec"]["servingState"] == "Active":
            return
        version = current_revision["metadata"]["resourceVersion"]
        async with asyncio.timeout(60), self.cluster.watch(REVISION, "default", resource_version=version) as events:
            async for event in events:
                if event.object["metadata"]["name"] == revision and event.object["spec"]["servingState"] == "Active":
                    return

    async def pod(self, name: str, *, of: str = "hello-00001", server: PodServer | None = None) -> PodServer:
        """Start a ready pod and list it in an EndpointSlice."""
        if server is None:
            server = PodServer(name)
            await server.start()
            self.pods.append(server)
        endpoint = {
            "addresses": ["127.0.0.1"],
            "conditions": {"ready": True, "terminating": False},
            "targetRef": {"kind": "Pod", "name": name, "namespace": "default"},
        }
        labels = {"kubernetes.io/service-name": f"{of}-private", "serving.knative.dev/revision": of}
        await self.cluster.create(
            ENDPOINT_SLICE,
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"{of}-private-{name}", "namespace": "default", "labels": labels},
                "addressType": "IPv4",
                "endpoints": [endpoint],
                "ports": [{"name": "http", "port": server.port}],
            },
        )
        return server

    async def remove_pod(self, name: str, *, of: str = "hello-00001") -> None:
        """Remove a pod from the EndpointSlices."""
        await self.cluster.delete(ENDPOINT_SLICE, "default", f"{of}-private-{name}")


class Stage(Store):
    """See the module. ``public`` and ``inner`` are the addresses of the listeners."""

    def __init__(self, activator: Activator, cluster: MemoryCluster, autoscaler: Autoscaler) -> None:
        super().__init__(cluster)
        self.activator = activator
        self.autoscaler = autoscaler

    @property
    def public(self) -> tuple[str, int]:
        """The address of the public listener."""
        return self.activator.addresses[Listener.PUBLIC]

    @property
    def inner(self) -> tuple[str, int]:
        """The address of the inner listener."""
        return self.activator.addresses[Listener.INNER]

    @property
    def level(self) -> int:
        """The number of requests in the activator."""
        return sum(level for _, level, _ in self.activator.ingress.router.inside())

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for a pod."""
        return sum(waiting_count for _, _, waiting_count in self.activator.ingress.router.inside())

    async def route(
        self,
        *traffic: dict[str, Any],
        name: str = "hello",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> None:
        """Create a route, and wait until the activator has it."""
        await super().route(*traffic, name=name, labels=labels, annotations=annotations)
        inner = f"{name}.default.svc.cluster.local"
        await until(lambda: self.activator.ingress.routes.find(Listener.INNER, inner))

    async def pod_seen(self, name: str, *, of: str = "hello-00001") -> PodServer:
        """Start a ready pod, and wait until the activator has it."""
        before = len(self.activator.ingress.router.directory.pods_of(("default", of)))
        server = await self.pod(name, of=of)
        await until(lambda: len(self.activator.ingress.router.directory.pods_of(("default", of))) > before)
        return server


@contextlib.asynccontextmanager
async def staged(
    *,
    cluster: MemoryCluster | None = None,
    rules: HostRules | None = None,
    challenge_folder: Path | None = None,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[Stage]:
    """A running activator, which is stopped after the block."""
    autoscaler, stop = Autoscaler(), asyncio.Event()
    cluster = cluster or MemoryCluster()
    async with serve(autoscaler.handle, "127.0.0.1", 0) as websocket, asyncio.TaskGroup() as group:
        port = next(iter(websocket.sockets)).getsockname()[1]
        values: dict[str, Any] = {
            "stats_url": f"ws://127.0.0.1:{port}/stats",
            "public_address": "127.0.0.1:0",
            "inner_address": "127.0.0.1:0",
            "drain_grace_s": 0.2,
        }
        own = ActivatorSettings(**(values | settings))
        activator = Activator(own, cluster, key=KEY, rules=rules, challenge_folder=challenge_folder)
        group.create_task(activator.run(stop))
        await activator.is_serving.wait()
        if activator.inner.to_autoscaler is None:
            # The stage's autoscaler does not support TLS.
            await until(lambda: activator.client.link.is_connected)
        stage = Stage(activator, cluster, autoscaler)
        try:
            yield stage
        finally:
            for pod in stage.pods:
                pod.gate.set()
            stop.set()
            for pod in stage.pods:
                await pod.stop()
