"""What is known of one revision's load: concurrency and requests a second, each over the stable and the panic window.

Input: the stats of its pods and of the activators in front of it. Output: an ``Observation`` for one metric, or
``NoData``. Each request counts once: a pod's stat brings the part that came through an activator as well, and that part
is subtracted, because the activator reports it. The time of a stat is that of its receipt: clocks of pods differ.

It does not know which metric scales the revision, nor how many pods there are. Follows knative/serving 98e5ef90,
pkg/autoscaler/metrics (collector).
"""

import math

import msgspec

from serving.autoscaler.window import Seen, Window, window_of
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.spec import SAFE, KpaQuirks, Metric, WindowKind

__all__ = ["Collection", "Observation", "Windows"]

_NOTHING_SEEN = NoData(missing="no stat in the stable window")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a whole revision, not of a pod: requests in flight or requests a second, over both windows."""

    stable: float
    panic: float


class Windows(msgspec.Struct, frozen=True, kw_only=True):
    """What the windows of one metric hold, to decide on it again elsewhere; widths in seconds."""

    stable_window_s: float
    panic_window_s: float
    stable: Seen
    panic: Seen


class Collection:
    """The four windows of one revision."""

    __slots__ = ("_concurrency_panic", "_concurrency_stable", "_kind", "_rps_panic", "_rps_stable")

    def __init__(
        self, *, stable_window_s: float, panic_window_s: float, kind: WindowKind, quirks: KpaQuirks = SAFE
    ) -> None:
        self._kind = kind
        self._concurrency_stable = window_of(kind, stable_window_s, quirks=quirks)
        self._concurrency_panic = window_of(kind, panic_window_s, quirks=quirks)
        self._rps_stable = window_of(kind, stable_window_s, quirks=quirks)
        self._rps_panic = window_of(kind, panic_window_s, quirks=quirks)

    def __repr__(self) -> str:
        return f"Collection(concurrency {self._concurrency_stable}, rps {self._rps_stable})"

    def record(self, stat: Stat, now_s: float) -> bool:
        """Count a stat that is received at ``now_s``; whether it could be.

        One that is not finite is refused: in a running sum it would stay. 5 in flight, 3 of them by way of an
        activator, count as 2.
        """
        concurrency = stat.concurrency - stat.proxied_concurrency
        request_count = stat.request_count - stat.proxied_request_count
        if not math.isfinite(concurrency + request_count):
            return False
        bucket = math.floor(now_s)
        self._concurrency_stable.record_in(bucket, concurrency)
        self._concurrency_panic.record_in(bucket, concurrency)
        self._rps_stable.record_in(bucket, request_count)
        self._rps_panic.record_in(bucket, request_count)
        return True

    def query(self, now_s: float, metric: Metric, *, silence_is_idle: bool = False) -> Observation | NoData:
        """Load at ``now_s``; ``NoData`` when nothing came within the stable window.

        ``silence_is_idle`` says that nothing sends stats while there is no load, so that an empty window reads 0. In
        Knative that holds with a target burst capacity of -1, when only activators report; our pods always do.
        """
        stable, panic = self._of(metric)
        if not silence_is_idle and stable.is_empty(now_s):
            return _NOTHING_SEEN
        return Observation(stable=stable.average(now_s), panic=panic.average(now_s))

    def windows(self, metric: Metric) -> "Windows":
        """What both windows of a metric hold."""
        stable, panic = self._of(metric)
        return Windows(
            stable_window_s=stable.window_s, panic_window_s=panic.window_s, stable=stable.seen(), panic=panic.seen()
        )

    def restore(self, metric: Metric, windows: "Windows") -> None:
        """Fill empty windows with what others held; a panic window of another width gets it from their stable one."""
        stable, panic = self._of(metric)
        stable.restore(windows.stable)
        panic.restore(windows.panic if panic.window_s == windows.panic_window_s else windows.stable)

    def reshape(self, *, stable_window_s: float, panic_window_s: float, kind: WindowKind, now_s: float) -> None:
        """Change the widths and the way of averaging; what was seen stays as far as it fits."""
        for window, window_s in self._windows(stable_window_s, panic_window_s):
            window.resize(window_s, now_s)
        if kind is not self._kind:
            self._kind = kind
            self._concurrency_stable = self._concurrency_stable.read_as(kind)
            self._concurrency_panic = self._concurrency_panic.read_as(kind)
            self._rps_stable = self._rps_stable.read_as(kind)
            self._rps_panic = self._rps_panic.read_as(kind)

    def validate(self) -> None:
        """Assert what holds between any two calls; tests call it after every step."""
        for window, _ in self._windows(0, 0):
            window.validate()

    def _of(self, metric: Metric) -> tuple[Window, Window]:
        if metric is Metric.CONCURRENCY:
            return self._concurrency_stable, self._concurrency_panic
        return self._rps_stable, self._rps_panic

    def _windows(self, stable_window_s: float, panic_window_s: float) -> tuple[tuple[Window, float], ...]:
        return (
            (self._concurrency_stable, stable_window_s),
            (self._concurrency_panic, panic_window_s),
            (self._rps_stable, stable_window_s),
            (self._rps_panic, panic_window_s),
        )
