"""Clients with half a request hold no slot: another client is served beside them."""

import asyncio

import pytest

from tests.integration.proxy.daemons import DAEMONS, HOST, Daemon
from tests.integration.proxy.h2frames import END_HEADERS, OPENING, Http2, Kind, fields, frame
from tests.integration.proxy.peers import Link

TO = b"Host: %b\r\n" % HOST
GET = b"GET / HTTP/1.1\r\n%b\r\n" % TO
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


@pytest.fixture(params=list(DAEMONS))
def daemon(request: pytest.FixtureRequest) -> Daemon:
    return DAEMONS[request.param]


@pytest.mark.parametrize("half", list(HALVES.values()), ids=list(HALVES))
async def test_a_request_without_its_body_holds_no_slot(daemon: Daemon, half: bytes) -> None:
    async with daemon(reads, slots=1) as running:
        for _ in range(3):
            attacker = await running.client()
            attacker.send(b"POST /slow HTTP/1.1\r\n%b%b" % (TO, half))
            if b"Expect" in half:
                assert (await attacker.head()).startswith(b"HTTP/1.1 100 ")
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_half_open_streams_hold_no_slot(daemon: Daemon) -> None:
    async with daemon(reads, slots=1) as running:
        link = await running.client()
        attacker = Http2(link, opening=OPENING)
        head = (":method", "POST"), (":scheme", "http"), (":path", "/slow"), (":authority", HOST.decode())
        attacker.send(
            *(
                frame(Kind.HEADERS, fields(*head), flags=END_HEADERS, stream_id=stream_id)
                for stream_id in range(1, 41, 2)
            )
        )
        # Its acknowledgement says that the streams are open.
        attacker.send(frame(Kind.PING, b"12345678"))
        while (await attacker.until(Kind.PING)).payload != b"12345678":
            pass
        client = await running.client()
        client.send(GET)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_a_body_takes_a_slot_with_its_first_held_bytes(daemon: Daemon) -> None:
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


async def test_a_refusal_does_not_wait_for_the_body() -> None:
    async with DAEMONS["activator"]() as running:
        client = await running.client()
        client.send(b"POST / HTTP/1.1\r\nHost: no.default.localhost\r\nContent-Length: 9\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 404 ")


async def test_the_setting_gives_slots_to_heads() -> None:
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
