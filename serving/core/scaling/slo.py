"""Decides how many requests a pod gets so that a goal for latency holds, such as "p95<300ms".

Input: requests by how late they are (``core/model/slo.py``), the load a pod, and the revision's numbers. Output: the target of one
pod, by which the usual algorithm then decides: windows, panic, rates and bounds act as for any other target.

Late requests lower the target by limit over percentile, as a HorizontalPodAutoscaler would: 4 pods with 10 requests each and a 95th
percentile of 410 ms over 300 get a target of 7.3, so 6 pods. A late revision never has fewer pods than its own target gives.
Once its new pods are ready, it is measured afresh. While a whole window is on time with three tenths to spare, the target grows by a
tenth, but not to where it was late. A goal that is missed with hardly a request a pod is one that pods do not help: the
revision's own target then counts, and ten minutes later the goal is tried again.
"""

import enum
import math
from collections import deque
from collections.abc import Sequence

import msgspec

from serving.core.model.loadmetric import CONCURRENCY
from serving.core.model.slo import Slo, late_sum, quantile_s, sum_bins
from serving.core.scaling.spec import ScalingSpec

# Seconds in which lateness is noticed, and those that show that there is room.
_RECENT_S, _CALM_S = 10.0, 60.0
# Longest wait for new pods before they are judged as they are: those that never become ready must not stop the next step.
_SETTLE_S = 60.0
# Standard deviations above the goal's own share of late requests that are more than chance (Poisson).
_CHANCE = 2.0
_LATE_MIN = 2
# Percentiles below this share of the limit are all the same.
_RATIO_MIN = 0.01
_CALM_COUNT_MIN = 20
# Bounds of one step down. A wait grows without bound where hardly a pod is missing, so that it says less of how many are.
_STEP_MIN, _WAIT_STEP_MIN, _STEP_MAX = 0.25, 0.7, 0.9
# Share of the limit below which there is room, and the largest steps up.
_ROOM_RATIO = 0.7
_GROWTH_MAX, _WAIT_GROWTH_MAX = 1.5, 1.15
# Load over target from which on the missing pods, and not the target, are why requests are late; and the most at once for that.
_OVERLOAD_RATIO = 1.1
_CATCH_UP_RATIO = 2.0
# The step down then: room for the next burst. It is made good for in 20 minutes, so that more than one in 20 lowers the target for good.
_BURST_STEP = 0.8
# Share by which ready pods change that makes the load a pod of the last seconds meaningless.
_RESIZED_RATIO = 0.2
# Late times in a row with hardly a request a pod from which on pods do not help.
_HOPELESS_COUNT = 3
# Share of the target that pods must have had for their times to say anything of a higher one.
_TRIED_RATIO = 0.5
# Share of the load that was late that is tried again, and its growth a minute: it doubles within an hour.
_BELOW_CEILING_RATIO, _CEILING_RELAX_RATIO = 0.75, 1.0118
_MINUTE_S = 60.0
# Least requests in flight a pod: below it a request is nearly always alone.
_IN_FLIGHT_MIN, _IN_FLIGHT_MAX = 0.5, 1000.0
# Other loads: the range around the revision's own target.
_RANGE = 20.0
_HOPELESS_S = 600.0


class SloVerdict(enum.StrEnum):
    """The result of comparing the latest requests with the latency goal."""

    UNKNOWN = "unknown"
    HELD = "held"
    ROOM = "room"
    LATE = "late"
    SETTLING = "settling"
    """Late, and the pods for it are still starting, or have not been there for long."""

    BOUNDED = "bounded"
    """Late, at the largest scale."""

    HOPELESS = "hopeless"
    """Late, although pods have hardly a request each."""


class SloView(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements since the last change: requests by lateness, and the mean load of a ready pod."""

    recent: tuple[float, ...] = ()
    """Bins of the last 10 s with the pods of now."""

    steady: tuple[float, ...] = ()
    """Bins of the last minute with the pods of now."""

    bins: tuple[float, ...] = ()
    """Bins of the last minute."""

    pod_load: float = 0.0
    ready_count: int = 0
    present_scale: int = 0


class SloOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, its numbers, and the new target. ``more_count`` pods are missing."""

    slo: Slo
    verdict: SloVerdict
    quantile_s: float
    target: float
    more_count: int = 0


class SloState(msgspec.Struct, frozen=True, kw_only=True):
    """The state from one decision to the next."""

    since_s: float = 0.0
    """Begin of the time that is judged: the last change."""

    target: float | None = None
    """Target load of a pod; None for the revision's own."""

    awaited_count: int = 0
    """Pods that must be ready before times are judged again; 0 for none."""

    ceiling: float = math.inf
    """Load of a pod that was late last."""

    ceiling_s: float = 0.0
    hopeless_count: int = 0
    hopeless_until_s: float = 0.0
    late: SloOutcome | None = None
    """The last late outcome, until a window is on time."""


def step(state: SloState, seen: SloView, *, spec: ScalingSpec, now_s: float) -> tuple[SloState, SloOutcome]:
    """Judge the goal of ``spec``, and change the target by at most one step. ``spec`` has the revision's own target."""
    slo = spec.slo
    assert slo is not None
    low, high = _bounds(spec)
    target = min(max(low, spec.target_value if state.target is None else state.target), high)
    if state.awaited_count > seen.ready_count and now_s - state.since_s < _SETTLE_S:
        assert state.late is not None
        more_count = state.awaited_count - seen.ready_count
        return state, msgspec.structs.replace(state.late, verdict=SloVerdict.SETTLING, more_count=more_count)
    if state.awaited_count:
        state = msgspec.structs.replace(state, awaited_count=0, since_s=now_s + _lag_s(state, slo))
        seen = SloView(ready_count=seen.ready_count, present_scale=seen.present_scale)
    bins = next((window for window in (seen.recent, seen.steady) if is_late(window, slo)), None)
    if bins is not None:
        return _late(state, seen, _outcome(slo, SloVerdict.LATE, bins, target=target), spec=spec, now_s=now_s)
    if now_s - state.since_s < _CALM_S or sum(seen.bins) < _CALM_COUNT_MIN:
        unknown = _outcome(slo, SloVerdict.UNKNOWN, seen.bins, target=target)
        settling = state.late and msgspec.structs.replace(state.late, verdict=SloVerdict.SETTLING, more_count=0)
        return state, settling or unknown
    on_time = msgspec.structs.replace(state, late=None)
    measured = _outcome(slo, SloVerdict.HELD, seen.bins, target=target)
    ratio = measured.quantile_s / slo.limit_s
    growth_max = _WAIT_GROWTH_MAX if slo.is_wait else _GROWTH_MAX
    grown = min(high, target * min(growth_max, math.sqrt(_ROOM_RATIO / max(ratio, _RATIO_MIN))))
    minutes = (now_s - state.ceiling_s) / _MINUTE_S
    # The ceiling expires after a day.
    grown = min(grown, state.ceiling * _BELOW_CEILING_RATIO * _CEILING_RELAX_RATIO ** min(minutes, 1440.0))
    is_tried = seen.pod_load >= _TRIED_RATIO * target
    if ratio >= _ROOM_RATIO or not is_tried or grown <= target or now_s < state.hopeless_until_s:
        return on_time, measured
    return (
        msgspec.structs.replace(on_time, target=grown, since_s=now_s),
        msgspec.structs.replace(measured, verdict=SloVerdict.ROOM, target=grown),
    )


def _lag_s(state: SloState, slo: Slo) -> float:
    """The seconds for which requests from before a change may still end: the duration of late requests."""
    return min(slo.limit_s if state.late is None else state.late.quantile_s, _SETTLE_S)


def is_late(bins: Sequence[float], slo: Slo) -> bool:
    """Whether more requests are late than the goal allows, and than chance explains.

    Of 60 requests a 95th percentile allows 3; chance may make 6 of it, so that 7 are late.
    """
    allowed, late = (1.0 - slo.share) * sum(bins), late_sum(bins)
    return late >= _LATE_MIN and late > allowed + _CHANCE * math.sqrt(allowed)


def _late(
    state: SloState, seen: SloView, late: SloOutcome, *, spec: ScalingSpec, now_s: float
) -> tuple[SloState, SloOutcome]:
    low, _ = _bounds(spec)
    own = min(late.target, spec.target_value)
    hopeless_count = state.hopeless_count + 1 if late.target <= low and seen.pod_load <= 1 else 0
    if now_s < state.hopeless_until_s or hopeless_count >= _HOPELESS_COUNT:
        until_s = state.hopeless_until_s if now_s < state.hopeless_until_s else now_s + _HOPELESS_S
        outcome = msgspec.structs.replace(late, verdict=SloVerdict.HOPELESS, target=spec.target_value)
        return SloState(since_s=now_s, hopeless_until_s=until_s, late=outcome), outcome
    if seen.present_scale >= spec.max_scale > 0:
        outcome = msgspec.structs.replace(late, verdict=SloVerdict.BOUNDED, target=own)
        return msgspec.structs.replace(state, target=own, since_s=now_s, late=outcome), outcome
    if seen.pod_load > _OVERLOAD_RATIO * late.target:
        load = min(seen.pod_load, _CATCH_UP_RATIO * late.target) * seen.ready_count
        is_again = state.late is not None
        after = msgspec.structs.replace(
            state,
            target=own if is_again else max(low, _BURST_STEP * own),
            ceiling=state.ceiling if is_again else own,
            ceiling_s=now_s,
        )
        return _with_pods(after, seen, late, load=load, spec=spec, now_s=now_s)
    base = min(own, seen.pod_load) if seen.pod_load > 0 else own
    step_min = _WAIT_STEP_MIN if late.slo.is_wait else _STEP_MIN
    lowered = max(low, base * min(max(late.slo.limit_s / late.quantile_s, step_min), _STEP_MAX))
    after = SloState(target=lowered, ceiling=max(base, low), ceiling_s=now_s, hopeless_count=hopeless_count)
    return _with_pods(after, seen, late, load=seen.pod_load * seen.ready_count, spec=spec, now_s=now_s)


def _with_pods(
    state: SloState, seen: SloView, late: SloOutcome, *, load: float, spec: ScalingSpec, now_s: float
) -> tuple[SloState, SloOutcome]:
    """Propose the pods that a load needs at the state's target, within rate and maximum scale, and wait for them."""
    assert state.target is not None
    most = math.ceil(spec.max_scale_up_rate * max(1, seen.ready_count))
    wanted = min(math.ceil(load / state.target), most, spec.max_scale or most)
    outcome = msgspec.structs.replace(late, target=state.target, more_count=max(0, wanted - seen.ready_count))
    return msgspec.structs.replace(state, since_s=now_s, awaited_count=wanted, late=outcome), outcome


def _bounds(spec: ScalingSpec) -> tuple[float, float]:
    """The least and the largest target. A hard limit is the most that a pod ever has."""
    own = spec.target_value
    if spec.metric != CONCURRENCY.name:
        return own / _RANGE, own * _RANGE
    return min(own, _IN_FLIGHT_MIN), max(own, float(spec.container_concurrency or _IN_FLIGHT_MAX))


def _outcome(slo: Slo, verdict: SloVerdict, bins: Sequence[float], *, target: float) -> SloOutcome:
    return SloOutcome(slo=slo, verdict=verdict, quantile_s=quantile_s(bins, slo), target=target)


class RevisionSlo:
    """The goal of one revision with its measurements. ``outcome`` is None before the first decision."""

    __slots__ = ("_bins", "_loads", "_own", "_ready_count", "_resized_s", "_state", "outcome")

    def __init__(self, now_s: float) -> None:
        self._own: ScalingSpec | None = None
        self._state = SloState(since_s=now_s)
        # By time: bins of reports; load of seconds, with the pods that were ready.
        self._bins: deque[tuple[float, tuple[float, ...]]] = deque()
        self._loads: deque[tuple[float, float, int]] = deque()
        self._ready_count = 0
        self._resized_s = now_s
        self.outcome: SloOutcome | None = None

    def record(self, bins: tuple[float, ...], now_s: float) -> None:
        """Add the requests of a pod's report."""
        if bins:
            self._bins.append((now_s, bins))

    def record_load(self, load: float, at_s: float) -> None:
        """Add the load of a second, in the unit of the revision's metric."""
        if self._ready_count:
            self._loads.append((at_s, load, self._ready_count))

    def update(self, spec: ScalingSpec, *, ready_count: int, present_scale: int, now_s: float) -> ScalingSpec:
        """Decide, and return the numbers of the revision with the target that the goal needs."""
        if spec.slo is None:
            self._own = self.outcome = None
            return spec
        if spec != self._own:
            self._own = spec
            self._state = SloState(since_s=now_s)
        if ready_count and not self._ready_count:
            # Requests that waited for the first pod say nothing of its target.
            self._state = msgspec.structs.replace(self._state, since_s=now_s + _RECENT_S / 2)
        if abs(ready_count - self._ready_count) > _RESIZED_RATIO * self._ready_count:
            self._resized_s = now_s + _lag_s(self._state, spec.slo)
        self._ready_count = ready_count
        self._state, self.outcome = step(self._state, self._view(present_scale, now_s), spec=spec, now_s=now_s)
        return with_slo_target(spec, self.outcome.target)

    def _view(self, present_scale: int, now_s: float) -> SloView:
        for column in (self._bins, self._loads):
            while column and column[0][0] < now_s - _CALM_S:
                column.popleft()
        since_s = self._state.since_s
        recent_s = max(since_s, now_s - _RECENT_S, self._resized_s)
        loads = [(load, count) for at_s, load, count in self._loads if at_s >= recent_s]
        pods = sum(count for _, count in loads)
        return SloView(
            recent=sum_bins(bins for at_s, bins in self._bins if at_s >= recent_s),
            steady=sum_bins(bins for at_s, bins in self._bins if at_s >= max(since_s, self._resized_s)),
            bins=sum_bins(bins for at_s, bins in self._bins if at_s >= since_s),
            pod_load=sum(load for load, _ in loads) / pods if pods else 0.0,
            ready_count=self._ready_count,
            present_scale=present_scale,
        )


def with_slo_target(spec: ScalingSpec, target: float) -> ScalingSpec:
    """The revision's numbers with another target, at the same utilisation."""
    if target == spec.target_value:
        return spec
    changed = msgspec.structs.replace(
        spec, target_value=target, total_value=target * spec.total_value / spec.target_value
    )
    is_in_flight = spec.metric == CONCURRENCY.name
    return msgspec.structs.replace(changed, target_concurrency=target) if is_in_flight else changed
