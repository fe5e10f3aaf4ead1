"""What a proxy must do with each frame (RFC 9113), by hand-made frames: end the connection, or the stream, or go on.

The cases are those of h2spec's list that concern whoever is asked. After each, the proxy answers others.
"""

import pytest

from serving.settings.http import HttpSettings
from tests.integration.proxy.h2frames import (
    ENDED,
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
from tests.integration.proxy.peers import Link, proxied

END_STREAM, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x4, 0x8, 0x20
WINDOW, FRAME_MAX = 65_535, 16_384
BIG = 2**31 - 1


def window(increment: int, stream_id: int = 0) -> bytes:
    return frame(Kind.WINDOW_UPDATE, increment.to_bytes(4), stream_id=stream_id)


def data(payload: bytes = b"", *, flags: int = 0, stream_id: int = 1) -> bytes:
    return frame(Kind.DATA, payload, flags=flags, stream_id=stream_id)


def reset(stream_id: int) -> bytes:
    return frame(Kind.RST, Code.CANCEL.to_bytes(4), stream_id=stream_id)


def continuation(payload: bytes = b"", *, flags: int = 0, stream_id: int = 1) -> bytes:
    return frame(Kind.CONTINUATION, payload, flags=flags, stream_id=stream_id)


OPEN = request(1, flags=END_HEADERS)
BEGUN = request(1, flags=0)
PING = frame(Kind.PING, b"12345678")

ENDS = {
    "preface: not SM": (PREFACE[:18] + b"XX\r\n\r\n", {Code.PROTOCOL_ERROR}),
    "preface: PING first": (PREFACE + PING, {Code.PROTOCOL_ERROR}),
    "preface: an acknowledgement first": (PREFACE + frame(Kind.SETTINGS, flags=1), {Code.PROTOCOL_ERROR}),
    "size: DATA above ours": (OPENING + OPEN + data(bytes(FRAME_MAX + 1)), {Code.FRAME_SIZE}),
    "size: HEADERS above ours": (OPENING + request(1, ("x", "y" * (FRAME_MAX + 1))), {Code.FRAME_SIZE}),
    "size: only a frame's head": (OPENING + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", {Code.FRAME_SIZE}),
    "size: PING of 7": (OPENING + frame(Kind.PING, b"1234567"), {Code.FRAME_SIZE}),
    "size: RST of 3": (OPENING + OPEN + frame(Kind.RST, b"123", stream_id=1), {Code.FRAME_SIZE}),
    "size: WINDOW_UPDATE of 3": (OPENING + frame(Kind.WINDOW_UPDATE, b"123"), {Code.FRAME_SIZE}),
    "size: SETTINGS of 5": (OPENING + frame(Kind.SETTINGS, b"12345"), {Code.FRAME_SIZE}),
    "size: an acknowledgement with bytes": (
        OPENING + frame(Kind.SETTINGS, bytes(6), flags=1),
        {Code.FRAME_SIZE, Code.PROTOCOL_ERROR},
    ),
    "size: PRIORITY of 4": (OPENING + OPEN + frame(Kind.PRIORITY, b"1234", stream_id=1), {Code.FRAME_SIZE}),
    "size: GOAWAY of 4": (OPENING + frame(Kind.GOAWAY, b"1234"), {Code.FRAME_SIZE}),
    "stream 0: DATA": (OPENING + data(b"x", stream_id=0), {Code.PROTOCOL_ERROR}),
    "stream 0: HEADERS": (OPENING + request(0), {Code.PROTOCOL_ERROR}),
    "stream 0: PRIORITY": (OPENING + frame(Kind.PRIORITY, bytes(5)), {Code.PROTOCOL_ERROR}),
    "stream 0: RST": (OPENING + reset(0), {Code.PROTOCOL_ERROR}),
    "stream 0: CONTINUATION": (OPENING + continuation(stream_id=0), {Code.PROTOCOL_ERROR}),
    "a stream: SETTINGS": (OPENING + frame(Kind.SETTINGS, stream_id=1), {Code.PROTOCOL_ERROR}),
    "a stream: PING": (OPENING + frame(Kind.PING, bytes(8), stream_id=1), {Code.PROTOCOL_ERROR}),
    "a stream: GOAWAY": (OPENING + frame(Kind.GOAWAY, bytes(8), stream_id=1), {Code.PROTOCOL_ERROR}),
    "idle: DATA": (OPENING + data(b"x", stream_id=1), {Code.PROTOCOL_ERROR}),
    "idle: RST": (OPENING + reset(1), {Code.PROTOCOL_ERROR}),
    "idle: RST of a stream of ours": (OPENING + reset(2), {Code.PROTOCOL_ERROR}),
    "idle: WINDOW_UPDATE": (OPENING + window(1, 1), {Code.PROTOCOL_ERROR}),
    "idle: CONTINUATION": (OPENING + continuation(fields(*GET), flags=END_HEADERS), {Code.PROTOCOL_ERROR}),
    "ids: even": (OPENING + request(2), {Code.PROTOCOL_ERROR}),
    "ids: falling": (OPENING + request(5, flags=END_HEADERS) + request(3), {Code.PROTOCOL_ERROR, Code.STREAM_CLOSED}),
    "second HEADERS that does not end": (OPENING + OPEN + OPEN, {Code.PROTOCOL_ERROR}),
    "CONTINUATION after END_HEADERS": (OPENING + OPEN + continuation(), {Code.PROTOCOL_ERROR}),
    "CONTINUATION of another stream": (OPENING + BEGUN + continuation(stream_id=3), {Code.PROTOCOL_ERROR}),
    "PING amid a head": (OPENING + BEGUN + PING, {Code.PROTOCOL_ERROR}),
    "GOAWAY amid a head": (OPENING + BEGUN + frame(Kind.GOAWAY, bytes(8)), {Code.PROTOCOL_ERROR}),
    "an unknown frame amid a head": (OPENING + BEGUN + frame(0xEE, b"x"), {Code.PROTOCOL_ERROR}),
    "endless CONTINUATION": (OPENING + BEGUN + continuation() * 100, {Code.ENHANCE_YOUR_CALM}),
    "padding longer than the frame": (OPENING + OPEN + data(b"\x09x", flags=PADDED), {Code.PROTOCOL_ERROR}),
    "padding longer than a head": (
        OPENING + frame(Kind.HEADERS, b"\xff" + fields(*GET), flags=ENDED | PADDED, stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "PUSH_PROMISE": (
        OPENING + OPEN + frame(Kind.PUSH_PROMISE, bytes(4) + fields(*GET), flags=4, stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "a head that depends on itself": (
        OPENING + frame(Kind.HEADERS, b"\0\0\0\1\0" + fields(*GET), flags=ENDED | PRIORITISED, stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "PRIORITY that depends on itself": (
        OPENING + frame(Kind.PRIORITY, b"\0\0\0\1\0", stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "settings: push is neither 0 nor 1": (OPENING + settings((2, 2)), {Code.PROTOCOL_ERROR}),
    "settings: a window above the largest": (OPENING + settings((4, 2**31)), {Code.FLOW_CONTROL}),
    "settings: frames that are too small": (OPENING + settings((5, FRAME_MAX - 1)), {Code.PROTOCOL_ERROR}),
    "settings: frames that are too large": (OPENING + settings((5, 2**24)), {Code.PROTOCOL_ERROR}),
    "settings: a window that overflows a stream": (
        OPENING + OPEN + window(BIG - WINDOW, 1) + settings((4, BIG)),
        {Code.FLOW_CONTROL},
    ),
    "window: no increment": (OPENING + window(0), {Code.PROTOCOL_ERROR}),
    "window: no increment of a stream": (OPENING + OPEN + window(0, 1), {Code.PROTOCOL_ERROR}),
    "window: overflow": (OPENING + window(BIG) + window(1), {Code.FLOW_CONTROL}),
    "HPACK: an index of nothing": (
        OPENING + frame(Kind.HEADERS, b"\xff\xff\x00", flags=ENDED, stream_id=1),
        {Code.COMPRESSION, Code.PROTOCOL_ERROR},
    ),
    "HPACK: cut off": (
        OPENING + frame(Kind.HEADERS, fields(*GET)[:-1], flags=ENDED, stream_id=1),
        {Code.COMPRESSION, Code.PROTOCOL_ERROR},
    ),
    "HPACK: a table above ours": (
        OPENING + frame(Kind.HEADERS, b"\x3f\xff\xff\x7f" + fields(*GET), flags=ENDED, stream_id=1),
        {Code.COMPRESSION, Code.PROTOCOL_ERROR},
    ),
    "flood: resets": (
        OPENING + b"".join(request(2 * n + 1) + reset(2 * n + 1) for n in range(300)),
        {Code.ENHANCE_YOUR_CALM},
    ),
    "flood: pings": (OPENING + PING * 300, {Code.ENHANCE_YOUR_CALM}),
    "flood: settings": (OPENING + settings() * 300, {Code.ENHANCE_YOUR_CALM}),
    "flood: empty DATA": (OPENING + OPEN + data() * 600, {Code.ENHANCE_YOUR_CALM}),
    "flood: unknown frames": (OPENING + frame(0xEE) * 600, {Code.ENHANCE_YOUR_CALM}),
    "flood: priorities": (OPENING + frame(Kind.PRIORITY, bytes(5), stream_id=9) * 600, {Code.ENHANCE_YOUR_CALM}),
}


async def test_more_bytes_than_the_window_of_a_stream_end_the_connection() -> None:
    async def never(link: Link) -> None:
        await link.head()
        await link.closed()

    async with proxied(never, HttpSettings(body_held_bytes_max=1)) as proxy:
        client = Http2(await proxy.client())
        # 64 KiB may be on their way; what the app does not take stays with the proxy.
        client.send(OPEN, *[data(bytes(FRAME_MAX))] * 2000)
        assert (await client.until(Kind.GOAWAY)).code == Code.FLOW_CONTROL


@pytest.mark.parametrize("case", ENDS)
async def test_it_ends_the_connection_and_says_why(case: str) -> None:
    frames, codes = ENDS[case]
    async with proxied() as proxy:
        client = Http2(await proxy.client(), opening=frames)
        goaway = await client.until(Kind.GOAWAY)
        assert goaway.code in codes
        await client.end()
        other = Http2(await proxy.client())
        other.send(request(1))
        assert (await other.answer())[0][":status"] == "200"


def head(*pairs: tuple[str, str], flags: int = ENDED) -> bytes:
    return frame(Kind.HEADERS, fields(*pairs), flags=flags, stream_id=1)


RESETS = {
    "no :method": head(*GET[1:]),
    "no :scheme": head(GET[0], *GET[2:]),
    "no :path": head(*GET[:2], *GET[3:]),
    "an empty :path": head(*GET[:2], (":path", ""), GET[3]),
    "a doubled :path": head(*GET, (":path", "/other")),
    "a late pseudo-header": head(*GET[:3], ("x", "y"), GET[3]),
    "an unknown pseudo-header": head(*GET, (":strange", "x")),
    "an answer's pseudo-header": head(*GET, (":status", "200")),
    "a name in capitals": head(*GET, ("X-Name", "y")),
    "a name with a space": head(*GET, ("x y", "z")),
    "no name": head(*GET, ("", "z")),
    "a line break in a value": head(*GET, ("x", "a\r\nb: c")),
    "connection": head(*GET, ("connection", "close")),
    "keep-alive": head(*GET, ("keep-alive", "1")),
    "proxy-connection": head(*GET, ("proxy-connection", "x")),
    "upgrade": head(*GET, ("upgrade", "websocket")),
    "transfer-encoding": head(*GET, ("transfer-encoding", "chunked")),
    "te other than trailers": head(*GET, ("te", "gzip")),
    "a length and no body": head(*GET, ("content-length", "5")),
    "a body that is shorter than its length": head(*GET, ("content-length", "5"), flags=END_HEADERS)
    + data(b"four", flags=END_STREAM),
    "a body that is longer than its length": head(*GET, ("content-length", "3"), flags=END_HEADERS)
    + data(b"four", flags=END_STREAM),
    "a shorter body with trailers": head(*GET, ("content-length", "5"), flags=END_HEADERS)
    + data(b"four")
    + head(("after", "all")),
    "a pseudo-header in trailers": OPEN + head((":path", "/")),
    "capitals in trailers": OPEN + head(("After", "all")),
    "DATA on a stream that it has reset": OPEN + reset(1) + data(b"x"),
    "DATA on a stream that it left out": request(3) + data(b"x"),
    "HEADERS on a stream that it has ended": request(1) + request(1),
    "DATA on a stream that it has ended": request(1) + data(b"x"),
}


@pytest.mark.parametrize("case", RESETS)
async def test_it_ends_the_stream_and_no_other(case: str) -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(RESETS[case])
        found = await client.until(Kind.RST, 1)
        assert found.code in (Code.PROTOCOL_ERROR, Code.STREAM_CLOSED)
        client.send(request(9))
        assert (await client.answer(9))[0][":status"] == "200"
        assert all(exchange.status in (0, 200) for exchange in proxy.handler.begun)


REFUSED = {
    "CONNECT": (head((":method", "CONNECT"), (":authority", "h")), "405"),
    "two lengths": (head(*GET, ("content-length", "1"), ("content-length", "2"), flags=END_HEADERS), "400"),
    "a length that is none": (head(*GET, ("content-length", "1x"), flags=END_HEADERS), "400"),
    "an authority that is not the host": (head(*GET, ("host", "other")), "400"),
    "a path that is none": (head(*GET[:2], (":path", "x"), GET[3]), "400"),
    "an unknown expectation": (head(*GET, ("expect", "x"), flags=END_HEADERS), "417"),
    "a head above the limit": (head(*GET, *[(f"x{n}", "y" * 1000) for n in range(15)]), "431"),
    "too many lines": (head(*GET, *[(f"x{n}", "y") for n in range(140)]), "431"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_not_taken_is_answered(case: str) -> None:
    frames, status = REFUSED[case]
    async with proxied(settings=HttpSettings(head_bytes_max=8192)) as proxy:
        client = Http2(await proxy.client())
        client.send(frames)
        assert (await client.answer())[0][":status"] == status
        client.send(request(3))
        assert (await client.answer(3))[0][":status"] == "200"
        assert len(proxy.handler.begun) == 1


TAKEN = {
    "unknown frames": frame(0xEE, b"what", flags=0xFF, stream_id=7) + frame(0xEF),
    "unknown flags": frame(Kind.PING, bytes(8), flags=0x16),
    "the bit that is reserved": frame(Kind.WINDOW_UPDATE, b"\0\0\0\1", stream_id=2**31),
    "unknown settings": settings((0xEE, 1), (0x9, 7)),
    "settings twice": settings((4, 1000), (4, WINDOW)),
    "PRIORITY of an idle stream": frame(Kind.PRIORITY, bytes(4) + b"\xff", stream_id=9),
    "padding that is all of a frame": request(1, flags=END_HEADERS) + data(b"\x03" + bytes(3), flags=PADDED),
    "GOAWAY and a request after it": frame(Kind.GOAWAY, bytes(8)) + request(1),
    "PING that answers nothing": frame(Kind.PING, bytes(8), flags=1),
    "an acknowledgement of settings": frame(Kind.SETTINGS, flags=1),
}


@pytest.mark.parametrize("case", TAKEN)
async def test_what_means_nothing_is_passed_over(case: str) -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(TAKEN[case], request(11))
        assert (await client.answer(11))[0][":status"] == "200"


async def test_a_ping_is_answered_with_its_bytes() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(PING)
        found = await client.until(Kind.PING)
        assert (found.flags & 1, found.payload) == (1, b"12345678")


async def test_settings_are_acknowledged() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        flags = {(await client.until(Kind.SETTINGS)).flags, (await client.until(Kind.SETTINGS)).flags}
        assert flags == {0, 1}


async def test_a_head_in_pieces_with_padding_and_priority_is_read() -> None:
    block = fields(*GET, ("x", "y"))
    first = b"\x03" + b"\0\0\0\0\x10" + block[:4] + bytes(3)
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(frame(Kind.HEADERS, first, flags=END_STREAM | PADDED | PRIORITISED, stream_id=1))
        client.send(continuation(block[4:9]), continuation(), continuation(block[9:], flags=END_HEADERS))
        head_, body = await client.answer()
        assert head_[":status"] == "200"
        assert b"\r\nx: y\r\n" in body


@pytest.mark.parametrize("size", [1, 2, 7, 10])
async def test_frames_in_whatever_pieces_say_the_same(size: int) -> None:
    wire = OPENING + PING + request(1) + frame(0xEE, b"x") + frame(Kind.GOAWAY, bytes(8))
    async with proxied() as proxy:
        link = await proxy.client()
        client = Http2(link, opening=b"")
        for at in range(0, len(wire), size):
            link.send(wire[at : at + size])
            await link.writer.drain()
        assert (await client.answer())[0][":status"] == "200"
        await client.end()


async def test_the_windows_of_a_client_are_kept() -> None:
    async def big(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000))

    async with proxied(big) as proxy:
        client = Http2(await proxy.client(), opening=PREFACE + settings((4, 10)))
        client.send(request(1))
        assert len((await client.until(Kind.DATA)).payload) == 10
        client.send(window(5, 1))
        assert len((await client.until(Kind.DATA)).payload) == 5
        # A smaller one takes back what was not used.
        client.send(settings((4, 0)), window(3, 1), window(20, 1))
        assert len((await client.until(Kind.DATA)).payload) == 23 - 10
        client.send(window(5000, 1))
        assert len((await client.until(Kind.DATA)).payload) == 1000 - 28


async def test_a_window_that_settings_enlarge_is_used() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client(), opening=PREFACE + settings((4, 0)))
        client.send(request(1))
        await client.until(Kind.HEADERS)
        client.send(settings((4, WINDOW)))
        assert (await client.until(Kind.DATA)).payload


async def test_streams_above_the_limit_are_refused_one_by_one() -> None:
    async def never(link: Link) -> None:
        await link.rest()

    async with proxied(never, HttpSettings(http2_streams_max=2)) as proxy:
        client = Http2(await proxy.client())
        client.send(request(1), request(3), request(5))
        assert (await client.until(Kind.RST)).stream_id == 5
        assert client.frames[-1].code == Code.REFUSED_STREAM
        client.send(reset(1), request(7))
        client.send(PING)
        await client.until(Kind.PING)
        assert [exchange.head.target for exchange in proxy.handler.begun] == [b"/"] * 3
