"""One request and its answer: from the head, over a wait, an upstream and perhaps another one, to the end.

``serving.proxy.handler`` tells how a daemon decides about it. Calls of ``forward`` and ``answer`` on an exchange that has
ended do nothing, so that a queue may be emptied lazily.
"""

import math

from serving.proxy.answerhead import AnswerHead, Framing
from serving.proxy.body import chunks
from serving.proxy.client import Client, Pause
from serving.proxy.handler import Handler, Wiring
from serving.proxy.phase import ExchangeOutcome, ExchangePhase
from serving.proxy.pool import Address
from serving.proxy.rendering import (
    ClientPeer,
    render_answer,
    render_forwarded_answer,
    render_interim,
    render_request,
    render_timing,
)
from serving.proxy.requestbuffer import NO_BODY, RequestBuffer
from serving.proxy.requesthead import RequestHead
from serving.proxy.timeouts import NO_TIMEOUTS, Timeouts
from serving.proxy.upstream import Upstream

__all__ = ["NO_TIMEOUTS", "Exchange", "ExchangeOutcome", "Handler", "Timeouts", "Wiring"]

# Looked up once: an attribute of an enum costs 60 ns, and a request asks for fifteen.
_WAITING, _CONNECTING, _SENT = ExchangePhase.WAITING, ExchangePhase.CONNECTING, ExchangePhase.SENT
_ANSWERING, _TUNNEL, _DONE = ExchangePhase.ANSWERING, ExchangePhase.TUNNEL, ExchangePhase.DONE
_NOWHERE: Address = ("", 0)
_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


class Exchange:
    """One request and its answer."""

    __slots__ = (
        *("answer_headers", "answer_wire", "begun", "closing", "context", "head", "is_timed", "outcome", "peer"),
        *("request_complete", "sent_s", "started_s", "status", "timeouts", "wait_until_s", "written_s"),
        *("_address", "_body", "_chunked_out", "_client", "_has_upstream_spoken", "_is_end_visible", "_keep", "_phase"),
        *("_repeated", "_tunnel_ends", "_upstream", "_wire", "_wiring"),
    )

    def __init__(self, client: Client, head: RequestHead, wiring: Wiring, *, peer: ClientPeer, now_s: float) -> None:
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
        self.answer_wire = b""
        """The header lines of the upstream's answer, once it has begun."""
        """Header lines that the upstream's answer gets on its way, such as the revision's name. The handler's."""
        self.is_timed = False
        """Whether the answer tells in Server-Timing how long it waited here and for its upstream. The handler's."""
        self.sent_s = 0.0
        """When it was last sent upstream; 0 while it was not."""
        self.status = 0
        """The status that was answered; 0 while nothing was."""
        self.outcome: ExchangeOutcome | None = None
        """How it ended; None while it lasts."""
        self.request_complete = not head.has_body
        """Whether the whole request has been read."""
        self.begun = False
        self.closing = False
        """Whether the connection is to be closed after this answer."""
        self.written_s = now_s
        self._client = client
        self._wiring = wiring
        self._phase = _WAITING
        self._upstream: Upstream | None = None
        self._address = _NOWHERE
        self._wire = b""
        self._body = RequestBuffer() if head.has_body else NO_BODY
        self._repeated = False
        self._chunked_out = False
        self._is_end_visible = True
        self._has_upstream_spoken = False
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
    def upstream_text(self) -> str:
        """Where it was sent last, as "address:port"; empty if nowhere."""
        host, port = self._address
        return f"{host}:{port}" if port else ""

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._phase is _DONE

    @property
    def is_waiting(self) -> bool:
        """Whether it is still to be decided about."""
        return self._phase is _WAITING

    @property
    def weight_bytes(self) -> int:
        """About the memory it takes while it waits: its header lines and the part of its body that was read."""
        return len(self.head.wire) + len(self.head.target) + self._body.held_bytes

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
        if self._phase is not _WAITING:
            return
        if host is None:
            host = self.head.host or b"%b:%d" % (address[0].encode(), address[1])
        self._wire = render_request(self.head, peer=self.peer, host=host, extra=extra, trusted=trusted)
        self._address = address
        head = self.head
        upstream = self._wiring.pool.take(address, sure=head.method != b"GET" and not head.may_be_repeated)
        if upstream is not None:
            self._send(upstream)
        else:
            self._phase = _CONNECTING
            self._wiring.pool.connect(address, self)

    def answer(self, status: int, body: bytes = b"", headers: bytes = _TEXT, *, close: bool = False) -> None:
        """Answer by ourselves. Cuts off an upstream's answer that has begun, since there can be only one."""
        if self._phase is _DONE:
            return
        if self.status:
            self.cut()
            return
        self._leave_upstream()
        keep = self.head.keep_alive and self.request_complete and not (close or self.closing)
        self.status = status
        bodiless = self.head.method == b"HEAD"
        self._client.write(render_answer(status, body=body, headers=headers, close=not keep, bodiless=bodiless))
        self._end(ExchangeOutcome.REFUSED, keep=keep)

    # What the client's connection calls.

    def take_body(self, payload: bytes, *, done: bool, trailers: bytes = b"") -> None:
        """A piece of the request's body has come."""
        wire = chunks(payload, done=done, trailers=trailers) if self.head.chunked else payload
        self.request_complete = done
        if self._upstream is not None:
            self._body.drop()
            self._upstream.write(wire)
        elif self._phase is not _DONE:
            self._body.hold(wire)
            if self._body.held_bytes >= self._wiring.held_bytes_max:
                self._client.pause(Pause.HELD)

    def client_gone(self) -> None:
        """The client has left."""
        if self._phase is _TUNNEL:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.close()
            self._end(ExchangeOutcome.ANSWERED, keep=False)
            return
        self._leave_upstream()
        self._end(ExchangeOutcome.CLIENT_GONE, keep=False)

    def client_full(self, *, full: bool) -> None:
        """The client takes no more, or again."""
        if self._upstream is not None:
            self._upstream.hold(full=full)

    def cut(self) -> None:
        """End an answer early, and visibly: the client can tell that it is not whole.

        What was already written still reaches the client: its connection ends without the last chunk or with bytes
        missing. A body that lasts until the end of the connection would look whole, so that one is reset instead.
        """
        self._leave_upstream()
        if self.status and self._is_end_visible:
            self._client.truncate()
        else:
            self._client.abort()
        self._end(ExchangeOutcome.CUT, keep=False)

    def tunnel(self, data: bytes) -> None:
        """The client has sent something through the tunnel."""
        self.sent_s = self._wiring.clock()
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
        return self._phase is _TUNNEL

    def check(self, now_s: float) -> float:
        """When time will be up; if it is up, what follows from it."""
        limits, begun_s, written_s = self.timeouts, self.started_s, self.written_s
        if self._phase is _TUNNEL:
            due_s = limits.due_s(begun_s, written_s=written_s, has_begun=self._has_upstream_spoken)
            due_s = min(due_s, self._wiring.tunnel_due_s(begun_s, max(self.sent_s, written_s)))
            if due_s <= now_s:
                self.cut()
            return due_s
        due_s = limits.due_s(begun_s, written_s=written_s, has_begun=bool(self.status))
        if due_s <= now_s:
            self.answer(504, limits.text, close=True)
        elif self._phase is _WAITING and self.wait_until_s < due_s:
            due_s = self.wait_until_s
            if due_s <= now_s:
                self._wiring.handler.overdue(self)
        return due_s

    # What the pool and the upstream's connection call.

    def connected(self, upstream: Upstream) -> None:
        """A fresh connection is there."""
        if self._phase is _CONNECTING:
            self._send(upstream)
        else:
            self._wiring.pool.give(upstream)

    def unreachable(self, error: OSError) -> None:
        """No connection could be made."""
        if self._phase is not _CONNECTING:
            return
        if self._repeated:
            self._lose("the upstream closed its connection and takes no other")
            return
        self._phase = _WAITING
        self._wiring.handler.unreachable(self, error)

    def on_interim(self, head: AnswerHead) -> None:
        """The upstream has sent a 1xx."""
        if self.head.minor == 1 and (head.status != 100 or self.head.expects_continue):
            self._client.write(render_interim(head))

    def on_upgraded(self, head: AnswerHead, data: bytes) -> None:
        """The upstream has agreed to change the protocol: from now on bytes pass as they come."""
        self._phase = _TUNNEL
        self._body.drop()
        self.status = 101
        self._has_upstream_spoken = bool(data)
        self.sent_s = self.written_s = self._wiring.clock()
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
        self._is_end_visible = framing is not Framing.CLOSE
        self._phase = _ANSWERING
        self._body.drop()
        self.answer_wire = head.wire
        self.status = head.status
        self._keep = self.head.keep_alive and self.request_complete and not self.closing
        extra = self.answer_headers
        if self.is_timed:
            answered_s = self._wiring.clock()
            extra += render_timing(queue_s=self.sent_s - self.started_s, upstream_s=answered_s - self.sent_s)
        wire = render_forwarded_answer(head, framing=framing, close=not self._keep, extra=extra)
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
        self._has_upstream_spoken = True
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
        self._end(ExchangeOutcome.ANSWERED, keep=self._keep)

    def upstream_lost(self, reason: str, *, heard: bool, reused: bool) -> None:
        """The upstream's connection has ended before the answer did. ``heard`` says that some of it had come."""
        self._upstream = None
        if self._phase is _TUNNEL:
            self._end(ExchangeOutcome.ANSWERED, keep=False)
        elif self._phase is _ANSWERING:
            self.cut()
        elif heard or not self._body.can_replay or not self.head.may_be_repeated:
            self.answer(502, reason.encode())
        elif reused and not self._repeated:
            # The upstream closed an idle connection while our request was on its way: once more, on a fresh one.
            self._repeated = True
            self._body.rewind()
            self._phase = _CONNECTING
            self._wiring.pool.connect(self._address, self)
        else:
            self._body.rewind()
            self._lose(reason)

    def _send(self, upstream: Upstream) -> None:
        self._phase = _SENT
        self._upstream = upstream
        if self.is_timed:
            self.sent_s = self._wiring.clock()
        body = self._body.send()
        if body:
            self._client.resume(Pause.HELD)
        upstream.carry(self, self._wire + body)

    def _lose(self, reason: str) -> None:
        """The request is here in whole and may be sent again: elsewhere, if the handler knows where."""
        self._phase = _WAITING
        self._repeated = False
        if not self._wiring.handler.lost(self, reason):
            self.answer(502, reason.encode())

    def _framed(self, payload: bytes, *, done: bool, trailers: bytes) -> bytes:
        return chunks(payload, done=done, trailers=trailers) if self._chunked_out else payload

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
            self._end(ExchangeOutcome.ANSWERED, keep=False)

    def _end(self, outcome: ExchangeOutcome, *, keep: bool) -> None:
        if self._phase is _DONE:
            return
        self._phase = _DONE
        self._body.drop()
        self.outcome = outcome
        if self.begun:
            self._wiring.handler.finish(self)
            if self._wiring.on_end is not None:
                self._wiring.on_end(self)
        self._client.exchange_done(keep=keep)
