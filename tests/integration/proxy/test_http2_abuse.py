"""Known attacks on HTTP/2: the proxy sends GOAWAY after a bounded number of frames, requests and bytes of memory.

An attacker sends up to 3,000 frames, until the proxy closes. Other clients are served afterwards.
"""

import asyncio
import contextlib
import itertools
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from serving.core.settings.http import HttpSettings
from tests.eventually import until
from tests.integration.proxy.h2frames import (
    END_HEADERS,
    GET,
    OPENING,
    Code,
    Http2,
    Kind,
    fields,
    frame,
    request,
    settings,
)
from tests.integration.proxy.peers import Link, Proxy, proxied, settled

TIMES = 3_000
BATCH = 50
# One read of the event loop, and the objects of 128 streams.
MEMORY_BYTES_MAX = 12 * 1024**2
REQUESTS_MAX = 600
Attack = Callable[[], Iterator[bytes]]

OPEN = request(1, flags=END_HEADERS)


def window(increment: int, stream_id: int = 0) -> bytes:
    return frame(Kind.WINDOW_UPDATE, increment.to_bytes(4), stream_id=stream_id)


def ids() -> Iterator[int]:
    return itertools.count(1, 2)


def rapid_reset() -> Iterator[bytes]:
    """CVE-2023-44487: streams that are opened and reset at once."""
    return (request(uid) + frame(Kind.RST, Code.CANCEL.to_bytes(4), stream_id=uid) for uid in ids())


def continuation_flood() -> Iterator[bytes]:
    """CVE-2024-27316: a head without END_HEADERS."""
    yield request(1, flags=0)
    while True:
        yield frame(Kind.CONTINUATION, b"\x00\x01x\x01y" * 100, stream_id=1)


def empty_continuation_flood() -> Iterator[bytes]:
    """The same, in frames without bytes."""
    yield request(1, flags=0)
    while True:
        yield frame(Kind.CONTINUATION, stream_id=1)


def header_bomb() -> Iterator[bytes]:
    """CVE-2016-6581: a large HPACK table entry, referenced thousands of times by one byte each."""
    entry = b"\x40\x01x\x7f\xa1\x1e" + b"a" * 4000
    bomb = entry + b"\xbe" * 16_000
    return (frame(Kind.HEADERS, bomb[:16_384], flags=5, stream_id=stream_id) for stream_id in (1, 3, 5))


def made_you_reset_by_window() -> Iterator[bytes]:
    """CVE-2025-8671: make the server reset streams, by a window that is too large."""
    return (request(uid, flags=END_HEADERS) + window(2**31 - 1, uid) for uid in ids())


def made_you_reset_by_data() -> Iterator[bytes]:
    """The same, by a body after the end of the request."""
    return (request(uid) + frame(Kind.DATA, b"x", stream_id=uid) for uid in ids())


def made_you_reset_by_head() -> Iterator[bytes]:
    """The same, by a malformed head."""
    bad = fields(*GET, ("connection", "close"))
    return (frame(Kind.HEADERS, bad, flags=5, stream_id=uid) for uid in ids())


def made_you_reset_by_length() -> Iterator[bytes]:
    """The same, by a body of the wrong length."""
    head = fields(*GET, ("content-length", "1"))
    end = frame(Kind.DATA, b"xy", flags=1)
    return (
        frame(Kind.HEADERS, head, flags=END_HEADERS, stream_id=uid) + end[:5] + uid.to_bytes(4) + end[9:]
        for uid in ids()
    )


def too_many_streams() -> Iterator[bytes]:
    """Streams beyond the limit: each must be refused."""
    return (request(uid, flags=END_HEADERS) for uid in ids())


def repeated(wire: bytes, before: bytes = b"") -> Attack:
    return lambda: itertools.chain([before], itertools.repeat(wire))


ATTACKS: dict[str, tuple[Attack, int]] = {
    "rapid reset": (rapid_reset, Code.ENHANCE_YOUR_CALM),
    "CONTINUATION flood": (continuation_flood, Code.ENHANCE_YOUR_CALM),
    "empty CONTINUATION flood": (empty_continuation_flood, Code.ENHANCE_YOUR_CALM),
    "header bomb": (header_bomb, Code.ENHANCE_YOUR_CALM),
    "MadeYouReset: window": (made_you_reset_by_window, Code.ENHANCE_YOUR_CALM),
    "MadeYouReset: data": (made_you_reset_by_data, Code.ENHANCE_YOUR_CALM),
    "MadeYouReset: head": (made_you_reset_by_head, Code.ENHANCE_YOUR_CALM),
    "MadeYouReset: length": (made_you_reset_by_length, Code.ENHANCE_YOUR_CALM),
    "too many streams": (too_many_streams, Code.ENHANCE_YOUR_CALM),
    "ping flood": (repeated(frame(Kind.PING, bytes(8))), Code.ENHANCE_YOUR_CALM),
    "flood of ping answers": (repeated(frame(Kind.PING, bytes(8), flags=1)), Code.ENHANCE_YOUR_CALM),
    "settings flood": (repeated(settings((4, 1))), Code.ENHANCE_YOUR_CALM),
    "flood of settings answers": (repeated(frame(Kind.SETTINGS, flags=1)), Code.ENHANCE_YOUR_CALM),
    "settings that resize the table": (repeated(settings((1, 0), (1, 4096))), Code.ENHANCE_YOUR_CALM),
    "empty frames": (repeated(frame(Kind.DATA, stream_id=1), OPEN), Code.ENHANCE_YOUR_CALM),
    "padding without a body": (
        repeated(frame(Kind.DATA, b"\xfe" + bytes(254), flags=8, stream_id=1), OPEN),
        Code.ENHANCE_YOUR_CALM,
    ),
    "priority flood": (repeated(frame(Kind.PRIORITY, bytes(5), stream_id=9)), Code.ENHANCE_YOUR_CALM),
    "unknown frames": (repeated(frame(0xEE, bytes(100))), Code.ENHANCE_YOUR_CALM),
    "window overflow": (repeated(window(2**31 - 1)), Code.FLOW_CONTROL),
    "resets of closed streams": (repeated(frame(Kind.RST, bytes(4), stream_id=1), request(1)), Code.ENHANCE_YOUR_CALM),
    "windows of a stream": (repeated(window(1, 1), OPEN), Code.ENHANCE_YOUR_CALM),
    "windows of the connection": (repeated(window(1)), Code.ENHANCE_YOUR_CALM),
}


async def attack(proxy: Proxy, wires: Iterator[bytes]) -> Http2:
    """Send until the proxy stops reading."""
    client = Http2(await proxy.client())
    with contextlib.suppress(ConnectionError):
        for _ in range(TIMES // BATCH):
            client.send(*itertools.islice(wires, BATCH))
            await client.link.writer.drain()
            if client.link.reader.at_eof() or client.link.writer.is_closing():
                break
    return client


@pytest.mark.parametrize("name", ATTACKS)
async def test_http2_attack_receives_goaway_within_memory_and_request_limits(name: str) -> None:
    wires, code = ATTACKS[name]

    async def silent(link: Link) -> None:
        while True:
            await link.head()
            await asyncio.sleep(0)

    async with proxied(silent if name == "too many streams" else responding) as proxy:
        other = Http2(await proxy.client())
        tracemalloc.start()
        try:
            client = await attack(proxy, wires())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        goaway = await client.until(Kind.GOAWAY)
        assert goaway.code == code
        assert peak_bytes < MEMORY_BYTES_MAX
        assert len(proxy.handler.begun) <= REQUESTS_MAX
        if name != "too many streams":
            other.send(request(1))
            assert (await other.response())[0][":status"] == "200"


async def responding(link: Link) -> None:
    while True:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_client_that_reads_no_responses_causes_bounded_buffering() -> None:
    async def large(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        for _ in range(100):
            link.send(bytes(100_000))
            await link.writer.drain()

    async with proxied(large, HttpSettings(http2_streams_max=20)) as proxy:
        # The client opens the largest windows, but reads nothing.
        client = Http2(await proxy.client(), opening=OPENING + settings((4, 2**31 - 1)) + window(2**31 - 1 - 65_535))
        client.link.pause()
        tracemalloc.start()
        try:
            client.send(*[request(number) for number in itertools.islice(ids(), 20)])
            await until(lambda: len(proxy.handler.begun) == 20)
            await settled(lambda: tracemalloc.get_traced_memory()[0] // 1024**2)
            buffered_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # The proxy buffers 64 KiB and one read of the event loop per stream and side, not the response's 10 MB.
        assert buffered_bytes < 60 * 1024**2
        await proxy.server.finish(grace_s=0)
