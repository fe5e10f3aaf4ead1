"""A client's HTTP/1.1 connection: parses requests one after the other, and creates an exchange for each.

A request is read only after the client has received the previous response, so that pipelined requests and unread
responses use no memory. Violations of the protocol get a response here and never reach the handler. After such a
response, and after any response to an incomplete request, no further request is read. The sending direction is closed
first, and the connection a moment later. An immediate close would reset the connection, and the client might lose the
response.
"""

import asyncio
import math
import time
from typing import ClassVar, cast

from serving.core.model.responses import TEXT_PLAIN
from serving.net.proxy.forwarding.client import (
    BODY_TOO_LARGE,
    BODY_TOO_SLOW,
    Pause,
    Registry,
    ResponseSink,
    peer_address,
)
from serving.net.proxy.forwarding.exchange import Exchange, Wiring
from serving.net.proxy.forwarding.pace import BodyPace
from serving.net.proxy.http1.body import CHUNKS_AT_ONCE, BadBody, ChunkedBody, LengthBody
from serving.net.proxy.http1.rendering import IDENTITY, ClientPeer, render_date, render_response
from serving.net.proxy.http1.requesthead import HeadMemory, RefusalCode, RequestHead, RequestRefusal, refused_start
from serving.net.proxy.server.writing import PREFACE, ResponseProtocol, hand_over

# Long enough for a client anywhere on earth to read a response and close (five round trips of 200 ms). A client that
# still sends its request gets this after each piece, in total at most the second time, because some read nothing before
# the end.
_LINGER_S = 1.0
_LINGER_MAX_S = 30.0
# How long a server that ends waits for the first request of a connection that it has accepted.
_FIRST_REQUEST_S = 0.3
# Longer than TCP stalls between two full buffers on a bad line, in seconds; a client that accepts no bytes for so long
# is cut off.
_FLUSH_S = 60.0
# A client that closes its direction after a request has disconnected, or waits for the response: TCP shows the
# difference only when bytes are sent. Longer than most starts from zero; a client that has disconnected keeps its place
# that long.
_HALF_CLOSED_S = 5.0
# Requests parsed at a time: a client may send thousands in one read, each as costly as any other.
_HEADS_AT_ONCE = 16


class Connection(ResponseProtocol):
    """One HTTP/1.1 connection of a client."""

    sink: ClassVar[ResponseSink | None] = None

    __slots__ = (
        "_address",
        "_blank_skipped",
        "_body_bytes",
        "_body_pace",
        "_buffer",
        "_consuming",
        "_due_s",
        "_eof_due_s",
        "_has_yielded",
        "_head_begun",
        "_heads",
        "_linger_end_s",
        "_lingering",
        "_paused",
        "_peer",
        "_reader",
    )

    def __init__(self, registry: Registry, wiring: Wiring) -> None:
        super().__init__(registry, wiring)
        self._address = ""
        self._peer = ClientPeer("")
        self._heads = HeadMemory(keeps_underscores=registry.settings.keep_underscore_headers)
        self._buffer = b""
        self._reader: LengthBody | ChunkedBody | None = None
        self._body_bytes = 0
        self._body_pace: BodyPace | None = None
        # Without an exchange: the deadline for the next head to begin, or to be complete.
        self._due_s = math.inf
        # Set when the client has closed its direction: the deadline for sending bytes to it.
        self._eof_due_s = math.inf
        self._head_begun = True
        self._blank_skipped = False
        self._paused = Pause(0)
        self._consuming = False
        self._lingering = False
        self._linger_end_s = math.inf
        self._has_yielded = False

    def __repr__(self) -> str:
        state = "closing" if self._closing or self._lingering else repr(self._exchange) if self._exchange else "idle"
        return f"Connection({self._address}, {state})"

    @property
    def is_idle(self) -> bool:
        """Whether no request runs and none has begun to arrive."""
        return self._exchange is None and not self._buffer and not self._lingering

    @property
    def _has_eof(self) -> bool:
        return self._eof_due_s < math.inf

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and wait for the first head."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._address = peer_address(self._transport.get_extra_info("peername"))
        is_tls, identity = bool(transport.get_extra_info("sslcontext")), transport.get_extra_info(IDENTITY, "")
        self._peer = self._wiring.peer_at(self._address, is_tls=is_tls, identity=identity)
        too_many = self._registry.opened(self, self._address)
        if too_many is not None:
            self._refuse(
                RequestRefusal(503, RefusalCode.CONNECTIONS, too_many), headers=TEXT_PLAIN + b"Retry-After: 1\r\n"
            )
            return
        self._wait_until(self._clock() + self._registry.settings.head_wait_max_s)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        exchange = self._exchange
        if exchange is not None and exchange.response.tunnel is not None:
            exchange.response.tunnel.send(data)
        elif not self._lingering:
            self._consume(self._buffer + data if self._buffer else data)
        else:
            # Discarded bytes cost time too, and an event loop reads up to 8 MiB of a connection at a time: pause
            # reading.
            self._yield_turn()
            if not self._full and not self._registry.finishing:
                self._due_s = min(self._clock() + _LINGER_S, self._linger_end_s)

    def eof_received(self) -> bool:
        """Process the end of the client's direction; True keeps the other direction open.

        A client that has sent a complete request may still wait for its response. Any other client has disconnected.
        """
        exchange = self._exchange
        if exchange is not None and exchange.response.tunnel is not None:
            exchange.response.tunnel.send_eof()
            return True
        if exchange is not None and self._reader is None:
            self._eof_due_s = self._clock() + _HALF_CLOSED_S
            exchange.closing = exchange.closing or not self._buffer
            self._registry.wake_by(self._eof_due_s)
            return True
        self._closing = True
        self._wait_until(self._clock() + _FLUSH_S)
        if exchange is not None:
            exchange.client_gone()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after either side has closed."""
        del exc
        self._closing = True
        self._registry.closed(self, self._address)
        if self._exchange is not None:
            self._exchange.client_gone()
        if self._slow_reader is not None:
            self._slow_reader.end()

    def resume_writing(self) -> None:
        """Resume the response, or parse the next request, because the client has read most of the last response."""
        super().resume_writing()
        if self._exchange is None:
            idle_s = self._registry.settings.client_idle_max_s
            self._wait_until(self._clock() + (_FLUSH_S if self._closing else _LINGER_S if self._lingering else idle_s))
            if not self._lingering and not self._closing:
                self._consume(self._buffer)

    # Called by the exchange.

    def pause(self, why: Pause) -> None:
        """Add a reason to pause reading."""
        if not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= why

    def resume(self, why: Pause) -> None:
        """Remove a reason to pause reading."""
        if not self._paused & why:
            return
        self._paused &= ~why
        if not self._paused and not self._transport.is_closing():
            if self._body_pace is not None:
                self._body_pace.resume(self._clock())
            self._transport.resume_reading()

    def open_tunnel(self) -> bytes:
        """Turn the connection into a tunnel; return the bytes already read."""
        ahead, self._buffer = self._buffer, b""
        self.resume(Pause.AHEAD)
        exchange = self._exchange
        assert exchange is not None
        self._registry.count_tunnel(1)
        self._registry.wake_by(exchange.check(self._clock()))
        return ahead

    def exchange_done(self, *, keep: bool) -> None:
        """Wait for the next request, or close."""
        if not keep and self._exchange is not None and self._exchange.response.tunnel is not None:
            self._registry.count_tunnel(-1)
        self._exchange = self._reader = self._body_pace = None
        if not self._full:
            self._slow_reader = None
        if self._closing:
            return
        if not keep or self._registry.finishing or (self._has_eof and not self._buffer):
            self._linger()
            return
        self._head_begun = False
        if self._paused:
            self.resume(Pause.HELD | Pause.UPSTREAM_FULL)
            self.resume(Pause.AHEAD)
        self._wait_until(self._clock() + self._registry.settings.client_idle_max_s)
        if self._buffer and not self._consuming:
            self._consume(self._buffer)

    # Called by the server.

    def wind_down(self) -> None:
        """Close after the current response. An idle connection stays open, because a request may be in transit."""
        if self._exchange is not None:
            self._exchange.closing = True

    def close_if_idle(self) -> None:
        """Close now if the connection is idle, otherwise after the response.

        At the end of the server, a new connection stays open for a moment, because its first request may be in transit.
        """
        if not self.is_idle:
            self.wind_down()
        elif self._head_begun and self._registry.finishing:
            self._wait_until(min(self._due_s, self._clock() + _FIRST_REQUEST_S))
        else:
            self._close()

    def cut(self) -> bool:
        """Close now; return whether a request was interrupted."""
        exchange = self._exchange
        if exchange is not None:
            exchange.cut()
            self._close()
            return True
        self.abort()
        return self._full

    def check(self, now_s: float) -> float:
        """Enforce expired time limits; return when the next limit expires."""
        exchange, slow_reader, due_s = self._exchange, self._slow_reader, self._due_s
        if exchange is not None:
            due_s = min(exchange.check(now_s), self._check_half_closed(exchange, now_s))
            if due_s <= now_s or exchange.response.tunnel is not None:
                return due_s
        if slow_reader is not None and self._full:
            read_due_s = slow_reader.check(now_s)
            # The rest of an ended response has no other limit.
            due_s = read_due_s if exchange is None else min(due_s, read_due_s)
            if read_due_s <= now_s:
                # Nothing written now would reach the client.
                if exchange is not None:
                    exchange.client_gone()
                self._transport.abort()
                return due_s
        if exchange is None:
            if due_s <= now_s:
                self._time_is_up()
            return due_s
        if self._body_pace is not None and not self._paused:
            body, has_response = exchange.body, bool(exchange.response.status)
            body_due_s = self._body_pace.due_s(exchange.head, is_continued=body.is_continued, has_response=has_response)
            due_s = min(due_s, body_due_s)
            if due_s <= now_s:
                self._end_body(exchange, 408, code=RefusalCode.SLOW_BODY, reason=BODY_TOO_SLOW)
        return due_s

    def _check_half_closed(self, exchange: Exchange, now_s: float) -> float:
        """End the request of a half-closed client if nothing was sent to the client for too long.

        Returns when this time limit expires; infinite if it does not apply.
        """
        if not self._has_eof or self._full or exchange is not self._exchange:
            return math.inf
        due_s = self._eof_due_s
        if exchange.response.status:
            due_s = max(due_s, exchange.response.written_s + _HALF_CLOSED_S)
        if due_s <= now_s:
            self._close()
            exchange.client_gone()
        return due_s

    def _time_is_up(self) -> None:
        if self._closing:
            self._transport.abort()
        elif self._lingering:
            self._close()
        elif self._buffer:
            self._refuse(RequestRefusal(408, RefusalCode.SLOW_HEAD, "the request's head came too slowly"))
        else:
            self._close()

    # Parsing of requests.

    def _consume(self, data: bytes) -> None:
        self._consuming = True
        heads_left = _HEADS_AT_ONCE
        try:
            while True:
                if self._reader is not None:
                    data = self._receive_body(data)
                elif self._exchange is None and not self._full and not self._lingering and not self._closing:
                    if not heads_left:
                        self._yield_turn()
                        break
                    heads_left -= 1
                    rest = self._receive_head(data)
                    if rest is None:
                        return
                    data = rest
                else:
                    break
                if not data:
                    break
        finally:
            self._consuming = False
        self._buffer = data
        if len(data) >= self._registry.settings.body_held_bytes_max:
            self.pause(Pause.AHEAD)

    def _receive_head(self, data: bytes) -> bytes | None:
        """Begin an exchange and return the bytes after its head; None while the head is incomplete."""
        if not self._blank_skipped and data.startswith(b"\r\n"):
            # An empty line before a request comes from clients that end bodies with one (RFC 9112, 2.2).
            self._blank_skipped = True
            data = data[2:]
        bytes_max = self._registry.settings.head_bytes_max
        end = data.find(b"\r\n\r\n", 0, bytes_max + 4)
        if end < 0:
            self._buffer_partial_head(data)
            return None
        try:
            head = self._heads.read(data[:end], header_count_max=self._registry.settings.header_count_max)
            self._check_length(head)
        except RequestRefusal as refusal:
            if not data.startswith(PREFACE):
                self._refuse(refusal)
            else:
                self._closing = True
                hand_over(data, self._registry, self._wiring, transport=self._transport, peer=self._peer)
                self._registry.closed(self, self._address)
            return None
        self._buffer = b""
        self._blank_skipped = False
        return self._begin(head, data[end + 4 :])

    def _begin(self, head: RequestHead, data: bytes) -> bytes:
        now_s = self._clock()
        exchange = Exchange(self, head, self._wiring, peer=self._peer, now_s=now_s)
        exchange.closing = self._registry.draining
        self._exchange = exchange
        if head.has_body:
            chunked = head.chunked
            self._reader = ChunkedBody(chunks_max=CHUNKS_AT_ONCE) if chunked else LengthBody(head.content_length or 0)
            self._body_bytes = 0
            if data:
                # Before the handler is called, so that head and body are forwarded in one write.
                data = self._receive_body(data)
            else:
                self._body_pace = BodyPace(self._wiring.body_pace, now_s)
        if self._exchange is exchange:
            exchange.begin()
        if self._exchange is exchange:
            # Unless a sweep comes before this request's deadline; inlined, because it runs for each request.
            limits, until_s = exchange.timeouts, self._registry.sweep_s - now_s
            if (
                limits.total_s < until_s
                or limits.response_start_s < until_s
                or limits.idle_s < until_s
                or exchange.wait_until_s - now_s < until_s
                or self._reader is not None
            ):
                self._registry.wake_by(self.check(now_s))
        return data

    def _receive_body(self, data: bytes) -> bytes:
        """Forward the bytes of the body, and return the bytes after it."""
        reader, exchange = self._reader, self._exchange
        assert reader is not None
        assert exchange is not None
        try:
            payload = reader.feed(data)
        except BadBody as bad:
            self._end_body(exchange, 400, code=RefusalCode.BODY, reason=str(bad))
            return b""
        if reader.is_costly or reader.has_more:
            self._yield_turn()
        if not reader.done:
            self._body_pace = self._body_pace or BodyPace(self._wiring.body_pace, exchange.started_s)
            self._body_pace.receive(len(payload), self._clock())
        self._body_bytes += len(payload)
        bytes_max = self._registry.settings.body_bytes_max
        if bytes_max and self._body_bytes > bytes_max:
            self._end_body(exchange, 413, code=RefusalCode.BODY_SIZE, reason=BODY_TOO_LARGE)
            return b""
        if reader.done:
            self._reader = self._body_pace = None
            exchange.receive_body_end(payload, reader.trailers)
            return reader.rest
        if payload:
            exchange.receive_body(payload)
        return b""

    def _yield_turn(self) -> None:
        """Let other connections run before reading on, because this client causes much work with few bytes."""
        self.pause(Pause.TURN)
        if not self._has_yielded:
            self._has_yielded = True
            self._registry.turns.defer(self._continue)

    def _continue(self) -> None:
        self._has_yielded = False
        if self._reader is not None and self._reader.has_more:
            self._consume(b"")
        elif self._exchange is None and self._buffer:
            self._consume(self._buffer)
        if not self._has_yielded:
            self.resume(Pause.TURN)

    def _check_length(self, head: RequestHead) -> None:
        bytes_max = self._registry.settings.body_bytes_max
        if bytes_max and (head.content_length or 0) > bytes_max:
            raise RequestRefusal(413, RefusalCode.BODY_SIZE, BODY_TOO_LARGE)

    def _buffer_partial_head(self, data: bytes) -> None:
        refusal = refused_start(data, head_bytes_max=self._registry.settings.head_bytes_max)
        if refusal is not None:
            self._refuse(refusal)
        elif self._has_eof:
            self._close()
        else:
            if data and not self._head_begun:
                self._head_begun = True
                self._wait_until(self._clock() + self._registry.settings.head_wait_max_s)
            self._buffer = data

    def _end_body(self, exchange: Exchange, status: int, *, code: RefusalCode, reason: str) -> None:
        self._registry.refusals.record(code, reason, self._address)
        exchange.respond(status, reason.encode(), close=True)

    def _refuse(self, refusal: RequestRefusal, headers: bytes = TEXT_PLAIN) -> None:
        self._registry.refusals.record(refusal.code, str(refusal), self._address)
        headers += render_date(time.time())
        self._transport.write(render_response(refusal.status, body=str(refusal).encode(), headers=headers, close=True))
        self._linger()

    def _linger(self) -> None:
        """Close the sending direction, and wait briefly for the client to close its own."""
        if self._has_eof:
            self._close()
            return
        self._lingering = True
        self._buffer = b""
        self._paused = Pause(0) if self._transport.is_closing() else self._paused
        self.resume(self._paused)
        self.write_eof()
        now_s = self._clock()
        self._linger_end_s = now_s + _LINGER_MAX_S
        self._wait_until(now_s + _LINGER_S)

    def _close(self) -> None:
        self._closing = True
        self._transport.close()
        self._wait_until(self._clock() + _FLUSH_S)

    def _wait_until(self, due_s: float) -> None:
        self._due_s = due_s
        if due_s < self._registry.sweep_s:
            self._registry.wake_by(due_s)
