"""One stream of a client's HTTP/2 connection: the ``Client`` of one exchange.

What the exchange writes is an answer of HTTP/1.1; it is read here as an upstream's would be, and sent as frames. A
stream that is paused takes what its window lets the client send, and no more: the window opens again when it resumes.
"""

import contextlib
import math
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from serving.proxy.answerhead import AnswerHead, Framing, read_answer_head
from serving.proxy.body import ChunkedBody, CloseBody, LengthBody
from serving.proxy.client import Pause
from serving.proxy.exchange import Exchange
from serving.proxy.http2.grpc import GrpcRefusal, is_grpc
from serving.proxy.http2.heads import (
    Fields,
    Malformed,
    answer_fields,
    read_request_fields,
    read_trailer_fields,
    split_lines,
)
from serving.proxy.http2.outbox import StreamOutbox
from serving.proxy.requesthead import RequestRefusal

if TYPE_CHECKING:
    from serving.proxy.http2.session import Session

__all__ = ["Stream"]

_TEXT = (b"content-type", b"text/plain; charset=utf-8")
# The answer's own limits were checked where it came from.
_UNBOUNDED = 1_000_000


class Stream:
    """One request of a client and its answer."""

    def __init__(self, session: "Session", stream_id: int) -> None:
        self._session = session
        self._id = stream_id
        self._exchange: Exchange | None = None
        self._outbox = StreamOutbox(session.h2, stream_id)
        self._reader: LengthBody | ChunkedBody | CloseBody | None = None
        self._paused = Pause(0)
        self._owed_bytes = 0
        self._length: int | None = None
        self._body_bytes = 0
        self._last_body_s = session.wiring.clock()
        # When the client was last seen to take something of the answer.
        self._taken_s = self._last_body_s
        self._request_ended = False
        self._answered = False
        # An answer that a client of gRPC would not read, until it is here in whole.
        self._refusal: GrpcRefusal | None = None
        self._told_full = False
        self._over = False

    def __repr__(self) -> str:
        return f"Stream({self._id}, {self._exchange!r})"

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return self._outbox.is_waiting

    # What the session calls.

    def begin(self, fields: Fields, *, ended: bool) -> None:
        """A request has come."""
        session = self._session
        settings = session.registry.settings
        self._request_ended = ended
        try:
            head = read_request_fields(
                fields,
                ended=ended,
                head_bytes_max=settings.head_bytes_max,
                header_count_max=settings.header_count_max,
            )
            if settings.body_bytes_max and (head.content_length or 0) > settings.body_bytes_max:
                raise RequestRefusal(  # noqa: TRY301 - answered like all others
                    413, "the request's body is too large"
                )
        except Malformed:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            return
        except RequestRefusal as refusal:
            self._refuse(refusal)
            return
        # A length of 0 says so before the frame that ends the stream does.
        self._request_ended = not head.has_body
        self._length = head.content_length
        now_s = session.wiring.clock()
        exchange = self._exchange = Exchange(self, head, session.wiring, peer=session.peer, now_s=now_s)
        exchange.begin()
        if self._exchange is exchange:
            session.wake_by(self.check(now_s))

    def data(self, payload: bytes, count: int) -> None:
        """A piece of the request's body has come; ``count`` is what it takes of the window."""
        self._last_body_s = self._session.wiring.clock()
        self._owed_bytes += count
        self._body_bytes += len(payload)
        if self._length is not None and self._body_bytes > self._length:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            return
        bytes_max = self._session.registry.settings.body_bytes_max
        exchange = self._exchange
        if exchange is not None and bytes_max and self._body_bytes > bytes_max:
            exchange.answer(413, b"the request's body is too large")
        elif exchange is not None and payload:
            exchange.take_body(payload, done=False)
        if not self._paused:
            self._give_back()

    def trailers(self, fields: Fields) -> None:
        """The request has ended with these."""
        try:
            lines = read_trailer_fields(fields)
        except Malformed:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            return
        if not self._request_ended:
            self._end_request(lines)

    def ended(self) -> None:
        """The request has ended."""
        if not self._request_ended:
            self._end_request(b"")

    def flush(self) -> None:
        """Send what may be sent; the exchange is told whether it may go on."""
        if self._over:
            return
        if not self._session.is_full and self._outbox.flush():
            self._taken_s = self._session.wiring.clock()
            self._session.gate.earned()
        exchange, full = self._exchange, self._outbox.is_full
        if exchange is not None and full is not self._told_full:
            self._told_full = full
            exchange.client_full(full=full)
        if self._outbox.is_done and self._exchange is None:
            self._finish()

    def gone(self) -> None:
        """The client wants no answer any more, or has left."""
        self._over = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def cut(self) -> None:
        """Break off."""
        if self._exchange is not None:
            self._exchange.cut()

    def check(self, now_s: float) -> float:
        """When time will be up; if it is up, what follows from it."""
        exchange = self._exchange
        if exchange is None:
            # All that is left is what the client does not take.
            due_s = self._taken_s + self._session.registry.settings.write_wait_max_s
            if due_s <= now_s:
                self._reset(ErrorCodes.CANCEL)
                return math.inf
            return due_s
        due_s = exchange.check(now_s)
        if self._exchange is exchange and not self._request_ended and not self._paused and not self._answered:
            body_due_s = self._last_body_s + self._session.registry.settings.body_wait_max_s
            if body_due_s <= now_s:
                exchange.answer(408, b"the request's body came too slowly")
            due_s = min(due_s, body_due_s)
        return due_s

    # What the exchange calls.

    def write(self, data: bytes) -> None:
        """Send a part of an answer."""
        if self._over:
            return
        if not self._answered:
            data = self._take_heads(data)
        reader = self._reader
        if reader is not None and data:
            payload = reader.feed(data)
            trailers = split_lines(reader.trailers.split(b"\r\n")) if reader.done else ()
            if self._refusal is None:
                self._outbox.put(payload, done=reader.done, trailers=trailers)
            else:
                self._refusal.take(payload)
                if reader.done:
                    self._send_whole(self._refusal.fields())
        self.flush()
        self._session.send()

    def write_eof(self) -> None:
        """The answer ends where it is."""

    def pause(self, why: Pause) -> None:
        """Open the window no more, for one more reason."""
        self._paused |= why

    def resume(self, why: Pause) -> None:
        """One reason is gone."""
        self._paused &= ~why
        if not self._paused:
            self._give_back()
            self._session.send()

    def open_tunnel(self) -> bytes:
        """Never: a stream asks for no upgrade."""
        raise AssertionError(self)

    def exchange_done(self, *, keep: bool) -> None:
        """The exchange is over; what it has written may still be on its way."""
        del keep
        self._exchange = None
        self._paused = Pause(0)
        if self._over:
            return
        if not self._outbox.is_ended:
            self._reset(ErrorCodes.INTERNAL_ERROR)
        else:
            self._give_back()
            self.flush()
            if not self._over:
                self._taken_s = self._session.wiring.clock()
                self._session.wake_by(self._taken_s + self._session.registry.settings.write_wait_max_s)
        self._session.send()

    def truncate(self) -> None:
        """Reset the stream: its regular end would make the answer look whole."""
        self._reset(ErrorCodes.INTERNAL_ERROR)

    def abort(self) -> None:
        """Reset the stream."""
        self._reset(ErrorCodes.INTERNAL_ERROR)

    def _take_heads(self, data: bytes) -> bytes:
        """Send interim heads and the final one; the bytes after it."""
        exchange = self._exchange
        assert exchange is not None
        end = data.index(b"\r\n\r\n")
        head = read_answer_head(data[:end], method=exchange.head.method, header_count_max=_UNBOUNDED)
        try:
            self._send_head(head)
        except ProtocolError:
            # Reset by the client, which is still on its way to us.
            self._over = True
        return data[end + 4 :]

    def _send_head(self, head: AnswerHead) -> None:
        h2 = self._session.h2
        fields = answer_fields(head.status, head.wire.splitlines(keepends=True), length=head.content_length)
        if head.status < 200:
            h2.send_headers(self._id, fields)
            return
        self._answered = True
        exchange = self._exchange
        if exchange is not None and is_grpc(exchange.head):
            self._refusal = GrpcRefusal.of(head.status, fields)
        if head.framing is Framing.NONE:
            self._send_whole(fields if self._refusal is None else self._refusal.fields())
            return
        if self._refusal is None:
            h2.send_headers(self._id, fields)
        if head.framing is Framing.LENGTH:
            self._reader = LengthBody(head.content_length or 0)
        else:
            self._reader = ChunkedBody() if head.framing is Framing.CHUNKED else CloseBody()

    def _send_whole(self, fields: Fields) -> None:
        """Send an answer that has no body."""
        with contextlib.suppress(ProtocolError):
            # Reset by the client, which is still on its way to us.
            self._session.h2.send_headers(self._id, fields, end_stream=True)
        self._outbox.put(b"", done=True)
        self._outbox.is_done = True

    def _end_request(self, trailers: bytes) -> None:
        if self._length is not None and self._body_bytes < self._length:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            return
        self._request_ended = True
        if self._exchange is not None:
            self._exchange.take_body(b"", done=True, trailers=trailers)

    def _refuse(self, refusal: RequestRefusal) -> None:
        body = str(refusal).encode()
        length = (b"content-length", b"%d" % len(body))
        self._session.h2.send_headers(self._id, [(b":status", b"%d" % refusal.status), _TEXT, length])
        self._outbox.put(body, done=True)
        self.flush()

    def _give_back(self) -> None:
        count, self._owed_bytes = self._owed_bytes, 0
        self._session.give_back(self._id, count)

    def _finish(self) -> None:
        """All is sent: a client that still sends is told to stop."""
        if self._request_ended:
            self._over = True
            self._session.over(self._id)
        else:
            self._reset(ErrorCodes.NO_ERROR)

    def _reset(self, code: ErrorCodes) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.suppress(ProtocolError):
            self._session.h2.reset_stream(self._id, code)
        self._give_back()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
        self._session.over(self._id)
