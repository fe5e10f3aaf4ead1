"""One stream of a client's HTTP/2 connection: the ``Client`` of one exchange.

A stream that is paused takes what its window lets the client send, and no more: the window opens again when it resumes.
"""

import contextlib
import math
from typing import Protocol

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from serving.proxy.client import Pause
from serving.proxy.exchange import Exchange, Wiring
from serving.proxy.http2.answer import StreamAnswer
from serving.proxy.http2.frames import FrameGate
from serving.proxy.http2.heads import Fields, Malformed, read_request_fields, read_trailer_fields
from serving.proxy.registry import Registry
from serving.proxy.rendering import ClientPeer
from serving.proxy.requesthead import RequestRefusal

__all__ = ["Stream", "StreamCarrier"]


class StreamCarrier(Protocol):
    """The connection, as its streams see it."""

    h2: H2Connection
    gate: FrameGate
    registry: Registry
    wiring: Wiring
    peer: ClientPeer
    is_full: bool

    def send(self) -> None:
        """Write the frames that are there soon."""

    def give_back(self, stream_id: int, count: int) -> None:
        """Let the client send this much more."""

    def over(self, stream_id: int) -> None:
        """Forget a stream that has sent its last frame."""


class Stream:
    """One request of a client and its answer."""

    def __init__(self, session: StreamCarrier, stream_id: int) -> None:
        self._session = session
        self._id = stream_id
        self._exchange: Exchange | None = None
        self._answer = StreamAnswer(session.h2, stream_id)
        self._paused = Pause(0)
        self._owed_bytes = 0
        self._length: int | None = None
        self._body_bytes = 0
        self._last_body_s = session.wiring.clock()
        # When the client was last seen to take something of the answer.
        self._taken_s = self._last_body_s
        self._request_ended = False
        self._told_full = False
        self._over = False

    def __repr__(self) -> str:
        return f"Stream({self._id}, {self._exchange!r})"

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return self._answer.outbox.is_waiting

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
            self._answer.refuse(refusal)
            self.flush()
            return
        # A length of 0 says so before the frame that ends the stream does.
        self._request_ended = not head.has_body
        self._length = head.content_length
        now_s = session.wiring.clock()
        exchange = self._exchange = Exchange(self, head, session.wiring, peer=session.peer, now_s=now_s)
        exchange.begin()
        if self._exchange is exchange:
            session.registry.wake_by(self.check(now_s))

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

    def ended(self, trailers: Fields = ()) -> None:
        """The request has ended, with these trailers."""
        try:
            lines = read_trailer_fields(trailers) if trailers else b""
        except Malformed:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            return
        if self._request_ended:
            return
        if self._length is not None and self._body_bytes < self._length:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            return
        self._request_ended = True
        if self._exchange is not None:
            self._exchange.take_body(b"", done=True, trailers=lines)

    def flush(self) -> None:
        """Send what may be sent, and pause or resume the exchange."""
        if self._over:
            return
        if not self._session.is_full and self._answer.outbox.flush():
            self._taken_s = self._session.wiring.clock()
            self._session.gate.earned()
        exchange, full = self._exchange, self._answer.outbox.is_full
        if exchange is not None and full is not self._told_full:
            self._told_full = full
            exchange.client_full(full=full)
        if self._answer.outbox.is_done and self._exchange is None:
            if self._request_ended:
                self._over = True
                self._session.over(self._id)
            else:
                # The client still sends; it is to stop.
                self._reset(ErrorCodes.NO_ERROR)

    def gone(self) -> None:
        """The client has reset the stream, or has left."""
        self._over = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def cut(self) -> None:
        """Cut off the answer."""
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
        if self._exchange is exchange and not self._request_ended and not self._paused and not self._answer.has_begun:
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
        exchange = self._exchange
        assert exchange is not None
        try:
            self._answer.write(data, exchange.head)
        except ProtocolError:
            # Reset by the client, which is still on its way.
            self._over = True
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
        if not self._answer.outbox.is_ended:
            self._reset(ErrorCodes.INTERNAL_ERROR)
        else:
            self._give_back()
            self.flush()
            if not self._over:
                self._taken_s = self._session.wiring.clock()
                self._session.registry.wake_by(self._taken_s + self._session.registry.settings.write_wait_max_s)
        self._session.send()

    def abort(self) -> None:
        """Reset the stream: its regular end would make a part of an answer look whole."""
        self._reset(ErrorCodes.INTERNAL_ERROR)

    truncate = abort

    def _give_back(self) -> None:
        count, self._owed_bytes = self._owed_bytes, 0
        self._session.give_back(self._id, count)

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
