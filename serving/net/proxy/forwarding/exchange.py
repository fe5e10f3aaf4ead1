"""One request and its response, and the daemon's decisions about it.

A daemon gives the engine a ``Handler``. For each request the engine calls ``begin`` once, and later always ``finish``
once. The handler decides in ``begin``, or keeps the exchange and decides later. It decides by one call of:

- ``exchange.forward((host, port), ...)``: the request is sent to this address, and the response is returned to the
  client; bodies are streamed; or
- ``exchange.respond(status, body, headers)``: a response without an upstream.

While an exchange waits, the engine observes its client and its time limit. If the client disconnects, the exchange
ends, and ``finish`` gets the outcome CLIENT_GONE. At ``exchange.wait_until_s`` the engine calls ``overdue``. If no
connection can be opened, the engine calls ``unreachable``: no byte of the request was sent, and the handler forwards
the request elsewhere or responds. If the upstream ends before the first byte of its response, and the engine still has
the complete request, it calls ``lost``.

All calls are in the loop's thread and none awaits, so that a slot that ``begin`` acquires and ``finish`` releases is
never lost. When ``finish`` is called, the upstream's connection is in the pool again. On an ended exchange, ``forward``
and ``respond`` do nothing.
"""

import math
import os
import re
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from serving.core.model.responses import TEXT_PLAIN
from serving.net.proxy.forwarding.client import Client, Pause, ResponseSink, Tunnel
from serving.net.proxy.forwarding.exchangestate import NO_BODY, RequestBody, ResponseState
from serving.net.proxy.forwarding.pace import MinimumRate, ResponseBuffers
from serving.net.proxy.forwarding.phase import TRANSITIONS, ExchangeEvent, ExchangeOutcome, ExchangePhase
from serving.net.proxy.forwarding.policy import NO_TIMEOUTS, member_of
from serving.net.proxy.http1.body import chunk, chunks
from serving.net.proxy.http1.lines import marks_for_client
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.http1.rendering import (
    ClientPeer,
    render_date,
    render_forwarded_response,
    render_interim,
    render_proxy_status,
    render_request,
    render_response,
    render_timing,
)
from serving.net.proxy.http1.requesthead import RequestHead, is_grpc_call
from serving.net.proxy.http1.responsehead import Framing, ResponseHead
from serving.net.proxy.http1.upstream import Address, RequestCarrier

# Read once: an enum attribute costs 60 ns, and a request uses fifteen.
_WAITING, _CONNECTING, _SENT = ExchangePhase.WAITING, ExchangePhase.CONNECTING, ExchangePhase.SENT
_RESPONDING, _TUNNEL, _DONE = ExchangePhase.RESPONDING, ExchangePhase.TUNNEL, ExchangePhase.DONE
_CHUNKED, _CLOSE = Framing.CHUNKED, Framing.CLOSE
_ON_CONNECT, _ON_SEND = TRANSITIONS[ExchangeEvent.CONNECT], TRANSITIONS[ExchangeEvent.SEND]
_ON_RESPONSE, _ON_SWITCH = TRANSITIONS[ExchangeEvent.RESPOND], TRANSITIONS[ExchangeEvent.SWITCH]
_ON_GIVE_BACK, _ON_END = TRANSITIONS[ExchangeEvent.GIVE_BACK], TRANSITIONS[ExchangeEvent.END]
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SERVER_ERROR = 500
_PROXY_STATUS = b"proxy-status:"
_REQUEST_ID = b"x-request-id"
# Clients choose this id and people search for it, so it must be safe in shells and terminals.
_IDENTIFIER = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# A thousand bodies of 64 KiB. Beyond it all bodies count as ready, so that the queue's limits apply to them.
_AWAITED_BYTES_MAX = 64 * 1024**2

UNDELIVERED = b"K-Undelivered: true\r\n"
"""A header line of a 503 whose request did not reach the app, so that any method may be retried."""


class Handler(Protocol):
    """Decides about requests. All methods run in the event loop and must not raise."""

    def begin(self, exchange: "Exchange") -> None:
        """Process a new request: respond, forward it, or keep it waiting."""

    def unreachable(self, exchange: "Exchange", error: OSError) -> None:
        """Process a failed connection: send the request to another upstream, or respond."""

    def lost(self, exchange: "Exchange", reason: str) -> bool:
        """Process the loss of an upstream before its response. The request may have caused the loss.

        Returns True if the handler has forwarded the request again, or will. False makes the proxy respond with 502 and
        the reason.
        """

    def overdue(self, exchange: "Exchange") -> None:
        """Respond to a request whose ``wait_until_s`` has passed."""

    def body_ready(self, exchange: "Exchange") -> None:
        """Process a request whose ``await_body`` returned False, once enough of its body has arrived."""

    def body_complete(self, exchange: "Exchange") -> None:
        """Process the end of a waiting request's body."""

    def reading_changed(self, exchange: "Exchange") -> None:
        """Process a change of ``is_held``: the response now waits for its client to read, or no longer waits."""

    def finish(self, exchange: "Exchange") -> None:
        """Process the end of a request; see its ``outcome`` and ``status``."""


class BodyWait:
    """Delays a listener's requests until enough of their bodies has arrived to use a pod's slot.

    A client that sends a head without a body then uses a connection but no slot. A body with Content-Length is ready
    when it is complete, or when ``buffered_bytes_max`` bytes have arrived. A body without Content-Length is ready with its
    first byte, because the app may read it as a stream. A gRPC call is ready immediately, because its client may wait
    for the server. Unless ``is_on``, no request waits.
    """

    __slots__ = ("_buffered_bytes_max", "_byte_count", "_is_on")

    def __init__(self, buffered_bytes_max: int, *, is_on: bool) -> None:
        self._buffered_bytes_max = buffered_bytes_max
        self._is_on = is_on
        self._byte_count = 0

    def begin(self, exchange: "Exchange", client: Client) -> bool:
        """Return whether enough of the body has arrived.

        Otherwise the exchange waits for ``received`` or the body's end.
        """
        if self._is_ready(exchange):
            return True
        exchange.body.is_awaited = True
        self._byte_count += exchange.body.buffered_bytes
        if exchange.head.expects_continue and not exchange.body.buffered_bytes:
            # As in nginx and Envoy, because asking the app needs a slot.
            exchange.body.is_continued = True
            client.write(_CONTINUE)
        return False

    def received(self, exchange: "Exchange", byte_count: int) -> bool:
        """Count a buffered piece; return whether the exchange need not wait any longer."""
        self._byte_count += byte_count
        if not self._is_ready(exchange):
            return False
        self.end(exchange)
        exchange.body.is_awaited = False
        return True

    def end(self, exchange: "Exchange") -> None:
        """Stop counting a waiting request."""
        self._byte_count -= exchange.body.buffered_bytes

    def _is_ready(self, exchange: "Exchange") -> bool:
        if exchange.body.is_complete or not self._is_on or self._byte_count >= _AWAITED_BYTES_MAX:
            return True
        buffered_bytes = exchange.body.buffered_bytes
        if exchange.head.content_length is None:
            return buffered_bytes > 0 or is_grpc_call(exchange.head)
        return buffered_bytes >= self._buffered_bytes_max


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """The components that all exchanges of one listener share.

    ``pool`` has connections to upstreams, ``stream_pool`` connections over HTTP/2. ``tunnel_limits`` are the idle limit
    and the age limit of a tunnel, in seconds. ``body_wait`` delays requests until their bodies arrive. ``body_pace``
    and ``read_pace`` are the minimum rates of clients. ``buffers`` counts unread responses. ``trusts`` returns whether
    X-Forwarded-* headers from an address are trusted. ``replaces_claims`` drops these headers from untrusted addresses.
    ``full_host`` completes a client's short Host. With a ``name``, the proxy's own errors have a reason in Proxy-Status
    (RFC 9209).
    """

    handler: Handler
    pool: Pool
    stream_pool: Callable[[], Pool]
    clock: Callable[[], float]
    listener: str
    buffered_bytes_max: int
    tunnel_limits: tuple[float, float]
    body_pace: MinimumRate
    read_pace: MinimumRate
    body_wait: BodyWait = msgspec.field(default_factory=lambda: BodyWait(0, is_on=False))
    buffers: ResponseBuffers = msgspec.field(default_factory=ResponseBuffers)
    trusts: Callable[[str], bool] = member_of("")
    replaces_claims: bool = False
    name: bytes = b""
    full_host: Callable[[str], str] = str
    on_end: "Callable[[Exchange], None] | None" = None

    def tunnel_due_s(self, started_s: float, used_s: float) -> float:
        """When a tunnel reaches its idle limit or its age limit.

        ``started_s`` is when the tunnel was opened, ``used_s`` when it was last used.
        """
        idle_s, age_s = self.tunnel_limits
        return min(started_s + age_s, used_s + idle_s)

    def peer_at(self, address: str, *, is_tls: bool, identity: str = "") -> ClientPeer:
        """The remote peer of a connection. With an ``identity`` the connection uses inner TLS, which is not https."""
        scheme = b"https" if is_tls and not identity else b"http"
        trusted = self.trusts(address)
        return ClientPeer(
            address,
            scheme,
            is_trusted=trusted,
            replaces=self.replaces_claims,
            identity=identity,
            full_host=self.full_host,
        )


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_attempt",
        "_wiring",
        "begun",
        "body",
        "client",
        "closing",
        "context",
        "head",
        "is_timed",
        "now_s",
        "outcome",
        "peer",
        "phase",
        "response",
        "response_headers",
        "started_s",
        "timeouts",
        "wait_until_s",
    )

    def __init__(self, client: Client, head: RequestHead, wiring: Wiring, *, peer: ClientPeer, now_s: float) -> None:
        # Facts of the request. A handler may replace the head by the one to forward.
        self.head = head
        """The request's head."""
        self.peer: Final = peer
        """The client; ``peer.address`` is its address as bytes."""
        self.started_s: Final = now_s
        """When its head was complete, on the engine's clock."""
        self.now_s: Final = wiring.clock
        self._wiring: Final = wiring
        # Set by the handler in ``begin``.
        self.context: object = None
        """The handler's data about the request."""
        self.timeouts = NO_TIMEOUTS
        """The request's timeouts."""
        self.wait_until_s = math.inf
        """Until when the request may wait before it is forwarded; then ``overdue`` is called."""
        self.response_headers = b""
        """Header lines added to the upstream's response, such as the revision's name."""
        self.is_timed = False
        """Whether the response gets Server-Timing with the times in the queue and upstream."""
        # State.
        self.phase = _WAITING
        self.begun = False
        """Whether the handler has the request."""
        self.body: Final = RequestBody() if head.has_body else NO_BODY
        self.response: Final = ResponseState(now_s)
        self.closing = False
        """Whether the connection closes after this response."""
        self.outcome: ExchangeOutcome | None = None
        """How the exchange ended; None before its end."""
        self.client = client
        self._attempt: Attempt | None = None

    def __repr__(self) -> str:
        target = self.head.target.decode("latin-1")
        return (
            f"Exchange({self.head.method.decode()} {target}, {self.phase.name.lower()}, status {self.response.status})"
        )

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the request."""
        return self._wiring.listener

    @property
    def upstream_text(self) -> str:
        """The last upstream as "address:port"; "" before the first one and after ``finish``."""
        if self._attempt is None:
            return ""
        host, port = self._attempt.address
        return f"{host}:{port}"

    @property
    def is_http2(self) -> bool:
        """Whether the client speaks HTTP/2."""
        return self.client.sink is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the request is neither forwarded nor answered."""
        return self.phase is _WAITING

    @property
    def weight_bytes(self) -> int:
        """Approximate memory of a waiting request: its head and the buffered part of its body."""
        return len(self.head.wire) + len(self.head.target) + self.body.buffered_bytes

    # Called by a handler.

    def begin(self) -> None:
        """Pass the request to the handler."""
        self.begun = True
        self._wiring.handler.begin(self)
        if self.body is not NO_BODY and self.body.buffered_bytes >= self._wiring.buffered_bytes_max:
            self.client.pause(Pause.HELD)

    def await_body(self) -> bool:
        """Return whether enough of the body has arrived to use a slot (``BodyWait``).

        If not, ``body_ready`` is called later.
        """
        return self._wiring.body_wait.begin(self, self.client)

    def forward(
        self,
        address: Address,
        *,
        host: bytes | None = None,
        extra: bytes = b"",
        trusted: bool = False,
        over_http2: bool = False,
        pool: Pool | None = None,
    ) -> None:
        """Send the request to an upstream, and its response to the client.

        ``host`` replaces the client's Host; ``extra`` are further header lines. ``trusted`` accepts the peer's
        X-Forwarded-* and Forwarded headers. ``over_http2`` uses HTTP/2 for this request. ``pool`` replaces the
        listener's pool.
        """
        if self.phase is not _WAITING:
            return
        if host is None:
            host = self.head.host or b"%b:%d" % (address[0].encode(), address[1])
        wire = render_request(self.head, peer=self.peer, host=host, extra=extra, trusted=trusted)
        wiring = self._wiring
        pool = pool or (wiring.stream_pool() if over_http2 else wiring.pool)
        # A proxy with a name is the last one before the app.
        hears = not wiring.name
        self._attempt = Attempt(self, self.client, pool, address=address, wire=wire, hears_marks=hears)
        self._attempt.start()

    def respond(self, status: int, body: bytes = b"", headers: bytes = TEXT_PLAIN, *, close: bool = False) -> None:
        """Send a response without an upstream. A response that has begun is cut off instead."""
        if self.phase is _DONE:
            return
        if self.response.status:
            self.cut()
            return
        _release(self._attempt)
        keep = self.head.keep_alive and self.body.is_complete and not (close or self.closing)
        self.response.status = status
        if status >= _SERVER_ERROR:
            headers += render_proxy_status(self._wiring.name, body) if self._wiring.name else self.identify()
        headers += render_date(time.time())
        bodiless = self.head.method == b"HEAD"
        self.response.body_bytes = 0 if bodiless else len(body)
        self.client.write(render_response(status, body=body, headers=headers, close=not keep, bodiless=bodiless))
        self.end(ExchangeOutcome.REFUSED, keep=keep)

    def identify(self) -> bytes:
        """Assign an id to an error, and return its header line for the client. The reason is recorded, and not sent."""
        proposed = self.head.get(_REQUEST_ID) or b""
        self.response.error_id = proposed.decode() if _IDENTIFIER.fullmatch(proposed) else os.urandom(16).hex()
        return b"X-Request-Id: %b\r\n" % self.response.error_id.encode()

    def withdraw(self) -> bool:
        """Withdraw the request from an upstream that has not begun to respond.

        Returns True if the request waits again and may be sent to another upstream.
        """
        if self.phase is not _SENT or not self.body.can_replay or not self.head.may_be_repeated:
            return False
        _release(self._attempt)
        self.body.rewind()
        self.phase = _ON_GIVE_BACK[self.phase]
        return True

    def cut(self) -> None:
        """Cut off a response in a way that the client can detect.

        Written data still reaches the client. The connection then closes without the last chunk, or with bytes missing.
        If the body ends where its connection closes, a closed connection would look complete, so the connection is
        reset.
        """
        _release(self._attempt)
        if self.response.status and self._attempt is not None and self._attempt.is_end_visible:
            self.client.truncate()
        else:
            self.client.abort()
        self.end(ExchangeOutcome.CUT, keep=False)

    # Called by the client's connection.

    def receive_body(self, payload: bytes) -> None:
        """Process a piece of the request's body; more follows."""
        attempt, body = self._attempt, self.body
        if attempt is not None and attempt.upstream is not None:
            attempt.upstream.write(payload)
            if body.can_replay:
                # The upstream now has more than the buffer.
                body.drop()
        elif self.phase is not _DONE:
            body.buffer(payload)
            if self.body.is_awaited and self._wiring.body_wait.received(self, len(payload)):
                self._wiring.handler.body_ready(self)
            # Bytes that came with the head wait for the handler first, because most requests are forwarded immediately.
            if body.buffered_bytes >= self._wiring.buffered_bytes_max and self.begun:
                self.client.pause(Pause.HELD)

    def receive_body_end(self, payload: bytes, trailers: bytes) -> None:
        """Process the last piece of the request's body, which may be empty, and the trailers."""
        self.body.is_complete = True
        self.body.trailers = trailers
        attempt = self._attempt
        if attempt is None or attempt.upstream is None:
            self.receive_body(payload)
            if self.begun and self.phase is _WAITING and not self.body.is_awaited:
                self._wiring.handler.body_complete(self)
            return
        attempt.upstream.finish(payload, trailers)
        self.body.drop()

    def client_gone(self) -> None:
        """Process the loss of the client's connection."""
        if self.response.tunnel is not None and self._attempt is not None:
            self._attempt.release(flush=True)
            self.end(ExchangeOutcome.ANSWERED, keep=False)
            return
        _release(self._attempt)
        self.end(ExchangeOutcome.CLIENT_GONE, keep=False)

    def client_full(self, *, full: bool) -> None:
        """Process a change of the transport's buffer, which is now ``full`` or not: pause or resume the response."""
        self.response.is_unread = full
        is_held = full and (self.response.tunnel is not None or is_grpc_call(self.head) or not self.client.has_room())
        if is_held is not self.response.is_held:
            self.response.is_held = is_held
            if self._attempt is not None:
                self._attempt.pause_reading(full=is_held)
            if self.begun:
                self._wiring.handler.reading_changed(self)

    def check(self, now_s: float) -> float:
        """Enforce expired time limits; return when the next limit expires."""
        limits, tunnel = self.timeouts, self.response.tunnel
        if tunnel is not None:
            used_s = max(tunnel.sent_s, tunnel.received_s)
            due_s = min(
                limits.due_s(self.started_s, written_s=tunnel.received_s, has_begun=tunnel.has_upstream_spoken),
                self._wiring.tunnel_due_s(self.started_s, used_s),
            )
            if due_s <= now_s:
                self.cut()
            return due_s
        due_s = limits.due_s(self.started_s, written_s=self.response.written_s, has_begun=bool(self.response.status))
        if due_s <= now_s:
            self.respond(504, limits.text, close=True)
        elif self.phase is _WAITING and self.wait_until_s < due_s:
            due_s = self.wait_until_s
            if due_s <= now_s:
                self._wiring.handler.overdue(self)
        return due_s

    # Called by the attempt.

    def return_request(self, error: OSError | str) -> None:
        """Return the complete request to the handler after a failed attempt."""
        self.phase = _ON_GIVE_BACK[self.phase]
        handler = self._wiring.handler
        if isinstance(error, OSError):
            handler.unreachable(self, error)
        elif not handler.lost(self, error):
            self.respond(502, error.encode())

    def end(self, outcome: ExchangeOutcome, *, keep: bool) -> None:
        """Finish the exchange; ``keep`` allows the connection to serve another request."""
        if self.phase is _DONE:
            return
        self.phase = _ON_END[self.phase]
        if self.body is not NO_BODY:
            if self.body.is_awaited:
                self._wiring.body_wait.end(self)
            self.body.drop()
        self.outcome = outcome
        if self.begun:
            self._wiring.handler.finish(self)
            if self._wiring.on_end is not None:
                self._wiring.on_end(self)
        # Attempt and exchange refer to each other: without this, both would wait for the garbage collector.
        self._attempt = None
        self.client.exchange_done(keep=keep)


class Attempt:
    """One attempt to forward a request.

    ``wire`` is the encoded head. ``hears_marks``: the upstream is a queue-proxy, whose marks (header entries of this
    system) are accepted.

    If a pooled connection was closed and no byte of the request reached the app, the request is sent once more on a new
    connection. Any other failure before the response is passed to the exchange, whose handler may send the request to
    another upstream in a new attempt.
    """

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
        self, exchange: "Exchange", client: Client, pool: Pool, *, address: Address, wire: bytes, hears_marks: bool
    ) -> None:
        self.address = address
        self._hears_marks = hears_marks
        self.head = exchange.head
        self.is_end_visible = True
        """Whether the client can distinguish a truncated response from a complete one by its framing."""
        self._exchange = exchange
        self._client = client
        self._pool = pool
        self._wire = wire
        self.upstream: RequestCarrier | None = None
        """The connection or stream that carries the request; None before one exists."""
        self._is_second = False
        self._sink: ResponseSink | None = None
        self._is_chunked = False
        self._keep = False

    @property
    def request_complete(self) -> bool:
        """Whether the whole request has been received from the client."""
        return self._exchange.body.is_complete

    @property
    def request_trailers(self) -> bytes:
        """The trailers of the request."""
        return self._exchange.body.trailers

    # Called by the exchange.

    def start(self) -> None:
        """Send the request on an idle connection, or wait for one. A retry waits for a new connection."""
        upstream = None
        if not self._is_second:
            head = self.head
            upstream = self._pool.acquire(self.address, sure=head.method != b"GET" and not head.may_be_repeated)
        if upstream is not None:
            self._send(upstream)
        else:
            self._exchange.phase = _ON_CONNECT[self._exchange.phase]
            self._pool.connect(self.address, self, new=self._is_second)

    def pause_reading(self, *, full: bool) -> None:
        """Pause reading the response while the client's buffer is full."""
        if self.upstream is not None:
            self.upstream.pause_reading(full=full)

    def release(self, *, flush: bool = False) -> None:
        """Release the connection; with ``flush``, after all written data is sent."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None and flush:
            upstream.close()
        elif upstream is not None:
            upstream.drop()

    # Called by the pool.

    @property
    def is_waiting(self) -> bool:
        """Whether the request has not been sent."""
        return self._exchange.phase is _CONNECTING

    def connected(self, upstream: RequestCarrier) -> None:
        """Send the request on a connection that became available."""
        self._send(upstream)

    def unreachable(self, error: OSError) -> None:
        """Return the request to its handler, because the connection failed."""
        self._exchange.return_request(error)

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
        """Begin the response. With ``done``, ``payload`` is the whole body."""
        exchange = self._exchange
        # An app may write anything, so marks are only accepted from our own hops.
        marks = head.marks if self._hears_marks else b""
        if head.status == 503 and UNDELIVERED in marks and exchange.body.can_replay:
            self.release()
            exchange.body.rewind()
            exchange.return_request(ConnectionRefusedError("the app accepts no connection"))
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
        """Forward a piece of the response's body; more follows."""
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
        """Pause or resume the request's body, because the upstream's buffer is full or free again."""
        if full:
            self._client.pause(Pause.UPSTREAM_FULL)
        else:
            self._client.resume(Pause.UPSTREAM_FULL)

    def upstream_done(self) -> None:
        """Finish the exchange: the response is complete, and its connection is back in the pool."""
        self.upstream = None
        self._exchange.end(ExchangeOutcome.ANSWERED, keep=self._keep)

    def upstream_lost(self, reason: str, *, heard: bool, unseen: bool, is_cancelled: bool = False) -> None:
        """Process a connection that was lost before its response was complete.

        ``heard``: some bytes of a response were received. ``unseen``: no byte of the request reached the app.
        ``is_cancelled``: the app cancelled the stream. A request that the app received may have ended the app, so it is
        sent again only if its client marked it as repeatable.
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
                exchange.return_request(ConnectionResetError(reason))
            else:
                # The upstream closed an idle connection while the request was in transit.
                self._is_second = True
                self.start()
        else:
            exchange.body.rewind()
            exchange.return_request(reason)

    def upstream_refused(self, reason: str, body: bytes) -> None:
        """Give the request back to the handler, because the upstream refused it unprocessed.

        Requests of any method may be retried.
        ``body`` is the part of the body that was sent to the upstream.
        """
        exchange = self._exchange
        self.upstream = None
        if exchange.body is not NO_BODY:
            exchange.body.restore(body)
        exchange.return_request(ConnectionRefusedError(reason))

    def _send(self, upstream: RequestCarrier) -> None:
        exchange = self._exchange
        exchange.phase = _ON_SEND[exchange.phase]
        self.upstream = upstream
        if exchange.is_timed:
            exchange.response.sent_s = exchange.now_s()
        if exchange.body is NO_BODY:
            upstream.carry(self, self._wire, b"")
            return
        # Also after an upstream that did not read the body and was lost.
        self._client.resume(Pause.HELD | Pause.UPSTREAM_FULL)
        upstream.carry(self, self._wire, exchange.body.send())

    def _end_tunnel(self) -> None:
        self.release(flush=True)
        self._exchange.end(ExchangeOutcome.ANSWERED, keep=False)


def _release(attempt: Attempt | None) -> None:
    if attempt is not None:
        attempt.release()
