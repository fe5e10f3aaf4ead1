"""Hand-made HTTP/2: frames from bytes, and connections that read frames, without validation by a library."""

import asyncio

import msgspec
from hpack import Decoder, Encoder

from tests.integration.proxy.peers import STEP_S, Link

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GET = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"))
END_STREAM = 0x1
END_HEADERS = 0x4
ENDED = END_STREAM | END_HEADERS


class Kind:
    """Frame types."""

    DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


class Code:
    """Error codes."""

    NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL, SETTINGS_TIMEOUT, STREAM_CLOSED, FRAME_SIZE = range(7)
    REFUSED_STREAM, CANCEL, COMPRESSION = 7, 8, 9
    ENHANCE_YOUR_CALM = 11


class Frame(msgspec.Struct, frozen=True):
    """A received frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM and GOAWAY."""
        return int.from_bytes(self.payload[:4] if self.kind == Kind.RST else self.payload[4:8])

    @property
    def last_stream_id(self) -> int:
        """The last stream id of a GOAWAY."""
        return int.from_bytes(self.payload[:4])


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    """A frame, valid or not."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload


def fields(*pairs: tuple[str, str]) -> bytes:
    """A header block in HPACK, without use of the dynamic table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(pairs, huffman=False)


def request(stream_id: int = 1, *more: tuple[str, str], flags: int = ENDED) -> bytes:
    """A HEADERS frame of a GET."""
    return frame(Kind.HEADERS, fields(*GET, *more), flags=flags, stream_id=stream_id)


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(Kind.SETTINGS, b"".join([key.to_bytes(2) + value.to_bytes(4) for key, value in pairs]))


OPENING = PREFACE + settings()


class Http2:
    """One connection of a client that sends bytes and reads frames."""

    def __init__(self, link: Link, *, opening: bytes = OPENING) -> None:
        self.link = link
        self.frames: list[Frame] = []
        self.decoder = Decoder()
        link.send(opening)

    def send(self, *data: bytes) -> None:
        """Send bytes."""
        self.link.send(b"".join(data))

    async def frame(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        try:
            async with asyncio.timeout(STEP_S):
                head = await self.link.reader.readexactly(9)
                payload = await self.link.reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        new_frame = Frame(head[3], head[4], int.from_bytes(head[5:9]) & 0x7FFFFFFF, payload)
        self.frames.append(new_frame)
        return new_frame

    async def until(self, kind: int, stream_id: int | None = None) -> Frame:
        """The next frame of a kind; other frames are skipped."""
        while (new_frame := await self.frame()) is not None:
            if new_frame.kind == kind and stream_id in (None, new_frame.stream_id):
                return new_frame
        raise AssertionError(self.frames)

    async def end(self) -> list[Frame]:
        """All frames until the end of the connection."""
        while await self.frame() is not None:
            pass
        return self.frames

    async def response(self, stream_id: int = 1) -> tuple[dict[str, str], bytes]:
        """The head and the body of a response."""
        head: dict[str, str] = {}
        body = b""
        while True:
            new_frame = await self.frame()
            assert new_frame is not None, self.frames
            if new_frame.kind == Kind.HEADERS:
                decoded = {str(name): str(value) for name, value in self.decoder.decode(new_frame.payload)}
                head = head or decoded
            assert (new_frame.kind, new_frame.stream_id) != (Kind.RST, stream_id), new_frame.code
            if new_frame.stream_id == stream_id:
                body += new_frame.payload if new_frame.kind == Kind.DATA else b""
                if new_frame.kind in (Kind.DATA, Kind.HEADERS) and new_frame.flags & END_STREAM:
                    return head, body


class Http2App:
    """One connection of an app that reads frames and sends any bytes."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.decoder = Decoder()

    @classmethod
    async def on(cls, link: Link, *pairs: tuple[int, int]) -> "Http2App":
        """Read the preface, and send settings."""
        assert await link.reader.readexactly(len(PREFACE)) == PREFACE
        link.send(settings(*pairs))
        return cls(link)

    async def frame(self, kind: int) -> Frame:
        """The next frame of a kind; pings are acknowledged."""
        while True:
            head = await self.link.reader.readexactly(9)
            payload = await self.link.reader.readexactly(int.from_bytes(head[:3]))
            new_frame = Frame(head[3], head[4], int.from_bytes(head[5:9]) & 0x7FFFFFFF, payload)
            if new_frame.kind == kind:
                return new_frame

    async def request(self) -> int:
        """Wait for the next request; return its stream ID."""
        return (await self.frame(Kind.HEADERS)).stream_id

    def respond(self, stream_id: int, body: bytes = b"fine", *more: tuple[str, str]) -> None:
        """Respond to a request with 200."""
        head = fields((":status", "200"), *more)
        self.link.send(frame(Kind.HEADERS, head, flags=END_HEADERS, stream_id=stream_id))
        self.link.send(frame(Kind.DATA, body, flags=END_STREAM, stream_id=stream_id))

    def goaway(self, last_stream_id: int) -> None:
        """Send GOAWAY: refuse new streams."""
        self.link.send(frame(Kind.GOAWAY, last_stream_id.to_bytes(4) + bytes(4)))

    def reset(self, stream_id: int, code: int) -> None:
        """End a stream."""
        self.link.send(frame(Kind.RST, code.to_bytes(4), stream_id=stream_id))
