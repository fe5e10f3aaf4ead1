"""Both kinds of queue-proxy with a scripted app: the forwarding daemon, and the middleware in the app's process."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import cast

import msgspec
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from serving.asgi import QueueProxyMiddleware
from serving.core.settings.queueproxy import QueueProxySettings
from serving.net.wire.tokens import pod_secret, pod_token
from serving.queueproxy import main
from serving.queueproxy.io.asgi.call import App
from serving.queueproxy.podspec import Address, PodSpec, Probe
from tests.integration.proxy.peers import Backend, Link, Script, backed, free_socket, get, ok
from tests.integration.proxy.scripted_app import scripted_app

KEY = bytes(32)
SECRET = pod_secret(KEY, namespace="default", pod="hello-1")
TOKEN = pod_token(KEY, namespace="default", revision="hello-00001", pod="hello-1")
BELIEVED = b"K-Pod-Secret: %b\r\n" % SECRET.encode()
POST_DRAIN = b"POST /drain HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


class Pod:
    """A running queue-proxy with its app; set ``stop`` to stop it."""

    def __init__(self, requests: Address, admin: Address, ready_reader: int) -> None:
        self.app: Backend
        self.requests = requests
        self.admin = admin
        self.stop = asyncio.Event()
        self.links: list[Link] = []
        self.done: asyncio.Task[None]
        self.ready_reader = ready_reader
        self.is_in_process = False
        self.secret = SECRET

    async def client(self, address: tuple[str, int] | None = None) -> Link:
        link = await Link.to(address or self.requests)
        self.links.append(link)
        return link

    async def get_admin(self, request: bytes) -> tuple[bytes, bytes]:
        link = await self.client(self.admin)
        try:
            link.send(request)
            return await link.message()
        finally:
            # Tests poll, and the number of connections is limited.
            link.close()

    async def ready(self) -> None:
        head = b""
        while not head.startswith(b"HTTP/1.1 200"):
            head, _ = await self.get_admin(get(b"/readyz"))

    async def inside(self, count: int) -> None:
        """Wait until `count` requests are in the queue-proxy."""
        async with asyncio.timeout(60):
            request_count = get(b"/metrics", b"K-Pod-Secret: %b\r\n" % self.secret.encode())
            while b"queueproxy_requests_inside %d\n" % count not in (await self.get_admin(request_count))[1]:
                pass

    async def pushed(self) -> list[dict[str, bool]]:
        """The lines of the readiness pipe so far."""
        text = os.read(self.ready_reader, 65536)
        lines = [json.loads(line) for line in text.splitlines()]
        pid = os.getsid(0) if self.is_in_process else os.getpid()
        assert all(line.pop("pid") == pid for line in lines)
        return lines


PodMaker = Callable[..., AbstractAsyncContextManager[Pod]]


@contextlib.asynccontextmanager
async def forwarding(
    script: Script = ok,
    readiness: Probe | None = None,
    url: str | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
    **knobs: float,
) -> AsyncIterator[Pod]:
    """A queue-proxy on inherited sockets, with a drain lag of 0 by default. ``more`` are further fields of its pod."""
    async with backed(script) as app, _staged(app.address, readiness, url, knobs) as (running, plain, sockets):
        spec = msgspec.structs.replace(plain, **more)
        running.app = app
        running.secret = spec.secret
        sockets[0].close()
        running.done = asyncio.create_task(main.serve(spec, running.stop))
        async with _ended(running):
            yield running


@contextlib.asynccontextmanager
async def in_process(
    script: Script = ok,
    readiness: Probe | None = None,
    url: str | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
    **knobs: float,
) -> AsyncIterator[Pod]:
    """A queue-proxy as middleware of an app in this process, with uvicorn."""
    async with (
        backed(script) as backend,
        served(scripted_app(backend.address), readiness, url, more, **knobs) as running,
    ):
        running.app = backend
        yield running


@contextlib.asynccontextmanager
async def served(
    app: App,
    readiness: Probe | None = None,
    url: str | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
    **knobs: float,
) -> AsyncIterator[Pod]:
    """An app in this process with a queue-proxy middleware. ``more`` are further fields of its pod."""
    async with _staged(None, readiness, url, knobs) as (running, plain, sockets):
        spec = msgspec.structs.replace(plain, **more)
        server = server_of(app, spec)
        running.is_in_process = True
        running.done = asyncio.create_task(server.serve(sockets=[sockets[0]]))
        ordering = asyncio.create_task(order_stop(running.stop))
        async with _ended(running):
            while not server.started and not running.done.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.001)
            yield running
        ordering.cancel()


PODS: dict[str, PodMaker] = {"queue-proxy": forwarding, "in process": in_process}


def server_of(app: App, spec: PodSpec) -> uvicorn.Server:
    """A server of an app with a queue-proxy middleware, as created by ``python -m serving.asgi``."""
    middleware = QueueProxyMiddleware(app, spec=spec)
    config = uvicorn.Config(
        middleware,
        lifespan="on",
        log_config=None,
        http=cast("type[asyncio.Protocol]", middleware.behind_tls(AutoHTTPProtocol)),
        ws="websockets-sansio",
        timeout_keep_alive=60,
        proxy_headers=False,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """A server without re-raised stop signals, which would stop this process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = signal.signal(signal.SIGTERM, self.handle_exit)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


async def order_stop(stop: asyncio.Event) -> None:
    """Send the stop signal to the server in this process after `stop` is set."""
    await stop.wait()
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.raise_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def _staged(
    app: Address | None, readiness: Probe | None, url: str | None, knobs: dict[str, float]
) -> AsyncIterator[tuple[Pod, PodSpec, list[socket.socket]]]:
    settings = msgspec.convert({"drain_lag_s": 0.0, "drain_grace_s": 2.0} | knobs, QueueProxySettings)
    sockets = [free_socket(), free_socket()]
    for sock in sockets:
        sock.listen()
    requests, admin = (each_sock.getsockname() for each_sock in sockets)
    reader, writer = os.pipe()
    spec = PodSpec(
        namespace="default",
        revision="hello-00001",
        pod="hello-1",
        app=app or requests,
        listen_fds={
            name: os.dup(each_sock.fileno())
            for name, each_sock in zip(("requests", "admin"), sockets, strict=True)
            if app or name == "admin"
        },
        readiness=readiness or Probe(),
        stats_url=url,
        stats_token=TOKEN,
        secret=SECRET,
        ready_fd=writer,
        settings=settings,
    )
    sockets[1].close()
    try:
        yield Pod(requests, admin, reader), spec, sockets
    finally:
        sockets[0].close()
        os.close(reader)
        with contextlib.suppress(OSError):
            os.close(writer)


@contextlib.asynccontextmanager
async def _ended(running: Pod) -> AsyncIterator[None]:
    """Stop the pod after the block, and close all connections to it."""
    try:
        yield
    finally:
        running.stop.set()
        async with asyncio.timeout(60):
            await running.done
        for link in running.links:
            await link.closed()


class Gate:
    """An app that holds each request until it is released, and records the order of requests."""

    def __init__(self) -> None:
        self.order: list[bytes] = []
        self.waiting: list[asyncio.Event] = []

    async def script(self, link: Link) -> None:
        while True:
            head = await link.head()
            self.order.append(head.split(b" ")[1])
            go = asyncio.Event()
            self.waiting.append(go)
            await go.wait()
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(self.order[-1]), self.order[-1]))

    def let_one_go(self) -> None:
        self.waiting.pop(0).set()
