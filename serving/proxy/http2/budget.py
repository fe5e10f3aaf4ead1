"""Rate-limits frames that are cheap to send and costly to handle (resets, pings, settings, empty frames).

Known attacks and the count that ends each: docs/http2-limits.md. Counts begin again after each period. A stream that was
answered in whole earns its peer one reset, so that a connection that carries the calls of many clients, as an activator's, may
cancel as many calls as it completes and more.
"""

from serving.proxy.http2.frames import ErrorCode, Violation
from serving.settings.http import HttpSettings


class PeerBudget:
    """The remaining budget of one peer in this period."""

    __slots__ = ("_idle_frames", "_pings", "_resets", "_settings", "_settings_frames", "_since_s")

    def __init__(self, settings: HttpSettings, *, now_s: float) -> None:
        self._settings = settings
        self._since_s = now_s
        self._resets = self._pings = self._settings_frames = self._idle_frames = 0

    def count_reset(self, now_s: float) -> None:
        """Count a reset by the peer, or one that it provoked. Raises ``Violation``, as all of these do."""
        self._begin(now_s)
        self._resets += 1
        self._check(self._resets, self._settings.http2_resets_max, "resets")

    def count_ping(self, now_s: float) -> None:
        """Count a ping that the peer wants answered."""
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
        """Allow more pings after a piece of a response was sent: gRPC clients measure bandwidth by them."""
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
