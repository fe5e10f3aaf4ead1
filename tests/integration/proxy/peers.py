"""Both ends of a proxy as raw sockets: a client that sends any bytes, and a scripted upstream."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.exchange import Exchange, Wiring
from serving.net.proxy.forwarding.policy import NO_TIMEOUTS, Timeouts
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.server.connection import Connection
from serving.net.proxy.server.listener import HttpServer

# The largest head that either end reads; above the default limit of a proxy.
_HEAD_BYTES_MAX = 1 << 20
# The timeout of each step of a test, far above its usual duration.
STEP_S = 60.0

MARK = b"Idempotency-Key: 1\r\n"
"""The header line of a request that may be sent again."""


class Way:
    """The transport between clients and proxies: plain, or TLS, which ``test_proxy_over_tls.py`` inserts."""

    def __init__(self) -> None:
        self.make: Callable[[HttpServer, Wiring], asyncio.Protocol] = Connection
        self.client: ssl.SSLContext | None = None


WAY = Way()


class Link:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, address: tuple[str, int], *, own: str | None = None) -> "Link":
        local = None if own is None else (own, 0)
        return cls(
            *await asyncio.open_connection(
                *address,
                limit=_HEAD_BYTES_MAX,
                ssl=WAY.client,
                server_hostname=WAY.client and "h",
                local_addr=local,
            )
        )

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        """All bytes up to and including the empty line."""
        async with asyncio.timeout(STEP_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def body(self, count: int) -> bytes:
        async with asyncio.timeout(STEP_S):
            return await self.reader.readexactly(count)

    async def chunks(self) -> tuple[bytes, bytes]:
        """A chunked body, read strictly: the payload, and the lines after it."""
        payload = b""
        async with asyncio.timeout(STEP_S):
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                payload += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            trailers = b""
            while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
                trailers += line
            return payload, trailers

    async def message(self) -> tuple[bytes, bytes]:
        """A head, and a body by Content-Length."""
        head = await self.head()
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return head, await self.body(int(length[0].split(b":")[1])) if length else b""

    async def rest(self) -> bytes:
        """All bytes until the end of the connection."""
        async with asyncio.timeout(STEP_S):
            return await self.reader.read()

    async def ended(self) -> bool:
        """Whether the connection ends without another byte, cleanly or not."""
        try:
            return await self.rest() == b""
        except ConnectionResetError:
            return True

    def pause(self) -> None:
        """Stop reading, so that the peer cannot continue to send."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def resume(self) -> None:
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    def close(self) -> None:
        self.writer.close()

    async def closed(self) -> None:
        """Close the connection and wait for it, because a writer that outlives its event loop warns."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


Script = Callable[[Link], Awaitable[None]]


class Backend:
    """An upstream that runs a script on each connection; ``links`` has all connections."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.links: list[Link] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.address = ("", 0)
        self.server: asyncio.Server

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        link = Link(reader, writer)
        self.links.append(link)
        # The end of a connection ends its script; a script can wait for it by reading.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await self._script(link)
        await link.closed()


async def ok(link: Link) -> None:
    """An upstream script that responds to each request without a body with the request's head."""
    while True:
        head = await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


class Forwarder:
    """A handler that forwards everything to one address."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.timeouts: Timeouts = NO_TIMEOUTS
        self.begun: list[Exchange] = []
        self.finished: list[Exchange] = []
        self.one_finished = asyncio.Event()
        self.losses: list[str] = []
        self.elsewhere: tuple[str, int] | None = None

    def begin(self, exchange: Exchange) -> None:
        self.begun.append(exchange)
        exchange.timeouts = self.timeouts
        exchange.forward(self.address)

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        exchange.respond(502, str(error).encode())

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Retry a request at another address, if its client allows it and there is one; once."""
        self.losses.append(reason)
        if not exchange.head.is_marked_repeatable:
            return False
        elsewhere, self.elsewhere = self.elsewhere, None
        if elsewhere is not None:
            exchange.forward(elsewhere)
        return elsewhere is not None

    def overdue(self, exchange: Exchange) -> None:
        exchange.respond(503)

    def body_ready(self, exchange: Exchange) -> None:
        raise NotImplementedError(exchange)

    def body_complete(self, exchange: Exchange) -> None:
        pass

    def reading_changed(self, exchange: Exchange) -> None:
        pass

    def finish(self, exchange: Exchange) -> None:
        self.finished.append(exchange)
        self.one_finished.set()


class Proxy:
    """A running proxy with its upstream."""

    def __init__(self, server: HttpServer, handler: Forwarder, backend: Backend, address: tuple[str, int]) -> None:
        self.server = server
        self.handler = handler
        self.backend = backend
        self.address = address
        self.clients: list[Link] = []

    async def client(self) -> Link:
        link = await Link.to(self.address)
        self.clients.append(link)
        return link


@contextlib.asynccontextmanager
async def backed(script: Script) -> AsyncIterator[Backend]:
    """A running upstream with a script."""
    backend = Backend(script)
    server = await asyncio.start_server(backend.accept, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
    backend.server = server
    backend.address = server.sockets[0].getsockname()
    try:
        yield backend
    finally:
        server.close()
        for task in backend.tasks:
            task.cancel()
        await asyncio.gather(*backend.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxied(
    script: Script = ok,
    settings: HttpSettings | None = None,
    *,
    make: Callable[[HttpServer, Wiring], asyncio.Protocol] | None = None,
    pool: type[Pool] = Pool,
) -> AsyncIterator[Proxy]:
    """A proxy with a scripted upstream; checks that no request state remains after the block."""
    settings = settings or HttpSettings()
    async with backed(script) as backend:
        server = HttpServer(settings, pool=pool(settings, clock=time.monotonic))
        handler = Forwarder(backend.address)
        address = await server.listen(("127.0.0.1", 0), handler, make=make or WAY.make)
        proxy = Proxy(server, handler, backend, address)
        try:
            yield proxy
        finally:
            await server.finish(grace_s=0)
            for client in proxy.clients:
                await client.closed()
            assert len(handler.finished) == len(handler.begun)
            assert all(exchange.outcome is not None for exchange in handler.begun)


def get(target: bytes = b"/", headers: bytes = b"") -> bytes:
    """A request without a body."""
    return b"GET %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (target, headers)


def free_socket() -> socket.socket:
    """A bound socket on a free port."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


async def settled(count: Callable[[], int]) -> None:
    """Wait until a count is positive and unchanged for a tenth of a second."""
    before = -1
    async with asyncio.timeout(STEP_S):
        while before <= 0 or count() != before:
            before = count()
            await asyncio.sleep(0.1)
