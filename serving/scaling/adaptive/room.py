"""Computes the pods for a varying load: room for its mean when a new pod is ready, plus a margin.

The margin weighs slots against waits (``margin_of``): a load of many arrivals gets more standard deviations than a rare one.
Waiting requests that will be served before a new pod is ready add no pod. Pods are added as soon as the room is too small, and
removed after a while.
"""

import functools
import math

import msgspec

from serving.scaling.adaptive.forecast import LoadForecast, LoadLevel
from serving.scaling.kpa.delay import DelayWindow, slot_count
from serving.scaling.spec import ScalingSpec

# Time constant of the mean time of a request, in seconds with load.
_MEAN_S = 120.0
_KEPT = math.exp(-1.0 / _MEAN_S)
# Requests that have to be answered before their mean time is believed.
_COMPLETED_MIN = 2.0
_SHORTEST_S = 1e-3
_COMPLETED_LEFT = 0.1
# Seconds after which a queue is load: clients that send their next request after the last one is answered keep it up.
_LASTING_S = 6

# A count goes down to at most this part of itself at once.
_STEP_RATIO = 0.7
# How many times the patience a smaller step waits for.
_SMALL_STEP_PATIENCES = 2.0
# A cold start is worth as much as so many waits for a slot in a pod that runs: those are shorter. At this ratio a dial that
# spends what Knative does on sparse loads spends as much on heavy ones.
_WAITS_PER_COLD_START = 6.0
# Time for which fewer pods must be enough before one goes, in seconds, at a worth of 120 and requests that take as long as a
# start: Knative's stable window. Shorter ones wait less for a slot. It follows the square root of the worth.
_PATIENCE_S = 60.0
_PATIENCE_WORTH_S = 120.0
_PATIENCE_MAX_S = 600.0
# Shortest start that is reckoned with, in seconds.
_START_MIN_S = 0.1
# Mean load below which there is none, as of a request of 60 ms each minute.
_LOAD_MIN = 0.001
# Arrivals are counted as if a request took this long at least, in seconds: the waits of shorter ones matter less.
_COUNTED_MIN_S = 0.1
# The margin stops to grow at one standard deviation, where the worth of a slot is highest.
_ROOT_E = math.sqrt(math.e)
_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)
# Bisections of the quiet load: 2 to the power of -20 of a pod's room is exact enough.
_BISECTIONS = 20
# Revisions share a few specs.
_SPECS_KEPT = 1024
# Mean now over the mean ahead after a sudden step up, at most.
_CLIMB_RATIO = 0.8
# Rounding of sums that must not ask for one more pod.
_EPSILON = 1e-9


class ServedLoad:
    """The load of one revision, second by second."""

    __slots__ = ("_area_s", "_completed", "_completed_total", "_inside", "_load", "_second", "_waiting")

    def __init__(self) -> None:
        self._area_s = self._completed = self._completed_total = 0.0
        self._inside = self._load = 0.0
        self._second = 0
        self._waiting: list[float] = []

    @property
    def request_s(self) -> float | None:
        """Mean time of a request in a pod, in seconds; None after too few responses."""
        if self._completed_total < _COMPLETED_MIN:
            return None
        return max(_SHORTEST_S, self._area_s / max(self._completed, _COMPLETED_LEFT))

    def take(self, second: int, concurrency: float, request_count: float, *, slot_count: float) -> float:
        """Add the load, in requests in flight, of a completed second. Skipped seconds had none."""
        if second > self._second + 1:
            self._completed += self._inside
            self._completed_total += self._inside
            self._inside = self._load = 0.0
            self._waiting.clear()
        waiting, over = self._waiting, concurrency - slot_count
        waiting.append(over if over > 0 else 0.0)
        if len(waiting) > _LASTING_S:
            del waiting[0]
        # At the end of the second half of its arrivals may be inside beyond the mean.
        inside = concurrency + request_count / 2.0
        if slot_count > 0:
            self._area_s = self._area_s * _KEPT + min(concurrency, slot_count)
            completed = max(0.0, request_count + self._inside - inside)
            self._completed = self._completed * _KEPT + completed
            self._completed_total += completed
        # Of those inside while no pod was ready, the time in a pod is not known.
        self._inside, self._second = inside if slot_count > 0 else 0.0, second
        if concurrency <= slot_count:
            self._load = concurrency
            return concurrency
        request_s = self.request_s
        if request_s is None:
            self._load = concurrency
        else:
            kept = math.exp(-1.0 / request_s)
            self._load = min(concurrency, self._load * kept + request_count * request_s * (1.0 - kept))
        lasting = min(waiting) if len(waiting) == _LASTING_S else 0.0
        return min(concurrency, self._load + lasting)


class HeldCount:
    """The pods wanted by one revision, ``count`` of them held."""

    __slots__ = ("_asked_at_s", "_delay", "_low_since_s", "count")

    def __init__(self) -> None:
        self._delay = DelayWindow()
        self.count = 0
        self._low_since_s: float | None = None
        self._asked_at_s = 0.0

    def hold(self, count: int, *, patience_s: float, now_s: float) -> int:
        """The pods to keep, at least ``count``. 10 wanted at 0 s and 8 from 2 s on, with 10 s of patience: 10 up to 30 s."""
        self._delay = self._delay.record(count, slot_count=max(1, slot_count(patience_s)), now_s=now_s)
        latest = self._delay.maximum
        is_first = not 0 <= now_s - self._asked_at_s <= patience_s
        self._asked_at_s = now_s
        if is_first or latest >= self.count or latest <= self.count * _STEP_RATIO:
            self.count, self._low_since_s = latest, None
        elif self._low_since_s is None:
            self._low_since_s = now_s
        elif now_s - self._low_since_s >= _SMALL_STEP_PATIENCES * patience_s:
            self.count, self._low_since_s = latest, None
        return self.count


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Pods wanted for a load, and why."""

    count: int
    level: LoadLevel
    margin: float
    """Requests in flight beyond the mean that the pods have room for."""

    ahead_s: float
    """The time ahead of the level, in seconds."""

    enough_count: int
    """Pods that would be enough now; below ``count`` while more are kept for a while."""


class PodRoom:
    """The load of one revision, and its wanted pods."""

    __slots__ = ("_demand", "_forecast", "_held", "_low", "_slot_count")

    def __init__(self) -> None:
        self._demand = ServedLoad()
        self._forecast = LoadForecast()
        self._held = HeldCount()
        # Slots of the pods that were ready at the last decision.
        self._slot_count = 0.0
        # Whether one pod is enough for every level to come, and for which numbers; None: not known since the last load.
        self._low: tuple[ScalingSpec, float, bool] | None = None

    def take(self, second: int, concurrency: float, request_count: float) -> None:
        """Add the mean load and the arrivals of a completed second."""
        self._low = None
        load = self._demand.take(second, concurrency, request_count, slot_count=self._slot_count)
        self._forecast.take(second, load)

    def want(
        self, spec: ScalingSpec, *, in_flight: float, ready_count: int, start_s: float, now_s: float
    ) -> Room | None:
        """The pods wanted now; None before the load has been seen for the panic window.

        27 in flight, of deviation 5.2, with a margin of 11.3, at 4 a pod: (27 + 11.3) / 4 = 9.6, so 10 pods.
        """
        self._slot_count = ready_count * spec.total_value
        if self._forecast.seen_s(now_s) < spec.panic_window_s:
            return None
        ahead_s = _ahead_s(spec, start_s)
        request_s = self._demand.request_s
        level = self._level(ahead_s=ahead_s, now_s=now_s)
        # Ratio of a wait for a slot to a wait for a pod.
        ratio = 1.0 if request_s is None else min(1.0, request_s / max(start_s, _START_MIN_S))
        margin = self._margin(spec, level, start_s)
        needed = max(level.mean + margin, level.recent)
        if request_s is None:
            needed = max(needed, in_flight)
        else:
            needed += ratio * self._left(level, in_flight=in_flight, request_s=request_s, start_s=start_s)
        enough_count = 0
        if in_flight or level.mean > _LOAD_MIN:
            enough_count = max(1, _pods(needed, spec))
        count = max(
            _limited(enough_count, spec, ready_count=ready_count), math.ceil(spec.activation_scale * (in_flight > 0))
        )
        held_count = self._held.hold(count, patience_s=_patience_s(spec, start_s, ratio), now_s=now_s)
        return Room(count=held_count, level=level, margin=margin, ahead_s=ahead_s, enough_count=enough_count)

    def _left(self, level: LoadLevel, *, in_flight: float, request_s: float, start_s: float) -> float:
        """Requests still waiting when a new pod is ready, after free slots have served their part."""
        free = max(0.0, self._slot_count - level.recent)
        return max(0.0, in_flight - self._slot_count - free * start_s / request_s)

    def expected_count(
        self, spec: ScalingSpec, *, capacity: float, has_margin: bool, ahead_s: float, now_s: float
    ) -> int:
        """Pods for the load at a later time, at ``capacity`` requests in flight each; 0 unless the load climbs.

        27 in flight that climb by 1 a second are 57 in 30 s: at 4 a pod without a margin 15 pods.
        """
        # Without a hard limit the time of a request is never learnt, and a climb must count all the same.
        level = self._forecast.level(ahead_s=ahead_s, now_s=now_s, request_s=self._demand.request_s or 0.0)
        if level.slope <= 0:
            return 0
        margin = self._margin(spec, level, ahead_s) if has_margin else 0.0
        return max(0, math.ceil((level.mean + margin) / capacity - _EPSILON))

    def is_one_enough(self, spec: ScalingSpec, start_s: float, now_s: float) -> bool:
        """Whether the last ``want`` asks for one pod at most."""
        if self._held.count > 1:
            return False
        level = self._level(ahead_s=_ahead_s(spec, start_s), now_s=now_s)
        return self._is_low(spec, start_s) or self._has_room(spec, level, start_s)

    def is_one_enough_in_silence(self, spec: ScalingSpec, start_s: float) -> bool:
        """Whether ``want`` asks for one pod at most while there is no load."""
        return self._held.count <= 1 and self._is_low(spec, start_s)

    def _is_low(self, spec: ScalingSpec, start_s: float) -> bool:
        """Whether one pod is enough for every level until there is load again."""
        known = self._low
        if known is None or known[0] is not spec or known[1] != start_s:
            level = self._forecast.highest(ahead_s=_ahead_s(spec, start_s))
            known = self._low = (spec, start_s, self._has_room(spec, level, start_s))
        return known[2]

    def _level(self, *, ahead_s: float, now_s: float) -> LoadLevel:
        """The level ahead. Requests of unknown duration count as long ones, whose load says little about a trend."""
        request_s = self._demand.request_s
        return self._forecast.level(ahead_s=ahead_s, now_s=now_s, request_s=ahead_s if request_s is None else request_s)

    def _margin(self, spec: ScalingSpec, level: LoadLevel, start_s: float) -> float:
        request_s = self._demand.request_s
        return margin_of(spec, level, request_s=start_s if request_s is None else request_s)

    def _has_room(self, spec: ScalingSpec, level: LoadLevel, start_s: float) -> bool:
        """Whether one pod has room for a level."""
        return max(level.mean + self._margin(spec, level, start_s), level.recent) <= spec.total_value


def _ahead_s(spec: ScalingSpec, start_s: float) -> float:
    """Time until a pod is ready if it is requested at the next decision."""
    return start_s + spec.decision_period_s


def margin_of(spec: ScalingSpec, level: LoadLevel, *, request_s: float) -> float:
    """Requests in flight beyond the mean that the pods need room for.

    One more slot costs 1 / c pod-seconds a second, for c slots a pod. It helps in the seconds in which the load is just above
    the room, of density f: then all a requests that arrive in a second wait, each worth w pod-seconds. Slots are added while
    f x a x w > 1 / c: the newsvendor's rule. For a normal load of deviation s the margin is s x sqrt(2 ln(c a w / (s sqrt(2 pi)))).

    27 in flight of deviation 5.2, 10 arrivals a second, 4 slots a pod, waits worth 20: 5.2 x sqrt(2 ln(61)) = 14.9.
    """
    arrivals = level.mean / max(_COUNTED_MIN_S, request_s)
    gain = spec.total_value * arrivals * spec.cold_start_worth_s / _WAITS_PER_COLD_START / _ROOT_TWO_PI
    if gain <= level.deviation * _ROOT_E:
        return gain / _ROOT_E
    return level.deviation * math.sqrt(2.0 * math.log(gain / level.deviation))


@functools.lru_cache(_SPECS_KEPT)
def quiet_load(spec: ScalingSpec) -> float:
    """Requests in flight up to which one pod is enough while no second has more, whatever their duration.

    The variance of a load up to h is h squared / 4 at most, or h.
    """
    low, high = 0.0, spec.total_value
    for _ in range(_BISECTIONS):
        load = (low + high) / 2.0
        level = LoadLevel(mean=load, deviation=max(math.sqrt(load), load / 2.0), recent=load, slope=0.0)
        if load + margin_of(spec, level, request_s=_COUNTED_MIN_S) <= spec.total_value:
            low = load
        else:
            high = load
    return min(spec.target_value, _CLIMB_RATIO * low)


def _pods(load: float, spec: ScalingSpec) -> int:
    return max(0, math.ceil(load / spec.total_value - _EPSILON))


def _limited(count: int, spec: ScalingSpec, *, ready_count: int) -> int:
    """Limit a count to the rates of change, as the algorithm does."""
    base_count = max(1, ready_count)
    count_min = math.floor(ready_count / spec.max_scale_down_rate) if spec.reachable else 0
    return min(max(count, count_min), math.ceil(spec.max_scale_up_rate * base_count))


def _patience_s(spec: ScalingSpec, start_s: float, wait_ratio: float) -> float:
    """Time for which the wanted count must stay lower. Slow-starting pods are removed later."""
    patience_s = _PATIENCE_S * math.sqrt(spec.cold_start_worth_s / _PATIENCE_WORTH_S) * wait_ratio
    return min(_PATIENCE_MAX_S, max(start_s, patience_s))
