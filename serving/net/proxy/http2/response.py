"""The response of one stream of a client's connection: an upstream's, or the proxy's own.

An upstream's response is sent as frames immediately; the proxy's own response arrives as HTTP/1.1 and is parsed.
"""

import time
from typing import Protocol

from serving.net.proxy.forwarding.client import Registry
from serving.net.proxy.forwarding.exchange import Exchange, Wiring
from serving.net.proxy.forwarding.pace import ResponseBuffer
from serving.net.proxy.http1.rendering import ClientPeer, render_date
from serving.net.proxy.http1.requesthead import GRPC_TYPE, RequestRefusal, is_grpc_call
from serving.net.proxy.http1.responsehead import Framing, ResponseHead, read_response_head
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.flow import EngineStream
from serving.net.proxy.http2.frames import ErrorCode
from serving.net.proxy.http2.heads import response_fields, split_lines
from serving.net.proxy.http2.hpack_statictable import Fields

_INTERNAL, _UNAUTHENTICATED, _PERMISSION_DENIED, _UNIMPLEMENTED, _UNAVAILABLE, _UNKNOWN = 13, 16, 7, 12, 14, 2
_CODES = {400: _INTERNAL, 401: _UNAUTHENTICATED, 403: _PERMISSION_DENIED, 404: _UNIMPLEMENTED}
_CODES |= dict.fromkeys((429, 502, 503, 504), _UNAVAILABLE)
# Most bytes of a message: a sentence, not an HTML page.
_MESSAGE_BYTES_MAX = 500
_OK = 200
_REPLACED = (b":status", b"content-type", b"content-length")

_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_NONE = Framing.NONE
# The limits of an own response were checked where its parts came from.
_UNBOUNDED = 1_000_000


class GrpcRefusal:
    """Buffers the body of an HTTP error, and converts it to a trailers-only gRPC response."""

    __slots__ = ("_body", "_fields", "_status")

    def __init__(self, status: int, fields: Fields) -> None:
        self._status = status
        self._fields = fields
        self._body = b""

    @classmethod
    def of(cls, status: int, fields: Fields) -> "GrpcRefusal | None":
        """The refusal for a response with these fields; None if the response is already gRPC, or not an error."""
        kind = next((value for name, value in fields if name == b"content-type"), b"")
        return None if status == _OK or kind.startswith(GRPC_TYPE) else cls(status, fields)

    def add(self, payload: bytes) -> None:
        """Buffer a piece of the body."""
        if len(self._body) < _MESSAGE_BYTES_MAX:
            self._body += payload[:_MESSAGE_BYTES_MAX]

    def fields(self) -> Fields:
        """The fields of the whole gRPC response."""
        kind = next((value for name, value in self._fields if name == b"content-type"), b"")
        message = self._body.strip()[:_MESSAGE_BYTES_MAX] if kind.startswith(b"text/plain") else b""
        return [
            (b":status", b"%d" % _OK),
            (b"content-type", GRPC_TYPE),
            *[field for field in self._fields if field[0] not in _REPLACED],
            (b"grpc-status", b"%d" % _CODES.get(self._status, _UNKNOWN)),
            (b"grpc-message", _escaped(message or b"HTTP status %d" % self._status)),
        ]


def _escaped(message: bytes) -> bytes:
    """Text encoded for grpc-message: all but printable ASCII as %XX."""
    return b"".join([b"%c" % byte if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in message])


class StreamCarrier(Protocol):
    """The connection, as used by its streams."""

    engine: Http2Engine
    registry: Registry
    wiring: Wiring
    peer: ClientPeer

    def send(self) -> None:
        """Schedule a write of pending frames."""


class RespondingStream(EngineStream):
    """The sending half of a client's stream: it writes the response."""

    __slots__ = (
        "_ahead",
        "_exchange",
        "_has_begun",
        "_is_late",
        "_is_paused",
        "_last_read_s",
        "_may_dawdle",
        "_read_due_s",
        "_refusal",
        "_session",
    )

    def __init__(self, session: StreamCarrier, stream_id: int, *, ended: bool) -> None:
        super().__init__(stream_id, send_left=session.engine.peer_window, peer_ended=ended)
        self._session = session
        self._exchange: Exchange | None = None
        # The unread bytes; None while there are only a few.
        self._ahead: ResponseBuffer | None = None
        # When the client last read some of the response.
        self._last_read_s = session.wiring.clock()
        # The deadline for the client to read waiting bytes.
        self._is_late = False
        self._read_due_s = 0.0
        # Whether the final head was sent.
        self._has_begun = False
        # An HTTP refusal for a gRPC client, until it is complete.
        self._refusal: GrpcRefusal | None = None
        self._is_paused = False
        # Whether no minimum rate applies to the rest of an ended response.
        self._may_dawdle = True

    def begin_response(self, head: ResponseHead, extra: bytes, payload: bytes, *, done: bool, trailers: bytes) -> None:
        """Send the head of an upstream's response, the ``extra`` lines, and the received part of the body."""
        exchange = self._exchange
        if self.is_done or exchange is None:
            return
        self._has_begun = True
        length = head.content_length if head.status >= 200 and head.status != 204 else None

        def fields() -> Fields:
            lines = head.wire + extra
            return response_fields(head.status, lines.splitlines(keepends=True), length=length)

        if (head.status != 200 or GRPC_TYPE not in head.wire) and is_grpc_call(exchange.head):
            self._refusal = GrpcRefusal.of(head.status, fields())
            if self._refusal is not None:
                self._send_rest(payload, done=done, trailers=trailers)
                return
        engine = self._session.engine
        ended = head.framing is _NONE
        engine.send_head(self, (head.status_wire, head.wire, extra, length), fields, ended=ended)
        if ended:
            self._session.send()
        else:
            self._send_rest(payload, done=done, trailers=trailers)

    def send_piece(self, payload: bytes) -> None:
        """Send a piece of a response's body; more follows."""
        if self.is_done or self.has_ended or self.ending:
            return
        if self._refusal is not None:
            self._refusal.add(payload)
            return
        session = self._session
        session.engine.send_data(self, payload)
        self._record_sent(session)

    def send_last(self, payload: bytes, trailers: bytes) -> None:
        """Send the last piece of a response's body, and the trailers."""
        if self.is_done or self.has_ended or self.ending:
            return
        session, refusal = self._session, self._refusal
        if refusal is None:
            session.engine.send_last(self, payload, trailers=trailers)
        else:
            refusal.add(payload)
            session.engine.send_head(self, None, refusal.fields, ended=True)
        self._record_sent(session)

    def _send_rest(self, payload: bytes, *, done: bool, trailers: bytes) -> None:
        if done:
            self.send_last(payload, trailers)
        else:
            self.send_piece(payload)

    def _record_sent(self, session: StreamCarrier) -> None:
        if self.pending is None:
            session.engine.budget.earn_pings()
        else:
            now_s = session.wiring.clock()
            # Bytes that were already waiting do not move the deadline.
            if not self._is_late:
                self._is_late = True
                self._read_due_s = max(self._read_due_s, session.wiring.read_pace.begin(now_s))
                session.registry.wake_by(self._read_due_s)
            self._update_pause()
        session.send()

    def write(self, data: bytes) -> None:
        """Send a response of the proxy itself, or an upstream's 1xx."""
        exchange = self._exchange
        if self.is_done or exchange is None:
            return
        raw, _, body = data.partition(b"\r\n\r\n")
        head = read_response_head(raw, method=exchange.head.method, header_count_max=_UNBOUNDED)
        if head.status >= 200:
            self.begin_response(head, head.marks, body, done=True, trailers=b"")
        else:
            fields = response_fields(head.status, head.wire.splitlines(keepends=True), length=None)
            self._session.engine.send_head(self, None, lambda: fields, ended=False)
            self._session.send()

    def write_eof(self) -> None:
        """End the response at the current position."""

    def sent(self, byte_count: int) -> None:
        """Resume after the client has read."""
        self._record_read()
        session = self._session
        if self._ahead is not None:
            self._ahead.set(self.unread_bytes())
        # All streams of a connection share its bandwidth.
        byte_count *= len(session.engine.streams)
        self._read_due_s = session.wiring.read_pace.extend(self._read_due_s, byte_count, self._last_read_s)
        self._is_late = self.pending is not None
        self._update_pause()

    def has_room(self) -> bool:
        """Count the bytes buffered for the client; return whether more may be written."""
        if self._ahead is None:
            self._ahead = ResponseBuffer(self._session.wiring.buffers)
        return self._ahead.set(self.unread_bytes())

    def unread_bytes(self) -> int:
        """The number of written bytes that the client's windows or connection have not accepted."""
        return 0 if self.pending is None else len(self.pending)

    def removed(self) -> None:
        """Discard the unread bytes."""
        self.pending = None
        if self._ahead is not None:
            self._ahead.set(0)

    def _record_read(self) -> None:
        session = self._session
        self._last_read_s = session.wiring.clock()
        session.engine.budget.earn_pings()
        if self.has_ended and not self.is_done and self._exchange is None:
            self.linger()

    def linger(self) -> None:
        """After the response, read and discard the rest of the request."""
        raise NotImplementedError

    def _update_pause(self) -> None:
        """Pause or resume the exchange."""
        exchange, full = self._exchange, self.is_full
        if exchange is not None and full is not self._is_paused:
            self._is_paused = full
            exchange.client_full(full=full)

    def _refuse(self, refusal: RequestRefusal) -> None:
        """Respond to a request that never became an exchange."""
        self._record_refusal(refusal.code, str(refusal))
        body = str(refusal).encode()
        length = (b"content-length", b"%d" % len(body))
        fields = [(b":status", b"%d" % refusal.status), _TEXT, length, *split_lines([render_date(time.time())])]
        engine = self._session.engine
        engine.send_head(self, None, lambda: fields, ended=False)
        engine.send_last(self, body)
        self._record_read()
        self._await_client()

    def _record_refusal(self, code: str, reason: str) -> None:
        session = self._session
        session.registry.refusals.record(code, reason, session.peer.address.decode())

    def _await_client(self) -> None:
        """Wait for the client to read the written bytes."""
        if not self.is_done:
            session = self._session
            self._last_read_s = session.wiring.clock()
            session.registry.wake_by(self._last_read_s + session.registry.settings.write_wait_max_s)

    def _reset(self, code: ErrorCode) -> None:
        self._session.engine.reset(self, code)
        self._session.send()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
