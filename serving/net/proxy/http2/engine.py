"""One side of an HTTP/2 connection (RFC 9113) without I/O: takes bytes, calls streams, returns bytes.

``receive`` takes bytes and calls the stream of each frame. Frames to send are collected in ``out`` for one write.
Frames are parsed in the socket's buffer. Only an incomplete frame is copied, and a frame that is too large is rejected
by its head. No objects are created for frames and events: a unary call takes about twenty function calls.

Memory is bounded by the number of concurrent streams, each with one window in either direction. ``flow`` limits frames
that are cheap to send and costly to handle. A stream error ends only that stream; a connection error is a
``Violation``. The streams' windows bound the buffered bytes. The connection's window is refilled as bytes arrive, so
that an unread stream does not block others.

The file is long because streams, received frames and sent frames share their state, and the hot path uses all three.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.flow import WINDOW_BYTES, WINDOW_BYTES_MAX, EngineStream, PeerBudget
from serving.net.proxy.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    GOAWAY,
    GOAWAY_BYTES,
    HEADERS,
    INCREMENT,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING_BYTES,
    SETTINGS,
    STREAM_ID_MASK,
    VERDICTS,
    WINDOW_UPDATE,
    ErrorCode,
    FrameVerdict,
    Setting,
    StreamState,
    Violation,
    check_dependency,
    check_length,
    check_on_connection,
    check_on_stream,
    check_size,
    header_block,
    unpadded,
)
from serving.net.proxy.http2.heads import split_lines
from serving.net.proxy.http2.hpack_decoder import FieldSection, HeaderDecoder
from serving.net.proxy.http2.hpack_encoder import HeaderEncoder, HeadKey
from serving.net.proxy.http2.hpack_statictable import Fields

_WINDOW_MAX = 2**31 - 1
# The connection window for all streams together, which does not limit buffered bytes.
_CONNECTION_WINDOW_BYTES = 8 * 1024 * 1024
_CONNECTION_WINDOW_LEAST = _CONNECTION_WINDOW_BYTES // 2
# Factor over the limit up to which a head gets 431; a larger one ends the connection.
_LIST_RATIO = 4
# Largest ratio of a Huffman-coded head to its text.
_BLOCK_RATIO = 4
# Closed streams kept to distinguish late frames from wrong ones: 100 bytes each.
_CLOSED_MAX = 256
# Bytes by which all streams' windows may exceed their initial size.
_GROWTH_BYTES_MAX = 4 * 1024 * 1024
# WINDOW_UPDATE frames per DATA frame: peers send one or two, Envoy allows 10.
_WINDOWS_PER_FRAME = 10
_WINDOWS_AT_FIRST = 100
# Payloads up to this size are copied behind their frame head, which costs less than a second buffer.
_JOINED_BYTES_MAX = 4096
# Size of a write batch: 64 KiB, heads and payloads of four frames; a full transport leaves the rest in the streams.
_BATCH_PIECES = 8
# Frames of a client parsed at a time: a millisecond of work. A read with few frames, or many bytes per frame, costs the
# normal amount.
_FRAMES_AT_ONCE, _FRAMES_FREE, _FRAME_COST_BYTES = 256, 64, 128
_INCREMENT_BYTES = INCREMENT.size
_FRAME_AFTER_END = "a frame on a closed stream"
_pack = FRAME_HEAD.pack


def _pass_over(code: ErrorCode, reason: str) -> None:
    del code, reason


class EngineOwner(Protocol):
    """The connection that owns an engine."""

    def open_stream(self, stream_id: int, section: FieldSection, *, ended: bool) -> None:
        """Add the client's new stream to the engine, or refuse it."""

    def write_now(self) -> None:
        """Write all pending frames."""

    def emptied(self) -> None:
        """Process the end of the last stream."""

    def peer_leaves(self, last_stream_id: int) -> None:
        """Process GOAWAY: the peer opens and accepts no new streams, and processes none above ``last_stream_id``."""

    def on_ping_ack(self, payload: bytes) -> None:
        """Process a PING acknowledgement."""


class Http2Engine:
    """The state machine of one connection. ``budget`` limits the peer."""

    __slots__ = (
        "_begun",
        "_block",
        "_block_count",
        "_block_ended",
        "_block_id",
        "_blocked",
        "_closed",
        "_decoder",
        "_growth_left",
        "_highest_id",
        "_owner",
        "_peer_window",
        "_preface_left",
        "_unparsed",
        "_window_left",
        "budget",
        "encoder",
        "has_more",
        "is_costly",
        "is_ended",
        "is_full",
        "is_server",
        "now_s",
        "on_fault",
        "out",
        "peer_streams_max",
        "send_left",
        "settings",
        "streams",
        "windows_left",
    )

    def __init__(
        self,
        owner: EngineOwner,
        settings: HttpSettings,
        *,
        is_server: bool,
        now_s: float,
        on_fault: Callable[[ErrorCode, str], object] = _pass_over,
    ) -> None:
        self._owner = owner
        self.settings = settings
        self.is_server = is_server
        self.now_s = now_s
        """Arrival time of the bytes being parsed."""
        self.budget = PeerBudget(settings, now_s=now_s)
        self.is_ended = False
        """Whether parsing has stopped, because the connection ends."""
        self.on_fault = on_fault
        self._init_streams()
        self._init_sending()
        self._init_receiving()
        self._announce()

    def _init_streams(self) -> None:
        self.streams: dict[int, EngineStream] = {}
        """Streams that have not ended on both sides, by id."""
        self._highest_id = 0
        self._closed: dict[int, StreamState] = {}
        self._growth_left = _GROWTH_BYTES_MAX

    def _init_sending(self) -> None:
        self.out: list[bytes] = []
        """Frames to send, in order."""
        self.encoder = HeaderEncoder()
        self.send_left = WINDOW_BYTES
        """Bytes that the peer still accepts over all streams."""
        self.is_full = False
        """Whether the transport is full."""
        self.windows_left = _WINDOWS_AT_FIRST
        """WINDOW_UPDATE frames that the peer may send before they count as idle frames."""
        self.peer_streams_max = _WINDOW_MAX
        """Most concurrent streams that the peer accepts."""
        self._blocked: deque[EngineStream] = deque()
        self._peer_window = WINDOW_BYTES

    def _init_receiving(self) -> None:
        self._decoder = HeaderDecoder(list_bytes_max=self.settings.head_bytes_max * _LIST_RATIO)
        self._window_left = _CONNECTION_WINDOW_BYTES
        self._preface_left = len(PREFACE) if self.is_server else 0
        self.has_more = False
        """Whether buffered bytes remain for the next call of ``receive``, even without new bytes."""
        self.is_costly = False
        """Whether the last read had many frames for few bytes."""
        self._begun = False
        # The bytes of an incomplete frame.
        self._unparsed = b""
        # The stream of a head that spans several frames; 0 for none.
        self._block_id = self._block_count = 0
        self._block = b""
        self._block_ended = False

    def _announce(self) -> None:
        """Send the preface, the settings and the connection's window."""
        announced = {Setting.MAX_HEADER_LIST_SIZE: self.settings.head_bytes_max}
        if self.is_server:
            announced[Setting.MAX_CONCURRENT_STREAMS] = self.settings.http2_streams_max
        else:
            announced[Setting.ENABLE_PUSH] = 0
            self.out.append(PREFACE)
        payload = b"".join([key.to_bytes(2) + value.to_bytes(4) for key, value in announced.items()])
        self.out.append(_pack(0, len(payload), SETTINGS, 0, 0) + payload)
        self.send_window(0, _CONNECTION_WINDOW_BYTES - WINDOW_BYTES)

    # Streams.

    @property
    def peer_window(self) -> int:
        """The initial send window of a new stream, in bytes."""
        return self._peer_window

    def next_id(self) -> int:
        """Return the id of a client's next stream."""
        self._highest_id += 2 if self._highest_id else 1
        return self._highest_id

    def refuse(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream that was never opened."""
        self._record_closed(stream_id, StreamState.RESET)
        self.send_reset(stream_id, code)
        self.budget.count_idle_frame(self.now_s)

    def reset(self, stream: EngineStream, code: ErrorCode) -> None:
        """Reset a stream; frames that the peer has already sent are ignored."""
        if not stream.is_done:
            self.send_reset(stream.stream_id, code)
            self._remove(stream, StreamState.RESET)

    def count_fault(self, code: ErrorCode, reason: str) -> None:
        """Report a reset that the peer provoked, and count it like a reset sent by the peer (CVE-2025-8671).

        Raises:
            Violation: when the peer has provoked too many resets.
        """
        self.on_fault(code, reason)
        self.budget.count_reset(self.now_s)

    def _state_of(self, stream_id: int) -> StreamState:
        """Return the state of a stream that is not open.

        Raises:
            Violation: when no stream may have this id.
        """
        if stream_id in self.streams:
            return StreamState.HALF_CLOSED_REMOTE
        if stream_id % 2 == 0:
            # A server opens no streams, because pushes are refused.
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a client stream with an even number")
        if stream_id > self._highest_id:
            return StreamState.IDLE
        known = self._closed.get(stream_id)
        if known is not None:
            return known
        return StreamState.SKIPPED if len(self._closed) < _CLOSED_MAX else StreamState.FORGOTTEN

    def _grow_window(self, stream: EngineStream) -> int:
        """Double the window of a stream whose data is read, within the connection's share; return its size in bytes."""
        window_bytes = stream.window_bytes
        if window_bytes < WINDOW_BYTES_MAX and window_bytes <= self._growth_left:
            self._growth_left -= window_bytes
            stream.window_bytes = window_bytes = window_bytes * 2
        return window_bytes

    def _remove(self, stream: EngineStream, state: StreamState) -> None:
        stream.is_done = True
        if stream.pending is not None:
            stream.removed()
        if stream.window_bytes != WINDOW_BYTES:
            self._growth_left += stream.window_bytes - WINDOW_BYTES
        if stream.has_ended:
            self.budget.earn_reset()
        if self.streams.pop(stream.stream_id, None) is not None:
            self._record_closed(stream.stream_id, state)
            if not self.streams:
                self._owner.emptied()

    def _record_closed(self, stream_id: int, state: StreamState) -> None:
        closed = self._closed
        closed[stream_id] = state
        if len(closed) > _CLOSED_MAX:
            del closed[next(iter(closed))]

    def _break(self, stream: EngineStream, code: ErrorCode, reason: str) -> None:
        """Reset a stream because of a peer's error, and report the error to the stream."""
        self.reset(stream, code)
        stream.receive_reset(code)
        self.count_fault(code, reason)

    def _judge(self, kind: int, stream_id: int) -> bool:
        """Apply the state table to a frame of a stream that is not open; return True if the frame opens it."""
        verdict = VERDICTS[kind][self._state_of(stream_id)]
        if verdict is FrameVerdict.TAKE:
            if not self.is_server:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a response without a request")
            return True
        if verdict is FrameVerdict.BROKEN_CONNECTION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame on an idle stream")
        if verdict is FrameVerdict.CLOSED_CONNECTION:
            raise Violation(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
        if verdict is FrameVerdict.COUNT:
            self.budget.count_idle_frame(self.now_s)
        elif verdict is FrameVerdict.CLOSED_STREAM:
            stream = self.streams.get(stream_id)
            if stream is not None:
                self._break(stream, ErrorCode.STREAM_CLOSED, _FRAME_AFTER_END)
            else:
                self._record_closed(stream_id, StreamState.RESET)
                self.send_reset(stream_id, ErrorCode.STREAM_CLOSED)
                self.count_fault(ErrorCode.STREAM_CLOSED, _FRAME_AFTER_END)
        return False

    # Outgoing frames.

    def output(self) -> bytes:
        """Remove and return the frames to send."""
        out = self.out
        if len(out) == 1:
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

    def send_head(
        self, stream: EngineStream, key: HeadKey | None, fields: Callable[[], Fields], *, ended: bool
    ) -> None:
        """Send a head. Its encoding is cached by ``key``, which stands for equal fields; None is not cached.

        ``fields`` is called only if the encoding is not cached.
        """
        block = None if key is None else self.encoder.known.get(key)
        if block is None:
            block = self.encoder.pack(fields(), key)
        size = len(block)
        if size > FRAME_BYTES_MAX:
            self._send_pieces(stream.stream_id, block, ended=ended)
        else:
            flags = END_HEADERS | END_STREAM if ended else END_HEADERS
            self.out.append(_pack(size >> 8, size & 0xFF, HEADERS, flags, stream.stream_id) + block)
        if ended:
            self._end(stream)

    def send_data(self, stream: EngineStream, payload: bytes) -> None:
        """Send as much of a body piece as the windows allow. The rest waits in the stream."""
        size = len(payload)
        if (
            0 < size <= FRAME_BYTES_MAX
            and size <= stream.send_left
            and size <= self.send_left
            and stream.pending is None
            and not self.is_full
        ):
            self._put(stream, payload, 0)
        elif size:
            stream.buffer(payload)
            self._flush(stream)

    def send_last(self, stream: EngineStream, payload: bytes, *, trailers: bytes = b"") -> None:
        """Send the last piece of a body, which may be empty, and the trailers."""
        size = len(payload)
        if (
            stream.pending is not None
            or self.is_full
            or size > FRAME_BYTES_MAX
            or size > stream.send_left
            or size > self.send_left
        ):
            stream.buffer(payload)
            stream.ending, stream.trailers = True, trailers
            self._flush(stream)
        elif not size:
            self._send_end(stream, trailers)
        elif trailers:
            self._put(stream, payload, 0)
            self._send_end(stream, trailers)
        else:
            self._put(stream, payload, END_STREAM)
            self._end(stream)

    def flush(self) -> None:
        """Send waiting bytes as far as windows and transport allow, one frame per stream in rotation."""
        blocked, self._blocked = self._blocked, deque()
        while blocked and not self.is_full:
            stream = blocked.popleft()
            stream.is_queued = False
            if not stream.is_done and self._flush(stream, frames=1) and stream.is_queued:
                # The stream sent a frame, and continues after the others.
                blocked.append(self._blocked.pop())
        blocked.extend(self._blocked)
        self._blocked = blocked

    def send_window(self, stream_id: int, increment: int) -> None:
        """Increase the peer's window of a stream, or of the connection if ``stream_id`` is 0."""
        self.out.append(_pack(0, 4, WINDOW_UPDATE, 0, stream_id) + increment.to_bytes(4))

    def send_ping(self, payload: bytes, *, flags: int = 0) -> None:
        """Send a PING of eight bytes. With the flag ACK, it is a reply."""
        self.out.append(_pack(0, 8, PING, flags, 0) + payload)

    def send_goaway(self, last_stream_id: int, code: ErrorCode) -> None:
        """Send a GOAWAY."""
        self.out.append(_pack(0, 8, GOAWAY, 0, 0) + last_stream_id.to_bytes(4) + code.to_bytes(4))

    def replenish(self, stream: EngineStream) -> None:
        """Reopen a stream's window once half of it is used. The window may grow."""
        if stream.window_left * 2 <= stream.window_bytes and not stream.peer_ended and not stream.is_done:
            window_bytes = self._grow_window(stream)
            self.send_window(stream.stream_id, window_bytes - stream.window_left)
            stream.window_left = window_bytes

    def send_reset(self, stream_id: int, code: ErrorCode) -> None:
        """Send an RST_STREAM."""
        self.out.append(_pack(0, 4, RST_STREAM, 0, stream_id) + code.to_bytes(4))

    def _flush(self, stream: EngineStream, *, frames: int = 0) -> bool:
        """Send at most ``frames`` frames of waiting bytes (0: all); return whether any was sent."""
        pending, sent, sent_bytes = stream.pending, 0, 0
        if pending is None:
            return False
        while pending and not self.is_full and (not frames or sent < frames):
            size = min(len(pending), FRAME_BYTES_MAX, stream.send_left, self.send_left)
            if size <= 0:
                break
            is_last = size == len(pending) and stream.ending and not stream.trailers
            self._put(stream, bytes(pending[:size]), END_STREAM if is_last else 0)
            del pending[:size]
            sent += 1
            sent_bytes += size
            if is_last:
                self._end(stream)
            if len(self.out) >= _BATCH_PIECES:
                self._owner.write_now()
        if pending or self.is_full:
            if not stream.is_queued and (stream.send_left > 0 or not pending):
                stream.is_queued = True
                self._blocked.append(stream)
        else:
            stream.pending = None
            if stream.ending and not stream.has_ended:
                self._send_end(stream, stream.trailers)
        if sent:
            stream.sent(sent_bytes)
        return bool(sent)

    def _put(self, stream: EngineStream, payload: bytes, flags: int) -> None:
        """Send a DATA frame that fits the windows."""
        size = len(payload)
        stream.send_left -= size
        self.send_left -= size
        self.windows_left += _WINDOWS_PER_FRAME
        head = _pack(size >> 8, size & 0xFF, DATA, flags, stream.stream_id)
        if size <= _JOINED_BYTES_MAX:
            self.out.append(head + payload)
        else:
            self.out += (head, payload)

    def _send_end(self, stream: EngineStream, trailers: bytes) -> None:
        if trailers:
            self.send_head(stream, trailers, lambda: split_lines(trailers.split(b"\r\n")), ended=True)
        else:
            self.out.append(_pack(0, 0, DATA, END_STREAM, stream.stream_id))
            self._end(stream)

    def _end(self, stream: EngineStream) -> None:
        """Record that this side sent the last frame of a stream."""
        stream.has_ended = True
        if stream.peer_ended:
            self._remove(stream, StreamState.CLOSED)

    def _send_pieces(self, stream_id: int, block: bytes, *, ended: bool) -> None:
        """Send a head larger than a frame."""
        pieces = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
        for number, piece in enumerate(pieces):
            kind = CONTINUATION if number else HEADERS
            flags = END_HEADERS if number == len(pieces) - 1 else 0
            if ended and not number:
                flags |= END_STREAM
            self.out.append(_pack(len(piece) >> 8, len(piece) & 0xFF, kind, flags, stream_id) + piece)

    # Incoming frames.

    @property
    def has_begun(self) -> bool:
        """Whether the peer's first frame, SETTINGS, has arrived."""
        return self._begun

    @property
    def is_amid_head(self) -> bool:
        """Whether an incomplete non-DATA frame or header block is buffered."""
        buffered = self._unparsed
        return bool(
            self._preface_left
            or self._block_id
            or (buffered and (len(buffered) < FRAME_HEAD_BYTES or buffered[3] != DATA))
        )

    def receive(self, data: bytes, now_s: float) -> None:
        """Parse received bytes, up to a number of frames.

        Raises:
            Violation: when the connection must end.
        """
        self.now_s = now_s
        if self._unparsed:
            data, self._unparsed = self._unparsed + data, b""
        at, size, frames = 0, len(data), 0
        if self._preface_left:
            at = self._receive_preface(data)
        unpack, unpack_increment = FRAME_HEAD.unpack_from, INCREMENT.unpack_from
        while size - at >= FRAME_HEAD_BYTES and frames < _FRAMES_AT_ONCE:
            high, low, kind, flags, stream_id = unpack(data, at)
            start = at + FRAME_HEAD_BYTES
            length = high << 8 | low
            end = start + length
            if end > size:
                check_length(length)
                break
            stream_id &= STREAM_ID_MASK
            is_usual = self._begun and not self._block_id and length <= FRAME_BYTES_MAX
            if is_usual and kind == DATA:
                self._receive_data(flags, stream_id, data[start:end])
            elif is_usual and kind == WINDOW_UPDATE and length == _INCREMENT_BYTES:
                self._receive_window(stream_id, unpack_increment(data, start)[0] & STREAM_ID_MASK)
            elif is_usual and kind == HEADERS:
                self._receive_headers(flags, stream_id, data[start:end])
            else:
                self._handle_frame(kind, flags, stream_id, payload=data[start:end])
            if self.is_ended:
                return
            at = end
            frames += 1
        if at < size:
            self._unparsed = data[at:]
        self.has_more = frames == _FRAMES_AT_ONCE and at < size
        self.is_costly = frames > _FRAMES_FREE and at < frames * _FRAME_COST_BYTES

    def _receive_preface(self, data: bytes) -> int:
        """Compare bytes with the preface; return the position after it."""
        at = min(self._preface_left, len(data))
        if not PREFACE.startswith(data[:at], len(PREFACE) - self._preface_left):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "not the HTTP/2 preface")
        self._preface_left -= at
        return at

    def _handle_frame(self, kind: int, flags: int, stream_id: int, *, payload: bytes) -> None:
        """Process a frame outside the hot path: the first one, parts of a head, and rare kinds."""
        check_length(len(payload))
        if not self._begun:
            if kind != SETTINGS or flags & ACK:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._begun = True
        if self._block_id or kind == CONTINUATION:
            if kind != CONTINUATION or not stream_id or stream_id != self._block_id:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION expected, or without HEADERS before it")
            self._continue(flags, stream_id, payload)
        else:
            self._receive_rare(kind, flags, stream_id, payload=payload)

    def _receive_rare(self, kind: int, flags: int, stream_id: int, *, payload: bytes) -> None:
        check_size(kind, len(payload))
        if kind == RST_STREAM:
            self._receive_reset(stream_id, int.from_bytes(payload))
        elif kind == SETTINGS:
            self._receive_settings(flags, stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE is not allowed")
        elif kind == PING and not flags & ACK:
            check_on_connection(stream_id)
            self.budget.count_ping(self.now_s)
            self.send_ping(payload, flags=ACK)
        else:
            self.budget.count_idle_frame(self.now_s)
            if kind == PING:
                check_on_connection(stream_id)
                self._owner.on_ping_ack(payload)
            elif kind == PRIORITY:
                check_on_stream(stream_id)
                check_dependency(stream_id, payload)
            elif kind == GOAWAY:
                check_on_connection(stream_id)
                if len(payload) < GOAWAY_BYTES:
                    raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a GOAWAY of {len(payload)} bytes")
                self._owner.peer_leaves(int.from_bytes(payload[:4]) & STREAM_ID_MASK)

    def _receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id or flags & (PADDED | PRIORITISED):
            payload = header_block(flags, stream_id, payload)
        if flags & END_HEADERS:
            self._receive_block(stream_id, payload, ended=bool(flags & END_STREAM))
            return
        self._block_id = stream_id
        self._block_count = 0
        self._block = payload
        self._block_ended = bool(flags & END_STREAM)

    def _continue(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._block_count += 1
        if self._block_count > self.settings.http2_continuations_max:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many CONTINUATION frames")
        if len(self._block) + len(payload) > self.settings.head_bytes_max * _BLOCK_RATIO:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        self._block += payload
        if flags & END_HEADERS:
            block, self._block, self._block_id = self._block, b"", 0
            self._receive_block(stream_id, block, ended=self._block_ended)

    def _receive_block(self, stream_id: int, block: bytes, *, ended: bool) -> None:
        """Process a head or trailers. The decoder must read every block to update its table."""
        section = self._decoder.decode(block)
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.peer_ended:
            stream.peer_ended = ended
            stream.receive_head(section, ended=ended)
            if ended:
                self._complete(stream)
        elif self._judge(HEADERS, stream_id):
            self._highest_id = stream_id
            self._owner.open_stream(stream_id, section, ended=ended)

    def _receive_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        remaining = self._window_left = self._window_left - size
        if remaining < _CONNECTION_WINDOW_LEAST:
            if remaining < 0:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "DATA exceeds the connection's window")
            self.send_window(0, _CONNECTION_WINDOW_BYTES - remaining)
            self._window_left = _CONNECTION_WINDOW_BYTES
        stream = self.streams.get(stream_id)
        if stream is None or stream.peer_ended:
            self._judge(DATA, stream_id)
            return
        remaining = stream.window_left = stream.window_left - size
        if remaining < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "DATA exceeds the stream's window")
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & END_STREAM:
            stream.peer_ended = True
            stream.receive_last(payload)
            self._complete(stream)
            return
        if not payload:
            self.budget.count_idle_frame(self.now_s)
        if size:
            # Padding uses the window even without data.
            stream.receive_data(payload)

    def _receive_reset(self, stream_id: int, code: int) -> None:
        check_on_stream(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._judge(RST_STREAM, stream_id)
            self.budget.count_idle_frame(self.now_s)
            return
        self._remove(stream, StreamState.CLOSED)
        stream.receive_reset(code)
        self.budget.count_reset(self.now_s)

    def _receive_window(self, stream_id: int, increment: int) -> None:
        self.windows_left -= 1
        if self.windows_left < 0:
            self.budget.count_idle_frame(self.now_s)
        if not increment:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE increment of 0")
        if not stream_id:
            self.send_left += increment
            _check_window(self.send_left)
            if self._blocked:
                self.flush()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            # The peer updated the window while the stream was ending; `windows_left` limits these too.
            self._judge(WINDOW_UPDATE, stream_id)
            return
        stream.send_left += increment
        if stream.send_left > _WINDOW_MAX:
            self._break(stream, ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1")
        elif stream.pending is not None and stream.is_waiting:
            self._flush(stream)

    def _receive_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        check_on_connection(stream_id)
        if flags & ACK:
            if payload:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with a payload")
            self.budget.count_idle_frame(self.now_s)
            return
        if len(payload) % SETTING_BYTES:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self.budget.count_settings(self.now_s)
        for at in range(0, len(payload), SETTING_BYTES):
            self._set(int.from_bytes(payload[at : at + 2]), int.from_bytes(payload[at + 2 : at + SETTING_BYTES]))
        self.out.append(_pack(0, 0, SETTINGS, ACK, 0))

    def _set(self, setting: int, value: int) -> None:
        if setting == Setting.HEADER_TABLE_SIZE:
            self.encoder.resize(value)
        elif setting == Setting.ENABLE_PUSH:
            if value > 1 or (value and not self.is_server):
                raise Violation(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        elif setting == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_streams_max = value
        elif setting == Setting.INITIAL_WINDOW_SIZE:
            self._set_window(value)
        elif setting == Setting.MAX_FRAME_SIZE and not FRAME_BYTES_MAX <= value < 2**24:
            # This side never sends frames above the default size.
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE of {value}")

    def _set_window(self, value: int) -> None:
        change, self._peer_window = value - self._peer_window, value
        _check_window(value)
        for stream in list(self.streams.values()):
            stream.send_left += change
            _check_window(stream.send_left)
            if stream.is_waiting:
                self._flush(stream)

    def _complete(self, stream: EngineStream) -> None:
        """Remove a stream that has ended on both sides."""
        if stream.has_ended and not stream.is_done:
            self._remove(stream, StreamState.CLOSED)


def _check_window(window: int) -> None:
    if window > _WINDOW_MAX:
        raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window above 2^31 - 1")
