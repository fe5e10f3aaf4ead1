"""The authenticated peers of the autoscaler: pods, activators, and other autoscalers.

Some frames are counted and dropped, while the connection stays open: invalid frames, and frames out of bounds, too late
or too frequent. A relayed stat was checked by the autoscaler that received it. It is passed to ``relayed`` or dropped,
and never relayed again.
"""

import logging
from collections.abc import Callable

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import RevisionKey
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.net.aio.clock import now_s
from serving.net.wire.frames import AnnouncedPod, decode_activator_stats, decode_pod_stat, decode_relayed_stats

# Longest transit time in seconds: an older report describes other requests.
LATE_AFTER_S = 3.0
# Consecutive late frames that indicate a changed sender clock.
_LATE_IN_A_ROW_MAX = 5

_log = logging.getLogger("autoscaler")

# Largest frame of a pod: 16 gauges with names of 63 bytes, and seven numbers.
_POD_FRAME_BYTES_MAX = 2048
# Most frames of one connection that count per second: an activator pokes every 50 ms for each revision.
_POD_FRAMES_PER_S_MAX = 10
_ACTIVATOR_FRAMES_PER_S_MAX = 2000
# Relayed stats were counted by the other autoscaler, which sends at most one frame per event loop iteration.
_AUTOSCALER_FRAMES_PER_S_MAX = 50_000

Record = Callable[[RevisionKey, Stat, StatSource], None]
"""Called with each valid stat, stamped with the time of its receipt."""


class LatenessState(msgspec.Struct, frozen=True, kw_only=True):
    """The lateness of one connection's frames.

    ``offset_s`` is the smallest difference of receiver time and sender time so far; None before the first frame.
    ``late_count`` is the number of consecutive late frames.
    """

    offset_s: float | None = None
    late_count: int = 0


def is_late(state: LatenessState, *, sent_s: float, received_s: float) -> tuple[LatenessState, bool]:
    """Whether a frame arrived too late to count.

    Example: frames sent at 100 and 101 are received at 7.0 and 12.1. Their offsets are -93 and -88.9, so the second
    took 4.1 s longer and is late.
    """
    offset_s = received_s - sent_s
    if state.offset_s is None or offset_s <= state.offset_s:
        return LatenessState(offset_s=offset_s), False
    if offset_s - state.offset_s <= LATE_AFTER_S:
        return LatenessState(offset_s=state.offset_s) if state.late_count else state, False
    if state.late_count + 1 >= _LATE_IN_A_ROW_MAX:
        return LatenessState(offset_s=offset_s), False
    return LatenessState(offset_s=state.offset_s, late_count=state.late_count + 1), True


class ServerCounts(msgspec.Struct, kw_only=True):
    """Counts of connections and frames since the start of the process.

    ``late_frames`` arrived too late to count, ``flooding_frames`` above the sender's rate limit.
    ``replaced_connections`` were closed for a newer connection of the same sender, ``silent_connections`` because
    nothing arrived. ``unauthorized_connections`` had no valid token; ``refused_connections`` exceeded the number of
    connections.
    """

    frames: int = 0
    malformed_frames: int = 0
    late_frames: int = 0
    flooding_frames: int = 0
    connections: int = 0
    replaced_connections: int = 0
    silent_connections: int = 0
    unauthorized_connections: int = 0
    announced_pods: int = 0
    refused_announcements: int = 0
    refused_connections: int = 0
    relayed_stats: int = 0

    @property
    def numbers(self) -> dict[str, int]:
        """All counts by metric name."""
        return {f"stats_{name}_total": value for name, value in msgspec.structs.asdict(self).items()}


class Sender:
    """An authenticated peer. Its connections share ``identity``."""

    __slots__ = ("_counts", "_frames_max", "_record", "_second", "_second_count", "identity", "name", "received_s")

    def __init__(
        self, counts: ServerCounts, record: Record, *, name: str, identity: tuple[str, ...], frames_max: int
    ) -> None:
        self.name = name
        self.identity = identity
        self._counts = counts
        self._record = record
        self._frames_max = frames_max
        self._second = 0
        self._second_count = 0
        self.received_s = now_s()

    def handle(self, frame: bytes) -> None:
        """Process one frame. Invalid content does not close the connection."""
        at_s = self.received_s = now_s()
        self._counts.frames += 1
        second = int(at_s)
        if second != self._second:
            self._second = second
            self._second_count = 0
        self._second_count += 1
        if self._second_count > self._frames_max:
            self._counts.flooding_frames += 1
            return
        try:
            self._handle(frame, at_s)
        except InvalidValue as error:
            self.malformed(error)

    def malformed(self, error: InvalidValue) -> None:
        """Count a malformed frame, and log at most one per second."""
        self._counts.malformed_frames += 1
        if self._second_count == 1:
            _log.warning("stats.malformed", extra={"sender": self.identity, "error": str(error)})

    def _handle(self, frame: bytes, at_s: float) -> None:
        raise NotImplementedError


class PodSender(Sender):
    """A pod, which reports only on itself."""

    __slots__ = ("_lateness", "_revision")

    def __init__(self, counts: ServerCounts, record: Record, *, revision: RevisionKey, pod: str) -> None:
        super().__init__(counts, record, name=pod, identity=(*revision, pod), frames_max=_POD_FRAMES_PER_S_MAX)
        self._revision = revision
        self._lateness = LatenessState()

    def _handle(self, frame: bytes, at_s: float) -> None:
        if len(frame) > _POD_FRAME_BYTES_MAX:
            raise InvalidValue(text=f"a frame of {len(frame)} bytes", expected=f"at most {_POD_FRAME_BYTES_MAX}")
        reported = decode_pod_stat(frame)
        self._lateness, late = is_late(self._lateness, sent_s=reported.at_s, received_s=at_s)
        # A dormant pod reports once; the report is valid until the next one.
        if late and not reported.is_dormant:
            self._counts.late_frames += 1
            return
        stat = msgspec.structs.replace(
            reported,
            pod=self.name,
            at_s=at_s,
            proxied_concurrency=min(reported.proxied_concurrency, reported.concurrency),
            proxied_request_count=min(reported.proxied_request_count, reported.request_count),
            window_concurrency=None,
            window_request_count=None,
        )
        self._record(self._revision, stat, StatSource.POD)


class ActivatorSender(Sender):
    """An activator. It reports on each revision of which it has requests."""

    __slots__ = ()

    def __init__(self, counts: ServerCounts, record: Record, *, name: str) -> None:
        super().__init__(counts, record, name=name, identity=(name,), frames_max=_ACTIVATOR_FRAMES_PER_S_MAX)

    def _handle(self, frame: bytes, at_s: float) -> None:
        for reported in decode_activator_stats(frame).stats:
            stat = Stat(
                pod=self.name,
                at_s=at_s,
                concurrency=reported.concurrency,
                request_count=reported.request_count,
                window_concurrency=reported.window_concurrency,
                window_request_count=reported.window_request_count,
                pod_loads=reported.pod_loads,
                pod_heats=reported.pod_heats,
            )
            self._record((reported.namespace, reported.revision), stat, StatSource.ACTIVATOR)


class AutoscalerSender(Sender):
    """Another autoscaler of this installation, which relays stats and announced pods. An empty frame is a heartbeat."""

    __slots__ = ("_announce",)

    def __init__(
        self, counts: ServerCounts, relayed: Record, *, name: str, announce: Callable[[AnnouncedPod], None]
    ) -> None:
        identity = ("autoscaler", name)
        super().__init__(counts, relayed, name=name, identity=identity, frames_max=_AUTOSCALER_FRAMES_PER_S_MAX)
        self._announce = announce

    def _handle(self, frame: bytes, at_s: float) -> None:
        relayed = decode_relayed_stats(frame)
        for announced in relayed.announced:
            self._announce(announced)
        for reported in relayed.stats:
            self._counts.relayed_stats += 1
            self._record(
                (reported.namespace, reported.revision),
                msgspec.structs.replace(reported, at_s=at_s),
                StatSource.ACTIVATOR if reported.is_activator else StatSource.POD,
            )
