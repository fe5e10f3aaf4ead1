"""Streams through the proxy: tunnels, and bounded buffers for slow clients and upstreams."""

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.policy import Timeouts
from tests.eventually import until
from tests.integration.proxy.peers import Link, get, proxied, settled

UPGRADE = get(b"/ws", b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

FLOOD = 64 * 1024 * 1024
# The buffers of kernels and transports for three loopback sockets; far below the flood.
BUFFERED_BYTES_MAX = 24 * 1024 * 1024


async def switching(link: Link) -> None:
    """Switches protocols and echoes everything."""
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in await link.head()
    link.send(SWITCHED + b"first")
    while data := await link.reader.read(65536):
        link.send(data)
        await link.writer.drain()


async def test_tunnel_forwards_bytes_both_ways_after_101() -> None:
    async with proxied(switching) as proxy:
        client = await proxy.client()
        client.send(UPGRADE + b"ahead")
        assert await client.head() == SWITCHED
        assert await client.body(10) == b"firstahead"
        client.send(b"GET / HTTP/1.1\r\n\r\n\x00")
        assert await client.body(19) == b"GET / HTTP/1.1\r\n\r\n\x00"
        client.writer.write_eof()
        assert await client.rest() == b""
        assert [(exchange.outcome, exchange.response.status) for exchange in proxy.handler.finished] == [
            ("answered", 101)
        ]


async def test_rejected_upgrade_opens_no_tunnel() -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        head = await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(UPGRADE + get(b"/next", b"K-Proxy-Request: activator\r\n"))
        assert (await client.message())[0].startswith(b"HTTP/1.1 403 ")
        _, seen = await client.message()
        assert seen.startswith(b"GET /next ")
        assert b"activator" not in seen


async def test_half_close_of_upstream_is_forwarded_through_tunnel() -> None:
    async def script(link: Link) -> None:
        await link.head()
        link.send(SWITCHED + b"bye")
        link.writer.write_eof()
        assert await link.rest() == b"good bye"

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(UPGRADE)
        await client.head()
        assert await client.rest() == b"bye"
        client.send(b"good bye")
        client.writer.write_eof()
        await asyncio.gather(*proxy.backend.tasks)
        await until(lambda: proxy.handler.finished)


async def test_client_disconnect_closes_its_tunnel() -> None:
    async with proxied(switching) as proxy:
        client = await proxy.client()
        client.send(UPGRADE)
        await client.head()
        client.writer.transport.abort()
        async with asyncio.timeout(60):
            await asyncio.gather(*proxy.backend.tasks)
        assert proxy.server.pool.open_count == 0


@pytest.mark.parametrize("settings", [HttpSettings(tunnel_idle_max_s=0.5), HttpSettings(tunnel_age_max_s=0.5)])
async def test_tunnel_is_closed_at_idle_and_age_limits(settings: HttpSettings) -> None:
    async with proxied(switching, settings) as proxy:
        client = await proxy.client()
        client.send(UPGRADE)
        await client.head()
        await client.body(5)
        assert await client.ended()
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["cut"]


@pytest.mark.parametrize(
    "timeouts",
    [Timeouts(total_s=0.5), Timeouts(response_start_s=0.5), Timeouts(idle_s=0.5)],
    ids=["total", "start", "idle"],
)
async def test_request_timeouts_close_silent_tunnel(timeouts: Timeouts) -> None:
    async def silent(link: Link) -> None:
        await link.head()
        link.send(SWITCHED)
        await link.rest()

    async with proxied(silent) as proxy:
        proxy.handler.timeouts = timeouts
        client = await proxy.client()
        client.send(UPGRADE + b"hello?")
        assert await client.head() == SWITCHED
        assert await client.rest() == b""
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["cut"]


async def test_active_tunnel_outlives_idle_and_response_start_timeouts() -> None:
    async with proxied(switching) as proxy:
        proxy.handler.timeouts = Timeouts(response_start_s=1.0, idle_s=1.5)
        client = await proxy.client()
        client.send(UPGRADE)
        await client.head()
        await client.body(5)
        # The exchange takes longer in total than each timeout.
        for _ in range(10):
            await asyncio.sleep(0.2)
            client.send(b"x")
            assert await client.body(1) == b"x"
        await client.closed()
        await until(lambda: proxy.handler.finished)
        assert [exchange.outcome for exchange in proxy.handler.finished] == ["answered"]


async def test_websocket_messages_are_forwarded_both_ways() -> None:
    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with proxied() as proxy, serve(echo, "127.0.0.1", 0) as upstream:
        proxy.handler.address = next(iter(upstream.sockets)).getsockname()
        host, port = proxy.address
        async with connect(f"ws://{host}:{port}/chat", proxy=None) as socket:
            for message in ("hello", b"\x00" * 200_000):
                await socket.send(message)
                assert await socket.recv() == message


async def test_server_sent_events_are_forwarded_immediately() -> None:
    event_received = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            event_received.clear()
            event = b"data: %d\n\n" % number
            link.send(b"%x\r\n%b\r\n" % (len(event), event))
            await event_received.wait()
        link.send(b"0\r\n\r\n")
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(get())
        await client.head()
        for number in range(3):
            assert await client.body(14) == b"9\r\ndata: %d\n\n\r\n" % number
            event_received.set()
        assert await client.chunks() == (b"", b"")


async def test_client_that_does_not_read_pauses_upstream_until_it_reads() -> None:
    written = 0

    async def script(link: Link) -> None:
        nonlocal written
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % FLOOD)
        piece = bytes(65536)
        while written < FLOOD:
            link.send(piece)
            await link.writer.drain()
            written += len(piece)
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.pause()
        client.send(get())
        await settled(lambda: written)
        assert written < BUFFERED_BYTES_MAX
        client.resume()
        head = await client.head()
        assert b"%d" % FLOOD in head
        result = 0
        while result < FLOOD:
            result += len(await client.body(min(1 << 20, FLOOD - result)))
        # The upstream connection was paused; it must still read the next response.
        client.send(get())
        assert (await client.message())[1] == b"abc"
        assert len(proxy.backend.links) == 1


async def floods(link: Link) -> None:
    """Sends 64 MiB."""
    await link.head()
    link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % FLOOD)
    piece = bytes(65536)
    for _ in range(FLOOD // len(piece)):
        link.send(piece)
        await link.writer.drain()
    await link.rest()


async def test_buffers_of_unread_responses_are_bounded_in_total() -> None:
    bounds = HttpSettings(response_buffer_bytes_max=1 << 20, response_buffers_bytes_max=2 << 20)
    async with proxied(floods, bounds) as proxy:
        clients = [await proxy.client() for _ in range(4)]
        for client in clients:
            client.pause()
            client.send(get())
        await until(
            lambda: len(proxy.handler.begun) == 4 and all(exchange.response.is_held for exchange in proxy.handler.begun)
        )
        # Each response can exceed a bound by one read of a socket.
        assert 2 << 20 <= proxy.server.buffers.byte_count <= 4 << 20
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: proxy.server.buffers.byte_count == 0)


async def test_buffered_response_of_client_that_does_not_read_is_dropped() -> None:
    strict = HttpSettings(
        response_buffer_bytes_max=2 * FLOOD, response_buffers_bytes_max=2 * FLOOD, rate_grace_s=3.0, read_rate_min=1000
    )
    async with proxied(floods, strict) as proxy:
        for headers in (b"", b"Connection: close\r\n"):
            client = await proxy.client()
            client.pause()
            client.send(get(headers=headers))
        await until(lambda: [exchange.outcome for exchange in proxy.handler.finished] == ["answered"] * 2)
        await until(lambda: (proxy.server.connection_count, proxy.server.buffers.byte_count) == (0, 0))


async def test_upstream_that_does_not_read_pauses_client() -> None:
    go = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        link.pause()
        await go.wait()
        link.resume()
        result = 0
        while result < FLOOD:
            result += len(await link.reader.read(1 << 20))
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        await link.rest()

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % FLOOD)
        sent = 0

        async def send() -> None:
            nonlocal sent
            while sent < FLOOD:
                client.send(bytes(65536))
                await client.writer.drain()
                sent += 65536

        sending = asyncio.create_task(send())
        await settled(lambda: sent)
        assert sent < BUFFERED_BYTES_MAX
        go.set()
        await sending
        assert (await client.message())[1] == b"abc"


async def test_queued_request_reads_limited_part_of_its_body() -> None:
    async with proxied() as proxy:
        proxy.handler.address = ("127.0.0.1", 1)
        handler = proxy.handler
        handler.begin = handler.begun.append  # type: ignore[method-assign, assignment]
        client = await proxy.client()
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % FLOOD)
        client.send(bytes(16 * 1024 * 1024))
        await until(lambda: handler.begun)
        exchange = handler.begun[0]
        await settled(lambda: exchange.weight_bytes)
        assert 64 * 1024 <= exchange.weight_bytes < 2 * 1024 * 1024
        exchange.respond(503)
        assert (await client.message())[0].startswith(b"HTTP/1.1 503 ")


async def test_unread_responses_pause_pipelined_requests() -> None:
    async def script(link: Link) -> None:
        while True:
            await link.head()
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))

    async with proxied(script) as proxy:
        client = await proxy.client()
        client.pause()
        client.send(get() * 100)
        await settled(lambda: len(proxy.handler.begun))
        assert len(proxy.handler.begun) < 50
        client.resume()
        for _ in range(100):
            assert len((await client.message())[1]) == 1_000_000
