"""The states of a stream, and what each kind of frame means in each (RFC 9113, section 5.1).

``VERDICTS`` is the whole table. The engine asks it about every frame whose stream is not simply open; the engine's fast path takes what
the table takes for ``OPEN`` and ``HALF_CLOSED_LOCAL``.
"""

import enum

from serving.proxy.http2.frames import DATA, HEADERS, PRIORITY, RST_STREAM, WINDOW_UPDATE


class StreamState(enum.Enum):
    """A stream as this side sees it. "Local" is this side, "remote" the peer."""

    IDLE = "idle"
    """It was never opened, and may be."""
    SKIPPED = "skipped"
    """It was never opened, and a later one was: it is closed (RFC 9113, 5.1.1)."""
    OPEN = "open"
    HALF_CLOSED_LOCAL = "half-closed (local)"
    """This side has sent its last frame."""
    HALF_CLOSED_REMOTE = "half-closed (remote)"
    """The peer has sent its last frame."""
    CLOSED = "closed"
    """Both sides have ended it, or the peer has reset it."""
    RESET = "reset"
    """This side has reset it: frames of the peer may still be on their way."""
    FORGOTTEN = "forgotten"
    """It ended long ago, or was never opened."""


class FrameVerdict(enum.Enum):
    """What a frame leads to."""

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
        # A server's; a client never sees a stream begin, because pushes are refused.
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
    RST_STREAM: {
        _IDLE: _BROKEN,
        _SKIPPED: _IGNORE,
        _OPEN: _TAKE,
        _LOCAL: _TAKE,
        _REMOTE: _TAKE,
        _CLOSED: _IGNORE,
        _RESET: _IGNORE,
        _FORGOTTEN: _IGNORE,
    },
    WINDOW_UPDATE: {
        _IDLE: _BROKEN,
        _SKIPPED: _IGNORE,
        _OPEN: _TAKE,
        _LOCAL: _TAKE,
        _REMOTE: _TAKE,
        _CLOSED: _IGNORE,
        _RESET: _IGNORE,
        _FORGOTTEN: _IGNORE,
    },
}
