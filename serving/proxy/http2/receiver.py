"""Read frames from the bytes of a connection: sizes, order and flags are checked here, their meaning in ``engine.py``.

Frames are parsed where they lie in the buffer of the socket; only a frame that has not come in whole is kept. A frame that is
too large is refused as soon as its head is here.
"""

from serving.proxy.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    INCREMENT,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Violation,
)
from serving.proxy.http2.writer import FrameWriter
from serving.settings.http import HttpSettings

_HEAD_BYTES = 9
_STREAM_ID = 0x7FFF_FFFF
_PRIORITY_BYTES = 5
_SETTING_BYTES = 6
_GOAWAY_BYTES = 8
_INCREMENT_BYTES = INCREMENT.size
# A head in Huffman code is at most this much longer than its text; more cannot become one that is taken.
_BLOCK_RATIO = 4
_SIZES = {PRIORITY: _PRIORITY_BYTES, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: INCREMENT.size}


class FrameReceiver(FrameWriter):
    """One direction of a connection. Its subclass takes the frames."""

    __slots__ = (
        *("_begun", "_block", "_block_count", "_block_ended", "_block_id", "_kept", "_preface_left"),
        *("is_ended", "now_s"),
    )

    def __init__(self, settings: HttpSettings, *, is_server: bool, now_s: float) -> None:
        super().__init__(settings, is_server=is_server, now_s=now_s)
        self.is_ended = False
        """Whether nothing more is read: the connection ends."""
        self.now_s = now_s
        """When what is being read has come."""
        self._preface_left = len(PREFACE) if is_server else 0
        self._begun = False
        # A frame that has not come in whole.
        self._kept = b""
        # A head that is spread over frames: its stream, 0 for none.
        self._block_id = self._block_count = 0
        self._block = b""
        self._block_ended = False

    @property
    def is_amid_head(self) -> bool:
        """Whether something has begun to come that is no body, and must soon be whole."""
        kept = self._kept
        return bool(self._preface_left or self._block_id or (kept and (len(kept) < _HEAD_BYTES or kept[3] != DATA)))

    @property
    def has_begun(self) -> bool:
        """Whether the peer's first frame has come, which is SETTINGS."""
        return self._begun

    def receive(self, data: bytes, now_s: float) -> None:
        """Take what the socket has brought.

        Raises:
            Violation: the connection is to be ended.
        """
        self.now_s = now_s
        if self._kept:
            data, self._kept = self._kept + data, b""
        at, size = 0, len(data)
        if self._preface_left:
            at = self._take_preface(data)
        unpack, unpack_increment = FRAME_HEAD.unpack_from, INCREMENT.unpack_from
        while size - at >= _HEAD_BYTES:
            high, low, kind, flags, stream_id = unpack(data, at)
            start = at + _HEAD_BYTES
            length = high << 8 | low
            end = start + length
            if end > size:
                _check_length(length)
                break
            stream_id &= _STREAM_ID
            is_usual = self._begun and not self._block_id and length <= FRAME_BYTES_MAX
            if is_usual and kind == DATA:
                self.take_data(flags, stream_id, data[start:end])
            elif is_usual and kind == WINDOW_UPDATE and length == _INCREMENT_BYTES:
                self.take_window(stream_id, unpack_increment(data, start)[0] & _STREAM_ID)
            elif is_usual and kind == HEADERS:
                self._begin_block(flags, stream_id, data[start:end])
            else:
                self._take(kind, flags, stream_id, payload=data[start:end])
            if self.is_ended:
                return
            at = end
        if at < size:
            self._kept = data[at:]

    def _take_preface(self, data: bytes) -> int:
        """Compare what has come with the preface; the place after it."""
        at = min(self._preface_left, len(data))
        if not PREFACE.startswith(data[:at], len(PREFACE) - self._preface_left):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "not the preface of HTTP/2")
        self._preface_left -= at
        return at

    def _take(self, kind: int, flags: int, stream_id: int, *, payload: bytes) -> None:
        """Any frame but the data, heads and windows of a connection that is under way."""
        _check_length(len(payload))
        if not self._begun:
            if kind != SETTINGS or flags & ACK:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._begun = True
        if self._block_id or kind == CONTINUATION:
            if kind != CONTINUATION or not stream_id or stream_id != self._block_id:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a head that is cut off by another frame, or was never begun")
            self._continue(flags, stream_id, payload)
        else:
            self._take_rare(kind, flags, stream_id, payload=payload)

    def _take_rare(self, kind: int, flags: int, stream_id: int, *, payload: bytes) -> None:
        now_s = self.now_s
        if kind in _SIZES:
            _check_size(kind, len(payload))
        if kind == RST_STREAM:
            self.take_reset(_on_stream(stream_id), int.from_bytes(payload))
        elif kind == SETTINGS:
            self._take_settings(flags, stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a push")
        elif kind == PING and not flags & ACK:
            _check_connection(stream_id)
            self.budget.count_ping(now_s)
            self.take_ping(payload, is_answer=False)
        else:
            self.budget.count_idle_frame(now_s)
            if kind == PING:
                _check_connection(stream_id)
                self.take_ping(payload, is_answer=True)
            elif kind == PRIORITY:
                _check_dependency(_on_stream(stream_id), payload)
            elif kind == GOAWAY:
                _check_connection(stream_id)
                if len(payload) < _GOAWAY_BYTES:
                    raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY that is too short")
                self.take_goaway(int.from_bytes(payload[:4]) & _STREAM_ID)

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _check_connection(stream_id)
        if flags & ACK:
            if payload:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            self.budget.count_idle_frame(self.now_s)
            return
        if len(payload) % _SETTING_BYTES:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
        self.budget.count_settings(self.now_s)
        self.take_settings(payload)

    def _begin_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id or flags & (PADDED | PRIORITISED):
            payload = _block_of(flags, _on_stream(stream_id), payload)
        if flags & END_HEADERS:
            self.take_block(stream_id, payload, ended=bool(flags & END_STREAM))
            return
        self._block_id, self._block_count, self._block = stream_id, 0, payload
        self._block_ended = bool(flags & END_STREAM)

    def _continue(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._block_count += 1
        if self._block_count > self.settings.http2_continuations_max:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a head in too many frames")
        if len(self._block) + len(payload) > self.settings.head_bytes_max * _BLOCK_RATIO:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "an endless head")
        self._block += payload
        if flags & END_HEADERS:
            block, self._block, self._block_id = self._block, b"", 0
            self.take_block(stream_id, block, ended=self._block_ended)

    # What the subclass does with frames.

    def take_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A DATA frame, with its padding."""
        raise NotImplementedError

    def take_block(self, stream_id: int, block: bytes, *, ended: bool) -> None:
        """A head or trailers, as HPACK has packed them."""
        raise NotImplementedError

    def take_reset(self, stream_id: int, code: int) -> None:
        """The end of a stream."""
        raise NotImplementedError

    def take_window(self, stream_id: int, increment: int) -> None:
        """A larger window of a stream, or of the connection (0)."""
        raise NotImplementedError

    def take_ping(self, payload: bytes, *, is_answer: bool) -> None:
        """A ping, or the answer to one."""
        raise NotImplementedError

    def take_settings(self, payload: bytes) -> None:
        """Settings of the peer."""
        raise NotImplementedError

    def take_goaway(self, last_stream_id: int) -> None:
        """The peer processes no stream above that one."""
        raise NotImplementedError


def unpadded(payload: bytes) -> bytes:
    """The content of a padded frame."""
    if not payload:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a padding")
    end = len(payload) - payload[0]
    if end <= 0:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a padding that is longer than its frame")
    return payload[1:end]


def _block_of(flags: int, stream_id: int, payload: bytes) -> bytes:
    """The packed head of a HEADERS frame with a padding or a priority."""
    if flags & PADDED:
        payload = unpadded(payload)
    if flags & PRIORITISED:
        if len(payload) < _PRIORITY_BYTES:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a head without its priority")
        _check_dependency(stream_id, payload)
        payload = payload[_PRIORITY_BYTES:]
    return payload


def _check_length(length: int) -> None:
    if length > FRAME_BYTES_MAX:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")


def _check_size(kind: int, size: int) -> None:
    if size != _SIZES[kind]:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of kind {kind} with {size} bytes")


def _check_connection(stream_id: int) -> None:
    if stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a connection's frame on a stream")


def _on_stream(stream_id: int) -> int:
    if not stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream's frame on the connection")
    return stream_id


def _check_dependency(stream_id: int, payload: bytes) -> None:
    if int.from_bytes(payload[:4]) & _STREAM_ID == stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
