"""Connections with an incomplete TLS hello, or without a request after the handshake, on asyncio and uvloop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from aiohttp import ClientSession, web

from serving.home.state import ApiCertificate
from serving.net.aio import handshakes
from serving.net.aio.handshakes import Handshakes
from serving.net.metrics.server import running
from tests.eventually import until

# The head of a record of 512 bytes and the start of a hello, which is never completed.
HALF_HELLO = bytes.fromhex("1603010200010001fc0303") + b"x" * 100
PER_ADDRESS_MAX, TOTAL_MAX = 3, 5
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

Connect = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Stage:
    """A listener with small limits, and a client."""

    def __init__(self, port: int, bound: Handshakes, context: ssl.SSLContext) -> None:
        self.port, self.bound, self.context = port, bound, context
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(
        self, address: str = "127.0.0.1", *, data: bytes = HALF_HELLO, has_tls: bool = False
    ) -> asyncio.StreamReader:
        tls = {"ssl": self.context, "server_hostname": "127.0.0.1"} if has_tls else {}
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0), **tls)  # type: ignore[arg-type]
        self.writers.append(writer)
        writer.write(data)
        return reader

    async def get(self) -> str:
        async with (
            ClientSession() as session,
            session.get(f"https://127.0.0.1:{self.port}/", ssl=self.context) as response,
        ):
            return await response.text()


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application()
    app.router.add_route("*", "/", handle)
    certificate = ApiCertificate(folder)
    context = ssl.create_default_context(cadata=certificate.make())
    bound = Handshakes(certificate.server_context(), per_address_max=PER_ADDRESS_MAX, total_max=TOTAL_MAX)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with running(app, listener, tls=bound):
            staged = Stage(listener.getsockname()[1], bound, context)
            try:
                yield staged
            finally:
                for writer in staged.writers:
                    writer.transport.abort()


def on(loop: str, test: Callable[[Stage], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        async with stage(folder) as staged:
            await test(staged)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_incomplete_hellos_above_address_limit_close_the_oldest(loop: str, tmp_path: Path) -> None:
    async def test(staged: Stage) -> None:
        readers = [await staged.connect() for _ in range(PER_ADDRESS_MAX + 4)]
        for reader in readers[:4]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        await until(lambda: len(staged.bound) == PER_ADDRESS_MAX)
        # A request from the same address closes the oldest connection.
        assert await staged.get() == "0"

    on(loop, test, tmp_path)


@pytest.mark.parametrize("loop", LOOPS)
def test_incomplete_hellos_of_many_addresses_are_limited_in_total(loop: str, tmp_path: Path) -> None:
    async def test(staged: Stage) -> None:
        for number in range(2, 12):
            await staged.connect(f"127.0.0.{number}")
        await until(lambda: len(staged.bound) == TOTAL_MAX)
        assert await staged.get() == "0"
        for writer in staged.writers:
            writer.transport.abort()
        await until(lambda: len(staged.bound) == 0)

    on(loop, test, tmp_path)


@pytest.mark.parametrize("loop", LOOPS)
def test_slow_handshake_and_slow_first_request_are_closed(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.2)

    async def slow_hello(staged: Stage) -> None:
        with contextlib.suppress(ConnectionResetError):
            assert await (await staged.connect()).read() == b""
        await until(lambda: len(staged.bound) == 0)

    on(loop, slow_hello, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(handshakes, "HEAD_S", 0.2)

    async def slow_head(staged: Stage) -> None:
        reader = await staged.connect(data=b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", has_tls=True)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await until(lambda: len(staged.bound) == 0)

    on(loop, slow_head, tmp_path)


@pytest.mark.parametrize("loop", LOOPS)
def test_request_in_pieces_with_body_is_served(loop: str, tmp_path: Path) -> None:
    async def test(staged: Stage) -> None:
        reader = await staged.connect(
            data=b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r", has_tls=True
        )
        staged.writers[-1].write(b"\n123")
        await staged.writers[-1].drain()
        staged.writers[-1].write(b"456789")
        head = await reader.readuntil(b"\r\n\r\n")
        assert (head[:15], await reader.readexactly(1)) == (b"HTTP/1.1 200 OK", b"9")
        await until(lambda: len(staged.bound) == 0)

    on(loop, test, tmp_path)
