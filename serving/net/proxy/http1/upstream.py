"""A connection to an upstream: carries one request at a time, and parses its response as it arrives.

The connection passes parsed parts to a ``ResponseReceiver`` (an exchange). After a complete response it returns to the
pool. It is closed instead after Connection: close, after a body that ends with the connection, after unexpected bytes,
and after a response that arrived before its request was sent completely.
"""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from serving.net.aio.turns import FairTurns
from serving.net.proxy.http1.body import CHUNKS_AT_ONCE, BadBody, ChunkedBody, CloseBody, LengthBody, chunk, chunks
from serving.net.proxy.http1.requesthead import RequestHead
from serving.net.proxy.http1.responsehead import BadResponse, Framing, ResponseHead, ResponseMemory

Address = tuple[str, int]
# Read once: an enum attribute costs 60 ns.
_NONE, _LENGTH = Framing.NONE, Framing.LENGTH
# Linux only; elsewhere apps that write in parts wait for delayed acknowledgements.
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)

_READ_BYTES = 256 * 1024
INTERIM_MAX = 1000
"""Most interim responses (1xx) per request: an app that sends more costs other requests time."""

# Fields of struct tcp_info (linux/tcp.h, since Linux 4.19): bytes_acked, which counts the SYN, bytes_sent,
# bytes_retrans.
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ACKED = struct.Struct("=Q")
_ACKED_OFFSET = 120
_SENT = struct.Struct("=QQ")
_SENT_OFFSET = 200
_INFO_BYTES = _SENT_OFFSET + _SENT.size


class ResponseReceiver(Protocol):
    """Receives a response from a connection, and supplies the rest of the request.

    ``heard``: some bytes of the response were received. ``unseen``: no byte of the request reached the app.
    """

    head: RequestHead

    @property
    def request_complete(self) -> bool:
        """Whether the whole request has been received from the client."""

    @property
    def request_trailers(self) -> bytes:
        """The request's trailers, once it is complete."""

    def on_interim(self, head: ResponseHead) -> None:
        """Process a 1xx response."""

    def on_upgraded(self, head: ResponseHead, data: bytes) -> "TunnelEnd":
        """Switch protocols after a 101 followed by ``data``; return the tunnel for all further bytes."""

    def on_response(self, head: ResponseHead, payload: bytes, *, done: bool, trailers: bytes = b"") -> None:
        """Process the final head, and ``payload``, the first bytes of the body."""

    def on_piece(self, payload: bytes) -> None:
        """Process a piece of the body, which may be empty; more follows."""

    def on_last(self, payload: bytes, trailers: bytes) -> None:
        """Process the last piece of the body, which may be empty, and the trailers."""

    def upstream_full(self, *, full: bool) -> None:
        """Pause or resume sending the request's body."""

    def upstream_done(self) -> None:
        """Process the complete response."""

    def upstream_lost(self, reason: str, *, heard: bool, unseen: bool, is_cancelled: bool = False) -> None:
        """Process a connection that was lost before the response was complete.

        ``is_cancelled``: the app cancelled the stream.
        """

    def upstream_refused(self, reason: str, body: bytes) -> None:
        """Process a request that the upstream refused unprocessed. ``body`` is the already sent part."""


class TunnelEnd(Protocol):
    """A tunnel, as used by an upstream's connection."""

    def receive(self, data: bytes) -> None:
        """Process bytes of the upstream."""

    def receive_eof(self) -> None:
        """Process the end of the upstream's direction."""


class Home(Protocol):
    """The pool, as used by its connections."""

    head_bytes_max: int
    header_count_max: int
    clock: Callable[[], float]
    turns: FairTurns

    def release(self, upstream: "Upstream") -> None:
        """Return a connection to the pool."""

    def forget(self, upstream: "Upstream") -> None:
        """Remove an ended connection."""


class RequestCarrier(Protocol):
    """Carries a request to an upstream and its response back, over a connection or a stream."""

    is_reused: bool

    def carry(self, receiver: ResponseReceiver, wire: bytes, body: bytes) -> None:
        """Send the head of a request, and the body received so far; ``receiver`` gets the response."""

    def write(self, data: bytes) -> None:
        """Send more of the request's body, or bytes of a tunnel.

        ``data`` is not empty, and not the last piece of a body.
        """

    def finish(self, data: bytes, trailers: bytes) -> None:
        """Send the last piece of the request's body, which may be empty, and its trailers."""

    def write_eof(self) -> None:
        """Close the sending direction."""

    def pause_reading(self, *, full: bool) -> None:
        """Pause reading the response while the client's buffer is full, or resume."""

    def drop(self) -> None:
        """Abort: discard the rest of the response."""

    def close(self) -> None:
        """Close once all written data is sent."""


class Upstream(asyncio.Protocol):
    """One HTTP/1.1 connection to an upstream."""

    __slots__ = (
        "_buffer",
        "_full",
        "_has_received",
        "_has_yielded",
        "_heads",
        "_home",
        "_interim_left",
        "_is_chunked",
        "_is_client_full",
        "_is_paused",
        "_keep",
        "_reader",
        "_receiver",
        "_sent_bytes",
        "_transport",
        "_tunnel",
        "address",
        "idle_since_s",
        "is_reused",
        "turn",
    )

    def __init__(self, home: Home, address: Address) -> None:
        self.address = address
        self.is_reused = False
        self.idle_since_s = 0.0
        self.turn = 0
        """The connector's turn when it opened this connection."""
        self._home = home
        self._receiver: ResponseReceiver | None = None
        self._reader: LengthBody | ChunkedBody | CloseBody | None = None
        self._heads = ResponseMemory()
        self._buffer = b""
        self._has_received = False
        self._is_client_full = False
        self._has_yielded = False
        self._is_paused = False
        self._interim_left = INTERIM_MAX
        self._full = False
        self._keep = False
        # State of the current request.
        self._is_chunked = False
        self._sent_bytes = 0
        self._tunnel: TunnelEnd | None = None
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        state = "idle" if self._receiver is None else "tunnel" if self._tunnel is not None else "busy"
        return f"Upstream({self.address[0]}:{self.address[1]}, {state})"

    @property
    def is_usable(self) -> bool:
        """Whether the connection may carry a request."""
        return not self._transport.is_closing() and self._receiver is None

    # Called by an exchange.

    def carry(self, receiver: ResponseReceiver, wire: bytes, body: bytes) -> None:
        """Send the head of a request, and the received part of its body; ``receiver`` gets the response."""
        assert self._receiver is None, self
        self._receiver = receiver
        self._has_received = False
        self._interim_left = INTERIM_MAX
        head = receiver.head
        if head.has_body:
            self._is_chunked = head.chunked
            done = receiver.request_complete
            wire += chunks(body, done=done, trailers=receiver.request_trailers) if head.chunked else body
        self._sent_bytes = len(wire)
        self._transport.write(wire)
        if self._full:
            receiver.upstream_full(full=True)

    def write(self, data: bytes) -> None:
        """Send more of the request, or bytes of the tunnel."""
        self._transport.write(chunk(data) if self._is_chunked else data)

    def finish(self, data: bytes, trailers: bytes) -> None:
        """Send the end of the request's body."""
        wire = chunks(data, done=True, trailers=trailers) if self._is_chunked else data
        if wire:
            self._transport.write(wire)

    def write_eof(self) -> None:
        """Send the end of the stream."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def pause_reading(self, *, full: bool) -> None:
        """Pause reading while the client's buffer is full, or resume."""
        if full is not self._is_client_full and not self._transport.is_closing():
            self._is_client_full = full
            self._update_reading()

    def drop(self) -> None:
        """Close immediately, and discard the rest of the response."""
        self._receiver = None
        self._transport.abort()

    def close(self) -> None:
        """Close the connection after pending writes."""
        self._receiver = None
        self._transport.close()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and forward the parts."""
        receiver = self._receiver
        if receiver is None:
            # Unsolicited bytes must not become the response to the next request.
            self._transport.abort()
            return
        self._has_received = True
        reader = self._reader
        if self._tunnel is not None:
            self._tunnel.receive(data)
        elif reader is None:
            self._read_head(receiver, self._buffer + data if self._buffer else data)
        else:
            self._read_body(receiver, reader, data)

    def eof_received(self) -> bool:
        """Process the end of the stream; True keeps the other direction of a tunnel open."""
        if self._tunnel is not None and self._receiver is not None:
            self._tunnel.receive_eof()
            return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request of a lost connection.

        After a failed write the loop reads no more, so this method first reads a response that has already arrived. An
        app may respond without reading the request's body (RFC 9112, section 9.6).
        """
        self._home.forget(self)
        if exc is not None and self._receiver is not None:
            for data in unread_pieces(self._transport):
                self.data_received(data)
                if self._reader is not None and self._reader.has_more:
                    # Chunks of a few bytes: parsing all of them would delay other requests.
                    break
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if isinstance(self._reader, CloseBody) and exc is None:
            receiver.on_last(b"", b"")
            receiver.upstream_done()
        else:
            reason = "the upstream closed its connection before its answer was complete"
            unseen = exc is None and unreceived_bytes(self._transport) >= self._sent_bytes
            receiver.upstream_lost(reason, heard=self._has_received, unseen=unseen)

    def pause_writing(self) -> None:
        """Pause, because the peer does not read."""
        self._full = True
        if self._receiver is not None:
            self._receiver.upstream_full(full=True)

    def resume_writing(self) -> None:
        """Resume, because the peer has read."""
        self._full = False
        if self._receiver is not None:
            self._receiver.upstream_full(full=False)

    def _read_body(self, receiver: ResponseReceiver, reader: LengthBody | ChunkedBody | CloseBody, data: bytes) -> None:
        try:
            payload = reader.feed(data)
        except BadBody as bad:
            self._fail(f"malformed answer: {bad}")
            return
        if not reader.done:
            self._yield_if_costly(reader)
            receiver.on_piece(payload)
            return
        receiver.on_last(payload, reader.trailers)
        if self._receiver is receiver:
            self._complete(receiver, rest=reader.rest)

    def _yield_if_costly(self, reader: LengthBody | ChunkedBody | CloseBody) -> None:
        """Let other connections run before reading on, if this response causes much work with few bytes."""
        if (reader.has_more or reader.is_costly) and not self._has_yielded and not self._transport.is_closing():
            self._has_yielded = True
            self._update_reading()
            self._home.turns.defer(self._continue)

    def _continue(self) -> None:
        self._has_yielded = False
        if self._receiver is not None and self._reader is not None and self._reader.has_more:
            self._read_body(self._receiver, self._reader, b"")
        if not self._transport.is_closing():
            self._update_reading()

    def _update_reading(self) -> None:
        is_paused = self._is_client_full or self._has_yielded
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _read_head(self, receiver: ResponseReceiver, data: bytes) -> None:
        while True:
            end = data.find(b"\r\n\r\n", 0, self._home.head_bytes_max + 4)
            if end < 0:
                self._buffer = data
                if len(data) > self._home.head_bytes_max:
                    self._fail("the answer's head is too large")
                else:
                    self._acknowledge()
                return
            try:
                head = self._heads.read(
                    data[:end], method=receiver.head.method, header_count_max=self._home.header_count_max
                )
            except BadResponse as bad:
                self._fail(f"malformed answer: {bad}")
                return
            data = data[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                self._upgraded(receiver, head, data)
                return
            self._interim_left -= 1
            if not self._interim_left:
                self._fail("too many interim responses")
                return
            receiver.on_interim(head)
            if not data or self._receiver is not receiver:
                self._buffer = b""
                return
        self._buffer = b""
        self._begin_response(receiver, head, data)

    def _begin_response(self, receiver: ResponseReceiver, head: ResponseHead, data: bytes) -> None:
        self._keep = head.keep_alive
        framing = head.framing
        if framing is _LENGTH and len(data) == head.content_length:
            # The common case: head and body in one read.
            receiver.on_response(head, data, done=True)
            if self._receiver is receiver:
                self._complete(receiver, rest=b"")
            return
        if framing is _NONE:
            receiver.on_response(head, b"", done=True)
            if self._receiver is receiver:
                self._complete(receiver, rest=data)
            return
        reader: LengthBody | ChunkedBody | CloseBody
        if framing is _LENGTH:
            assert head.content_length is not None
            reader = LengthBody(head.content_length)
        else:
            reader = ChunkedBody(chunks_max=CHUNKS_AT_ONCE) if framing is Framing.CHUNKED else CloseBody()
        self._reader = reader
        try:
            payload = reader.feed(data) if data else b""
        except BadBody as bad:
            self._fail(f"malformed answer: {bad}")
            return
        if not reader.done:
            self._acknowledge()
            self._yield_if_costly(reader)
        receiver.on_response(head, payload, done=reader.done, trailers=reader.trailers)
        if reader.done and self._receiver is receiver:
            self._complete(receiver, rest=reader.rest)

    def _acknowledge(self) -> None:
        """Acknowledge the received part of a response immediately.

        An app without TCP_NODELAY that writes head and body separately sends the body only after the head is
        acknowledged. The kernel would delay the acknowledgement by 40 ms. Source: RFC 896, and tcp(7), TCP_QUICKACK.
        """
        if _QUICK_ACK is not None and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _upgraded(self, receiver: ResponseReceiver, head: ResponseHead, data: bytes) -> None:
        if receiver.head.upgrade is None or head.upgrade is None:
            self._fail("the upstream switched protocols without a request")
            return
        self._is_chunked = False
        self._tunnel = receiver.on_upgraded(head, data)

    def _complete(self, receiver: ResponseReceiver, *, rest: bytes) -> None:
        self._receiver = None
        self._reader = None
        if self._keep and not rest and receiver.request_complete and not self._transport.is_closing():
            self._home.release(self)
        elif receiver.request_complete:
            self._transport.close()
        else:
            # The rest of the request would wait for an upstream that does not read it.
            self._transport.abort()
        receiver.upstream_done()

    def _fail(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        self._transport.abort()
        if receiver is not None:
            receiver.upstream_lost(reason, heard=True, unseen=False)


def unread_pieces(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """Read the bytes that the event loop has not read, for example after a failed write; at most one receive buffer.

    Must be called in ``connection_lost``, while the socket is still open. A TLS transport passes its underlying socket.
    """
    descriptor = _descriptor_of(transport)
    while descriptor >= 0:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:
            return
        if not data:
            return
        yield data


def unreceived_bytes(transport: asyncio.BaseTransport) -> int:
    """The number of written bytes that the peer has not acknowledged; 0 if unknown.

    A peer that closes the connection has acknowledged all bytes that it received.
    """
    if _TCP_INFO is None or _descriptor_of(transport) < 0:
        return 0
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except OSError:
        return 0
    if len(info) < _INFO_BYTES:
        return 0
    (acked,), (sent, resent) = _ACKED.unpack_from(info, _ACKED_OFFSET), _SENT.unpack_from(info, _SENT_OFFSET)
    # A transport that was already closing sent none of the written bytes.
    return int(sent - resent - (acked - 1)) if sent else sys.maxsize


def _descriptor_of(transport: asyncio.BaseTransport) -> int:
    """The open descriptor of a transport; -1 without one."""
    connection = transport.get_extra_info("socket")
    return -1 if connection is None else int(connection.fileno())
