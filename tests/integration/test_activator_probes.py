"""Pods that are not ready in their EndpointSlice: the activator probes their real queue-proxies itself."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from serving.activator.io.prober import is_pod_ready
from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.cluster.kinds import ENDPOINT_SLICE, REVISION
from serving.net.wire.tokens import revision_secret
from serving.queueproxy import main as queueproxy
from serving.queueproxy.podspec import PodSpec, Probe
from tests.eventually import until
from tests.integration.activator_stage import KEY, PodServer, Stage, send_request, staged
from tests.integration.proxy.peers import free_socket

REVISION_KEY = ("default", "hello-00001")


@contextlib.asynccontextmanager
async def queue_proxy(app: tuple[str, int], secret: str, readiness: Probe) -> AsyncIterator[tuple[str, int]]:
    """A queue-proxy in front of an app; yields its address for requests."""
    sockets = {"requests": free_socket(), "admin": free_socket()}
    spec = PodSpec(
        namespace="default",
        revision="hello-00001",
        pod="p",
        app=app,
        listen_fds={name: os.dup(socket.fileno()) for name, socket in sockets.items()},
        readiness=readiness,
        secret=secret,
        settings=QueueProxySettings(drain_lag_s=0.0, drain_grace_s=2.0),
    )
    address = sockets["requests"].getsockname()
    for sock in sockets.values():
        sock.listen()
        sock.close()
    stop = asyncio.Event()
    running = asyncio.create_task(queueproxy.serve(spec, stop))
    try:
        yield address
    finally:
        stop.set()
        await running


class StartingApp(PodServer):
    """An app whose readiness path responds with 503 until ``gate`` is set; ``paths`` are those of requests."""

    async def _respond(self, writer: asyncio.StreamWriter) -> None:
        is_probe = self.heads[-1].startswith("GET /ready ")
        status = b"503 Service Unavailable" if is_probe and not self.gate.is_set() else b"200 OK"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 1\r\n\r\np" % status)
        await writer.drain()

    @property
    def paths(self) -> list[str]:
        """Paths of requests that were not probes of readiness."""
        return [path for head in self.heads if (path := head.split()[1]) != "/ready"]


async def list_unready(stage: Stage, port: int, name: str = "p") -> None:
    """List a pod as not ready."""
    labels = {"kubernetes.io/service-name": "hello-00001-private", "serving.knative.dev/revision": "hello-00001"}
    endpoint = {
        "addresses": ["127.0.0.1"],
        "conditions": {"ready": False, "serving": False, "terminating": False},
        "targetRef": {"kind": "Pod", "name": name, "namespace": "default"},
    }
    result = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"hello-00001-private-{name}", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "http", "port": port}],
    }
    await stage.cluster.create(ENDPOINT_SLICE, result)


async def secret_in(stage: Stage) -> str:
    revision = await stage.cluster.get(REVISION, *REVISION_KEY)
    return revision_secret(KEY, namespace="default", uid=revision["metadata"]["uid"])


async def test_pod_receives_requests_once_queue_proxy_is_ready_before_its_slice_is() -> None:
    async with staged(secrets_of="revision") as stage:
        await stage.service()
        app = StartingApp("p")
        app.gate.clear()
        await app.start()
        stage.pods.append(app)
        secret = await secret_in(stage)
        readiness = Probe(path="/ready", period_s=0.05)
        async with queue_proxy(("127.0.0.1", app.port), secret, readiness) as address:
            await list_unready(stage, address[1])
            task = asyncio.create_task(send_request(stage.public, "/held"))
            # The app has received a probe, so the queue-proxy responds to probes with 503 now.
            await until(lambda: stage.level == 1 and app.heads)
            assert not await is_pod_ready(address, secret)
            app.gate.set()
            respond = await task
            later = await send_request(stage.public, "/later")
            endpoint_slice = await stage.cluster.get(ENDPOINT_SLICE, "default", "hello-00001-private-p")
            assert await is_pod_ready(address, secret)
    assert (respond.status, later.status, app.paths) == (200, 200, ["/held", "/later"])
    assert endpoint_slice["endpoints"][0]["conditions"]["ready"] is False


async def test_pod_without_revision_secret_receives_probes_but_no_request() -> None:
    async with staged(secrets_of="revision") as stage:
        await stage.service()
        impostor = PodServer("queue")
        await impostor.start()
        stage.pods.append(impostor)
        await list_unready(stage, impostor.port)
        task = asyncio.create_task(send_request(stage.public, "/held"))
        await until(lambda: len(impostor.heads) >= 3)
        pod = await stage.pod("q")
        respond = await task
    assert (respond.body, [head.split()[1] for head in pod.heads]) == ("q", ["/held"])
    assert {("/held" in head, "K-Network-Probe: queue" in head) for head in impostor.heads} == {(False, True)}


async def test_draining_queue_proxy_is_not_ready() -> None:
    app = PodServer("p")
    await app.start()
    async with queue_proxy(("127.0.0.1", app.port), "secret", Probe()) as address:
        async with asyncio.timeout(60):
            while not await is_pod_ready(address, "secret"):
                pass
        assert not await is_pod_ready(address, "another secret")
    assert not await is_pod_ready(address, "secret")
    await app.stop()


@pytest.mark.parametrize("text", [b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", b"hello\r\n\r\n", b"", None])
async def test_address_without_valid_probe_response_is_not_ready(text: bytes | None) -> None:
    closed = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if text is None:
                await reader.read()
            else:
                writer.write(text)
                await writer.drain()
        except ConnectionError:
            # The prober has closed the connection.
            return
        finally:
            writer.transport.abort()
            closed.set()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        assert not await is_pod_ready(server.sockets[0].getsockname(), "secret", timeout_s=0.2)
        await closed.wait()
