"""One stream of a client's HTTP/2 connection: the ``Client`` of one exchange.

A paused stream accepts no more than its window allows; the window opens again when it resumes. ``response.py`` sends
the response.
"""

import math

from serving.net.proxy.forwarding.client import BODY_TOO_LARGE, BODY_TOO_SLOW, Pause, ResponseSink
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.forwarding.pace import BodyPace
from serving.net.proxy.http1.requesthead import RefusalCode, RequestRefusal, is_grpc_call
from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.heads import Malformed, read_request_section, read_trailer_section
from serving.net.proxy.http2.hpack_decoder import FieldSection
from serving.net.proxy.http2.response import RespondingStream, StreamCarrier

_NOT_PAUSED = Pause(0)
# How long the rest of a request is read after its response, in seconds: between pieces, and at most in total. Clients
# such as curl and httpx do not read the response to an upload that is reset.
_LINGER_S, _LINGER_MAX_S = 1.0, 30.0


class Stream(RespondingStream):
    """One request of a client, and its response."""

    __slots__ = ("_body_left", "_body_pace", "_length", "_linger_end_s", "_paused")

    def __init__(self, session: StreamCarrier, stream_id: int, *, ended: bool) -> None:
        super().__init__(session, stream_id, ended=ended)
        self._paused = _NOT_PAUSED
        self._length: int | None = None
        # The deadline for reading the rest of the request; infinite before the response.
        self._linger_end_s = math.inf
        # Bytes that the request's body may still have: up to its content-length, or to the limit of all bodies.
        self._body_left = math.inf
        self._body_pace = None if ended else BodyPace(session.wiring.body_pace, self._last_read_s)

    @property
    def sink(self) -> ResponseSink:
        """The sink for responses: the stream itself."""
        return self

    # Called by the session.

    def begin(self, section: FieldSection) -> None:
        """Begin the exchange of a request."""
        session = self._session
        settings = session.registry.settings
        try:
            head = read_request_section(section, ended=self.peer_ended, settings=settings)
            self._length = head.content_length
            bytes_max = settings.body_bytes_max or math.inf
            self._body_left = bytes_max if head.content_length is None else head.content_length
            if head.content_length is not None and head.content_length > bytes_max:
                raise RequestRefusal(  # noqa: TRY301 - answered like all others
                    413, RefusalCode.BODY_SIZE, BODY_TOO_LARGE
                )
        except Malformed as malformed:
            self._break(str(malformed))
            return
        except RequestRefusal as refusal:
            self._refuse(refusal)
            return
        now_s = self._last_read_s
        exchange = self._exchange = Exchange(self, head, session.wiring, peer=session.peer, now_s=now_s)
        exchange.begin()
        if self._exchange is exchange:
            due_s = self.check(now_s)
            if due_s < session.registry.sweep_s:
                session.registry.wake_by(due_s)

    def cut(self) -> None:
        """Cut off the response."""
        if self._exchange is not None:
            self._exchange.cut()

    def check(self, now_s: float) -> float:
        """Enforce the stream's timeouts; return the next deadline."""
        exchange = self._exchange
        if exchange is None:
            return self._check_rest(now_s)
        due_s = exchange.check(now_s)
        if due_s <= now_s:
            return due_s
        if self.pending is not None and not self._session.engine.is_full and not is_grpc_call(exchange.head):
            due_s = min(due_s, self._read_due_s)
            if due_s <= now_s:
                exchange.cut()
                return due_s
        if self._body_pace is not None and not (exchange.body.is_complete or self._paused or self._has_begun):
            body, has_response = exchange.body, bool(exchange.response.status)
            body_due_s = self._body_pace.due_s(exchange.head, is_continued=body.is_continued, has_response=has_response)
            due_s = min(due_s, body_due_s)
            if due_s <= now_s:
                self._record_refusal(RefusalCode.SLOW_BODY, BODY_TOO_SLOW)
                exchange.respond(408, BODY_TOO_SLOW.encode())
        return due_s

    def _check_rest(self, now_s: float) -> float:
        """Enforce the timeouts of a stream whose exchange has ended.

        The stream may still receive the request's body, or send the response.
        """
        registry = self._session.registry
        if self._linger_end_s != math.inf:
            code = ErrorCode.NO_ERROR
            due_s = 0.0 if registry.finishing else min(self._last_read_s + _LINGER_S, self._linger_end_s)
        else:
            code = ErrorCode.CANCEL
            due_s = self._last_read_s + registry.settings.write_wait_max_s
            if self.pending is not None and not self._may_dawdle and not self._session.engine.is_full:
                due_s = min(due_s, self._read_due_s)
        if due_s <= now_s:
            self._reset(code)
            return math.inf
        return due_s

    # Called by the engine.

    def receive_head(self, section: FieldSection, *, ended: bool) -> None:
        """Process trailers, which end the request."""
        if not ended:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a second head that does not end the request")
        try:
            lines = read_trailer_section(section)
        except Malformed as malformed:
            self._break(str(malformed))
            return
        self._receive_end(b"", lines)

    def receive_data(self, payload: bytes) -> None:
        """Process a piece of the request's body."""
        engine, exchange = self._session.engine, self._exchange
        if self._linger_end_s != math.inf:
            self._last_read_s = engine.now_s
            engine.replenish(self)
            return
        if self._body_pace is not None and not self._has_begun:
            # All streams of a connection share its bandwidth.
            self._body_pace.receive(len(payload) * len(engine.streams), engine.now_s)
        self._body_left -= len(payload)
        if self._body_left < 0:
            self._refuse_excess()
            return
        if exchange is not None and payload:
            exchange.receive_body(payload)
        if self.window_left * 2 <= self.window_bytes and not self._paused:
            engine.replenish(self)

    def receive_last(self, payload: bytes) -> None:
        """Process the last piece of the request's body."""
        self._receive_end(payload, b"")

    def receive_reset(self, code: int) -> None:
        """Process RST_STREAM, or the loss of the client."""
        del code
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    # Called by the exchange.

    def pause(self, why: Pause) -> None:
        """Stop updating the window, for this reason in addition to others."""
        self._paused |= why

    def resume(self, why: Pause) -> None:
        """Remove a reason of a pause."""
        if self._paused:
            self._paused &= ~why
            if not self._paused:
                if self._body_pace is not None:
                    self._body_pace.resume(self._session.wiring.clock())
                self._session.engine.replenish(self)
                self._session.send()

    def open_tunnel(self) -> bytes:
        """Never called: a stream has no upgrade."""
        raise AssertionError(self)

    def exchange_done(self, *, keep: bool) -> None:
        """End the exchange; pending bytes are still sent."""
        del keep
        exchange, self._exchange = self._exchange, None
        self._paused = _NOT_PAUSED
        if self.is_done:
            return
        if not (self.has_ended or self.ending):
            self._reset(ErrorCode.INTERNAL_ERROR)
        elif self.has_ended and not (exchange is not None and exchange.body.is_complete):
            if exchange is not None and is_grpc_call(exchange.head):
                # As gRPC servers do, because a stream of messages may have no end.
                self._reset(ErrorCode.NO_ERROR)
            else:
                self.linger()
        else:
            self._may_dawdle = exchange is None or is_grpc_call(exchange.head)
            self._await_client()

    def linger(self) -> None:
        """After the response, read and discard the rest of the request."""
        session = self._session
        self._last_read_s = session.wiring.clock()
        self._linger_end_s = self._last_read_s + _LINGER_MAX_S
        session.registry.wake_by(self._last_read_s + _LINGER_S)
        session.engine.replenish(self)
        session.send()

    def abort(self) -> None:
        """Reset the stream, so that a truncated response does not look complete.

        A gRPC client reports CANCEL after its deadline as DEADLINE_EXCEEDED, and INTERNAL_ERROR as INTERNAL.
        """
        is_cancelled = self._exchange is not None and self._exchange.response.is_cancelled
        self._reset(ErrorCode.CANCEL if is_cancelled else ErrorCode.INTERNAL_ERROR)

    truncate = abort

    def _refuse_excess(self) -> None:
        """Reject a body above its content-length or the limit."""
        if self._length is not None:
            self._break("a body longer than its content-length")
        elif self._exchange is not None:
            self._record_refusal(RefusalCode.BODY_SIZE, BODY_TOO_LARGE)
            self._exchange.respond(413, BODY_TOO_LARGE.encode())

    def _receive_end(self, payload: bytes, trailers: bytes) -> None:
        if self._linger_end_s != math.inf:
            return
        self._body_left -= len(payload)
        if self._body_left < 0:
            self._refuse_excess()
        elif self._length is not None and self._body_left:
            self._break("a body shorter than its content-length")
        elif self._exchange is not None and not self._exchange.body.is_complete:
            self._exchange.receive_body_end(payload, trailers)

    def _break(self, reason: str) -> None:
        """Reset the stream of a malformed request."""
        exchange, self._exchange = self._exchange, None
        self._session.engine.reset(self, ErrorCode.PROTOCOL_ERROR)
        if exchange is not None:
            exchange.client_gone()
        self._session.engine.count_fault(ErrorCode.PROTOCOL_ERROR, reason)
