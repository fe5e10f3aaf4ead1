"""Frames of HTTP/2 (RFC 9113): types, flags, error codes, settings, and the rules for their payloads."""

import enum
from struct import Struct
from typing import Final

# Plain integers, because every frame is compared with some of them, and an enum attribute costs 60 ns.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# RFC 9113's default, which is never raised: larger frames only delay others on the connection.
FRAME_BYTES_MAX: Final = 16_384
# A frame head: length in two parts, kind, flags, stream.
FRAME_HEAD: Final = Struct(">HBBBL")
# A window increment.
INCREMENT: Final = Struct(">L")

FRAME_HEAD_BYTES: Final = 9
STREAM_ID_MASK: Final = 0x7FFF_FFFF
PRIORITY_BYTES: Final = 5
SETTING_BYTES: Final = 6
GOAWAY_BYTES: Final = 8
# Frames with a fixed payload size.
_SIZES = {PRIORITY: PRIORITY_BYTES, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: INCREMENT.size}


class ErrorCode(enum.IntEnum):
    """Why a stream or connection ended (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(enum.IntEnum):
    """The settings of a peer (RFC 9113, section 6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class Violation(Exception):
    """A violation that ends a connection: the code of its GOAWAY, and the reason as text."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def check_length(length: int) -> None:
    """Reject a frame above the announced maximum size.

    Raises:
        Violation: FRAME_SIZE_ERROR.
    """
    if length > FRAME_BYTES_MAX:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes; {FRAME_BYTES_MAX} are allowed")


def check_size(kind: int, size: int) -> None:
    """Reject a payload whose size is wrong for its kind of frame.

    Raises:
        Violation: FRAME_SIZE_ERROR.
    """
    if size != _SIZES.get(kind, size):
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of type {kind} with {size} bytes, not {_SIZES[kind]}")


def check_on_connection(stream_id: int) -> None:
    """Reject a connection frame (SETTINGS, PING, GOAWAY) on a stream.

    Raises:
        Violation: PROTOCOL_ERROR.
    """
    if stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a connection frame on a stream")


def check_on_stream(stream_id: int) -> None:
    """Reject a stream frame on stream 0.

    Raises:
        Violation: PROTOCOL_ERROR.
    """
    if not stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream frame on stream 0")


def check_dependency(stream_id: int, payload: bytes) -> None:
    """Reject a priority in which a stream depends on itself.

    Raises:
        Violation: PROTOCOL_ERROR.
    """
    if int.from_bytes(payload[:4]) & STREAM_ID_MASK == stream_id:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")


def unpadded(payload: bytes) -> bytes:
    """Return the content of a padded frame.

    Raises:
        Violation: when the padding is missing or longer than the frame.
    """
    if not payload:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its padding length")
    end = len(payload) - payload[0]
    if end <= 0:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1:end]


def header_block(flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return the field block of a HEADERS frame, without padding and priority.

    Raises:
        Violation: for stream 0, wrong padding, or a priority that is truncated or names the stream itself.
    """
    check_on_stream(stream_id)
    if flags & PADDED:
        payload = unpadded(payload)
    if flags & PRIORITISED:
        if len(payload) < PRIORITY_BYTES:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame without its priority fields")
        check_dependency(stream_id, payload)
        payload = payload[PRIORITY_BYTES:]
    return payload


class StreamState(enum.Enum):
    """The state of a stream (RFC 9113, section 5.1). "Local" is this side, "remote" the peer.

    Two states are kinds of closed: skipped, because a later stream was opened first, and forgotten, because it ended
    long ago or was never opened. After this side has reset a stream, frames of the peer may still arrive.
    """

    IDLE = "idle"
    """The stream has not been opened, but may be."""
    SKIPPED = "skipped"
    """The stream counts as closed, because a later one was opened (RFC 9113, 5.1.1)."""
    OPEN = "open"
    HALF_CLOSED_LOCAL = "half-closed (local)"
    """This side has sent its last frame."""
    HALF_CLOSED_REMOTE = "half-closed (remote)"
    """The peer has sent its last frame."""
    CLOSED = "closed"
    """Both sides have ended the stream, or the peer has reset it."""
    RESET = "reset"
    """This side has reset the stream; frames of the peer may still be in transit."""
    FORGOTTEN = "forgotten"
    """The stream ended long ago, or was never opened."""


class FrameVerdict(enum.Enum):
    """How the engine treats a frame that it has received in some state of its stream."""

    TAKE = "take"
    IGNORE = "ignore"
    COUNT = "ignore, and count as an idle frame"
    CLOSED_STREAM = "stream error STREAM_CLOSED"
    CLOSED_CONNECTION = "connection error STREAM_CLOSED"
    BROKEN_CONNECTION = "connection error PROTOCOL_ERROR"


_IDLE, _SKIPPED, _CLOSED, _RESET = StreamState.IDLE, StreamState.SKIPPED, StreamState.CLOSED, StreamState.RESET
_FORGOTTEN = StreamState.FORGOTTEN
_OPEN, _LOCAL, _REMOTE = StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL, StreamState.HALF_CLOSED_REMOTE
_TAKE, _IGNORE, _BROKEN = FrameVerdict.TAKE, FrameVerdict.IGNORE, FrameVerdict.BROKEN_CONNECTION
# May arrive after the stream has ended here.
_LENIENT = dict.fromkeys(StreamState, _IGNORE) | {_IDLE: _BROKEN, _OPEN: _TAKE, _LOCAL: _TAKE, _REMOTE: _TAKE}

VERDICTS: dict[int, dict[StreamState, FrameVerdict]] = {
    DATA: {
        _IDLE: _BROKEN,
        _SKIPPED: FrameVerdict.CLOSED_STREAM,
        _OPEN: _TAKE,
        _LOCAL: _TAKE,
        _REMOTE: FrameVerdict.CLOSED_STREAM,
        _CLOSED: FrameVerdict.CLOSED_STREAM,
        _RESET: _IGNORE,
        _FORGOTTEN: FrameVerdict.COUNT,
    },
    HEADERS: {
        # For a server; a client never sees a stream begin, because pushes are refused.
        _IDLE: _TAKE,
        _SKIPPED: _BROKEN,
        _OPEN: _TAKE,
        _LOCAL: _TAKE,
        _REMOTE: FrameVerdict.CLOSED_STREAM,
        _CLOSED: FrameVerdict.CLOSED_CONNECTION,
        _RESET: _IGNORE,
        _FORGOTTEN: FrameVerdict.CLOSED_STREAM,
    },
    PRIORITY: dict.fromkeys(StreamState, _IGNORE),
    RST_STREAM: _LENIENT,
    WINDOW_UPDATE: _LENIENT,
}
