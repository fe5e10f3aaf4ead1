"""The streams of one connection: those that run, and how the last ones ended."""

from serving.proxy.http2.budget import PeerBudget
from serving.proxy.http2.flow import WINDOW_BYTES, WINDOW_BYTES_MAX, EngineStream
from serving.proxy.http2.frames import ErrorCode, Violation
from serving.proxy.http2.states import StreamState
from serving.settings.http import HttpSettings

# Ends of streams that are remembered, to know a frame that was on its way from one that is wrong: 100 bytes each.
_CLOSED_MAX = 256
# What the windows of all streams together may have beyond their first size.
_GROWTH_BYTES_MAX = 4 * 1024 * 1024


class StreamTable:
    """See the module. ``budget`` counts what the peer may still do."""

    __slots__ = ("_closed", "_growth_left", "_highest_id", "budget", "is_server", "settings", "streams")

    def __init__(self, settings: HttpSettings, *, is_server: bool, now_s: float) -> None:
        self.settings = settings
        self.is_server = is_server
        self.budget = PeerBudget(settings, now_s=now_s)
        self.streams: dict[int, EngineStream] = {}
        """All that have not ended on both sides, by number."""
        self._highest_id = 0
        self._closed: dict[int, StreamState] = {}
        self._growth_left = _GROWTH_BYTES_MAX

    def next_id(self) -> int:
        """The number of a client's next stream."""
        self._highest_id += 2 if self._highest_id else 1
        return self._highest_id

    def state_of(self, stream_id: int) -> StreamState:
        """How a stream stands that is not simply open.

        Raises:
            Violation: for a number that no stream has.
        """
        if stream_id in self.streams:
            return StreamState.HALF_CLOSED_REMOTE
        if stream_id % 2 == 0:
            # A server opens none, because pushes are refused.
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a stream with an even number")
        if stream_id > self._highest_id:
            return StreamState.IDLE
        known = self._closed.get(stream_id)
        if known is not None:
            return known
        return StreamState.SKIPPED if len(self._closed) < _CLOSED_MAX else StreamState.FORGOTTEN

    def grown_window(self, stream: EngineStream) -> int:
        """The window of a stream whose bytes were taken: twice as large, as long as the connection allows it."""
        window_bytes = stream.window_bytes
        if window_bytes < WINDOW_BYTES_MAX and window_bytes <= self._growth_left:
            self._growth_left -= window_bytes
            stream.window_bytes = window_bytes = window_bytes * 2
        return window_bytes

    def remove(self, stream: EngineStream, state: StreamState) -> None:
        """A stream has ended."""
        stream.is_done = True
        if stream.window_bytes != WINDOW_BYTES:
            self._growth_left += stream.window_bytes - WINDOW_BYTES
        if stream.has_ended:
            self.budget.earn_reset()
        if self.streams.pop(stream.stream_id, None) is not None:
            self.note_closed(stream.stream_id, state)
            if not self.streams:
                self.emptied()

    def note_closed(self, stream_id: int, state: StreamState) -> None:
        """Remember how a stream ended."""
        closed = self._closed
        closed[stream_id] = state
        if len(closed) > _CLOSED_MAX:
            del closed[next(iter(closed))]

    def emptied(self) -> None:
        """The last stream has ended."""
        raise NotImplementedError
