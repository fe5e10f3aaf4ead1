"""One request and its response, and the daemon's decisions about it.

A daemon gives the engine a ``Handler``. For each request the engine calls ``begin`` once, and ``finish`` once afterwards,
whatever happens in between. ``begin`` decides at once, or keeps the exchange and decides later; it decides by one call of:

- ``exchange.forward((host, port), ...)``: the request goes there, and the response comes back, with bodies streamed; or
- ``exchange.respond(status, body, headers)``: a response without an upstream.

While an exchange waits, the engine watches its client and its time. A client that leaves ends it, and ``finish`` sees the
outcome CLIENT_GONE; at ``exchange.wait_until_s`` the engine calls ``overdue``. If no connection can be made, the engine calls
``unreachable``: nothing of the request was sent, and the handler forwards it elsewhere or answers. If the upstream dies
before any byte of its answer, and the request is still here in whole, the engine calls ``lost``.

Everything is called in the loop's thread and nothing awaits, so that a slot that ``begin`` takes and ``finish`` gives back is
never lost. In ``finish`` the upstream's connection is in the pool again. Calls of ``forward`` and ``respond`` on an exchange that
has ended do nothing.
"""

import math
import os
import re
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from serving.net.proxy.forwarding.attempt import Attempt
from serving.net.proxy.forwarding.bodywait import BodyWait
from serving.net.proxy.forwarding.client import Client, Pause
from serving.net.proxy.forwarding.exchangestate import NO_BODY, RequestBody, ResponseState
from serving.net.proxy.forwarding.pace import MinimumRate, ResponseBuffers
from serving.net.proxy.forwarding.phase import TRANSITIONS, ExchangeEvent, ExchangeOutcome, ExchangePhase
from serving.net.proxy.forwarding.policy import NO_TIMEOUTS, member_of
from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.http1.rendering import (
    ClientPeer,
    render_date,
    render_proxy_status,
    render_request,
    render_response,
)
from serving.net.proxy.http1.requesthead import RequestHead, is_grpc_call
from serving.net.proxy.http1.upstream import Address

# Looked up once: an attribute of an enum costs 60 ns.
_WAITING, _SENT, _DONE = ExchangePhase.WAITING, ExchangePhase.SENT, ExchangePhase.DONE
_ON_GIVE_BACK, _ON_END = TRANSITIONS[ExchangeEvent.GIVE_BACK], TRANSITIONS[ExchangeEvent.END]
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_SERVER_ERROR = 500
_REQUEST_ID = b"x-request-id"
# Clients choose theirs, and people search for them: nothing that a shell or a terminal reads.
_IDENTIFIER = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Handler(Protocol):
    """Decides about requests. All methods run in the event loop and must not raise."""

    def begin(self, exchange: "Exchange") -> None:
        """Handle a new request: respond, forward it, or hold it."""

    def unreachable(self, exchange: "Exchange", error: OSError) -> None:
        """Handle a failed connection: forward the request elsewhere, or respond."""

    def lost(self, exchange: "Exchange", reason: str) -> bool:
        """Handle an upstream that died before its response, maybe by the request.

        Returns True if the handler has forwarded the request, or will. False makes the proxy respond with 502 and the
        reason.
        """

    def overdue(self, exchange: "Exchange") -> None:
        """Respond to a request that has waited until its ``wait_until_s``."""

    def body_ready(self, exchange: "Exchange") -> None:
        """Handle a request whose ``await_body`` returned False, once enough of its body has arrived."""

    def body_complete(self, exchange: "Exchange") -> None:
        """Handle the end of the body of a request that waits to be forwarded."""

    def held(self, exchange: "Exchange") -> None:
        """Record that a response starts (``is_held``) or stops waiting for its client to read."""

    def finish(self, exchange: "Exchange") -> None:
        """Handle the end of a request; see its ``outcome`` and ``status``."""


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that all exchanges of one listener share.

    ``pool`` has connections to upstreams, ``stream_pool`` connections over HTTP/2. ``tunnel_limits`` are the longest silence and
    life of a tunnel, in seconds. ``body_wait`` has requests that wait for their bodies; ``body_pace`` and ``read_pace`` are minimum
    rates of clients. ``buffers`` counts unread responses. ``trusts`` returns whether X-Forwarded-* of an address are trusted;
    ``replaces_claims`` drops others' ways. ``full_host`` completes a short Host of a client. With a ``name``, the proxy's own errors have a reason in Proxy-Status (RFC 9209).
    """

    handler: Handler
    pool: Pool
    stream_pool: Callable[[], Pool]
    clock: Callable[[], float]
    listener: str
    held_bytes_max: int
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

        It was opened at ``started_s`` and last used at ``used_s``.
        """
        idle_s, age_s = self.tunnel_limits
        return min(started_s + age_s, used_s + idle_s)

    def peer_at(self, address: str, *, is_tls: bool, identity: str = "") -> ClientPeer:
        """The remote peer of a connection. One with an ``identity`` came over inner TLS, not over https."""
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
        # What the handler sets in ``begin``.
        self.context: object = None
        """The handler's own."""
        self.timeouts = NO_TIMEOUTS
        """How long it may take."""
        self.wait_until_s = math.inf
        """Until when it may wait to be forwarded; then ``overdue`` is called."""
        self.response_headers = b""
        """Header lines that are added to the upstream's answer, such as the revision's name."""
        self.is_timed = False
        """Whether the response gets Server-Timing with the time in the queue and upstream."""
        # State.
        self.phase = _WAITING
        self.begun = False
        """Whether the handler has the request."""
        self.body: Final = RequestBody() if head.has_body else NO_BODY
        self.response: Final = ResponseState(now_s)
        self.closing = False
        """Whether the connection is to be closed after this answer."""
        self.outcome: ExchangeOutcome | None = None
        """How it ended; None before."""
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
        """The last upstream as "address:port"; empty before the first and after ``finish``."""
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
        """Whether the handler has yet to decide."""
        return self.phase is _WAITING

    @property
    def weight_bytes(self) -> int:
        """Approximate memory of a waiting request: its head and the buffered part of its body."""
        return len(self.head.wire) + len(self.head.target) + self.body.held_bytes

    # Called by a handler.

    def begin(self) -> None:
        """Pass the request to the handler."""
        self.begun = True
        self._wiring.handler.begin(self)
        if self.body is not NO_BODY and self.body.held_bytes >= self._wiring.held_bytes_max:
            self.client.pause(Pause.HELD)

    def await_body(self) -> bool:
        """Return whether enough of the body has arrived to take a slot (``bodywait.py``); if not, ``body_ready`` follows."""
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
        X-Forwarded-* and Forwarded headers. ``over_http2`` uses HTTP/2 for this request, ``pool`` other connections.
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

    def respond(self, status: int, body: bytes = b"", headers: bytes = _TEXT, *, close: bool = False) -> None:
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
        """Give an error an id, and return the header line for the client: the reason is recorded, not sent."""
        proposed = self.head.get(_REQUEST_ID) or b""
        self.response.error_id = proposed.decode() if _IDENTIFIER.fullmatch(proposed) else os.urandom(16).hex()
        return b"X-Request-Id: %b\r\n" % self.response.error_id.encode()

    def withdraw(self) -> bool:
        """Withdraw the request from an upstream that has not begun to respond.

        Returns True if the request waits again and may be forwarded elsewhere.
        """
        if self.phase is not _SENT or not self.body.can_replay or not self.head.may_be_repeated:
            return False
        _release(self._attempt)
        self.body.rewind()
        self.phase = _ON_GIVE_BACK[self.phase]
        return True

    def cut(self) -> None:
        """End a response early, so that the client can detect it.

        Written data still reaches the client; the connection then closes without the last chunk, or with bytes missing.
        A body that ends with its connection would look complete, so that connection is reset.
        """
        _release(self._attempt)
        if self.response.status and self._attempt is not None and self._attempt.is_end_visible:
            self.client.truncate()
        else:
            self.client.abort()
        self.end(ExchangeOutcome.CUT, keep=False)

    # Called by the client's connection.

    def take_body(self, payload: bytes) -> None:
        """Handle a piece of the request's body that is not the last."""
        attempt, body = self._attempt, self.body
        if attempt is not None and attempt.upstream is not None:
            attempt.upstream.write(payload)
            if body.can_replay:
                # The upstream has more now than the buffer.
                body.drop()
        elif self.phase is not _DONE:
            body.hold(payload)
            if self.body.is_awaited and self._wiring.body_wait.received(self, len(payload)):
                self._wiring.handler.body_ready(self)
            # Bytes that came with the head wait for the handler first: most requests are forwarded at once.
            if body.held_bytes >= self._wiring.held_bytes_max and self.begun:
                self.client.pause(Pause.HELD)

    def take_body_end(self, payload: bytes, trailers: bytes) -> None:
        """Handle the last piece of the request's body, which may be empty, and the trailers."""
        self.body.is_complete = True
        self.body.trailers = trailers
        attempt = self._attempt
        if attempt is None or attempt.upstream is None:
            self.take_body(payload)
            if self.begun and self.phase is _WAITING and not self.body.is_awaited:
                self._wiring.handler.body_complete(self)
            return
        attempt.upstream.finish(payload, trailers)
        self.body.drop()

    def client_gone(self) -> None:
        """Handle the loss of the client's connection."""
        if self.response.tunnel is not None and self._attempt is not None:
            self._attempt.release(flush=True)
            self.end(ExchangeOutcome.ANSWERED, keep=False)
            return
        _release(self._attempt)
        self.end(ExchangeOutcome.CLIENT_GONE, keep=False)

    def client_full(self, *, full: bool) -> None:
        """Buffer, pause or resume the response: the transport is full, maybe with more than before, or no longer."""
        self.response.is_unread = full
        is_held = full and (self.response.tunnel is not None or is_grpc_call(self.head) or not self.client.has_room())
        if is_held is not self.response.is_held:
            self.response.is_held = is_held
            if self._attempt is not None:
                self._attempt.hold(full=is_held)
            if self.begun:
                self._wiring.handler.held(self)

    def check(self, now_s: float) -> float:
        """Enforce expired time limits; return when the next one expires."""
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

    # Called by its attempt.

    def give_back(self, error: OSError | str) -> None:
        """Return the complete request to the handler after an attempt that failed."""
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
        # An attempt refers to its exchange: without this, each would wait for the garbage collector.
        self._attempt = None
        self.client.exchange_done(keep=keep)


def _release(attempt: Attempt | None) -> None:
    if attempt is not None:
        attempt.release()
