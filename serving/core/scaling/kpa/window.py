"""The load of a revision over the last seconds: a ring of buckets, read as a plain or weighted average.

Input: values with their times. A bucket is the sum of the values of all sources in one second, so the average over
buckets is the load of the whole revision. Output: the average, and whether the window is empty. Missing values at the
end mean an unknown load, not 0. Seconds without a value between others count as 0.

A window reads no clock: times are arguments, in seconds on one clock. Follows knative/serving 98e5ef90,
pkg/autoscaler/aggregation, except for ``KpaQuirks``. Recording is O(1); an average is one pass over the buckets in C. A
running total would save that pass (0.5 µs for 60 s), but would accumulate rounding errors.
"""

import abc
import copy
import math
from array import array
from collections.abc import Iterable, Iterator
from operator import mul

import msgspec

from serving.core.model.loadmetric import CONCURRENCY, LoadMetric
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.spec import WindowKind
from serving.core.settings.autoscaler import SAFE, KpaQuirks

# Linear averages have six decimals, as in Knative; a smaller load counts as 0.
_AVERAGE_SCALE = 1e6
# From this value on a double has fewer than six decimals, so rounding changes nothing.
_UNROUNDED_MIN = 2.0**52 / _AVERAGE_SCALE
# Share of the total weight within a weighted window, and least weight of the newest bucket. Source: Knative.
_WEIGHT_WITHIN_RATIO = 0.9999
_SMOOTHING_MIN = 0.2
# Number of buckets with weight: 0.8^200 is 4e-20, below the last bit of a double.
_WEIGHED_BUCKETS_MAX = 200


class SeenBuckets(msgspec.Struct, frozen=True, kw_only=True):
    """A window's buckets, oldest first, with the number of the first."""

    first: int
    values: tuple[float, ...]


class Window(abc.ABC):
    """The ring of buckets shared by both kinds of windows. Buckets are numbered by time: 61.5 s is in bucket 61.

    ``granularity_s`` is the width of a bucket in whole seconds. If a window's width is not a multiple of it, the last
    bucket is partly outside: 5 s in buckets of 2 s are 3 buckets.
    """

    __slots__ = (
        "_bucket_count",
        "_first",
        "_granularity_s",
        "_last",
        "_quirks",
        "_ring",
        "_silent_buckets_max",
        "_window_s",
    )

    def __init__(self, window_s: float, *, granularity_s: int = 1, quirks: KpaQuirks = SAFE) -> None:
        assert granularity_s >= 1, granularity_s
        self._granularity_s = granularity_s
        self._quirks = quirks
        self._configure(window_s)
        self._ring = _zeros(self._bucket_count)
        self._first: int | None = None
        self._last: int | None = None

    def __repr__(self) -> str:
        seen = "nothing" if self._last is None else f"{self._seen_bucket_count} buckets to {self._last}"
        return f"{type(self).__name__}({self._window_s:g} s, {seen}, total {sum(self._ring):g})"

    @property
    def window_s(self) -> float:
        """Width in seconds."""
        return self._window_s

    @abc.abstractmethod
    def average(self, now_s: float) -> float:
        """The load at ``now_s``; 0.0 for an empty window. ``is_empty`` distinguishes an empty window from no load.

        A time before the newest bucket counts as the time of that bucket.
        """

    def record(self, at_s: float, value: float) -> None:
        """Add a value at ``at_s``. Values older than the newest bucket by at least the window are ignored."""
        self.record_in(math.floor(at_s) // self._granularity_s, value)

    def record_in(self, bucket: int, value: float) -> None:
        """Like ``record``, but by bucket number, for callers that feed several windows."""
        last, count = self._last, self._bucket_count
        if bucket != last:
            if last is not None and bucket == last + 1 and count > 1:
                # Usually the next second.
                self._last = bucket
                self._ring[bucket % count] = 0.0
            elif last is None or bucket > last:
                self._advance(bucket)
            elif last - bucket >= count:
                return
            if self._first is None or bucket < self._first:
                self._first = bucket
        self._ring[bucket % count] += value

    def seen(self) -> "SeenBuckets":
        """The window's content, as input for ``restore``; empty before the first value."""
        if self._last is None:
            return SeenBuckets(first=0, values=())
        count = self._seen_bucket_count
        return SeenBuckets(first=self._last - count + 1, values=tuple(reversed(self._newest_first(count))))

    def restore(self, seen: "SeenBuckets") -> None:
        """Restore the content of another window, with bit-identical averages."""
        for age, value in enumerate(seen.values):
            self.record_in(seen.first + age, value)

    def is_empty(self, now_s: float) -> bool:
        """Whether the window that ends at ``now_s`` is empty."""
        return self._last is None or self._bucket(now_s) - self._last > self._silent_buckets_max

    def resize(self, window_s: float, now_s: float) -> None:
        """Change the width. Values within the new width are kept."""
        if window_s == self._window_s:
            return
        ring, count, last, first = self._ring, self._bucket_count, self._last, self._first
        seen_until = self._bucket(now_s) - math.floor(self._window_s / self._granularity_s)
        self._configure(window_s)
        self._ring = _zeros(self._bucket_count)
        self._first = None
        if last is None or last < seen_until:
            self._last = last if self._quirks.resize_reads_low else None
        else:
            for bucket in range(last - min(count, self._bucket_count) + 1, last + 1):
                self._ring[bucket % self._bucket_count] = ring[bucket % count]
            oldest = last - count + 1
            self._first = oldest if first is None or self._quirks.resize_reads_low else max(first, oldest)

    def copy(self) -> "Window":
        """A separate window with the same content."""
        other = copy.copy(self)
        other._ring = self._ring[:]  # noqa: SLF001 - its own class
        return other

    def read_as(self, kind: WindowKind) -> "Window":
        """The same buckets as a window of another kind. The old window must no longer be used."""
        other = window_of(kind, self._window_s, granularity_s=self._granularity_s, quirks=self._quirks)
        other._copy_from(self)  # noqa: SLF001 - its own class
        return other

    def _copy_from(self, other: "Window") -> None:
        for name in ("_ring", "_first", "_last"):
            setattr(self, name, getattr(other, name))

    def _configure(self, window_s: float) -> None:
        """Set everything that depends on the width."""
        width = window_s / self._granularity_s
        self._window_s = window_s
        self._bucket_count = math.ceil(width)
        # Silent buckets after which a window is empty, less one.
        self._silent_buckets_max = math.floor(width) if self._quirks.window_ends_in_zero else self._bucket_count - 1

    def _bucket(self, at_s: float) -> int:
        return math.floor(at_s) // self._granularity_s

    @property
    def _seen_bucket_count(self) -> int:
        """Number of buckets from the first to the newest, limited to the window's width."""
        if self._first is None or self._last is None:
            return self._bucket_count
        return min(self._last - self._first + 1, self._bucket_count)

    def _newest_first(self, bucket_count: int) -> "array[float]":
        """The newest ``bucket_count`` buckets, newest first."""
        assert self._last is not None
        newest = self._last % self._bucket_count
        return (self._ring[newest::-1] + self._ring[:newest:-1])[:bucket_count]

    def _advance(self, bucket: int) -> None:
        """Advance to a later bucket, and clear the skipped ones."""
        last, count = self._last, self._bucket_count
        self._last = bucket
        if last is None or bucket - last >= count:
            self._first = bucket
            self._ring = _zeros(count)
        else:
            for passed in range(last + 1, bucket + 1):
                self._ring[passed % count] = 0.0


class LinearWindow(Window):
    """Plain average over the buckets since the first value."""

    __slots__ = ()

    def average(self, now_s: float) -> float:
        """Sum over count, to six decimals. 10, 20 and 30 in the first three seconds are 60 / 3 = 20.

        Seconds without values at the end replace the oldest buckets and are not counted. Example: 3 buckets of 9, 6 and
        3, read one second later, give (6 + 3) / 2 = 4.5.
        """
        if self._last is None:
            return 0.0
        silent = self._bucket(now_s) - self._last
        if silent <= 0:
            return _rounded(sum(self._ring) / self._seen_bucket_count)
        if silent >= self._bucket_count:
            return 0.0
        within = self._bucket_count - silent
        return _rounded(sum(self._newest_first(within)) / min(self._seen_bucket_count, within))


class WeightedWindow(Window):
    """Average in which the newest bucket weighs most, and weights decrease by a constant factor.

    The newest of n buckets has the weight s = 1 - 0.0001^(1/n), at least 0.2. Each older bucket has (1 - s) times the
    weight of the next newer one. For 6 buckets s is 0.785; from 42 buckets on it is 0.2.
    """

    __slots__ = ("_decay", "_weights")

    def average(self, now_s: float) -> float:
        """The weighted mean over the seconds since the first value; not rounded.

        Example: at s = 0.2, a load of 10 in a single second gives (0.2 x 10) / 0.2 = 10.
        """
        if self._last is None:
            return 0.0
        silent = max(0, self._bucket(now_s) - self._last)
        if silent >= self._bucket_count:
            return 0.0
        within = self._bucket_count - silent
        weighted: float = sum(map(mul, self._newest_first(within), self._weights))
        if self._quirks.weighted_window_reads_low:
            return weighted * float(self._decay**silent)
        # Total weight of k buckets: s + s(1-s) + ... = 1 - (1-s)^k. Silence scales all weights, and cancels out.
        return weighted / float(1 - self._decay ** min(self._seen_bucket_count, within))

    def _configure(self, window_s: float) -> None:
        super()._configure(window_s)
        smoothing = max(1 - (1 - _WEIGHT_WITHIN_RATIO) ** (1 / self._bucket_count), _SMOOTHING_MIN)
        self._decay = 1 - smoothing
        ages = range(min(self._bucket_count, _WEIGHED_BUCKETS_MAX))
        self._weights = [smoothing * self._decay**age for age in ages]


_KINDS: dict[WindowKind, type[Window]] = {
    WindowKind.LINEAR: LinearWindow,
    WindowKind.WEIGHTED_EXPONENTIAL: WeightedWindow,
}


def window_of(kind: WindowKind, window_s: float, *, granularity_s: int = 1, quirks: KpaQuirks = SAFE) -> Window:
    """Create an empty window of this kind."""
    return _KINDS[kind](window_s, granularity_s=granularity_s, quirks=quirks)


def _zeros(bucket_count: int) -> "array[float]":
    """Empty buckets. An array takes a quarter of the memory of a list of floats."""
    return array("d", bytes(8 * bucket_count))


def _rounded(value: float) -> float:
    """Round to six decimals, half away from zero: 2.0000005 is 2.000001, and 0.0000004 is 0.

    Knative rounds in this way; Python's ``round`` rounds half to even.
    """
    size = abs(value)
    if size >= _UNROUNDED_MIN:
        return value
    scaled = size * _AVERAGE_SCALE
    whole = math.floor(scaled)
    return math.copysign((whole + (scaled - whole >= 0.5)) / _AVERAGE_SCALE, value)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a whole revision in both windows, in the metric's unit."""

    stable: float
    panic: float


class WindowContents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of both windows, for a decision in another process; widths in seconds."""

    stable_window_s: float
    panic_window_s: float
    stable: SeenBuckets
    panic: SeenBuckets


class MetricWindows:
    """The stable and the panic window of one load metric."""

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

    def record(self, stat: Stat, now_s: float) -> bool:
        """Count a report received at ``now_s``; return whether it has a load.

        An infinite or NaN report is refused, because it would stay in sums. A report without the metric's gauge has no
        load. Example: 5 requests in flight, 3 of them through an activator, count as 2.
        """
        load = self._metric.of_stat(stat)
        if load is None or not math.isfinite(load):
            return False
        self.record_load(load, math.floor(now_s))
        return True

    def record_load(self, load: float, bucket: int) -> None:
        """Add a load to the bucket of a second."""
        self._stable.record_in(bucket, load)
        self._panic.record_in(bucket, load)

    def query(self, now_s: float) -> Observation | NoData:
        """The load at ``now_s``; ``NoData`` if the stable window is empty.

        A gauge that no pod has reported for a panic window is ``NoData``, because earlier values do not
        describe the present.
        """
        metric = self._metric
        if (self._panic if metric.gauge else self._stable).is_empty(now_s):
            return NoData(missing=metric.missing)
        return Observation(stable=self._stable.average(now_s), panic=self._panic.average(now_s))

    def in_silence(self, times: Iterable[float]) -> Iterator[Observation]:
        """The load at later times, in order, if each second until then is reported without load."""
        stable, panic = self._stable.copy(), self._panic.copy()
        for at_s in times:
            for window in (stable, panic):
                window.record_in(math.floor(at_s), 0.0)
            yield Observation(stable=stable.average(at_s), panic=panic.average(at_s))

    def contents(self) -> WindowContents:
        """The contents of both windows."""
        stable, panic = self._stable, self._panic
        return WindowContents(
            stable_window_s=stable.window_s, panic_window_s=panic.window_s, stable=stable.seen(), panic=panic.seen()
        )

    def restore(self, contents: WindowContents) -> None:
        """Restore the contents of empty windows. A panic window of another width is filled from the stable window."""
        self._stable.restore(contents.stable)
        is_same_width = self._panic.window_s == contents.panic_window_s
        self._panic.restore(contents.panic if is_same_width else contents.stable)

    def resize(self, *, stable_window_s: float, panic_window_s: float, kind: WindowKind, now_s: float) -> None:
        """Change the widths and the kind of average; values within the new widths are kept."""
        self._stable.resize(stable_window_s, now_s)
        self._panic.resize(panic_window_s, now_s)
        if kind is not self._kind:
            self._kind = kind
            self._stable = self._stable.read_as(kind)
            self._panic = self._panic.read_as(kind)
