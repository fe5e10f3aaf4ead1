"""How many pods a load needs that varies: room for its mean at the time when a new pod is ready, and for a margin.

The margin is z standard deviations, where the load exceeds the room in one second of as many as a wait is worth, a sixth of a
cold start: at 60 pod-seconds one second of 10, so that z is 1.28. More pods come as soon as the room is too small. Fewer come only when it would be too large by some
deviations more, and has been for a while, so that noise around a whole number of pods moves nothing.
"""

import functools
import math
from statistics import NormalDist

import msgspec

from serving.autoscaler.adaptive.forecast import LoadForecast, LoadLevel
from serving.autoscaler.delay import DelayWindow, slot_count
from serving.scaling.spec import ScalingSpec

__all__ = ["PodRoom", "Room", "deviations_of", "quiet_load"]

# A cold start is worth as much as so many waits for a slot in a pod that runs: those are shorter. At this ratio a dial that
# spends what Knative does on sparse loads spends as much on heavy ones.
_WAITS_PER_COLD_START = 6.0
# Deviations beyond the margin that a load has to stay below before a pod goes.
_BAND_DEVIATIONS = 0.45
# Time for which fewer pods must be enough before one goes, in seconds, where a wait is worth 120 pod-seconds; and its
# bound. It follows the square root of the worth: the dial moves the margin and the patience together.
_PATIENCE_S = 30.0
_PATIENCE_WORTH_S = 120.0
_PATIENCE_MAX_S = 90.0
# Time to the next decision, in seconds, which a pod that is needed may have to wait for.
_PERIOD_S = 2.0
# Mean load below which there is none, as of a request of 60 ms each minute.
_LOAD_MIN = 0.001
# Least worth, in pod-seconds, that has a margin: at 1 it would be minus infinity.
_WORTH_MIN_S = 1.02
# Revisions share a few worths; the quantile would be half of a decision's cost.
_WORTHS_KEPT = 256
# Mean now over the mean ahead after a sudden step up, at most.
_CLIMB_RATIO = 0.8
# Rounding of sums that must not ask for one more pod.
_EPSILON = 1e-9


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Pods wanted for a load, and why."""

    count: int
    level: LoadLevel
    margin: float
    """Requests in flight beyond the mean that there is room for."""

    ahead_s: float
    """How far ahead the level is, in seconds."""

    enough_count: int
    """Pods that would do now; below ``count`` while more are kept for a while."""


class PodRoom:
    """The load of one revision, and the pods that were wanted for it."""

    __slots__ = ("_count", "_delay", "_forecast")

    def __init__(self) -> None:
        self._forecast = LoadForecast()
        self._delay = DelayWindow()
        self._count = 0

    def __repr__(self) -> str:
        return f"PodRoom({self._count} pods, {self._forecast})"

    def take(self, second: int, concurrency: float) -> None:
        """The mean load of a second that is over."""
        self._forecast.take(second, concurrency)

    def want(
        self, spec: ScalingSpec, *, in_flight: float, ready_count: int, start_s: float, now_s: float
    ) -> Room | None:
        """The pods wanted now; None while the load was seen for less than the stable window.

        27 in flight, of deviation 5.2, at 4 a pod: (27 + 1.28 x 5.2) / 4 = 8.4, so 9 pods.
        """
        if self._forecast.seen_s(now_s) < spec.stable_window_s:
            return None
        ahead_s = start_s + _PERIOD_S
        level = self._forecast.level(ahead_s=ahead_s, now_s=now_s)
        margin = deviations_of(spec) * level.deviation
        # Without a ready pod all that is inside waits; with one, what is more than its slots is gone before a pod is there.
        needed = max(level.mean + margin, level.recent, 0.0 if ready_count else in_flight)
        enough_count = 0
        if in_flight or level.mean > _LOAD_MIN:
            enough_count = max(1, _pods(needed, spec))
        band_count = max(enough_count, _pods(level.mean + margin + _BAND_DEVIATIONS * level.deviation, spec))
        self._count = min(max(enough_count, self._count), band_count)
        count = max(
            _limited(self._count, spec, ready_count=ready_count), math.ceil(spec.activation_scale * (in_flight > 0))
        )
        self._delay = self._delay.record(count, slot_count=_patience(spec, start_s), now_s=now_s)
        return Room(count=self._delay.maximum, level=level, margin=margin, ahead_s=ahead_s, enough_count=enough_count)

    def expected_count(
        self, spec: ScalingSpec, *, capacity: float, has_margin: bool, ahead_s: float, now_s: float
    ) -> int:
        """Pods for the load of a time ahead, at ``capacity`` requests in flight each; 0 unless the load climbs.

        27 in flight that climb by 1 a second are 57 in 30 s: at 4 a pod without a margin 15 pods.
        """
        level = self._forecast.level(ahead_s=ahead_s, now_s=now_s)
        if level.slope <= 0:
            return 0
        margin = deviations_of(spec) * level.deviation if has_margin else 0.0
        return max(0, math.ceil((level.mean + margin) / capacity - _EPSILON))

    def is_one_enough(self, spec: ScalingSpec, start_s: float, now_s: float) -> bool:
        """Whether ``want``, which was asked before, asks for one pod at most, also with the band above its margin."""
        level = self._forecast.level(ahead_s=start_s + _PERIOD_S, now_s=now_s)
        return self._delay.maximum <= 1 and _is_one_enough(level, spec)

    def is_one_enough_in_silence(self, spec: ScalingSpec, start_s: float) -> bool:
        """Whether ``want`` asks for one pod at most, as long as there is no load."""
        level = self._forecast.highest(ahead_s=start_s + _PERIOD_S)
        return self._count <= 1 and _is_one_enough(level, spec)


def deviations_of(spec: ScalingSpec) -> float:
    """Standard deviations of margin: the load is above it in one of as many seconds as a wait is worth. 60 / 6 gives 1.28."""
    return _deviations(_wait_worth_s(spec))


def quiet_load(spec: ScalingSpec) -> float:
    """Requests in flight up to which one pod is enough as long as no second has more.

    The variance of a load up to h is h squared / 4 at most, or h: h + z x sqrt(h) = limit. At 10 a pod and z = 1.28, 6.7.
    """
    z = deviations_of(spec)
    poisson = ((math.sqrt(max(0.0, z * z + 4.0 * spec.total_value)) - z) / 2.0) ** 2
    bounded = spec.total_value / (1.0 + max(0.0, z) / 2.0)
    return max(0.0, min(spec.target_value, _CLIMB_RATIO * poisson, _CLIMB_RATIO * bounded))


@functools.lru_cache(_WORTHS_KEPT)
def _deviations(worth_s: float) -> float:
    return NormalDist().inv_cdf(1.0 - 1.0 / max(_WORTH_MIN_S, worth_s))


def _wait_worth_s(spec: ScalingSpec) -> float:
    return spec.cold_start_worth_s / _WAITS_PER_COLD_START


def _pods(load: float, spec: ScalingSpec) -> int:
    return max(0, math.ceil(load / spec.total_value - _EPSILON))


def _is_one_enough(level: LoadLevel, spec: ScalingSpec) -> bool:
    most = level.mean + max(0.0, deviations_of(spec) + _BAND_DEVIATIONS) * level.deviation
    return max(most, level.recent) <= spec.total_value


def _limited(count: int, spec: ScalingSpec, *, ready_count: int) -> int:
    """Within the rates of change, as the algorithm's own count."""
    base_count = max(1, ready_count)
    count_min = math.floor(ready_count / spec.max_scale_down_rate) if spec.reachable else 0
    return min(max(count, count_min), math.ceil(spec.max_scale_up_rate * base_count))


def _patience(spec: ScalingSpec, start_s: float) -> int:
    """Slots for which a count must be lower. A pod that takes long to start is given up later."""
    patience_s = _PATIENCE_S * math.sqrt(_wait_worth_s(spec) / _PATIENCE_WORTH_S)
    return max(1, slot_count(min(_PATIENCE_MAX_S, max(start_s, patience_s))))
