"""One request to an app that speaks HTTP/2, and its response: a stream of a link.

It has the interface of any other upstream: it takes the head of a request as HTTP/1.1 and sends it as frames, and passes on the
app's answer as heads and pieces. It carries one request. While its receiver is full its window stays closed, so that one slow
reader holds one window of bytes and stops no other stream. A stream that the app refused without processing is sent once more on
another connection, whatever its method.
"""

from typing import Protocol

from serving.net.proxy.http1.responsehead import BadResponse, Framing
from serving.net.proxy.http1.upstream import Address, ResponseReceiver
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.flow import EngineStream
from serving.net.proxy.http2.frames import ErrorCode
from serving.net.proxy.http2.heads import Malformed, read_response_section, read_trailer_section, request_fields
from serving.net.proxy.http2.hpack_decoder import FieldSection

# Most bytes of a request kept for another attempt; an app that has not processed it received at most one window.
_KEPT_BYTES_MAX = 128 * 1024
_LENGTH, _CHUNKED = Framing.LENGTH, Framing.CHUNKED


class StreamHome(Protocol):
    """The pool, as used by its streams."""

    header_count_max: int

    def again(self, stream: "StreamUpstream") -> None:
        """Send a refused, unprocessed stream on another link."""


class StreamLink(Protocol):
    """The connection, as used by its streams."""

    address: Address
    engine: Http2Engine
    carried_count: int

    def open(self, stream: "StreamUpstream") -> int:
        """Open a stream and return its id; 0 if none is available."""

    def send(self) -> None:
        """Schedule a write of pending frames."""


class StreamUpstream(EngineStream):
    """One request to the app and its response."""

    __slots__ = (
        "_begun",
        "_has_received",
        "_held",
        "_home",
        "_is_moving",
        "_is_paused",
        "_kept",
        "_kept_bytes",
        "_left_bytes",
        "_link",
        "_receiver",
        "_was_moved",
        "_wire",
        "address",
        "is_reused",
        "sent_before_bytes",
    )

    def __init__(self, link: StreamLink, home: StreamHome) -> None:
        super().__init__(0, send_left=0, peer_ended=False)
        self.address = link.address
        self.is_reused = False
        self.sent_before_bytes = 0
        """The bytes that the link had sent when the stream was opened."""
        self._home = home
        self._link = link
        self._receiver: ResponseReceiver | None = None
        self._wire = b""
        # Remaining bytes of a body with known length; None for any other.
        self._left_bytes: int | None = None
        # The sent bytes, while they may have to be sent again.
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._begun = self._has_received = self._held = self._is_paused = self._is_moving = self._was_moved = False

    # Called by an exchange.

    def carry(self, receiver: ResponseReceiver, wire: bytes, body: bytes) -> None:
        """Send the head of a request, and the body received so far."""
        self._receiver = receiver
        self._wire = wire
        self._kept = [body]
        self._kept_bytes = len(body)
        self._begin(receiver, body)

    def write(self, data: bytes) -> None:
        """Send more of the request's body."""
        receiver = self._receiver
        if receiver is None:
            return
        if self._kept is not None:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes > _KEPT_BYTES_MAX and not self._is_moving:
                self._kept = None
        if not self._is_moving:
            link = self._link
            link.engine.send_data(self, data)
            if self.pending is not None:
                self.sent()
            link.send()

    def finish(self, data: bytes, trailers: bytes) -> None:
        """Send the end of the request."""
        if self._receiver is None:
            return
        if self._kept is not None:
            self._kept.append(data)
        if not self._is_moving:
            link = self._link
            link.engine.send_last(self, data, trailers=trailers)
            self.sent()
            link.send()

    def write_eof(self) -> None:
        """Do nothing: END_STREAM has ended the request."""

    def hold(self, *, full: bool) -> None:
        """Stop updating the window while the client's buffer is full, or resume."""
        self._held = full
        if not full:
            self._link.engine.give_back(self)
            self._link.send()

    def drop(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Reset the stream, and discard the rest of the response."""
        self._receiver = None
        if self.stream_id and not self.is_done:
            self._link.engine.reset(self, code)
            self._link.send()

    close = drop

    # Called by the engine.

    def take_head(self, section: FieldSection, *, ended: bool) -> None:
        """Process a head or trailers."""
        receiver = self._receiver
        if receiver is None:
            return
        self._has_received = True
        self._kept = None
        try:
            if self._begun:
                if not ended:
                    raise Malformed("a second head")  # noqa: TRY301 - as what the readers raise
                self._finish(receiver, b"", read_trailer_section(section))
                return
            head = read_response_section(
                section, ended=ended, method=receiver.head.method, header_count_max=self._home.header_count_max
            )
        except (BadResponse, Malformed) as bad:
            self._break(receiver, bad)
            return
        if head.status < 200:
            receiver.on_interim(head)
            return
        self._begun = True
        if head.framing is not _CHUNKED:
            self._left_bytes = head.content_length or 0 if head.framing is _LENGTH else 0
        receiver.on_response(head, b"", done=ended)
        if ended and self._receiver is receiver:
            self._end(receiver)

    def take_data(self, payload: bytes) -> None:
        """Process a piece of the response's body."""
        receiver = self._receiver
        if receiver is None or not self._is_counted(receiver, payload):
            return
        receiver.on_piece(payload)
        if self.window_left * 2 <= self.window_bytes and not self._held:
            self._link.engine.give_back(self)

    def take_last(self, payload: bytes) -> None:
        """Process the last piece of the response's body."""
        receiver = self._receiver
        if receiver is None or not self._is_counted(receiver, payload):
            return
        try:
            self._finish(receiver, payload, b"")
        except BadResponse as bad:
            self._break(receiver, bad)

    def take_reset(self, code: int) -> None:
        """Process a reset by the app."""
        if code == ErrorCode.REFUSED_STREAM:
            self.refused("the app refuses the stream")
        else:
            self._has_received = True
            self.lost(f"the app has reset the stream ({code})", is_cancelled=code == ErrorCode.CANCEL)

    def sent(self, byte_count: int = 0) -> None:
        """Pause or resume the receiver after bytes were sent or buffered."""
        del byte_count
        full = self.pending is not None and self.is_full
        if full is not self._is_paused and self._receiver is not None:
            self._is_paused = full
            self._receiver.upstream_full(full=full)

    # Called by its link.

    def refused(self, reason: str) -> None:
        """Process a refusal before processing (REFUSED_STREAM or GOAWAY)."""
        receiver, frames = self._receiver, self._kept
        if receiver is None or frames is None or self._has_received:
            self.lost(reason)
            return
        if self._was_moved:
            # No other connection is available, so the receiver may try another upstream.
            self._receiver = None
            receiver.upstream_refused(reason, b"".join(frames))
            return
        self._is_moving = self._was_moved = True
        if not self._is_paused:
            self._is_paused = True
            receiver.upstream_full(full=True)
        self._home.again(self)

    def restart(self, link: StreamLink) -> None:
        """Resend the whole request on another link."""
        receiver, frames = self._receiver, self._kept
        if receiver is None or frames is None:
            return
        self._link = link
        self._is_moving = False
        self.ending = self.has_ended = self.is_done = self.is_queued = self.peer_ended = False
        self.pending = None
        self.trailers = b""
        self._begin(receiver, b"".join(frames))

    def lost(self, reason: str, *, is_cancelled: bool = False, unseen: bool = False) -> None:
        """Report that the response will not be completed; ``unseen``: no byte of the request reached the app."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.upstream_lost(reason, heard=self._has_received, unseen=unseen, is_cancelled=is_cancelled)

    def _begin(self, receiver: ResponseReceiver, body: bytes) -> None:
        link = self._link
        # On a reused connection the app may have closed its end while the request was in transit.
        self.is_reused = link.carried_count > 0
        self.stream_id = link.open(self)
        if not self.stream_id:
            self._receiver = None
            receiver.upstream_lost("the app takes no more streams", heard=False, unseen=True)
            return
        engine, wire = link.engine, self._wire
        self.send_left = engine.peer_window
        has_body = receiver.head.has_body
        engine.send_head(self, wire, lambda: request_fields(wire[:-4]), ended=not has_body)
        if has_body and receiver.request_complete:
            engine.send_last(self, body, trailers=receiver.request_trailers)
        elif body:
            engine.send_data(self, body)
        self.sent()
        link.send()

    def _is_counted(self, receiver: ResponseReceiver, payload: bytes) -> bool:
        """Count a piece of the response's body; False if it exceeds the declared length."""
        self._has_received = True
        self._kept = None
        if not self._begun:
            self._break(receiver, BadResponse("a body without a head"))
            return False
        if self._left_bytes is not None:
            self._left_bytes -= len(payload)
            if self._left_bytes < 0:
                self._break(receiver, BadResponse("a body longer than its content-length"))
                return False
        return True

    def _finish(self, receiver: ResponseReceiver, payload: bytes, trailers: bytes) -> None:
        if self._left_bytes:
            if payload:
                receiver.on_piece(payload)
            raise BadResponse("a body shorter than its content-length")
        receiver.on_last(payload, trailers)
        if self._receiver is receiver:
            self._end(receiver)

    def _end(self, receiver: ResponseReceiver) -> None:
        self._receiver = None
        if not receiver.request_complete:
            self.drop(ErrorCode.NO_ERROR)
        receiver.upstream_done()

    def _break(self, receiver: ResponseReceiver, bad: Exception) -> None:
        has_left = self._receiver is not receiver
        self.drop(ErrorCode.PROTOCOL_ERROR)
        if not has_left:
            receiver.upstream_lost(f"malformed answer: {bad}", heard=self._has_received, unseen=False)
