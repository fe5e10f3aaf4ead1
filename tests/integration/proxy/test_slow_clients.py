"""Clients that send or read slowly occupy no slot, or lose it, so other clients are served."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from tests.eventually import until
from tests.integration.proxy.daemons import DAEMONS, HOST, Daemon
from tests.integration.proxy.h2frames import END_HEADERS, ENDED, OPENING, Http2, Kind, fields, frame, settings
from tests.integration.proxy.peers import Link

TO = b"Host: %b\r\n" % HOST
GET = b"GET / HTTP/1.1\r\n%b\r\n" % TO
PIECE = b"x" * 256 * 1024
FLOOD_BYTES = 128 * len(PIECE)
POST = (":method", "POST"), (":scheme", "http"), (":path", "/slow"), (":authority", HOST.decode())
# Minimum rates far above those of the attackers, and a short grace, so that tests do not wait for it.
STRICT = {"rate_grace_s": 0.5, "body_rate_min": 1000, "read_rate_min": 1000}
# A buffer for a complete flood, and a grace that never ends in a test.
WHOLE = {
    "rate_grace_s": 600.0,
    "response_buffer_bytes_max": 2 * FLOOD_BYTES,
    "response_buffers_bytes_max": 2 * FLOOD_BYTES,
}
HALVES = {
    "no body": b"Content-Length: 9\r\n\r\n",
    "half a body": b"Content-Length: 9\r\n\r\nabc",
    "no chunk": b"Transfer-Encoding: chunked\r\n\r\n",
    "half a size line": b"Transfer-Encoding: chunked\r\n\r\n9",
    "waits for 100": b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n",
}


async def reads(link: Link) -> None:
    """An app that reads a body before it responds."""
    while True:
        if not (await link.head()).startswith(b"GET "):
            await link.rest()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def floods(link: Link) -> None:
    """An app that responds to requests other than GET with 32 MiB, more than kernels buffer, and reads no body."""
    while True:
        if (await link.head()).startswith(b"GET "):
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        else:
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % FLOOD_BYTES)
            for _ in range(FLOOD_BYTES // len(PIECE)):
                link.send(PIECE)
                await link.writer.drain()


async def drip(link: Link, piece: bytes) -> None:
    """Send a piece every 50 ms, as a client does that wants to occupy a slot."""
    with contextlib.suppress(ConnectionError):
        while True:
            link.send(piece)
            await link.writer.drain()
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def in_background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines in the background."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(params=list(DAEMONS))
def daemon(request: pytest.FixtureRequest) -> Daemon:
    return DAEMONS[request.param]


@pytest.mark.parametrize("half", list(HALVES.values()), ids=list(HALVES))
async def test_request_without_complete_body_occupies_no_slot(daemon: Daemon, half: bytes) -> None:
    async with daemon(reads, slots=1) as running:
        for _ in range(3):
            attacker = await running.client()
            attacker.send(b"POST /slow HTTP/1.1\r\n%b%b" % (TO, half))
            if b"Expect" in half:
                assert (await attacker.head()).startswith(b"HTTP/1.1 100 ")
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_http2_streams_without_bodies_occupy_no_slot(daemon: Daemon) -> None:
    async with daemon(reads, slots=1) as running:
        link = await running.client()
        attacker = Http2(link, opening=OPENING)
        attacker.send(
            *(
                frame(Kind.HEADERS, fields(*POST), flags=END_HEADERS, stream_id=stream_id)
                for stream_id in range(1, 41, 2)
            )
        )
        # The acknowledgement of the ping shows that the streams are open.
        attacker.send(frame(Kind.PING, b"12345678"))
        while (await attacker.until(Kind.PING)).payload != b"12345678":
            pass
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_body_occupies_slot_after_buffer_limit_is_reached(daemon: Daemon) -> None:
    begun = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        assert await link.body(1000) == b"x" * 1000
        begun.set()
        await link.body(1000)
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await link.rest()

    async with daemon(script, slots=1, body_held_bytes_max=1000) as running:
        client = await running.client()
        client.send(b"POST / HTTP/1.1\r\n%bContent-Length: 2000\r\n\r\n" % TO + b"x" * 1000)
        async with asyncio.timeout(60):
            await begun.wait()
        client.send(b"x" * 1000)
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")


async def test_rejection_does_not_wait_for_body() -> None:
    async with DAEMONS["activator"]() as running:
        client = await running.client()
        client.send(b"POST / HTTP/1.1\r\nHost: no.default.localhost\r\nContent-Length: 9\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 404 ")


async def test_slot_after_body_false_assigns_slot_to_head() -> None:
    begun = asyncio.Event()

    async def script(link: Link) -> None:
        await link.head()
        begun.set()
        await link.rest()

    async with DAEMONS["activator"](script, slots=1, slot_after_body=False) as running:
        client = await running.client()
        client.send(b"POST / HTTP/1.1\r\n%bContent-Length: 9\r\n\r\n" % TO)
        async with asyncio.timeout(60):
            await begun.wait()


@pytest.mark.parametrize("begun", [b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 100000\r\n\r\n"])
async def test_slowly_sent_body_receives_408(daemon: Daemon, begun: bytes) -> None:
    async with daemon(reads, slots=1, **STRICT) as running:
        attacker = await running.client()
        attacker.send(b"POST /slow HTTP/1.1\r\n%b%b" % (TO, begun))
        async with in_background(drip(attacker, b"1\r\na\r\n")):
            assert (await attacker.head()).startswith(b"HTTP/1.1 408 ")
            client = await running.client()
            client.send(GET)
            assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_slowly_sent_http2_body_receives_408(daemon: Daemon) -> None:
    async with daemon(reads, slots=1, **STRICT) as running:
        link = await running.client()
        attacker = Http2(link, opening=OPENING)
        attacker.send(frame(Kind.HEADERS, fields(*POST), flags=END_HEADERS, stream_id=1))
        async with in_background(drip(link, frame(Kind.DATA, b"a", stream_id=1))):
            assert (await attacker.response())[0][":status"] == "408"
            client = await running.client()
            client.send(GET)
            assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_client_that_sends_fast_can_pause_longer_than_grace(daemon: Daemon) -> None:
    async def script(link: Link) -> None:
        await link.head()
        await link.chunks()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await link.rest()

    async with daemon(script, slots=1, rate_grace_s=0.2, body_rate_min=1000) as running:
        client = await running.client()
        client.send(b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % TO)
        client.send(b"c350\r\n%b\r\n" % (b"x" * 50_000))
        # The bytes sent are worth 50 s at the minimum rate, so the pause stays allowed also on a busy machine.
        await asyncio.sleep(0.5)
        client.send(b"0\r\n\r\n")
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_grpc_call_without_messages_is_not_cut_off(daemon: Daemon) -> None:
    async with daemon(reads, slots=2, **STRICT) as running:
        link = await running.client()
        caller = Http2(link, opening=OPENING)
        call = fields(*POST, ("content-type", "application/grpc"), ("te", "trailers"))
        caller.send(frame(Kind.HEADERS, call, flags=END_HEADERS, stream_id=1))
        attacker = await running.client()
        attacker.send(b"POST /slow HTTP/1.1\r\n%bContent-Length: 9\r\n\r\n" % TO)
        # The attacker is cut off; the call is not.
        assert (await attacker.head()).startswith(b"HTTP/1.1 408 ")
        caller.send(frame(Kind.PING, b"12345678"))
        while (received := await caller.frame()) is not None and received.payload != b"12345678":
            assert received.kind in {Kind.SETTINGS, Kind.WINDOW_UPDATE}, received


async def test_client_that_does_not_read_is_cut_off(daemon: Daemon) -> None:
    async with daemon(floods, slots=1, **STRICT) as running:
        attacker = await running.client()
        attacker.pause()
        attacker.send(b"DELETE /flood HTTP/1.1\r\n%b\r\n" % TO)
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        attacker.resume()
        with contextlib.suppress(ConnectionResetError):
            assert len(await attacker.rest()) < FLOOD_BYTES


async def test_buffered_response_occupies_no_slot(daemon: Daemon) -> None:
    async with daemon(floods, slots=1, **WHOLE) as running:
        reader = await running.client()
        reader.pause()
        reader.send(b"DELETE /flood HTTP/1.1\r\n%b\r\n" % TO)
        await until(lambda: running.backend.links)
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        reader.resume()
        assert len((await reader.message())[1]) == FLOOD_BYTES
        reader.send(GET)
        assert (await reader.message())[1] == b"ok"


async def test_buffered_http2_response_occupies_no_slot(daemon: Daemon) -> None:
    async with daemon(floods, slots=1, **WHOLE) as running:
        reader = Http2(await running.client(), opening=OPENING + settings((4, 0)))
        reader.send(frame(Kind.HEADERS, fields((":method", "DELETE"), *POST[1:]), flags=ENDED, stream_id=1))
        await until(lambda: running.backend.links)
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        reader.send(settings((4, 2 * FLOOD_BYTES)), frame(Kind.WINDOW_UPDATE, (2 * FLOOD_BYTES).to_bytes(4)))
        byte_count, flags = 0, 0
        while not flags & ENDED:
            new_frame = await reader.until(Kind.DATA)
            byte_count, flags = byte_count + len(new_frame.payload), new_frame.flags
        assert byte_count == FLOOD_BYTES


async def test_client_that_reads_receives_complete_response(daemon: Daemon) -> None:
    async with daemon(floods, slots=1, rate_grace_s=1.0) as running:
        client = await running.client()
        client.send(b"DELETE /flood HTTP/1.1\r\n%bConnection: close\r\n\r\n" % TO)
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert (head[:15], len(body)) == (b"HTTP/1.1 200 OK", FLOOD_BYTES)


@pytest.mark.parametrize("window", [0, 100])
async def test_http2_streams_with_closed_window_lose_their_slots(daemon: Daemon, window: int) -> None:
    async with daemon(floods, slots=2, **STRICT) as running:
        link = await running.client()
        attacker = Http2(link, opening=OPENING + settings((4, window)))
        flood = (":method", "DELETE"), *POST[1:]
        for stream_id in range(1, 9, 2):
            attacker.send(frame(Kind.HEADERS, fields(*flood), flags=ENDED, stream_id=stream_id))
        attacker.send(frame(Kind.PING, b"12345678"))
        while (await attacker.until(Kind.PING)).payload != b"12345678":
            pass
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
