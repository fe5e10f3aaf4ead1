"""Timeouts and shutdown of a client's HTTP/2 connection: late heads, unread responses, GOAWAY."""

import asyncio

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.policy import Timeouts
from tests.eventually import until
from tests.integration.proxy.h2frames import (
    GET,
    OPENING,
    PREFACE,
    Code,
    Http2,
    Kind,
    fields,
    frame,
    request,
    settings,
)
from tests.integration.proxy.peers import Link, Proxy, get, proxied, settled

INITIAL_WINDOW = 4
NO_STREAM_ID = 2**31 - 1


class Gate:
    """An upstream that responds after `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, link: Link) -> None:
        while True:
            await link.head()
            await self.open.wait()
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")


async def begun(proxy: Proxy, count: int) -> None:
    await until(lambda: len(proxy.handler.begun) == count)


async def test_incomplete_http2_head_closes_connection_after_timeout() -> None:
    late = [
        PREFACE[:20],
        OPENING + frame(Kind.HEADERS, fields(*GET), flags=1, stream_id=1),
        OPENING + request(1)[:-1],
        OPENING + b"\0\0",
    ]
    for wire in late:
        async with proxied(settings=HttpSettings(head_wait_max_s=0.2)) as proxy:
            client = Http2(await proxy.client(), opening=wire)
            async with asyncio.timeout(60):
                await client.end()
            assert not proxy.handler.begun


async def test_request_timeout_ends_only_its_http2_stream() -> None:
    class Begins(Gate):
        async def __call__(self, link: Link) -> None:
            if b"/begins" in await link.head():
                link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfi")
            await self.open.wait()

    async with proxied(Begins()) as proxy:
        proxy.handler.timeouts = Timeouts(total_s=0.1)
        client = Http2(await proxy.client())
        client.send(request(1))
        head, body = await client.response()
        assert (head[":status"], body) == ("504", b"request timeout")
        # The response starts before its timeout also on a slow machine.
        proxy.handler.timeouts = Timeouts(total_s=1.0)
        begins = [(":path", "/begins") if name == ":path" else (name, value) for name, value in GET]
        client.send(frame(Kind.HEADERS, fields(*begins), flags=5, stream_id=3))
        assert (await client.until(Kind.DATA, 3)).payload == b"fi"
        assert (await client.until(Kind.RST, 3)).code == Code.INTERNAL_ERROR
        proxy.handler.timeouts = Timeouts(total_s=0.1)
        client.send(request(5))
        assert (await client.response(5))[0][":status"] == "504"


async def test_head_timeout_does_not_close_connection_without_requests() -> None:
    async with proxied(settings=HttpSettings(head_wait_max_s=0.2)) as proxy:
        client = Http2(await proxy.client())
        await asyncio.sleep(0.5)
        client.send(request(1))
        assert (await client.response())[0][":status"] == "200"


async def test_idle_http2_connection_is_closed_with_goaway() -> None:
    async with proxied(settings=HttpSettings(client_idle_max_s=0.2)) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        goaway = await client.until(Kind.GOAWAY)
        assert (goaway.code, goaway.last_stream_id) == (Code.NO_ERROR, 1)
        await client.end()


async def test_finished_response_is_cancelled_if_client_reads_nothing() -> None:
    async with proxied(settings=HttpSettings(write_wait_max_s=0.2)) as proxy:
        client = Http2(await proxy.client(), opening=PREFACE + settings((INITIAL_WINDOW, 0)))
        client.send(request(1))
        new_frame = await client.until(Kind.RST)
        assert (new_frame.stream_id, new_frame.code) == (1, Code.CANCEL)
        assert proxy.handler.finished


async def test_slowly_read_response_is_not_cancelled() -> None:
    async with proxied(settings=HttpSettings(write_wait_max_s=5.0)) as proxy:
        client = Http2(await proxy.client(), opening=PREFACE + settings((INITIAL_WINDOW, 0)))
        client.send(request(1))
        await client.until(Kind.HEADERS)
        for _ in range(4):
            client.send(frame(Kind.WINDOW_UPDATE, (1).to_bytes(4), stream_id=1))
            assert len((await client.until(Kind.DATA)).payload) == 1
            await asyncio.sleep(1.5)


async def test_graceful_shutdown_sends_two_goaways_and_loses_no_request() -> None:
    gate = Gate()
    async with proxied(gate) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        await begun(proxy, 1)
        proxy.server.drain()
        first = await client.until(Kind.GOAWAY)
        ping = await client.until(Kind.PING)
        assert (first.code, first.last_stream_id) == (Code.NO_ERROR, NO_STREAM_ID)
        # This request was sent before the client received the GOAWAY, so it is served.
        client.send(request(3), frame(Kind.PING, ping.payload, flags=1))
        last = await client.until(Kind.GOAWAY)
        assert (last.code, last.last_stream_id) == (Code.NO_ERROR, 3)
        client.send(request(5))
        assert (await client.until(Kind.RST, 5)).code == Code.REFUSED_STREAM
        gate.open.set()
        frames = await client.end()
        assert {each_frame.stream_id for each_frame in frames if each_frame.kind == Kind.DATA} == {1, 3}
        assert sum(each_frame.kind == Kind.GOAWAY for each_frame in frames) == 2


async def test_shutdown_does_not_wait_for_ping_acknowledgement() -> None:
    gate = Gate()
    async with proxied(gate) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        await begun(proxy, 1)
        finishing = asyncio.create_task(proxy.server.finish(grace_s=10))
        assert (await client.until(Kind.GOAWAY)).last_stream_id == NO_STREAM_ID
        assert (await client.until(Kind.GOAWAY)).last_stream_id == 1
        gate.open.set()
        assert (await client.response())[1] == b"fine"
        assert await finishing == 0


async def test_shutdown_closes_idle_http2_connection_with_goaway() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        await client.response()
        assert await proxy.server.finish(grace_s=10) == 0
        assert (await client.until(Kind.GOAWAY)).last_stream_id == 1


async def test_request_during_drain_is_served_before_connection_closes() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        await client.response()
        proxy.server.drain()
        client.send(request(3))
        assert (await client.response(3))[0][":status"] == "200"
        await client.end()


async def test_client_that_sent_goaway_receives_its_response() -> None:
    gate = Gate()
    async with proxied(gate) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1), frame(Kind.GOAWAY, bytes(8)))
        await begun(proxy, 1)
        gate.open.set()
        assert (await client.response())[1] == b"fine"
        await client.end()


async def test_pings_during_a_response_are_not_treated_as_flood() -> None:
    async def telling(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(300):
            link.send(b"1\r\nx\r\n")
            await asyncio.sleep(0.001)
        link.send(b"0\r\n\r\n")

    async with proxied(telling, HttpSettings(http2_pings_max=50)) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        count = 0
        while not (new_frame := await client.frame()) or new_frame.kind != Kind.DATA or not new_frame.flags & 1:
            assert new_frame is not None
            if new_frame.kind == Kind.DATA:
                count += 1
                client.send(frame(Kind.PING, bytes(8)))
        assert count > 100


async def test_http1_and_http2_clients_are_served_on_one_port() -> None:
    async with proxied() as proxy:
        await Http2(await proxy.client()).until(Kind.SETTINGS)
        client = await proxy.client()
        client.send(get())
        assert (await client.message())[0].startswith(b"HTTP/1.1 200")


async def test_client_that_reads_nothing_applies_backpressure_to_app() -> None:
    sent_bytes = 0

    async def pouring(link: Link) -> None:
        nonlocal sent_bytes
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            link.send(bytes(100_000))
            await link.writer.drain()
            sent_bytes += 100_000

    async with proxied(pouring) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1))
        await settled(lambda: sent_bytes)
        # One window, the buffer of the proxy, and the socket buffers of the kernel.
        assert sent_bytes < 20_000_000
        client.send(request(3, (":scheme", "http")))
        await client.until(Kind.RST, 3)
