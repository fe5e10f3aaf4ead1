"""Port forwarding over websockets.

kubectl since 1.31 sends SPDY frames inside a websocket (``SPDY/3.1+portforward.k8s.io``): each connection is a pair of
streams, one for data and one for an error. Other clients send ``v4.channel.k8s.io``: two channels for each port of the
query, whose first message carries the port.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import WSMsgType, web

from serving.home.apiserver.remotecommand import upgraded
from serving.home.apiserver.spdy import SpdyCodec, SpdyError, SpdyFrame
from serving.home.apiserver.status import Fault
from serving.model.errors import ClusterError

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens a connection to a port of the pod. Raises ``OSError`` or a ``ClusterError``."""

_SPDY, _CHANNELS = "SPDY/3.1+portforward.k8s.io", "v4.channel.k8s.io"
_PIECE_BYTES = 32 * 1024
_PORT_MAX = 65535
_STREAMS_MAX = 1000


async def forward_ports(request: web.Request, connect: Connect) -> web.WebSocketResponse:
    """Forward connections until the client closes the websocket."""
    ports = [_port(text) for text in request.query.getall("ports", [])]
    socket = await upgraded(request, (_SPDY, _CHANNELS))
    try:
        async with asyncio.TaskGroup() as group:
            is_spdy = socket.ws_protocol == _SPDY
            forwarder = (_SpdyForwarder if is_spdy else _ChannelForwarder)(socket, connect, group)
            await forwarder.run(ports)
            forwarder.end()
    except* (ConnectionResetError, SpdyError):
        await socket.close()
    return socket


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _PORT_MAX:
        raise Fault(400, f"ports: {text!r} is not a port")
    return int(text)


class _Forwarder:
    """The connections of one websocket."""

    def __init__(self, socket: web.WebSocketResponse, connect: Connect, group: asyncio.TaskGroup) -> None:
        self._socket, self._connect, self._group = socket, connect, group
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._early: dict[int, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, ports: Sequence[int]) -> None:
        """Forward until the websocket ends. ``ports`` are those of the query."""
        raise NotImplementedError

    def end(self) -> None:
        """Close all connections: the client is gone."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, stream: int, error_stream: int, port: int) -> None:
        self._early[stream] = []
        task = self._group.create_task(self._forward(stream, error_stream, port), name=f"forward {port}")
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
        """Send data of a stream, or its end."""
        raise NotImplementedError

    async def _received(self, stream: int, data: bytes, *, is_last: bool) -> None:
        """Pass data on; an empty piece ends the direction."""
        pieces = [one for one in (data, b"" if is_last else None) if one is not None and (one or is_last)]
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
    def __init__(self, socket: web.WebSocketResponse, connect: Connect, group: asyncio.TaskGroup) -> None:
        super().__init__(socket, connect, group)
        self._codec = SpdyCodec()
        # Streams for errors by the id of the connection that they belong to.
        self._errors: dict[str, int] = {}

    async def run(self, ports: Sequence[int]) -> None:
        """Each stream names its port itself."""
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
        """One connection for each port."""
        for number, port in enumerate(ports):
            for channel in (2 * number, 2 * number + 1):
                await self._socket.send_bytes(struct.pack("<BH", channel, port))
            self._begin(2 * number, 2 * number + 1, port)
        async for message in self._socket:
            if message.type is WSMsgType.BINARY and message.data:
                await self._received(message.data[0], message.data[1:], is_last=False)

    async def send(self, stream: int, data: bytes, *, is_last: bool = False) -> None:
        # The protocol has no end of one stream; an error is text on its channel.
        if data:
            await self._socket.send_bytes(bytes([stream]) + data)
        elif is_last and not stream % 2:
            await self._socket.close()
