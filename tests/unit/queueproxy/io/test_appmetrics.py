"""Reading an app's metrics page over a real socket, also from misbehaving apps."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from serving.net.aio.clock import now_s
from serving.queueproxy.gauges import AppGauges
from serving.queueproxy.io.appmetrics import UnreadablePage, fetch_page, watch_gauges
from serving.queueproxy.podspec import Address, PodSpec
from tests.eventually import until

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def app(respond: Answer, heads: list[bytes] | None = None) -> AsyncIterator[Address]:
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            if heads is not None:
                heads.append(head)
            await respond(writer)
        writer.transport.abort() if task.cancelling() else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sends(*pieces: bytes) -> Answer:
    async def respond(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return respond


async def never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"g 1\n" * 10_000)
        await writer.drain()


async def is_silent(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ng 1\nand more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ng \r\n2\r\n1\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\ng 1\n",
    ],
)
async def test_page_ends_by_length_chunks_or_connection(response: bytes) -> None:
    heads: list[bytes] = []
    async with app(sends(response), heads) as address:
        assert await fetch_page(address, "/metrics?a=b", timeout_s=60.0) == b"g 1\n"
    assert heads[0].startswith(b"GET /metrics?a=b HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_page_may_be_empty() -> None:
    async with app(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as address:
        assert await fetch_page(address, "/metrics", timeout_s=60.0) == b""


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (sends(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "status 404"),
        (sends(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n"), "status 302"),
        (sends(b"SSH-2.0-OpenSSH\r\n\r\n"), "malformed status line"),
        (sends(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ng 1\n"), "ends early"),
        (sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "malformed chunk size"),
        (sends(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n"), "header lines"),
        (sends(b"x" * 200_000), "limit"),
        (sends(), "bytes"),
        (
            sends(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n", *[b"g 1\n" * 25_000] * 1000),
            "more than 1048576 bytes",
        ),
        (never_ends, "more than 1048576 bytes"),
    ],
)
async def test_invalid_response_is_unreadable_page(respond: Answer, reason: str) -> None:
    async with app(respond) as address:
        with pytest.raises(UnreadablePage, match=reason):
            await fetch_page(address, "/metrics", timeout_s=60.0)


async def test_silent_app_is_unreadable_page() -> None:
    heads: list[bytes] = []
    timeout_s = 0.01
    async with app(is_silent, heads) as address:
        # On a slow machine the time may end before the app has the request.
        while not heads:
            with pytest.raises(UnreadablePage, match="TimeoutError"):
                await fetch_page(address, "/metrics", timeout_s=timeout_s)
            timeout_s *= 2


async def test_closed_port_is_unreadable_page() -> None:
    async with app(is_silent) as address:
        pass
    with pytest.raises(UnreadablePage, match="Connect call failed"):
        await fetch_page(address, "/metrics")


async def test_gauges_are_polled_and_their_loss_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    responses = [b"g 1\n", b"other 1\n", b"other 1\n", b"g 2\n"]

    async def respond(writer: asyncio.StreamWriter) -> None:
        body = responses.pop(0) if len(responses) > 1 else responses[0]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    gauges, stop = AppGauges(["g"]), asyncio.Event()
    async with app(respond) as address:
        spec = PodSpec(namespace="n", revision="r", pod="p", app=("127.0.0.1", 1), metrics_port=address[1])
        watching = asyncio.create_task(watch_gauges(spec, gauges, stop=stop, period_s=0.01, timeout_s=60.0))
        await until(lambda: gauges.current(now_s()) == {"g": 2.0})
        stop.set()
        await watching
    messages = [record.message for record in caplog.records]
    assert messages == ["gauges.missing", "gauges.found"]
    assert caplog.records[0].reason == "no usable line of g"  # type: ignore[attr-defined]


async def test_unreadable_page_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    request_count = 0

    async def respond(writer: asyncio.StreamWriter) -> None:
        nonlocal request_count
        request_count += 1
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    stop = asyncio.Event()
    async with app(respond) as address:
        spec = PodSpec(namespace="n", revision="r", pod="p", app=address)
        watching = asyncio.create_task(watch_gauges(spec, AppGauges(["g"]), stop=stop, period_s=0.01, timeout_s=60.0))
        await until(lambda: request_count >= 3)
        stop.set()
        await watching
    assert [record.reason for record in caplog.records] == ["status 404"]  # type: ignore[attr-defined]
