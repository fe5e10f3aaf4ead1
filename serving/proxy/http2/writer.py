"""What this side sends: frames, gathered for one write, as far as the windows of the peer and its socket take them."""

from collections import deque
from collections.abc import Callable

from serving.proxy.http2.flow import WINDOW_BYTES, EngineStream
from serving.proxy.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    ErrorCode,
)
from serving.proxy.http2.heads import split_lines
from serving.proxy.http2.hpack_encoder import HeaderEncoder, HeadKey
from serving.proxy.http2.hpack_statictable import Fields
from serving.proxy.http2.states import StreamState
from serving.proxy.http2.streamtable import StreamTable
from serving.settings.http import HttpSettings

# Peers send one or two WINDOW_UPDATE frames for a DATA frame; Envoy allows 10.
_WINDOWS_PER_FRAME = 10
_WINDOWS_AT_FIRST = 100
# A payload up to this size is copied behind its head at once: that costs less than another piece of the write.
_JOINED_BYTES_MAX = 4096
_pack = FRAME_HEAD.pack


class FrameWriter(StreamTable):
    """One direction of a connection."""

    __slots__ = ("_blocked", "_peer_window", "encoder", "is_full", "out", "send_left", "windows_left")

    def __init__(self, settings: HttpSettings, *, is_server: bool, now_s: float) -> None:
        super().__init__(settings, is_server=is_server, now_s=now_s)
        self.out: list[bytes] = []
        """What is to be sent, in order."""
        self.encoder = HeaderEncoder()
        self.send_left = WINDOW_BYTES
        """What the peer takes of all streams together."""
        self.is_full = False
        """Whether the socket takes nothing for now."""
        self.windows_left = _WINDOWS_AT_FIRST
        """How many WINDOW_UPDATE frames the peer may send that do not count as idle frames."""
        self._blocked: deque[EngineStream] = deque()
        self._peer_window = WINDOW_BYTES

    @property
    def peer_window(self) -> int:
        """The window that a new stream begins with, for sending."""
        return self._peer_window

    def output(self) -> bytes:
        """Take what is to be sent."""
        out = self.out
        if len(out) == 1:
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

    def send_head(
        self, stream: EngineStream, key: HeadKey | None, fields: Callable[[], Fields], *, ended: bool
    ) -> None:
        """Send a head. Under the same ``key`` its fields are the same: they are asked for when it is new, or None."""
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
        """Send a piece of a body, as far as the peer takes it; the rest waits in the stream."""
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
            stream.hold_back(payload)
            self._flush(stream)

    def send_last(self, stream: EngineStream, payload: bytes, *, trailers: bytes = b"") -> None:
        """Send the last piece of a body, which may be empty, and the lines that follow it."""
        size = len(payload)
        if (
            stream.pending is not None
            or self.is_full
            or size > FRAME_BYTES_MAX
            or size > stream.send_left
            or size > self.send_left
        ):
            stream.hold_back(payload)
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
        """Send what waits, as far as the peer and the socket take it: a frame of each stream, in turns."""
        blocked, self._blocked = self._blocked, deque()
        while blocked and not self.is_full:
            stream = blocked.popleft()
            stream.is_queued = False
            if not stream.is_done and self._flush(stream, frames=1) and stream.is_queued:
                # It has sent a frame, and waits again behind the others.
                blocked.append(self._blocked.pop())
        blocked.extend(self._blocked)
        self._blocked = blocked

    def resume(self, stream: EngineStream) -> None:
        """Send what waits of one stream, whose window is larger."""
        self._flush(stream)

    def reset(self, stream: EngineStream, code: ErrorCode) -> None:
        """End a stream; what was on its way from the peer is passed over."""
        if not stream.is_done:
            self.send_reset(stream.stream_id, code)
            self.remove(stream, StreamState.RESET)

    def send_reset(self, stream_id: int, code: ErrorCode) -> None:
        """Send an RST_STREAM."""
        self.out.append(_pack(0, 4, RST_STREAM, 0, stream_id) + code.to_bytes(4))

    def send_window(self, stream_id: int, increment: int) -> None:
        """Let the peer send more on a stream, or in all (0)."""
        self.out.append(_pack(0, 4, WINDOW_UPDATE, 0, stream_id) + increment.to_bytes(4))

    def send_ping(self, payload: bytes, *, flags: int = 0) -> None:
        """Send a ping of eight bytes, or the answer to one."""
        self.out.append(_pack(0, 8, PING, flags, 0) + payload)

    def send_goaway(self, last_stream_id: int, code: ErrorCode) -> None:
        """Send a GOAWAY."""
        self.out.append(_pack(0, 8, GOAWAY, 0, 0) + last_stream_id.to_bytes(4) + code.to_bytes(4))

    def give_back(self, stream: EngineStream) -> None:
        """Open the window of a stream again, when half of it is used. What came was taken: it may become larger."""
        if stream.window_left * 2 <= stream.window_bytes and not stream.peer_ended and not stream.is_done:
            window_bytes = self.grown_window(stream)
            self.send_window(stream.stream_id, window_bytes - stream.window_left)
            stream.window_left = window_bytes

    def _flush(self, stream: EngineStream, *, frames: int = 0) -> bool:
        """Send frames of what waits, at most so many unless 0; True if something was sent."""
        pending, sent = stream.pending, 0
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
            if is_last:
                self._end(stream)
        if pending or self.is_full:
            if not stream.is_queued and (stream.send_left > 0 or not pending):
                stream.is_queued = True
                self._blocked.append(stream)
        else:
            stream.pending = None
            if stream.ending and not stream.has_ended:
                self._send_end(stream, stream.trailers)
        if sent:
            stream.sent()
        return bool(sent)

    def _put(self, stream: EngineStream, payload: bytes, flags: int) -> None:
        """Send a DATA frame, for which the windows have room."""
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
        """This side has sent its last frame of a stream."""
        stream.has_ended = True
        if stream.peer_ended:
            self.remove(stream, StreamState.CLOSED)

    def _send_pieces(self, stream_id: int, block: bytes, *, ended: bool) -> None:
        """Send a head that is larger than a frame."""
        pieces = [block[at : at + FRAME_BYTES_MAX] for at in range(0, len(block), FRAME_BYTES_MAX)]
        for number, piece in enumerate(pieces):
            kind = CONTINUATION if number else HEADERS
            flags = END_HEADERS if number == len(pieces) - 1 else 0
            if ended and not number:
                flags |= END_STREAM
            self.out.append(_pack(len(piece) >> 8, len(piece) & 0xFF, kind, flags, stream_id) + piece)
