"""Forwards ports over websockets.

kubectl since 1.31 sends SPDY frames inside a websocket (``SPDY/3.1+portforward.k8s.io``): each connection is a pair of
streams, one for data and one for an error. Other clients send ``v4.channel.k8s.io``: two channels for each port of the
query. The first message of a channel has the port.
"""

import asyncio
import contextlib
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from aiohttp import WSMsgType, web

from serving.core.model.errors import ClusterError
from serving.core.model.ports import port_of
from serving.home.apiserver.remotecommand import upgraded
from serving.home.apiserver.requests import Fault
from serving.net.aio.supervise import SupervisedTasks, supervise

_VERSION = 0x8003
_SYN_REPLY, _RST_STREAM, _PING = 2, 3, 6
_FIN = 1
_HEAD_BYTES = 8
_FRAME_BYTES_MAX = 2**20
_HEADERS_BYTES_MAX = 2**16
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status"
)
_MORE_WORDS = ("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin")
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
# The compression dictionary of both sides, loaded before the first header.
_DICTIONARY = b"".join(struct.pack(">I", len(word)) + word.encode() for word in (*_WORDS.split(), *_MORE_WORDS))
_DICTIONARY += _TAIL.encode()

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a connection to a port of the pod. Raises ``OSError`` or a ``ClusterError``."""

_SPDY, _CHANNELS = "SPDY/3.1+portforward.k8s.io", "v4.channel.k8s.io"
_PIECE_BYTES = 32 * 1024
_STREAMS_MAX = 1000


class SpdyError(Exception):
    """The peer sent bytes that are not valid SPDY/3.1."""


class SpdyFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of a stream; for a ping, ``stream`` is its id. ``is_last``: the peer sends no more data."""

    kind: Literal["open", "data", "reset", "ping", "goaway"]
    stream: int = 0
    headers: Mapping[str, str] = {}
    data: bytes = b""
    is_last: bool = False


class SpdyCodec:
    """Parses the frames of one connection, and encodes replies of the server."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=_DICTIONARY)
        self._deflate = zlib.compressobj(zdict=_DICTIONARY)

    def feed(self, piece: bytes) -> Iterator[SpdyFrame]:
        """The frames completed by this piece. Raises ``SpdyError``."""
        self._buffer += piece
        while len(self._buffer) >= _HEAD_BYTES:
            first, flags_and_length = struct.unpack_from(">II", self._buffer)
            flags, length = flags_and_length >> 24, flags_and_length & 0xFFFFFF
            if length > _FRAME_BYTES_MAX:
                raise SpdyError(f"a frame of {length} bytes; expected at most {_FRAME_BYTES_MAX}")
            if len(self._buffer) < _HEAD_BYTES + length:
                return
            body = bytes(self._buffer[_HEAD_BYTES : _HEAD_BYTES + length])
            del self._buffer[: _HEAD_BYTES + length]
            if first >> 31 == 0:
                yield SpdyFrame(kind="data", stream=first, data=body, is_last=bool(flags & _FIN))
                continue
            if first >> 16 != _VERSION:
                raise SpdyError(f"version {first >> 16 & 0x7FFF}; expected 3")
            frame = self._control(first & 0xFFFF, flags, body)
            if frame is not None:
                yield frame

    def _control(self, kind: int, flags: int, body: bytes) -> SpdyFrame | None:
        try:
            match kind:
                case 1:
                    (stream,) = struct.unpack_from(">I", body)
                    headers = self._headers(body[10:])
                    return SpdyFrame(kind="open", stream=stream, headers=headers, is_last=bool(flags & _FIN))
                case 3:
                    return SpdyFrame(kind="reset", stream=struct.unpack_from(">I", body)[0])
                case 6:
                    return SpdyFrame(kind="ping", stream=struct.unpack_from(">I", body)[0])
                case 7:
                    return SpdyFrame(kind="goaway")
                case 2 | 8:
                    # Keeps the compression context in step.
                    self._headers(body[4:])
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a control frame of type {kind} that cannot be read: {error}") from error
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        plain = self._inflate.decompress(block, _HEADERS_BYTES_MAX)
        if self._inflate.unconsumed_tail:
            raise SpdyError(f"headers of more than {_HEADERS_BYTES_MAX} bytes")
        (count,) = struct.unpack_from(">I", plain)
        place, texts = 4, []
        for _ in range(count * 2):
            (length,) = struct.unpack_from(">I", plain, place)
            texts.append(plain[place + 4 : place + 4 + length].decode())
            place += 4 + length
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def accept(self, stream: int) -> bytes:
        """The reply that accepts a stream, without headers."""
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control_frame(_SYN_REPLY, struct.pack(">I", stream) + block)

    @staticmethod
    def data(stream: int, data: bytes, *, is_last: bool = False) -> bytes:
        """A frame of data."""
        return struct.pack(">II", stream, (_FIN if is_last else 0) << 24 | len(data)) + data

    @staticmethod
    def reset(stream: int) -> bytes:
        """A frame that ends a stream with status CANCEL."""
        return _control_frame(_RST_STREAM, struct.pack(">II", stream, 5))

    @staticmethod
    def pong(number: int) -> bytes:
        """The reply to a ping."""
        return _control_frame(_PING, struct.pack(">I", number))


def _control_frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", _VERSION, kind, len(body)) + body


async def forward_ports(request: web.Request, connect: Connect) -> web.WebSocketResponse:
    """Forward connections until the client closes the websocket."""
    ports = [_port(text) for text in request.query.getall("ports", [])]
    socket = await upgraded(request, (_SPDY, _CHANNELS))
    try:
        async with supervise() as group:
            is_spdy = socket.ws_protocol == _SPDY
            forwarder = (_SpdyForwarder if is_spdy else _ChannelForwarder)(socket, connect, group)
            await forwarder.run(ports)
            forwarder.end()
    except* (ConnectionResetError, SpdyError):
        await socket.close()
    return socket


def _port(text: str) -> int:
    number = port_of(text)
    if not number:
        raise Fault(400, f"ports: {text[:100]!r} is not a port")
    return number


class _Forwarder:
    def __init__(self, socket: web.WebSocketResponse, connect: Connect, group: SupervisedTasks) -> None:
        self._socket = socket
        self._connect = connect
        self._group = group
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._early: dict[int, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, ports: Sequence[int]) -> None:
        """Forward until the websocket ends. ``ports`` are the ports in the query."""
        raise NotImplementedError

    def end(self) -> None:
        """Close all connections after the client has disconnected."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, stream: int, error_stream: int, port: int) -> None:
        self._early[stream] = []
        task = self._group.start(self._forward(stream, error_stream, port), name=f"forward {port}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, stream: int, error_stream: int, port: int) -> None:
        try:
            reader, writer = await self._connect(port)
        except (OSError, ClusterError) as error:
            self._early.pop(stream, None)
            await self.send(error_stream, f"port {port} of the pod: {error}".encode(), is_last=True)
            await self.send(stream, b"", is_last=True)
            return
        self._writers[stream] = writer
        try:
            for piece in self._early.pop(stream, []):
                self._write(writer, piece)
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(_PIECE_BYTES):
                    await self.send(stream, piece)
            await self.send(stream, b"", is_last=True)
            await self.send(error_stream, b"", is_last=True)
        finally:
            self._writers.pop(stream, None)
            writer.close()

    async def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        """Send data of a stream to the client; ``is_last`` ends it."""
        raise NotImplementedError

    async def _received(self, stream: int, data: bytes, *, is_last: bool) -> None:
        """Pass data from the client to the pod; ``is_last`` ends this direction."""
        pieces = [piece for piece in (data, b"" if is_last else None) if piece is not None and (piece or is_last)]
        writer = self._writers.get(stream)
        for piece in pieces:
            if writer is None:
                self._early.get(stream, []).append(piece)
            else:
                self._write(writer, piece)
        if writer is not None:
            with contextlib.suppress(ConnectionError):
                await writer.drain()

    @staticmethod
    def _write(writer: asyncio.StreamWriter, piece: bytes) -> None:
        if piece:
            writer.write(piece)
        elif writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()


class _SpdyForwarder(_Forwarder):
    def __init__(self, socket: web.WebSocketResponse, connect: Connect, group: SupervisedTasks) -> None:
        super().__init__(socket, connect, group)
        self._codec = SpdyCodec()
        # Error streams by the connection id that they belong to.
        self._errors: dict[str, int] = {}

    async def run(self, ports: Sequence[int]) -> None:
        """Forward until the connection ends. Each SPDY stream names its own port."""
        del ports
        async for message in self._socket:
            if message.type is WSMsgType.BINARY:
                for frame in self._codec.feed(message.data):
                    await self._handle(frame)

    async def _handle(self, frame: SpdyFrame) -> None:
        match frame.kind:
            case "open":
                await self._opened(frame)
            case "data":
                await self._received(frame.stream, frame.data, is_last=frame.is_last)
            case "reset":
                writer = self._writers.pop(frame.stream, None)
                if writer is not None:
                    writer.close()
            case "ping":
                await self._socket.send_bytes(self._codec.pong(frame.stream))
            case "goaway":
                return

    async def _opened(self, frame: SpdyFrame) -> None:
        request, port = frame.headers.get("requestid", ""), frame.headers.get("port", "")
        is_error = frame.headers.get("streamtype") == "error"
        if not port.isdecimal() or len(self._errors) > _STREAMS_MAX or not (is_error or request in self._errors):
            await self._socket.send_bytes(self._codec.reset(frame.stream))
            return
        await self._socket.send_bytes(self._codec.accept(frame.stream))
        if is_error:
            self._errors[request] = frame.stream
        else:
            self._begin(frame.stream, self._errors.pop(request), int(port))

    async def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        await self._socket.send_bytes(self._codec.data(stream, data, is_last=is_last))


class _ChannelForwarder(_Forwarder):
    async def run(self, ports: Sequence[int]) -> None:
        """Forward over one websocket. Each port has one connection."""
        for number, port in enumerate(ports):
            for channel in (2 * number, 2 * number + 1):
                await self._socket.send_bytes(struct.pack("<BH", channel, port))
            self._begin(2 * number, 2 * number + 1, port)
        async for message in self._socket:
            if message.type is WSMsgType.BINARY and message.data:
                await self._received(message.data[0], message.data[1:], is_last=False)

    async def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        # The protocol cannot end a single stream; an error is text on its channel.
        if data:
            await self._socket.send_bytes(bytes([stream]) + data)
        elif is_last and not stream % 2:
            await self._socket.close()
