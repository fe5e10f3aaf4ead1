"""One side of an HTTP/2 connection (RFC 9113), without input and output: bytes in, calls to streams, bytes to be sent.

``receive`` takes bytes and calls the stream that each frame is for; what is to be sent gathers, as one write. There are
no objects for frames and events: a unary call passes in about twenty calls. Memory is bounded by the streams at once, each with
one window in either direction; what costs a peer nothing is counted (``budget.py``).

An error of one stream ends that stream only; an error of the connection is a ``Violation``. The window of the connection opens as
bytes come, because the windows of the streams bound what is held: a stream that is not read stops no other.
"""

from typing import Protocol

from serving.proxy.http2.flow import WINDOW_BYTES, EngineStream
from serving.proxy.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    HEADERS,
    PADDED,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    Violation,
)
from serving.proxy.http2.hpack_decoder import FieldSection, HeaderDecoder
from serving.proxy.http2.receiver import FrameReceiver, unpadded
from serving.proxy.http2.states import VERDICTS, FrameVerdict, StreamState
from serving.settings.http import HttpSettings

_WINDOW_MAX = 2**31 - 1
# What a peer may have on its way for all streams together. It bounds nothing that is held.
_CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
_CONNECTION_WINDOW_LEAST = _CONNECTION_WINDOW_BYTES // 2
# A head larger than we take is answered with 431, up to this many times as large; beyond, the connection is ended.
_LIST_RATIO = 4
_pack = FRAME_HEAD.pack


class EngineOwner(Protocol):
    """The connection that an engine works for."""

    def open_stream(self, stream_id: int, section: FieldSection, *, ended: bool) -> None:
        """A client has begun a stream: put it among the engine's, or refuse it."""

    def emptied(self) -> None:
        """The last stream has ended."""

    def peer_leaves(self, last_stream_id: int) -> None:
        """The peer opens and takes no new streams. It has not processed those above, and will not."""

    def ping_answered(self, payload: bytes) -> None:
        """The answer to a ping has come."""


class Http2Engine(FrameReceiver):
    """See the module."""

    __slots__ = ("_decoder", "_owner", "_window_left", "peer_streams_max")

    def __init__(self, owner: EngineOwner, settings: HttpSettings, *, is_server: bool, now_s: float) -> None:
        super().__init__(settings, is_server=is_server, now_s=now_s)
        self._owner = owner
        self._decoder = HeaderDecoder(list_bytes_max=settings.head_bytes_max * _LIST_RATIO)
        self.peer_streams_max = _WINDOW_MAX
        """How many streams the peer takes at once."""
        self._window_left = _CONNECTION_WINDOW_BYTES
        announced = {Setting.MAX_HEADER_LIST_SIZE: settings.head_bytes_max}
        if is_server:
            announced[Setting.MAX_CONCURRENT_STREAMS] = settings.http2_streams_max
        else:
            announced[Setting.ENABLE_PUSH] = 0
            self.out.append(PREFACE)
        payload = b"".join([key.to_bytes(2) + value.to_bytes(4) for key, value in announced.items()])
        self.out.append(_pack(0, len(payload), SETTINGS, 0, 0) + payload)
        self.send_window(0, _CONNECTION_WINDOW_BYTES - WINDOW_BYTES)

    def refuse(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream that was never taken."""
        self.note_closed(stream_id, StreamState.RESET)
        self.send_reset(stream_id, code)
        self.budget.count_idle_frame(self.now_s)

    def count_fault(self) -> None:
        """The peer has made us reset a stream, which counts as a reset of its own.

        Raises:
            Violation: when it has done so too often (CVE-2025-8671).
        """
        self.budget.count_reset(self.now_s)

    # What the receiver calls.

    def take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A DATA frame."""
        size = len(payload)
        left = self._window_left = self._window_left - size
        if left < _CONNECTION_WINDOW_LEAST:
            if left < 0:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more bytes than the connection takes")
            self.send_window(0, _CONNECTION_WINDOW_BYTES - left)
            self._window_left = _CONNECTION_WINDOW_BYTES
        stream = self.streams.get(stream_id)
        if stream is None or stream.peer_ended:
            self._judge(DATA, stream_id)
            return
        left = stream.window_left = stream.window_left - size
        if left < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more bytes than a stream takes")
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & END_STREAM:
            stream.peer_ended = True
            stream.take_last(payload)
            self._complete(stream)
            return
        if not payload:
            self.budget.count_idle_frame(self.now_s)
        if size:
            # A padding takes a part of the window even where there is nothing else.
            stream.take_data(payload)

    def take_block(self, stream_id: int, block: bytes, *, ended: bool) -> None:
        """A head, which the decoder must see whatever becomes of it."""
        section = self._decoder.decode(block)
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.peer_ended:
            stream.peer_ended = ended
            stream.take_head(section, ended=ended)
            if ended:
                self._complete(stream)
        elif self._judge(HEADERS, stream_id):
            self._highest_id = stream_id
            self._owner.open_stream(stream_id, section, ended=ended)

    def take_reset(self, stream_id: int, code: int) -> None:
        """A stream has ended."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self._judge(RST_STREAM, stream_id)
            self.budget.count_idle_frame(self.now_s)
            return
        self.remove(stream, StreamState.CLOSED)
        stream.take_reset(code)
        self.budget.count_reset(self.now_s)

    def take_window(self, stream_id: int, increment: int) -> None:
        """The peer takes more."""
        self.windows_left -= 1
        if self.windows_left < 0:
            self.budget.count_idle_frame(self.now_s)
        if not increment:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a window that does not grow")
        if not stream_id:
            self.send_left += increment
            if self.send_left > _WINDOW_MAX:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window that is too large")
            if self._blocked:
                self.flush()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._judge(WINDOW_UPDATE, stream_id)
            self.budget.count_idle_frame(self.now_s)
            return
        stream.send_left += increment
        if stream.send_left > _WINDOW_MAX:
            self._break(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.pending is not None and stream.is_waiting:
            self.resume(stream)

    def take_ping(self, payload: bytes, *, is_answer: bool) -> None:
        """A ping is answered, an answer passed on."""
        if is_answer:
            self._owner.ping_answered(payload)
        else:
            self.send_ping(payload, flags=ACK)

    def take_settings(self, payload: bytes) -> None:
        """Settings are in force at once."""
        for at in range(0, len(payload), 6):
            self._set(int.from_bytes(payload[at : at + 2]), int.from_bytes(payload[at + 2 : at + 6]))
        self.out.append(_pack(0, 0, SETTINGS, ACK, 0))

    def take_goaway(self, last_stream_id: int) -> None:
        """The peer leaves."""
        self._owner.peer_leaves(last_stream_id)

    def emptied(self) -> None:
        """The last stream has ended."""
        self._owner.emptied()

    def _set(self, setting: int, value: int) -> None:
        if setting == Setting.HEADER_TABLE_SIZE:
            self.encoder.resize(value)
        elif setting == Setting.ENABLE_PUSH:
            if value > 1 or (value and not self.is_server):
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a wrong ENABLE_PUSH")
        elif setting == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_streams_max = value
        elif setting == Setting.INITIAL_WINDOW_SIZE:
            self._set_window(value)
        elif setting == Setting.MAX_FRAME_SIZE and not FRAME_BYTES_MAX <= value < 2**24:
            # Ours are never larger than the default.
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a wrong MAX_FRAME_SIZE")

    def _set_window(self, value: int) -> None:
        change, self._peer_window = value - self._peer_window, value
        if value > _WINDOW_MAX:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window that is too large")
        for stream in list(self.streams.values()):
            stream.send_left += change
            if stream.send_left > _WINDOW_MAX:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window that is too large")
            if stream.is_waiting:
                self.resume(stream)

    def _complete(self, stream: EngineStream) -> None:
        """The peer has sent its last frame of a stream."""
        if stream.has_ended and not stream.is_done:
            self.remove(stream, StreamState.CLOSED)

    def _break(self, stream: EngineStream, code: ErrorCode) -> None:
        """End a stream for what the peer did wrong, and say so to its owner."""
        self.reset(stream, code)
        stream.take_reset(code)
        self.count_fault()

    def _judge(self, kind: int, stream_id: int) -> bool:
        """What a frame means whose stream is not simply open; True if it opens one."""
        verdict = VERDICTS[kind][self.state_of(stream_id)]
        if verdict is FrameVerdict.TAKE:
            if not self.is_server:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "an answer to nothing")
            return True
        if verdict is FrameVerdict.BROKEN_CONNECTION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame of a stream that was never opened")
        if verdict is FrameVerdict.CLOSED_CONNECTION:
            raise Violation(ErrorCode.STREAM_CLOSED, "a head on a closed stream")
        if verdict is FrameVerdict.COUNT:
            self.budget.count_idle_frame(self.now_s)
        elif verdict is FrameVerdict.CLOSED_STREAM:
            stream = self.streams.get(stream_id)
            if stream is not None:
                self._break(stream, ErrorCode.STREAM_CLOSED)
            else:
                self.note_closed(stream_id, StreamState.RESET)
                self.send_reset(stream_id, ErrorCode.STREAM_CLOSED)
                self.count_fault()
        return False
