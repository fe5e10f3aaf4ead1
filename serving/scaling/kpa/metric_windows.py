"""The load of one revision over the stable and the panic window, in the metric that scales it.

Input: the reports of its pods and of the activators in front of it. Output: an ``Observation``, or ``NoData``. Each request
counts once: a pod's report brings the part that came through an activator as well, and that part is subtracted, because
the activator reports it. The time of a report is that of its receipt: clocks of pods differ.

It does not know how many pods there are. Follows knative/serving 98e5ef90, pkg/autoscaler/metrics (collector).
"""

import math

import msgspec

from serving.model.load.metric import LoadMetric
from serving.model.load.requests import CONCURRENCY
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.kpa.window import SeenBuckets, window_of
from serving.scaling.spec import WindowKind
from serving.settings.kpa_quirks import SAFE, KpaQuirks

_NOTHING_SEEN = NoData(missing="no stat in the stable window")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a whole revision, not of a pod, in the unit of its metric, over both windows."""

    stable: float
    panic: float


class WindowContents(msgspec.Struct, frozen=True, kw_only=True):
    """What both windows hold, to decide on it again elsewhere; widths in seconds."""

    stable_window_s: float
    panic_window_s: float
    stable: SeenBuckets
    panic: SeenBuckets


class MetricWindows:
    """Both windows of one load metric."""

    __slots__ = ("_kind", "_metric", "_panic", "_stable")

    def __init__(
        self,
        *,
        stable_window_s: float,
        panic_window_s: float,
        kind: WindowKind,
        metric: LoadMetric = CONCURRENCY,
        quirks: KpaQuirks = SAFE,
    ) -> None:
        self._kind = kind
        self._metric = metric
        self._stable = window_of(kind, stable_window_s, quirks=quirks)
        self._panic = window_of(kind, panic_window_s, quirks=quirks)

    def __repr__(self) -> str:
        return f"MetricWindows({self._metric.name} {self._stable})"

    def record(self, stat: Stat, now_s: float) -> bool:
        """Count a report that is received at ``now_s``; whether it could be.

        One that is not finite is refused: in a running sum it would stay. 5 in flight, 3 of them by way of an
        activator, count as 2.
        """
        load = self._metric.of_stat(stat)
        if not math.isfinite(load):
            return False
        bucket = math.floor(now_s)
        self._stable.record_in(bucket, load)
        self._panic.record_in(bucket, load)
        return True

    def query(self, now_s: float, *, silence_is_idle: bool = False) -> Observation | NoData:
        """Load at ``now_s``; ``NoData`` when nothing came within the stable window.

        ``silence_is_idle`` says that nothing sends stats while there is no load, so that an empty window reads 0. In
        Knative that holds with a target burst capacity of -1, when only activators report; our pods always do.
        """
        if not silence_is_idle and self._stable.is_empty(now_s):
            return _NOTHING_SEEN
        return Observation(stable=self._stable.average(now_s), panic=self._panic.average(now_s))

    def contents(self) -> WindowContents:
        """What both windows hold."""
        stable, panic = self._stable, self._panic
        return WindowContents(
            stable_window_s=stable.window_s, panic_window_s=panic.window_s, stable=stable.seen(), panic=panic.seen()
        )

    def restore(self, contents: WindowContents) -> None:
        """Fill empty windows with what others held; a panic window of another width gets it from their stable one."""
        self._stable.restore(contents.stable)
        is_same_width = self._panic.window_s == contents.panic_window_s
        self._panic.restore(contents.panic if is_same_width else contents.stable)

    def resize(self, *, stable_window_s: float, panic_window_s: float, kind: WindowKind, now_s: float) -> None:
        """Change the widths and the way of averaging; what was seen stays as far as it fits."""
        self._stable.resize(stable_window_s, now_s)
        self._panic.resize(panic_window_s, now_s)
        if kind is not self._kind:
            self._kind = kind
            self._stable = self._stable.read_as(kind)
            self._panic = self._panic.read_as(kind)

    def validate(self) -> None:
        """Assert what holds between any two calls; tests call it after every step."""
        self._stable.validate()
        self._panic.validate()
