"""One request and its answer, and the interface between the engine and the daemon that decides about requests.

A daemon gives the engine a ``Handler``. For each request the engine calls ``begin`` once, and ``finish`` once afterwards,
whatever happens in between. ``begin`` decides at once, or keeps the exchange and decides later; it does so by calling, once:

- ``exchange.forward((host, port), ...)``: the request goes there, and the answer comes back, with bodies streamed; or
- ``exchange.answer(status, body, headers)``: an answer of our own.

While an exchange waits, the engine watches its client and its time: a client that leaves ends it, and ``finish`` says so
(``exchange.outcome`` is CLIENT_GONE); at ``exchange.wait_until_s`` the engine calls ``overdue``. If no connection can be
made, ``unreachable`` is called, nothing of the request having been sent, and must forward elsewhere or answer. Everything
is called in the loop's thread and nothing awaits, so that a slot taken in ``begin`` and given back in ``finish`` is never
lost. In ``finish`` the upstream's connection is already back in the pool: whoever is let in next may use it.

Calls of ``forward`` and ``answer`` on an exchange that has ended do nothing, so that a queue may be emptied lazily.
"""

import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from serving.proxy.answerhead import AnswerHead, Framing
from serving.proxy.body import chunks
from serving.proxy.client import Client, Pause
from serving.proxy.phase import Outcome, Phase
from serving.proxy.pool import Address, Pool
from serving.proxy.rendering import (
    Peer,
    render_answer,
    render_forwarded_answer,
    render_interim,
    render_request,
)
from serving.proxy.requesthead import RequestHead
from serving.proxy.timeouts import NO_TIMEOUTS, Timeouts
from serving.proxy.upstream import Upstream

__all__ = ["NO_TIMEOUTS", "Exchange", "Handler", "Outcome", "Timeouts", "Wiring"]

_NOWHERE: Address = ("", 0)
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


class Handler(Protocol):
    """Decides about requests. All methods are called in the loop's thread and must not raise."""

    def begin(self, exchange: "Exchange") -> None:
        """A request has come: answer it, forward it, or keep it and do so later."""

    def unreachable(self, exchange: "Exchange", error: OSError) -> None:
        """No connection could be made for a forwarded request: forward it elsewhere, or answer."""

    def overdue(self, exchange: "Exchange") -> None:
        """An exchange has waited until its ``wait_until_s``: answer it."""

    def finish(self, exchange: "Exchange") -> None:
        """A request has ended, one way or another: see ``outcome`` and ``status``."""


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """What all exchanges of one listener share."""

    handler: Handler
    pool: Pool
    clock: Callable[[], float]
    listener: str
    held_bytes_max: int
    tunnel_limits: tuple[float, float]


class Exchange:
    """One request and its answer. See the module's text for how a handler uses it."""

    __slots__ = (
        *("answer_headers", "begun", "closing", "context", "head", "outcome", "peer", "request_complete"),
        *("started_s", "status", "timeouts", "wait_until_s", "written_s"),
        *("_address", "_chunked_out", "_client", "_held", "_held_bytes", "_keep", "_phase", "_repeated"),
        *("_replay", "_tunnel_ends", "_upstream", "_wire", "_wiring"),
    )

    def __init__(self, client: Client, head: RequestHead, wiring: Wiring, *, peer: Peer, now_s: float) -> None:
        self.head = head
        """What is asked for."""
        self.peer = peer
        """Who asks; ``peer.address`` is the address as bytes."""
        self.context: object = None
        """The handler's own."""
        self.started_s = now_s
        """When its head was complete, on the engine's clock."""
        self.timeouts = NO_TIMEOUTS
        """How long it may take; the handler sets it in ``begin``."""
        self.wait_until_s = math.inf
        """Until when it may wait to be forwarded; then ``overdue`` is called. The handler sets it."""
        self.answer_headers = b""
        """Header lines that the upstream's answer gets on its way, such as the revision's name. The handler's."""
        self.status = 0
        """The status that was answered; 0 while nothing was."""
        self.outcome: Outcome | None = None
        """How it ended; None while it lasts."""
        self.request_complete = not head.has_body
        """Whether the whole request has been read."""
        self.begun = False
        self.closing = False
        """Whether the connection is to be closed after this answer."""
        self.written_s = now_s
        self._client = client
        self._wiring = wiring
        self._phase = Phase.WAITING
        self._upstream: Upstream | None = None
        self._address = _NOWHERE
        self._wire = b""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._replay: bytes | None = None
        self._repeated = False
        self._chunked_out = False
        self._keep = False
        self._tunnel_ends = 0

    def __repr__(self) -> str:
        target = self.head.target.decode("latin-1")
        return f"Exchange({self.head.method.decode()} {target}, {self._phase.value}, status {self.status})"

    @property
    def listener(self) -> str:
        """The name of the listener it came in by."""
        return self._wiring.listener

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._phase is Phase.DONE

    @property
    def is_waiting(self) -> bool:
        """Whether it is still to be decided about."""
        return self._phase is Phase.WAITING

    @property
    def weight_bytes(self) -> int:
        """About the memory it takes while it waits: its header lines and the part of its body that was read."""
        return sum([len(line.wire) for line in self.head.lines]) + len(self.head.target) + self._held_bytes

    # What a handler calls.

    def begin(self) -> None:
        """Hand it to the handler."""
        self.begun = True
        self._wiring.handler.begin(self)

    def forward(
        self, address: Address, *, host: bytes | None = None, extra: bytes = b"", trusted: bool = False
    ) -> None:
        """Send the request to an address and its answer to the client.

        ``host`` is sent as Host in place of the client's; ``extra`` are header lines of ours, written with
        ``lines.header_lines``; ``trusted`` says that the peer's X-Forwarded-* and Forwarded are to be believed.
        """
        if self._phase is not Phase.WAITING:
            return
        if host is None:
            host = self.head.host or b"%b:%d" % (address[0].encode(), address[1])
        self._wire = render_request(self.head, peer=self.peer, host=host, extra=extra, trusted=trusted)
        self._address = address
        upstream = self._wiring.pool.take(address, sure=not self.head.may_be_repeated)
        if upstream is not None:
            self._send(upstream)
        else:
            self._phase = Phase.CONNECTING
            self._wiring.pool.connect(address, self)

    def answer(self, status: int, body: bytes = b"", headers: bytes = _TEXT, *, close: bool = False) -> None:
        """Answer by ourselves. Cuts off an upstream's answer that has begun, since there can be only one."""
        if self._phase is Phase.DONE:
            return
        if self.status:
            self.cut()
            return
        self._leave_upstream()
        keep = self.head.keep_alive and self.request_complete and not (close or self.closing)
        self.status = status
        bodiless = self.head.method == b"HEAD"
        self._client.write(render_answer(status, body=body, headers=headers, close=not keep, bodiless=bodiless))
        self._end(Outcome.REFUSED, keep=keep)

    # What the client's connection calls.

    def take_body(self, payload: bytes, *, done: bool, trailers: bytes = b"") -> None:
        """A piece of the request's body has come."""
        wire = chunks(payload, done=done, trailers=trailers) if self.head.chunked else payload
        self.request_complete = done
        if self._upstream is not None:
            self._replay = None
            self._upstream.write(wire)
        elif self._phase is not Phase.DONE:
            self._held.append(wire)
            self._held_bytes += len(wire)
            if self._held_bytes >= self._wiring.held_bytes_max:
                self._client.pause(Pause.HELD)

    def client_gone(self) -> None:
        """The client has left."""
        if self._phase is Phase.TUNNEL:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.close()
            self._end(Outcome.ANSWERED, keep=False)
            return
        self._leave_upstream()
        self._end(Outcome.CLIENT_GONE, keep=False)

    def client_full(self, *, full: bool) -> None:
        """The client takes no more, or again."""
        if self._upstream is not None:
            self._upstream.hold(full=full)

    def cut(self) -> None:
        """Break off, visibly: what the client has is not the whole answer."""
        self._leave_upstream()
        self._client.abort()
        self._end(Outcome.CUT, keep=False)

    def tunnel(self, data: bytes) -> None:
        """The client has sent something through the tunnel."""
        self.written_s = self._wiring.clock()
        if self._upstream is not None:
            self._upstream.write(data)

    def tunnel_eof(self) -> None:
        """The client will send no more through the tunnel."""
        if self._upstream is not None:
            self._upstream.write_eof()
        self._tunnel_end()

    @property
    def is_tunnel(self) -> bool:
        """Whether bytes pass as they come."""
        return self._phase is Phase.TUNNEL

    def check(self, now_s: float) -> float:
        """When time will be up; if it is up, what follows from it."""
        if self._phase is Phase.TUNNEL:
            idle_s, age_s = self._wiring.tunnel_limits
            due_s = min(self.written_s + idle_s, self.started_s + age_s)
            if due_s <= now_s:
                self.cut()
            return due_s
        limits = self.timeouts
        due_s = min(self.started_s + limits.total_s, self.written_s + limits.idle_s)
        if not self.status:
            due_s = min(due_s, self.started_s + limits.answer_start_s)
        if due_s <= now_s:
            self.answer(504, limits.text, close=True)
        elif self._phase is Phase.WAITING and self.wait_until_s < due_s:
            due_s = self.wait_until_s
            if due_s <= now_s:
                self._wiring.handler.overdue(self)
        return due_s

    # What the pool and the upstream's connection call.

    def connected(self, upstream: Upstream) -> None:
        """A fresh connection is there."""
        if self._phase is Phase.CONNECTING:
            self._send(upstream)
        else:
            self._wiring.pool.give(upstream)

    def unreachable(self, error: OSError) -> None:
        """No connection could be made."""
        if self._phase is not Phase.CONNECTING:
            return
        if self._repeated:
            self._bad_gateway("the upstream closed its connection and takes no other")
            return
        self._phase = Phase.WAITING
        self._wiring.handler.unreachable(self, error)

    def on_interim(self, head: AnswerHead) -> None:
        """The upstream has sent a 1xx."""
        if self.head.minor == 1 and (head.status != 100 or self.head.expects_continue):
            self._client.write(render_interim(head))

    def on_upgraded(self, head: AnswerHead, data: bytes) -> None:
        """The upstream has agreed to change the protocol: from now on bytes pass as they come."""
        self._phase = Phase.TUNNEL
        self._replay = None
        self.status = 101
        self.written_s = self._wiring.clock()
        self._client.write(render_interim(head) + data)
        ahead = self._client.open_tunnel()
        if ahead and self._upstream is not None:
            self._upstream.write(ahead)

    def on_answer(self, head: AnswerHead, payload: bytes, *, done: bool, trailers: bytes = b"") -> None:
        """The upstream's answer has begun; ``done`` says that it is complete with ``payload``."""
        framing = head.framing
        if framing is Framing.CHUNKED or framing is Framing.CLOSE:
            self._chunked_out = self.head.minor == 1
            framing = Framing.CHUNKED if self._chunked_out else Framing.CLOSE
        self._phase = Phase.ANSWERING
        self._replay = None
        self.status = head.status
        self._keep = self.head.keep_alive and self.request_complete and not self.closing
        wire = render_forwarded_answer(head, framing=framing, close=not self._keep, extra=self.answer_headers)
        if not done:
            self.written_s = self._wiring.clock()
        self._client.write(wire + self._framed(payload, done=done, trailers=trailers))

    def on_piece(self, payload: bytes, *, done: bool, trailers: bytes = b"") -> None:
        """A piece of the answer's body has come, the last one if ``done``."""
        self.written_s = self._wiring.clock()
        wire = self._framed(payload, done=done, trailers=trailers)
        if wire:
            self._client.write(wire)

    def on_tunnel(self, data: bytes) -> None:
        """The upstream has sent something through the tunnel."""
        self.written_s = self._wiring.clock()
        self._client.write(data)

    def on_tunnel_eof(self) -> None:
        """The upstream will send no more through the tunnel."""
        self._client.write_eof()
        self._tunnel_end()

    def upstream_full(self, *, full: bool) -> None:
        """The upstream takes no more, or again."""
        if full:
            self._client.pause(Pause.UPSTREAM_FULL)
        else:
            self._client.resume(Pause.UPSTREAM_FULL)

    def upstream_done(self) -> None:
        """The answer is complete, and the upstream's connection belongs to somebody else."""
        self._upstream = None
        self._end(Outcome.ANSWERED, keep=self._keep)

    def upstream_lost(self, reason: str, *, heard: bool, reused: bool) -> None:
        """The upstream's connection has ended before the answer did. ``heard`` says that some of it had come."""
        self._upstream = None
        if self._phase is Phase.TUNNEL:
            self._end(Outcome.ANSWERED, keep=False)
        elif self._phase is Phase.ANSWERING:
            self.cut()
        elif reused and not heard and self._replay is not None and not self._repeated and self.head.may_be_repeated:
            # The upstream closed an idle connection while our request was on its way: once more, on a fresh one.
            self._repeated = True
            self._wire, self._replay = self._replay, None
            self._phase = Phase.CONNECTING
            self._wiring.pool.connect(self._address, self)
        else:
            self._bad_gateway(reason)

    def _send(self, upstream: Upstream) -> None:
        self._phase = Phase.SENT
        self._upstream = upstream
        data = self._wire
        if self._held:
            data = b"".join((data, *self._held))
            self._held, self._held_bytes = [], 0
            self._client.resume(Pause.HELD)
        if upstream.is_reused:
            self._replay = data
        self._wire = b""
        upstream.carry(self, data)

    def _framed(self, payload: bytes, *, done: bool, trailers: bytes) -> bytes:
        return chunks(payload, done=done, trailers=trailers) if self._chunked_out else payload

    def _bad_gateway(self, reason: str) -> None:
        self.answer(502, reason.encode())

    def _leave_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.drop()

    def _tunnel_end(self) -> None:
        self._tunnel_ends += 1
        if self._tunnel_ends == 2:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.close()
            self._end(Outcome.ANSWERED, keep=False)

    def _end(self, outcome: Outcome, *, keep: bool) -> None:
        if self._phase is Phase.DONE:
            return
        self._phase = Phase.DONE
        self._held = []
        self._replay = None
        self.outcome = outcome
        if self.begun:
            self._wiring.handler.finish(self)
        self._client.exchange_done(keep=keep)
