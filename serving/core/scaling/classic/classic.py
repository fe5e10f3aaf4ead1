"""The autoscaler of June 2018: computes a number of pods from points, in stable and panic mode.

Input: one point per second and pod (mean requests in flight, arrived requests), the settings, the target per pod, and
the time. Output: the number of pods with all intermediate values, or "no data". Only pods that reported within the
stable window count. Only points that are too old are dropped.

Source: knative/serving ea02baa, pkg/autoscaler/autoscaler.go; worked numbers in docs/calculations.md.
"""

import enum
import math

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.classic.windowsums import NANOSECONDS_PER_SECOND, WindowSums
from serving.core.settings.classic import ClassicSettings

# Panic begins at twice the target per pod; Knative's algorithm of June 2018 has this constant too.
PANIC_THRESHOLD_RATIO = 2.0
# Rounding: two divisions and a multiplication follow the sum, each off by half a unit in the last place; 16 is ample.
_OPERATIONS_ERROR_RATIO = 16 * 2.0**-53


class ClassicMode(enum.StrEnum):
    """The window that decided the count. idle: no window, because the revision has had no traffic for too long."""

    STABLE = "stable"
    PANIC = "panic"
    IDLE = "idle"


class ClassicLimit(enum.StrEnum):
    """The rule that changed the count computed from the window.

    max-scale-up-rate limits growth. panic-hold keeps the largest count of the current panic. at-least-one raises 0 to
    1.
    """

    SCALE_UP_RATE = "max-scale-up-rate"
    PANIC_HOLD = "panic-hold"
    AT_LEAST_ONE = "at-least-one"


class ClassicDecision(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A decision of the classic algorithm. Concurrencies are means over points (one per pod and second).

    Only ``desired_count`` is rounded up. ``desired_panic_count`` and ``observed_panic_concurrency`` are None while the
    panic window is empty. ``idle_s`` is the time since the last traffic. If it exceeds a threshold, ``desired_count``
    is 0 and the windows are not read. ``panic_count_max`` is the largest count of the current panic.
    """

    desired_count: int
    mode: ClassicMode
    limited_by: ClassicLimit | None
    target_concurrency: float
    idle_s: float
    observed_pod_count: int = 0
    observed_stable_concurrency: float | None = None
    observed_panic_concurrency: float | None = None
    desired_stable_count: float | None = None
    desired_panic_count: float | None = None
    panic_count_max: float = 0.0


class ClassicScaler:
    """The classic algorithm's state of one revision: its points (the load of one pod in one second), and its panic."""

    __slots__ = ("_last_traffic_ns", "_panic_count_max", "_panic_ns", "_points")

    def __init__(self, *, started_s: float) -> None:
        """``started_s`` is when observation of the revision began; idleness counts from it until the first request."""
        from serving.core.scaling.classic.points import Points  # noqa: PLC0415 - numpy, for revisions of this class only

        self._points = Points()
        self._panic_ns: int | None = None
        self._panic_count_max = 0.0
        self._last_traffic_ns = _nanoseconds(started_s)

    @property
    def is_panicking(self) -> bool:
        """Whether the scaler is in panic after the last decision."""
        return self._panic_ns is not None

    @property
    def panic_count_max(self) -> float:
        """Most pods wanted in the current panic, before rounding up; 0 outside panic."""
        return self._panic_count_max

    @property
    def point_count(self) -> int:
        """Number of stored points."""
        return len(self._points)

    def record(self, stat: Stat) -> None:
        """Add a point, in any order. A second point of the same pod and time replaces the first."""
        self._points.record(stat)

    def decide(self, settings: ClassicSettings, *, target_concurrency: float, now_s: float) -> ClassicDecision | NoData:
        """Decide the number of pods at ``now_s``.

        ``target_concurrency`` is the mean number of requests in flight that one pod should have, above 0.
        """
        sums = self._points.read(
            now_s=now_s,
            stable_window_s=settings.stable_window_s,
            panic_window_s=settings.panic_window_s,
            quirks=settings.quirks,
        )
        if sums.traffic_at_ns is not None:
            self._last_traffic_ns = max(self._last_traffic_ns, sums.traffic_at_ns)
        now_ns = _nanoseconds(now_s)
        idle_ns = now_ns - self._last_traffic_ns
        if idle_ns > _nanoseconds(settings.scale_to_zero_threshold_s):
            return ClassicDecision(
                desired_count=0,
                mode=ClassicMode.IDLE,
                limited_by=None,
                target_concurrency=target_concurrency,
                idle_s=idle_ns / NANOSECONDS_PER_SECOND,
            )
        if self._panic_ns is not None and now_ns - self._panic_ns > _nanoseconds(settings.stable_window_s):
            self._panic_ns = None
            self._panic_count_max = 0.0
        if not sums.stable_pod_count:
            return NoData(missing="no point in the stable window")
        return self._from_windows(sums, settings, target_concurrency=target_concurrency, now_ns=now_ns)

    def _from_windows(
        self, sums: WindowSums, settings: ClassicSettings, *, target_concurrency: float, now_ns: int
    ) -> ClassicDecision:
        rate_max = settings.max_scale_up_rate
        stable = self._stable_demand(sums, target_concurrency, rate_max)
        # As in Knative's algorithm of June 2018, panic demand also uses the pods of the stable window.
        panic = _demand(
            sums.panic_sum, sums.panic_point_count, sums.stable_pod_count, target=target_concurrency, rate_max=rate_max
        )
        if panic and self._panic_ns is None and panic.concurrency >= PANIC_THRESHOLD_RATIO * target_concurrency:
            self._panic_ns = now_ns
        is_panicking = self._panic_ns is not None
        if is_panicking and panic and panic.pod_count > self._panic_count_max:
            self._panic_count_max = panic.pod_count
            self._panic_ns = now_ns
        wanted_count = self._panic_count_max if is_panicking else stable.pod_count
        return ClassicDecision(
            desired_count=max(1, math.ceil(wanted_count)),
            mode=ClassicMode.PANIC if is_panicking else ClassicMode.STABLE,
            limited_by=_limit(panic if is_panicking else stable, wanted_count),
            target_concurrency=target_concurrency,
            idle_s=(now_ns - self._last_traffic_ns) / NANOSECONDS_PER_SECOND,
            observed_pod_count=sums.stable_pod_count,
            observed_stable_concurrency=stable.concurrency,
            observed_panic_concurrency=panic.concurrency if panic else None,
            desired_stable_count=stable.pod_count,
            desired_panic_count=panic.pod_count if panic else None,
            panic_count_max=self._panic_count_max,
        )

    def _stable_demand(self, sums: WindowSums, target: float, rate_max: float) -> "_ClassicDemand":
        """The demand of the stable window.

        Uses numpy's fast sum. If its rounding error could change the rounded-up number of pods, adds the points in
        order.
        """

        def demand(stable_sum: float) -> _ClassicDemand:
            demand = _demand(
                stable_sum, sums.stable_point_count, sums.stable_pod_count, target=target, rate_max=rate_max
            )
            assert demand, "a window with pods has points"
            return demand

        fast = demand(sums.stable_sum)
        slack = fast.pod_count * (sums.stable_error_ratio + _OPERATIONS_ERROR_RATIO)
        if math.ceil(fast.pod_count - slack) == math.ceil(fast.pod_count + slack):
            return fast
        return demand(self._points.stable_sum_in_order())


class _ClassicDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The demand of one window: mean requests in flight per point, and pods before rounding up.

    ``is_clamped``: the maximum rate of growth limits the pods.
    """

    concurrency: float
    pod_count: float
    is_clamped: bool


def _demand(
    concurrency_sum: float, point_count: int, pod_count: int, *, target: float, rate_max: float
) -> _ClassicDemand | None:
    """The demand computed from the mean over points, not over pods; None without points.

    The mean divided by the target, at most ``rate_max``, is multiplied by the pods. Example: with a mean of 15 and a
    target of 10 the ratio is 1.5, so 3 pods become 4.5.
    """
    if not point_count:
        return None
    concurrency = concurrency_sum / point_count
    ratio = concurrency / target
    return _ClassicDemand(
        concurrency=concurrency, pod_count=min(ratio, rate_max) * pod_count, is_clamped=ratio > rate_max
    )


def _limit(demand: _ClassicDemand | None, wanted_count: float) -> ClassicLimit | None:
    if wanted_count <= 0:
        return ClassicLimit.AT_LEAST_ONE
    if demand is None or demand.pod_count < wanted_count:
        return ClassicLimit.PANIC_HOLD
    return ClassicLimit.SCALE_UP_RATE if demand.is_clamped else None


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS_PER_SECOND)
