"""One attempt to forward a request to an upstream.

A request of which no byte reached the app, because its pooled connection was closed, is sent once more on a fresh one. Any other
failure before the response is passed to the exchange, whose handler may forward the request elsewhere in a new attempt.
"""

import time
from collections.abc import Callable
from typing import Protocol

from serving.net.proxy.forwarding.client import Client, Pause, ResponseSink, Tunnel
from serving.net.proxy.forwarding.exchangestate import NO_BODY, ExchangeParts
from serving.net.proxy.forwarding.phase import TRANSITIONS, ExchangeEvent, ExchangeOutcome, ExchangePhase
from serving.net.proxy.http1.body import chunk, chunks
from serving.net.proxy.http1.lines import marks_for_client
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.http1.rendering import render_date, render_forwarded_response, render_interim, render_timing
from serving.net.proxy.http1.responsehead import Framing, ResponseHead
from serving.net.proxy.http1.upstream import Address, RequestCarrier

# Looked up once: an attribute of an enum costs 60 ns, and a request asks for fifteen.
_CONNECTING = ExchangePhase.CONNECTING
_RESPONDING, _TUNNEL = ExchangePhase.RESPONDING, ExchangePhase.TUNNEL
_CHUNKED, _CLOSE = Framing.CHUNKED, Framing.CLOSE
_ON_CONNECT, _ON_SEND = TRANSITIONS[ExchangeEvent.CONNECT], TRANSITIONS[ExchangeEvent.SEND]
_ON_RESPONSE, _ON_SWITCH = TRANSITIONS[ExchangeEvent.RESPOND], TRANSITIONS[ExchangeEvent.SWITCH]

_SERVER_ERROR = 500
_PROXY_STATUS = b"proxy-status:"
UNDELIVERED = b"K-Undelivered: true\r\n"
"""A header line of a 503: the app has not seen the request, so the caller may retry it whatever its method."""


class Attempted(ExchangeParts, Protocol):
    """The exchange, as used by its attempt."""

    phase: ExchangePhase
    closing: bool
    is_timed: bool
    response_headers: bytes

    @property
    def started_s(self) -> float:
        """When the request's head was complete."""

    @property
    def now_s(self) -> Callable[[], float]:
        """The engine's clock."""

    def respond(self, status: int, body: bytes = b"") -> None:
        """Send a response without an upstream."""

    def cut(self) -> None:
        """End the response early."""

    def identify(self) -> bytes:
        """Give an error an id; return its header line."""

    def client_full(self, *, full: bool) -> None:
        """Buffer or pause the response."""

    def give_back(self, error: OSError | str) -> None:
        """Return the request after an attempt that failed before its response."""

    def end(self, outcome: ExchangeOutcome, *, keep: bool) -> None:
        """Finish the exchange."""


class Attempt:
    """One attempt to send a request to one address. ``wire`` is the encoded head; ``hears_marks``: the upstream is our queue-proxy."""

    __slots__ = (
        "_client",
        "_exchange",
        "_hears_marks",
        "_is_chunked",
        "_is_second",
        "_keep",
        "_pool",
        "_sink",
        "_wire",
        "address",
        "head",
        "is_end_visible",
        "upstream",
    )

    def __init__(
        self, exchange: Attempted, client: Client, pool: Pool, *, address: Address, wire: bytes, hears_marks: bool
    ) -> None:
        self.address = address
        self._hears_marks = hears_marks
        self.head = exchange.head
        self.is_end_visible = True
        """Whether a client can tell a response that was cut off from a whole one by its framing."""
        self._exchange = exchange
        self._client = client
        self._pool = pool
        self._wire = wire
        self.upstream: RequestCarrier | None = None
        """The connection or stream that carries the request; None before there is one."""
        self._is_second = False
        self._sink: ResponseSink | None = None
        self._is_chunked = False
        self._keep = False

    @property
    def request_complete(self) -> bool:
        """Whether the whole request has been read."""
        return self._exchange.body.is_complete

    @property
    def request_trailers(self) -> bytes:
        """The trailers of the request."""
        return self._exchange.body.trailers

    # Called by the exchange.

    def start(self) -> None:
        """Send the request on an idle connection, or wait for one; a retry waits for a new one."""
        upstream = None
        if not self._is_second:
            head = self.head
            upstream = self._pool.acquire(self.address, sure=head.method != b"GET" and not head.may_be_repeated)
        if upstream is not None:
            self._send(upstream)
        else:
            self._exchange.phase = _ON_CONNECT[self._exchange.phase]
            self._pool.connect(self.address, self, new=self._is_second)

    def hold(self, *, full: bool) -> None:
        """Pause reading the response while the client's buffer is full."""
        if self.upstream is not None:
            self.upstream.hold(full=full)

    def release(self, *, flush: bool = False) -> None:
        """Release the connection; with ``flush`` after all written data is sent."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None and flush:
            upstream.close()
        elif upstream is not None:
            upstream.drop()

    # Called by the pool.

    @property
    def is_waiting(self) -> bool:
        """Whether the request is still to be sent."""
        return self._exchange.phase is _CONNECTING

    def connected(self, upstream: RequestCarrier) -> None:
        """Send the request on a connection that has become free."""
        self._send(upstream)

    def unreachable(self, error: OSError) -> None:
        """Return the request to its handler, because the connection failed."""
        self._exchange.give_back(error)

    # Called by the upstream's connection.

    def on_interim(self, head: ResponseHead) -> None:
        """Forward a 1xx response to clients that understand it."""
        if self.head.minor == 1 and (
            head.status != 100 or (self.head.expects_continue and not self._exchange.body.is_continued)
        ):
            self._client.write(render_interim(head))

    def on_upgraded(self, head: ResponseHead, data: bytes) -> Tunnel:
        """Forward a 101 response, and return the tunnel for all further bytes."""
        exchange, upstream = self._exchange, self.upstream
        assert upstream is not None
        exchange.phase = _ON_SWITCH[exchange.phase]
        exchange.body.drop()
        exchange.response.status = 101
        exchange.response.tunnel = tunnel = Tunnel(
            self._client, upstream, clock=exchange.now_s, on_end=self._end_tunnel, has_upstream_spoken=bool(data)
        )
        self._client.write(render_interim(head) + data)
        ahead = self._client.open_tunnel()
        if ahead:
            tunnel.send(ahead)
        return tunnel

    def on_response(self, head: ResponseHead, payload: bytes, *, done: bool, trailers: bytes = b"") -> None:
        """Start the response; with ``done`` it is complete with ``payload``."""
        exchange = self._exchange
        # An app may write anything: what our hops say is taken from hops only.
        marks = head.marks if self._hears_marks else b""
        if head.status == 503 and UNDELIVERED in marks and exchange.body.can_replay:
            self.release()
            exchange.body.rewind()
            self._client.resume(Pause.UPSTREAM_FULL)
            exchange.give_back(ConnectionRefusedError("the app takes no connection"))
            return
        exchange.phase = _ON_RESPONSE[exchange.phase]
        if exchange.body is not NO_BODY:
            exchange.body.drop()
        response = exchange.response
        response.status = head.status
        response.wire = head.wire
        response.marks = marks
        response.body_bytes = len(payload)
        self._keep = self.head.keep_alive and exchange.body.is_complete and not exchange.closing
        extra = exchange.response_headers
        if marks:
            extra += marks_for_client(marks, is_timed=exchange.is_timed)
            if head.status >= _SERVER_ERROR and _PROXY_STATUS in marks.lower():
                extra += exchange.identify()
        if exchange.is_timed:
            sent_s = response.sent_s
            extra += render_timing(queue_s=sent_s - exchange.started_s, upstream_s=exchange.now_s() - sent_s)
        if not head.is_dated:
            extra += render_date(time.time())
        if not done:
            response.written_s = exchange.now_s()
        sink = self._sink = self._client.sink
        if sink is not None:
            sink.begin_response(head, extra, payload, done=done, trailers=trailers)
            return
        framing = head.framing
        if framing is _CHUNKED or framing is _CLOSE:
            self._is_chunked = self.is_end_visible = self.head.minor == 1
            framing = _CHUNKED if self._is_chunked else _CLOSE
        wire = render_forwarded_response(head, framing=framing, close=not self._keep, extra=extra)
        body = chunks(payload, done=done, trailers=trailers) if self._is_chunked else payload
        self._client.write(wire + body)

    def on_piece(self, payload: bytes) -> None:
        """Forward a piece of the response's body that is not the last."""
        exchange, sink = self._exchange, self._sink
        response = exchange.response
        response.written_s = exchange.now_s()
        response.body_bytes += len(payload)
        if sink is not None:
            sink.send_piece(payload)
        elif payload:
            self._client.write(chunk(payload) if self._is_chunked else payload)
        if response.is_unread:
            exchange.client_full(full=True)

    def on_last(self, payload: bytes, trailers: bytes) -> None:
        """Forward the last piece of the response's body, which may be empty, and the trailers."""
        sink, response = self._sink, self._exchange.response
        response.written_s = self._exchange.now_s()
        response.body_bytes += len(payload)
        if sink is not None:
            sink.send_last(payload, trailers)
            return
        wire = chunks(payload, done=True, trailers=trailers) if self._is_chunked else payload
        if wire:
            self._client.write(wire)

    def upstream_full(self, *, full: bool) -> None:
        """Pause or resume the request's body: the upstream's buffer is full, or no longer."""
        if full:
            self._client.pause(Pause.UPSTREAM_FULL)
        else:
            self._client.resume(Pause.UPSTREAM_FULL)

    def upstream_done(self) -> None:
        """Finish the exchange: the response is complete, its connection back in the pool."""
        self.upstream = None
        self._exchange.end(ExchangeOutcome.ANSWERED, keep=self._keep)

    def upstream_lost(self, reason: str, *, heard: bool, unseen: bool, is_cancelled: bool = False) -> None:
        """Handle a connection lost before its response was complete.

        ``heard`` says that some bytes of a response were received, ``unseen`` that no byte of the request reached the app,
        ``is_cancelled`` that the app cancelled the stream. A request that the app has seen may be what ended it: it is sent
        again only if its client says that it may be.
        """
        self.upstream = None
        exchange = self._exchange
        if exchange.phase is _TUNNEL:
            exchange.end(ExchangeOutcome.ANSWERED, keep=False)
        elif exchange.phase is _RESPONDING:
            exchange.response.is_cancelled = is_cancelled
            exchange.cut()
        elif heard or not exchange.body.can_replay:
            exchange.respond(502, reason.encode())
        elif unseen:
            exchange.body.rewind()
            if self._is_second:
                exchange.give_back(ConnectionResetError(reason))
            else:
                # The upstream closed an idle connection while the request was on its way.
                self._is_second = True
                self.start()
        else:
            exchange.body.rewind()
            exchange.give_back(reason)

    def upstream_refused(self, reason: str, body: bytes) -> None:
        """Return a request to its handler that the upstream did not process; any method may be retried.

        ``body`` is the part of the body that was sent to the upstream.
        """
        exchange = self._exchange
        self.upstream = None
        if exchange.body is not NO_BODY:
            exchange.body.restore(body)
        self._client.resume(Pause.UPSTREAM_FULL)
        exchange.give_back(ConnectionRefusedError(reason))

    def _send(self, upstream: RequestCarrier) -> None:
        exchange = self._exchange
        exchange.phase = _ON_SEND[exchange.phase]
        self.upstream = upstream
        if exchange.is_timed:
            exchange.response.sent_s = exchange.now_s()
        if exchange.body is NO_BODY:
            upstream.carry(self, self._wire, b"")
            return
        self._client.resume(Pause.HELD)
        upstream.carry(self, self._wire, exchange.body.send())

    def _end_tunnel(self) -> None:
        self.release(flush=True)
        self._exchange.end(ExchangeOutcome.ANSWERED, keep=False)
