"""One connection to the autoscaler: a request head with an immediate or later response, then frames or events.

The sans-io protocol of ``websockets`` handles handshake, control frames and errors. This module parses complete binary
frames, such as stats, itself: that takes 6 to 11 µs per frame, and 43 µs with the asyncio server of ``websockets``.
"""

import asyncio
import http
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import msgspec
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from serving.autoscaler.io.senders import Sender
from serving.autoscaler.peer_rules import StatsPeer
from serving.core.model.errors import ClusterError, InvalidValue
from serving.net.aio.supervise import TaskOwner

HEAD_END = b"\r\n\r\n"
"""The end of the request head; frames follow."""

MASK_BYTES = 4
# A final binary frame without extensions.
_PLAIN = 0x82
_MASKED = 0x80
# From this value on, the length is in the next 2 or 8 bytes.
_LONG = 126

# The protocol logs each connection, which is too much with many pods.
_log = logging.getLogger("autoscaler.websocket")
# An activator's frame has at most 2,000 revisions of about 200 bytes; a pod's frame is below 200 bytes.
_FRAME_BYTES_MAX = 2**20
_HEAD_BYTES_MAX = 8192
# Checks until a silent connection is closed; one check during a handshake.
_SILENT_CHECKS_MAX = 4
# How long events are collected before they are sent together, in seconds: sending costs more than a decision.
_GATHER_S = 0.02
# Most bytes buffered for a subscriber that does not read.
_FOLLOWER_BYTES_MAX = 4 * 2**20


class Cut(msgspec.Struct, frozen=True):
    """One frame in a stream: its payload is from the position ``begin`` up to ``end``.

    ``end`` may lie beyond the received data. The mask, if any, precedes ``begin``. ``is_plain``: a masked binary frame
    that is a whole message.
    """

    begin: int
    end: int
    is_plain: bool


def cut(data: bytes, position: int) -> Cut | None:
    """The frame at ``position``; None while its header is incomplete.

    Example: a frame of 3 masked bytes at position 0 has a header of 2 bytes and a mask of 4, so its payload begins at 6
    and ends at 9.
    """
    rest = len(data) - position
    if rest < 2:
        return None
    length = data[position + 1] & ~_MASKED
    begin = position + 2
    if length >= _LONG:
        begin += 2 if length == _LONG else 8
        if rest < begin - position:
            return None
        length = int.from_bytes(data[position + 2 : begin])
    is_masked = data[position + 1] >= _MASKED
    if is_masked:
        begin += MASK_BYTES
    return Cut(begin, begin + length, is_masked and data[position] == _PLAIN)


try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without a compiled wheel
    from websockets.utils import apply_mask


_log.setLevel(logging.WARNING)


class StatsHost(Protocol):
    """The owner of stats connections, as seen by a connection."""

    @property
    def tasks(self) -> TaskOwner:
        """The owner of all connections' tasks."""
        ...

    def opened(self, connection: "StatsConnection") -> None:
        """Add an accepted connection."""
        ...

    def lost(self, connection: "StatsConnection") -> None:
        """Remove an ended connection."""
        ...

    def respond(self, protocol: ServerProtocol, request: Request, connection: "StatsConnection") -> Response | None:
        """The response to a request head; None if it follows later."""
        ...


class StatsConnection(asyncio.Protocol):
    """One connection: a request head, then frames."""

    __slots__ = (
        "_gathered",
        "_is_follower",
        "_judging",
        "_protocol",
        "_rest",
        "_server",
        "_silent_checks",
        "_transport",
        "_unfollow",
        "peer",
        "sender",
    )

    def __init__(self, server: StatsHost) -> None:
        self.sender: Sender | None = None
        self.peer = StatsPeer()
        self._server = server
        self._protocol = ServerProtocol(max_size=_FRAME_BYTES_MAX, logger=_log)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._silent_checks = 0
        self._is_follower = False
        self._gathered: list[bytes] = []
        self._judging: asyncio.Task[None] | None = None
        self._unfollow: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connects."""
        # uvloop's transports do not inherit from asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        host = name[0] if isinstance(name, tuple) else ""
        self.peer = StatsPeer(
            is_tls=bool(transport.get_extra_info("sslcontext")),
            identity=transport.get_extra_info("identity", ""),
            host=host,
            is_loopback=host.startswith("127.") or host == "::1",
        )
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection has ended."""
        del exc
        if self._judging is not None:
            self._judging.cancel()
        self._server.lost(self)
        if self._unfollow is not None:
            self._unfollow()

    def pause_writing(self) -> None:
        """Handle a client that does not read: abort a websocket connection, and let any other response wait."""
        if self.sender is not None:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Process received bytes of a head or of frames, which may be split anywhere."""
        self._silent_checks = 0
        if self._rest:
            data = self._rest + data
        if self.sender is None and self._judging is None:
            head, end, data = data.partition(HEAD_END)
            if not end:
                self._rest = head
                if len(head) > _HEAD_BYTES_MAX:
                    self.abort()
                return
            self._receive_head(head + end)
        if self._judging is None:
            self._receive_frames(data)
        else:
            self._rest = data
            if len(data) > _HEAD_BYTES_MAX:
                self.abort()

    @property
    def is_follower(self) -> bool:
        """Whether the client subscribes to decisions."""
        return self._is_follower

    def was_active(self) -> bool:
        """Whether the connection is in use. The caller asks periodically, and closes a connection that is not.

        A connection counts as unused at the fourth call in a row without new data, before authentication at the second.
        Subscribers are always in use.
        """
        self._silent_checks += 1
        return self._is_follower or self._silent_checks < (_SILENT_CHECKS_MAX if self.sender is not None else 2)

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def judge(self, proof: Awaitable[bool], respond: Callable[[bool], Response]) -> None:
        """Send the response that ``respond`` returns for the result of ``proof``; buffer frames until then."""

        async def judging() -> None:
            try:
                response = respond(await proof)
            except ClusterError:
                text = "the owner of this token cannot be checked now; try again\n"
                response = self._protocol.reject(http.HTTPStatus.SERVICE_UNAVAILABLE, text)
            self._judging = None
            self._protocol.send_response(response)
            self._send()
            data, self._rest = self._rest, b""
            self._receive_frames(data)

        async def guarded() -> None:
            try:
                await judging()
            except Exception:  # noqa: BLE001 - the outermost frame of the task
                # Close the connection on an exception, as a transport does for data_received; a task would hide it.
                _log.exception("connection.failed")
                self.abort()

        self._judging = self._server.tasks.start(guarded(), name="whose a token is")

    def start_stream(self, begin: Callable[[], Callable[[], None]]) -> None:
        """Send the response head, then events; ``begin`` returns a callback that ends the stream."""

        def begun() -> None:
            if self._transport is not None and not self._transport.is_closing():
                self._unfollow = begin()

        self._is_follower = True
        asyncio.get_running_loop().call_soon(begun)

    def write(self, event: bytes) -> bool:
        """Send an event to a subscriber, combined with those of a short period; False if the connection is closing."""
        assert self._transport is not None
        if not self._gathered:
            asyncio.get_running_loop().call_later(_GATHER_S, self._send_gathered)
        self._gathered.append(event)
        return not self._transport.is_closing()

    def _send_gathered(self) -> None:
        """Send the collected events; close a subscriber that does not read."""
        assert self._transport is not None
        events, self._gathered = self._gathered, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(events))
        if self._transport.get_write_buffer_size() > _FOLLOWER_BYTES_MAX:
            self.abort()

    def send(self, frame: bytes) -> None:
        """Send a binary message if the connection is an open websocket."""
        if self._protocol.state is State.OPEN and self._transport is not None:
            self._protocol.send_binary(frame)
            self._send()

    def end(self, code: CloseCode) -> None:
        """Send a close frame and close the connection."""
        if self._is_follower:
            self.abort()
        self._protocol.fail(code)
        self._send()

    def _receive_head(self, head: bytes) -> None:
        self._protocol.receive_data(head)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                response = self._server.respond(self._protocol, event, self)
                if response is not None:
                    self._protocol.send_response(response)
        self._send()

    def _receive_frames(self, data: bytes) -> None:
        """Process complete frames, and buffer the remaining bytes."""
        sender, position = self.sender, 0
        if sender is None:
            return None
        while (frame := cut(data, position)) is not None:
            if frame.end - frame.begin > _FRAME_BYTES_MAX:
                return self.end(CloseCode.MESSAGE_TOO_BIG)
            if frame.end > len(data):
                break
            if frame.is_plain:
                sender.handle(apply_mask(data[frame.begin : frame.end], data[frame.begin - MASK_BYTES : frame.begin]))
            else:
                self._receive_other(sender, data[position : frame.end])
            position = frame.end
        self._rest = data[position:]
        return None

    def _receive_other(self, sender: Sender, frame: bytes) -> None:
        """Pass control frames, text and fragments to the protocol. They never contain stats."""
        self._protocol.receive_data(frame)
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
                sender.malformed(InvalidValue(text=event.opcode.name, expected="a whole binary message"))
        self._send()

    def _send(self) -> None:
        """Send the protocol's pending data; empty data closes the connection."""
        assert self._transport is not None
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            elif not self._is_follower:
                self._transport.close()
