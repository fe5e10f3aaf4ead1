"""Flow control of one stream (windows and buffered bytes), and rate limits of cheap frames.

A producer is paused when its buffered bytes reach a limit, so that a stream buffers at most the limit and one more
piece. The peer's window grows while its bytes are consumed immediately, so that large messages do not wait for updates.
A budget of the whole connection bounds this growth.
"""

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_decoder import FieldSection

# Receive window of a stream, in bytes: initially RFC 9113's default.
WINDOW_BYTES = 65_535
# The default doubled four times: almost 1 MiB.
WINDOW_BYTES_MAX = 16 * WINDOW_BYTES
_HELD_BYTES_MAX = 64 * 1024


class PeerBudget:
    """Limits how many resets, pings, SETTINGS and idle frames one peer may send in a period."""

    __slots__ = ("_idle_frames", "_pings", "_resets", "_settings", "_settings_frames", "_since_s")

    def __init__(self, settings: HttpSettings, *, now_s: float) -> None:
        self._settings = settings
        self._since_s = now_s
        self._resets = self._pings = self._settings_frames = self._idle_frames = 0

    def count_reset(self, now_s: float) -> None:
        """Count a reset by the peer, or a reset that the peer provoked.

        Like the other counts, it raises ``Violation`` when the budget is exhausted.
        """
        self._begin(now_s)
        self._resets += 1
        self._check(self._resets, self._settings.http2_resets_max, "resets")

    def count_ping(self, now_s: float) -> None:
        """Count a PING that needs a reply."""
        self._begin(now_s)
        self._pings += 1
        self._check(self._pings, self._settings.http2_pings_max, "pings")

    def count_settings(self, now_s: float) -> None:
        """Count SETTINGS sent by the peer."""
        self._begin(now_s)
        self._settings_frames += 1
        self._check(self._settings_frames, self._settings.http2_settings_max, "settings")

    def count_idle_frame(self, now_s: float) -> None:
        """Count a frame without effect, such as an empty DATA frame or a refused request."""
        self._begin(now_s)
        self._idle_frames += 1
        self._check(self._idle_frames, self._settings.http2_idle_frames_max, "idle frames")

    def earn_pings(self) -> None:
        """Allow more pings after a piece of a response was sent, because gRPC clients measure bandwidth by pings."""
        self._pings = 0

    def earn_reset(self) -> None:
        """Allow more resets after a completed stream."""
        self._resets -= 1

    def _begin(self, now_s: float) -> None:
        if now_s - self._since_s > self._settings.http2_count_period_s:
            self._since_s = now_s
            self._resets = self._pings = self._settings_frames = self._idle_frames = 0

    @staticmethod
    def _check(count: int, count_max: int, what: str) -> None:
        if count > count_max:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, f"more than {count_max} {what} in a short time")


class EngineStream:
    """The flow control state of one stream. Subclasses process received frames."""

    __slots__ = (
        "ending",
        "has_ended",
        "is_done",
        "is_queued",
        "peer_ended",
        "pending",
        "send_left",
        "stream_id",
        "trailers",
        "window_bytes",
        "window_left",
    )

    def __init__(self, stream_id: int, *, send_left: int, peer_ended: bool) -> None:
        self.stream_id = stream_id
        self.send_left = send_left
        """The peer's window, in bytes; negative after the peer has reduced its windows."""
        self.window_left = self.window_bytes = WINDOW_BYTES
        self.peer_ended = peer_ended
        """Whether the peer has sent its last frame."""
        self.pending: bytearray | None = None
        """Bytes that wait for the peer's window."""
        self.ending = False
        """Whether the waiting bytes end the body."""
        self.trailers = b""
        """The trailers to send after the waiting bytes."""
        self.is_queued = False
        """Whether the stream waits for the connection's window rather than its own."""
        self.has_ended = False
        """Whether this side has sent its last frame."""
        self.is_done = False
        """Whether the engine has removed the stream."""

    @property
    def is_full(self) -> bool:
        """Whether sending should pause."""
        return self.pending is not None and len(self.pending) >= _HELD_BYTES_MAX

    @property
    def is_waiting(self) -> bool:
        """Whether bytes are held back."""
        return not self.has_ended and (self.ending or bool(self.pending))

    def buffer(self, payload: bytes) -> None:
        """Buffer bytes that the window does not allow."""
        if self.pending is None:
            self.pending = bytearray(payload)
        else:
            self.pending += payload

    # Called by the engine.

    def receive_head(self, section: FieldSection, *, ended: bool) -> None:
        """Process a head or trailers."""
        raise NotImplementedError

    def receive_data(self, payload: bytes) -> None:
        """Process a piece of a body; more follows. A frame with only padding is an empty piece."""
        raise NotImplementedError

    def receive_last(self, payload: bytes) -> None:
        """Process the last piece of a body; it may be empty."""
        raise NotImplementedError

    def receive_reset(self, code: int) -> None:
        """Process RST_STREAM: the engine has removed the stream."""
        raise NotImplementedError

    def removed(self) -> None:
        """Process the removal of a stream that still had bytes to send."""

    def sent(self, byte_count: int) -> None:
        """Process that ``byte_count`` waiting bytes were sent."""
        raise NotImplementedError
