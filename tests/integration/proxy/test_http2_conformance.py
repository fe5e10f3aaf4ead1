"""The reaction that RFC 9113 requires to each hand-made frame: close the connection, reset the stream, or continue.

The cases are those of h2spec's list that concern a server, and more, by section of RFC 9113 (and RFC 7541 where it says
so). After each case, the proxy still serves requests.
"""

import pytest

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.frames import ErrorCode
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

OPEN = request(1, flags=END_HEADERS)
BEGUN = request(1, flags=0)
PING = frame(Kind.PING, b"12345678")

COMPRESSION = {Code.COMPRESSION}


def window(increment: int, stream_id: int = 0) -> bytes:
    return frame(Kind.WINDOW_UPDATE, increment.to_bytes(4), stream_id=stream_id)


def data(payload: bytes = b"", *, flags: int = 0, stream_id: int = 1) -> bytes:
    return frame(Kind.DATA, payload, flags=flags, stream_id=stream_id)


def reset(stream_id: int) -> bytes:
    return frame(Kind.RST, Code.CANCEL.to_bytes(4), stream_id=stream_id)


def continuation(payload: bytes = b"", *, flags: int = 0, stream_id: int = 1) -> bytes:
    return frame(Kind.CONTINUATION, payload, flags=flags, stream_id=stream_id)


def packed(block: bytes) -> bytes:
    """A request whose header block is these bytes."""
    return frame(Kind.HEADERS, block, flags=ENDED, stream_id=1)


ENDS = {
    "3.4 preface: not SM": (PREFACE[:18] + b"XX\r\n\r\n", {Code.PROTOCOL_ERROR}),
    "3.4 preface: PING first": (PREFACE + PING, {Code.PROTOCOL_ERROR}),
    "3.4 preface: an acknowledgement first": (PREFACE + frame(Kind.SETTINGS, flags=1), {Code.PROTOCOL_ERROR}),
    "4.2 size: DATA above ours": (OPENING + OPEN + data(bytes(FRAME_MAX + 1)), {Code.FRAME_SIZE}),
    "4.2 size: HEADERS above ours": (OPENING + request(1, ("x", "y" * (FRAME_MAX + 1))), {Code.FRAME_SIZE}),
    "4.2 size: only a frame's head": (OPENING + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", {Code.FRAME_SIZE}),
    "6.7 size: PING of 7": (OPENING + frame(Kind.PING, b"1234567"), {Code.FRAME_SIZE}),
    "6.4 size: RST of 3": (OPENING + OPEN + frame(Kind.RST, b"123", stream_id=1), {Code.FRAME_SIZE}),
    "6.9 size: WINDOW_UPDATE of 3": (OPENING + frame(Kind.WINDOW_UPDATE, b"123"), {Code.FRAME_SIZE}),
    "6.5 size: SETTINGS of 5": (OPENING + frame(Kind.SETTINGS, b"12345"), {Code.FRAME_SIZE}),
    "6.5 size: an acknowledgement with bytes": (
        OPENING + frame(Kind.SETTINGS, bytes(6), flags=1),
        {Code.FRAME_SIZE, Code.PROTOCOL_ERROR},
    ),
    "6.3 size: PRIORITY of 4": (OPENING + OPEN + frame(Kind.PRIORITY, b"1234", stream_id=1), {Code.FRAME_SIZE}),
    "6.8 size: GOAWAY of 4": (OPENING + frame(Kind.GOAWAY, b"1234"), {Code.FRAME_SIZE}),
    "6.1 stream 0: DATA": (OPENING + data(b"x", stream_id=0), {Code.PROTOCOL_ERROR}),
    "6.2 stream 0: HEADERS": (OPENING + request(0), {Code.PROTOCOL_ERROR}),
    "6.3 stream 0: PRIORITY": (OPENING + frame(Kind.PRIORITY, bytes(5)), {Code.PROTOCOL_ERROR}),
    "6.4 stream 0: RST": (OPENING + reset(0), {Code.PROTOCOL_ERROR}),
    "6.10 stream 0: CONTINUATION": (OPENING + continuation(stream_id=0), {Code.PROTOCOL_ERROR}),
    "6.5 a stream: SETTINGS": (OPENING + frame(Kind.SETTINGS, stream_id=1), {Code.PROTOCOL_ERROR}),
    "6.7 a stream: PING": (OPENING + frame(Kind.PING, bytes(8), stream_id=1), {Code.PROTOCOL_ERROR}),
    "6.8 a stream: GOAWAY": (OPENING + frame(Kind.GOAWAY, bytes(8), stream_id=1), {Code.PROTOCOL_ERROR}),
    "5.1 idle: DATA": (OPENING + data(b"x", stream_id=1), {Code.PROTOCOL_ERROR}),
    "5.1 idle: RST": (OPENING + reset(1), {Code.PROTOCOL_ERROR}),
    "5.1 idle: RST of a stream that the server may open": (OPENING + reset(2), {Code.PROTOCOL_ERROR}),
    "5.1 idle: WINDOW_UPDATE": (OPENING + window(1, 1), {Code.PROTOCOL_ERROR}),
    "5.1 idle: CONTINUATION": (OPENING + continuation(fields(*GET), flags=END_HEADERS), {Code.PROTOCOL_ERROR}),
    "5.1.1 ids: even": (OPENING + request(2), {Code.PROTOCOL_ERROR}),
    "5.1.1 ids: falling": (
        OPENING + request(5, flags=END_HEADERS) + request(3),
        {Code.PROTOCOL_ERROR, Code.STREAM_CLOSED},
    ),
    "8.1 second HEADERS that does not end": (OPENING + OPEN + OPEN, {Code.PROTOCOL_ERROR}),
    "6.10 CONTINUATION after END_HEADERS": (OPENING + OPEN + continuation(), {Code.PROTOCOL_ERROR}),
    "6.10 CONTINUATION of another stream": (OPENING + BEGUN + continuation(stream_id=3), {Code.PROTOCOL_ERROR}),
    "4.3 PING amid a head": (OPENING + BEGUN + PING, {Code.PROTOCOL_ERROR}),
    "4.3 GOAWAY amid a head": (OPENING + BEGUN + frame(Kind.GOAWAY, bytes(8)), {Code.PROTOCOL_ERROR}),
    "5.5 an unknown frame amid a head": (OPENING + BEGUN + frame(0xEE, b"x"), {Code.PROTOCOL_ERROR}),
    "10.5 endless CONTINUATION": (OPENING + BEGUN + continuation() * 100, {Code.ENHANCE_YOUR_CALM}),
    "6.1 padding longer than the frame": (OPENING + OPEN + data(b"\x09x", flags=PADDED), {Code.PROTOCOL_ERROR}),
    "6.2 padding longer than a head": (
        OPENING + frame(Kind.HEADERS, b"\xff" + fields(*GET), flags=ENDED | PADDED, stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "8.4 PUSH_PROMISE": (
        OPENING + OPEN + frame(Kind.PUSH_PROMISE, bytes(4) + fields(*GET), flags=4, stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "5.3 a head that depends on itself": (
        OPENING + frame(Kind.HEADERS, b"\0\0\0\1\0" + fields(*GET), flags=ENDED | PRIORITISED, stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "5.3 PRIORITY that depends on itself": (
        OPENING + frame(Kind.PRIORITY, b"\0\0\0\1\0", stream_id=1),
        {Code.PROTOCOL_ERROR},
    ),
    "6.5.2 settings: push is neither 0 nor 1": (OPENING + settings((2, 2)), {Code.PROTOCOL_ERROR}),
    "6.5.2 settings: a window above the largest": (OPENING + settings((4, 2**31)), {Code.FLOW_CONTROL}),
    "6.5.2 settings: frames that are too small": (OPENING + settings((5, FRAME_MAX - 1)), {Code.PROTOCOL_ERROR}),
    "6.5.2 settings: frames that are too large": (OPENING + settings((5, 2**24)), {Code.PROTOCOL_ERROR}),
    "6.5.2 settings: a window that overflows a stream": (
        OPENING + OPEN + window(BIG - WINDOW, 1) + settings((4, BIG)),
        {Code.FLOW_CONTROL},
    ),
    "6.9 window: no increment": (OPENING + window(0), {Code.PROTOCOL_ERROR}),
    "6.9 window: no increment of a stream": (OPENING + OPEN + window(0, 1), {Code.PROTOCOL_ERROR}),
    "6.9 window: overflow": (OPENING + window(BIG) + window(1), {Code.FLOW_CONTROL}),
    "4.3 HPACK: invalid HPACK index": (
        OPENING + frame(Kind.HEADERS, b"\xff\xff\x00", flags=ENDED, stream_id=1),
        {Code.COMPRESSION, Code.PROTOCOL_ERROR},
    ),
    "4.3 HPACK: cut off": (
        OPENING + frame(Kind.HEADERS, fields(*GET)[:-1], flags=ENDED, stream_id=1),
        {Code.COMPRESSION, Code.PROTOCOL_ERROR},
    ),
    "4.3 HPACK: a table above ours": (
        OPENING + frame(Kind.HEADERS, b"\x3f\xff\xff\x7f" + fields(*GET), flags=ENDED, stream_id=1),
        {Code.COMPRESSION, Code.PROTOCOL_ERROR},
    ),
    "4.2 SETTINGS above ours": (OPENING + settings(*[(0xEE, 1)] * 2731), {Code.FRAME_SIZE}),
    "5.1.1 an even id of WINDOW_UPDATE": (OPENING + window(1, 2), {Code.PROTOCOL_ERROR}),
    "6.2 a head without its priority": (
        OPENING + frame(Kind.HEADERS, b"1234", flags=ENDED | PRIORITISED, stream_id=1),
        {Code.FRAME_SIZE, Code.PROTOCOL_ERROR},
    ),
    "6.1 a padding without its length": (OPENING + OPEN + data(b"", flags=PADDED), {Code.FRAME_SIZE}),
    "6.1 a padding that is as long as the frame": (
        OPENING + OPEN + data(b"\x02x", flags=PADDED),
        {Code.PROTOCOL_ERROR},
    ),
    "6.5.3 an empty frame of settings, as the first one, twice in a frame": (
        OPENING + frame(Kind.SETTINGS, bytes(7)),
        {Code.FRAME_SIZE},
    ),
    "6.8 GOAWAY of 7": (OPENING + frame(Kind.GOAWAY, bytes(7)), {Code.FRAME_SIZE}),
    "6.9.1 an overflow in one step": (OPENING + window(BIG), {Code.FLOW_CONTROL}),
    "6.10 CONTINUATION after a PING amid a head": (OPENING + BEGUN + PING + continuation(), {Code.PROTOCOL_ERROR}),
    "6.10 DATA amid a head": (OPENING + BEGUN + data(b"x"), {Code.PROTOCOL_ERROR}),
    "6.10 HEADERS amid a head": (OPENING + BEGUN + request(3), {Code.PROTOCOL_ERROR}),
    "6.10 RST amid a head": (OPENING + BEGUN + reset(1), {Code.PROTOCOL_ERROR}),
    "7541, 2.3.3 an index above the table": (OPENING + packed(b"\xbe"), COMPRESSION),
    "7541, 4.2 a size of the table after a field": (OPENING + packed(fields(*GET) + b"\x20"), COMPRESSION),
    "7541, 5.1 a number without an end": (OPENING + packed(b"\xff\xff\xff\xff\xff\xff\xff"), COMPRESSION),
    "7541, 5.2 a padding of more than 7 bits": (OPENING + packed(b"\x00\x82\x1f\xff\x01x"), COMPRESSION),
    "7541, 5.2 a padding of zeros": (OPENING + packed(b"\x00\x81\x18\x01x"), COMPRESSION),
    "7541, 5.2 the end of a string within it": (OPENING + packed(b"\x00\x84\xff\xff\xff\xff\x01x"), COMPRESSION),
    "7541, 6.1 the index 0": (OPENING + packed(b"\x80"), COMPRESSION),
    "7541, 6.2 a name of nothing": (OPENING + packed(b"\x7f\x00\x01x"), COMPRESSION),
    "7541, 6.3 a table above the limit": (OPENING + packed(b"\x3f\xe2\x1f"), COMPRESSION),
    "10.5 flood: resets": (
        OPENING + b"".join(request(2 * n + 1) + reset(2 * n + 1) for n in range(300)),
        {Code.ENHANCE_YOUR_CALM},
    ),
    "10.5 flood: pings": (OPENING + PING * 300, {Code.ENHANCE_YOUR_CALM}),
    "10.5 flood: settings": (OPENING + settings() * 300, {Code.ENHANCE_YOUR_CALM}),
    "10.5 flood: empty DATA": (OPENING + OPEN + data() * 600, {Code.ENHANCE_YOUR_CALM}),
    "10.5 flood: unknown frames": (OPENING + frame(0xEE) * 600, {Code.ENHANCE_YOUR_CALM}),
    "10.5 flood: priorities": (OPENING + frame(Kind.PRIORITY, bytes(5), stream_id=9) * 600, {Code.ENHANCE_YOUR_CALM}),
}


async def test_data_beyond_stream_window_closes_connection_with_flow_control_error() -> None:
    async def never(link: Link) -> None:
        await link.head()
        await link.closed()

    async with proxied(never, HttpSettings(body_held_bytes_max=1)) as proxy:
        client = Http2(await proxy.client())
        # The window is 64 KiB; the proxy buffers what the app does not read.
        client.send(OPEN, *[data(bytes(FRAME_MAX))] * 2000)
        assert (await client.until(Kind.GOAWAY)).code == Code.FLOW_CONTROL


@pytest.mark.parametrize("case", ENDS)
async def test_connection_error_sends_goaway_with_its_error_code(case: str) -> None:
    frames, codes = ENDS[case]
    async with proxied() as proxy:
        client = Http2(await proxy.client(), opening=frames)
        goaway = await client.until(Kind.GOAWAY)
        assert goaway.code in codes
        assert proxy.server.refusals.counts == {f"h2_{ErrorCode(goaway.code).name.lower()}": 1}
        await client.end()
        other = Http2(await proxy.client())
        other.send(request(1))
        assert (await other.response())[0][":status"] == "200"


def head(*pairs: tuple[str, str], flags: int = ENDED) -> bytes:
    return frame(Kind.HEADERS, fields(*pairs), flags=flags, stream_id=1)


MALFORMED_HEADS = {
    "8.3.1 no :method": head(*GET[1:]),
    "8.3.1 no :scheme": head(GET[0], *GET[2:]),
    "8.3.1 no :path": head(*GET[:2], *GET[3:]),
    "8.3.1 an empty :path": head(*GET[:2], (":path", ""), GET[3]),
    "8.3 a doubled :path": head(*GET, (":path", "/other")),
    "8.3 a late pseudo-header": head(*GET[:3], ("x", "y"), GET[3]),
    "8.3 an unknown pseudo-header": head(*GET, (":strange", "x")),
    "8.3 an answer's pseudo-header": head(*GET, (":status", "200")),
    "8.2 a name in capitals": head(*GET, ("X-Name", "y")),
    "8.2.1 a name with a space": head(*GET, ("x y", "z")),
    "8.2.1 no name": head(*GET, ("", "z")),
    "8.2.1 a line break in a name": head(*GET, ("x\r\ny", "z")),
    "8.2.1 a colon in a name": head(*GET, ("x: y", "z")),
    "8.2.1 a line break in a value": head(*GET, ("x", "a\r\nb: c")),
    "8.2.1 a line feed in a value": head(*GET, ("x", "a\nb")),
    "8.2.1 a zero byte in a value": head(*GET, ("x", "a\0b")),
    "8.2.2 connection": head(*GET, ("connection", "close")),
    "8.2.2 keep-alive": head(*GET, ("keep-alive", "1")),
    "8.2.2 proxy-connection": head(*GET, ("proxy-connection", "x")),
    "8.2.2 upgrade": head(*GET, ("upgrade", "websocket")),
    "8.2.2 transfer-encoding": head(*GET, ("transfer-encoding", "chunked")),
    "8.2.2 te other than trailers": head(*GET, ("te", "gzip")),
    "8.1.1 a length and no body": head(*GET, ("content-length", "5")),
}
RESETS = {
    **MALFORMED_HEADS,
    "8.1.1 a body that is shorter than its length": head(*GET, ("content-length", "5"), flags=END_HEADERS)
    + data(b"four", flags=END_STREAM),
    "8.1.1 a body that is longer than its length": head(*GET, ("content-length", "3"), flags=END_HEADERS)
    + data(b"four", flags=END_STREAM),
    "8.1.1 a shorter body with trailers": head(*GET, ("content-length", "5"), flags=END_HEADERS)
    + data(b"four")
    + head(("after", "all")),
    "8.1 a pseudo-header in trailers": OPEN + head((":path", "/")),
    "8.2 capitals in trailers": OPEN + head(("After", "all")),
    "5.1 DATA on a stream that it has reset": OPEN + reset(1) + data(b"x"),
    "5.1 DATA on a stream that it left out": request(3) + data(b"x"),
    "5.1 HEADERS on a stream that it has ended": request(1) + request(1),
    "5.1 DATA on a stream that it has ended": request(1) + data(b"x"),
}


@pytest.mark.parametrize("case", RESETS)
async def test_stream_error_resets_only_its_stream(case: str) -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(RESETS[case])
        new_frame = await client.until(Kind.RST, 1)
        assert new_frame.code in (Code.PROTOCOL_ERROR, Code.STREAM_CLOSED)
        assert proxy.server.refusals.counts[f"h2_{ErrorCode(new_frame.code).name.lower()}"] == 1
        client.send(request(9))
        assert (await client.response(9))[0][":status"] == "200"
        assert all(exchange.response.status in (0, 200) for exchange in proxy.handler.begun)
        # Of a malformed head, nothing reaches the handler.
        assert case not in MALFORMED_HEADS or len(proxy.handler.begun) == 1


REFUSED = {
    "8.5 CONNECT": (head((":method", "CONNECT"), (":authority", "h")), "405"),
    "8.1.1 two lengths": (head(*GET, ("content-length", "1"), ("content-length", "2"), flags=END_HEADERS), "400"),
    "8.1.1 a length that is none": (head(*GET, ("content-length", "1x"), flags=END_HEADERS), "400"),
    "8.3.1 an authority that is not the host": (head(*GET, ("host", "other")), "400"),
    "8.3.1 a path that is none": (head(*GET[:2], (":path", "x"), GET[3]), "400"),
    "8.1 an unknown expectation": (head(*GET, ("expect", "x"), flags=END_HEADERS), "417"),
    "10.5.1 a head above the limit": (head(*GET, *[(f"x{n}", "y" * 1000) for n in range(15)]), "431"),
    "10.5.1 too many lines": (head(*GET, *[(f"x{n}", "y") for n in range(140)]), "431"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_rejected_http2_request_receives_error_status(case: str) -> None:
    frames, status = REFUSED[case]
    async with proxied(settings=HttpSettings(head_bytes_max=8192)) as proxy:
        client = Http2(await proxy.client())
        client.send(frames)
        assert (await client.response())[0][":status"] == status
        assert sum(proxy.server.refusals.counts.values()) == 1
        client.send(request(3))
        assert (await client.response(3))[0][":status"] == "200"
        assert len(proxy.handler.begun) == 1


PERMITTED = {
    "5.1 PRIORITY and WINDOW_UPDATE of a stream that has ended": request(1)
    + frame(Kind.PRIORITY, bytes(5), stream_id=1)
    + window(1, 1),
    "5.1.1 streams that are left out": request(7),
    "6.2 a padding of a head": frame(
        Kind.HEADERS, b"\x03" + fields(*GET) + bytes(3), flags=ENDED | PADDED, stream_id=1
    ),
    "6.5.2 a table of no size": settings((1, 0)) + request(1) + settings((1, 4096)) + request(3),
    "6.5.2 no streams of the server": settings((3, 0)),
    "6.8 GOAWAY with a text": frame(Kind.GOAWAY, bytes(8) + b"so long") + request(1),
    "6.9 a window of the connection": window(1) * 3,
    "6.10 a head in many pieces": BEGUN[:9] + BEGUN[9:] + continuation() * 3 + continuation(flags=END_HEADERS),
    "7541, 4.2 sizes of the table at the start": packed(b"\x20\x3f\xe1\x1f" + fields(*GET)),
    "8.1 trailers": OPEN + data(b"x") + head(("after", "all")),
    "8.2.3 cookies in pieces": head(*GET, ("cookie", "a=1"), ("cookie", "b=2")),
    "5.5 unknown frames": frame(0xEE, b"what", flags=0xFF, stream_id=7) + frame(0xEF),
    "4.1 unknown flags": frame(Kind.PING, bytes(8), flags=0x16),
    "4.1 the bit that is reserved": frame(Kind.WINDOW_UPDATE, b"\0\0\0\1", stream_id=2**31),
    "6.5.2 unknown settings": settings((0xEE, 1), (0x9, 7)),
    "6.5.3 settings twice": settings((4, 1000), (4, WINDOW)),
    "6.3 PRIORITY of an idle stream": frame(Kind.PRIORITY, bytes(4) + b"\xff", stream_id=9),
    "6.1 padding that is all of a frame": request(1, flags=END_HEADERS) + data(b"\x03" + bytes(3), flags=PADDED),
    "6.8 GOAWAY and a request after it": frame(Kind.GOAWAY, bytes(8)) + request(1),
    "6.7 PING that answers nothing": frame(Kind.PING, bytes(8), flags=1),
    "6.5 an acknowledgement of settings": frame(Kind.SETTINGS, flags=1),
}


@pytest.mark.parametrize("case", PERMITTED)
async def test_permitted_frames_do_not_disturb_next_request(case: str) -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(PERMITTED[case], request(11))
        assert (await client.response(11))[0][":status"] == "200"


async def test_ping_is_acknowledged_with_its_payload() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(PING)
        new_frame = await client.until(Kind.PING)
        assert (new_frame.flags & 1, new_frame.payload) == (1, b"12345678")


async def test_settings_are_acknowledged() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        flags = {(await client.until(Kind.SETTINGS)).flags, (await client.until(Kind.SETTINGS)).flags}
        assert flags == {0, 1}


async def test_padded_headers_split_over_continuations_are_parsed() -> None:
    block = fields(*GET, ("x", "y"))
    first = b"\x03" + b"\0\0\0\0\x10" + block[:4] + bytes(3)
    async with proxied() as proxy:
        client = Http2(await proxy.client())
        client.send(frame(Kind.HEADERS, first, flags=END_STREAM | PADDED | PRIORITISED, stream_id=1))
        client.send(continuation(block[4:9]), continuation(), continuation(block[9:], flags=END_HEADERS))
        head_, body = await client.response()
        assert head_[":status"] == "200"
        assert b"\r\nx: y\r\n" in body


@pytest.mark.parametrize("size", [1, 2, 7, 10])
async def test_frames_split_at_any_size_are_parsed(size: int) -> None:
    wire = OPENING + PING + request(1) + frame(0xEE, b"x") + frame(Kind.GOAWAY, bytes(8))
    async with proxied() as proxy:
        link = await proxy.client()
        client = Http2(link, opening=b"")
        for at in range(0, len(wire), size):
            link.send(wire[at : at + size])
            await link.writer.drain()
        assert (await client.response())[0][":status"] == "200"
        await client.end()


async def test_proxy_respects_client_flow_control_windows() -> None:
    async def big(link: Link) -> None:
        await link.head()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000))

    async with proxied(big) as proxy:
        client = Http2(await proxy.client(), opening=PREFACE + settings((4, 10)))
        client.send(request(1))
        assert len((await client.until(Kind.DATA)).payload) == 10
        client.send(window(5, 1))
        assert len((await client.until(Kind.DATA)).payload) == 5
        # A smaller initial window reduces the window of the open stream.
        client.send(settings((4, 0)), window(3, 1), window(20, 1))
        assert len((await client.until(Kind.DATA)).payload) == 23 - 10
        client.send(window(5000, 1))
        assert len((await client.until(Kind.DATA)).payload) == 1000 - 28


async def test_window_enlarged_by_client_settings_is_used() -> None:
    async with proxied() as proxy:
        client = Http2(await proxy.client(), opening=PREFACE + settings((4, 0)))
        client.send(request(1))
        await client.until(Kind.HEADERS)
        client.send(settings((4, WINDOW)))
        assert (await client.until(Kind.DATA)).payload


async def test_stream_above_limit_is_refused_without_closing_connection() -> None:
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
