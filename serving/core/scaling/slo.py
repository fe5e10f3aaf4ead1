"""Sets a pod's target load so that a latency goal such as "p95<300ms" is met.

Input: requests by lateness (``core/model/slo.py``), the load per pod, and the revision's numbers. Output: the target of
one pod, with which the usual algorithm decides. Windows, panic, rates and bounds apply as for any other target.

Late requests lower the target by the factor limit / percentile, as a HorizontalPodAutoscaler would. Example: 4 pods
have 10 requests each, and a 95th percentile of 410 ms with a limit of 300 ms. They get a target of 7.3, so 6 pods. A
late revision never has fewer pods than its configured target gives. Once its new pods are ready, new measurements
begin. If a whole window is below the limit by three tenths, the target grows by a tenth, but not up to a target at
which it was late. If the goal is missed with hardly one request per pod, more pods do not help. The configured target
then applies for ten minutes, before the goal is tried again.
"""

import enum
import math
from collections import deque
from collections.abc import Sequence

import msgspec

from serving.core.model.loadmetric import CONCURRENCY
from serving.core.model.slo import Slo, late_sum, quantile_s, sum_bins
from serving.core.scaling.spec import ScalingSpec

# Seconds in which lateness is detected, and in which spare capacity is proved.
_RECENT_S, _CALM_S = 10.0, 60.0
# Longest wait for new pods before the goal is judged again: pods that never become ready must not stop the next step.
_SETTLE_S = 60.0
# Standard deviations (Poisson) above the allowed late requests that are more than chance.
_CHANCE = 2.0
_LATE_MIN = 2
# Share of the limit below which percentiles count as equal.
_RATIO_MIN = 0.01
_CALM_COUNT_MIN = 20
# Bounds of one step down. A wait has no upper bound even if little capacity is missing, so its step is smaller.
_STEP_MIN, _WAIT_STEP_MIN, _STEP_MAX = 0.25, 0.7, 0.9
# Share of the limit below which capacity is spare, and the largest steps up.
_ROOM_RATIO = 0.7
_GROWTH_MAX, _WAIT_GROWTH_MAX = 1.5, 1.15
# Load over target above which lateness is due to missing pods rather than the target; and the most pods added for it.
_OVERLOAD_RATIO = 1.1
_CATCH_UP_RATIO = 2.0
# The step down in that case leaves room for the next burst. The target recovers from it within 20 minutes.
_BURST_STEP = 0.8
# Relative change of ready pods that invalidates the load per pod of the last seconds.
_RESIZED_RATIO = 0.2
# Consecutive late verdicts at hardly one request per pod that prove pods do not help.
_HOPELESS_COUNT = 3
# Share of the target that pods must have reached before a higher one is tried.
_TRIED_RATIO = 0.5
# Share of the late load that is tried again, and its growth per minute: it doubles within an hour.
_BELOW_CEILING_RATIO, _CEILING_RELAX_RATIO = 0.75, 1.0118
_MINUTE_S = 60.0
# Fewest requests in flight per pod: below it a request is usually alone.
_IN_FLIGHT_MIN, _IN_FLIGHT_MAX = 0.5, 1000.0
# For other metrics: the range around the configured target.
_RANGE = 20.0
_HOPELESS_S = 600.0


class SloVerdict(enum.StrEnum):
    """The result of comparing the latest requests with the latency goal.

    unknown: too few requests. held: the goal is met. room: it is met by so much that each pod may get more load. late:
    it is missed. The others are kinds of late: settling while new pods start, bounded at the maximum scale, hopeless if
    pods are late with hardly one request each.
    """

    UNKNOWN = "unknown"
    HELD = "held"
    ROOM = "room"
    LATE = "late"
    SETTLING = "settling"
    """Late, while the pods for it are starting or have just become ready."""

    BOUNDED = "bounded"
    """Late, but the scale is at its maximum."""

    HOPELESS = "hopeless"
    """Late, although pods have hardly one request each."""


class SloView(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements for one verdict: requests by latency in three periods, and the mean load of a ready pod.

    ``recent`` covers 10 s and ``steady`` a minute, both with the current pods only. ``bins`` covers the last minute.
    All begin after the last change.
    """

    recent: tuple[float, ...] = ()
    steady: tuple[float, ...] = ()
    bins: tuple[float, ...] = ()
    pod_load: float = 0.0
    ready_count: int = 0
    present_scale: int = 0


class SloOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict with its numbers, and the new target. ``more_count`` more pods are wanted."""

    slo: Slo
    verdict: SloVerdict
    quantile_s: float
    target: float
    more_count: int = 0


class SloState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a latency goal between two decisions.

    Requests since ``since_s``, the last change, are judged. ``target`` is the target load per pod; None for the
    configured one. ``awaited_count`` pods must be ready before the next verdict. ``ceiling`` is the load per pod at the
    last late verdict, which was at ``ceiling_s``; for some time, the target stays below it. ``hopeless_count`` counts
    late verdicts with hardly one request per pod; until ``hopeless_until_s`` the goal has no effect. ``late`` is the
    last late outcome, until a window is on time.
    """

    since_s: float = 0.0
    target: float | None = None
    awaited_count: int = 0
    ceiling: float = math.inf
    ceiling_s: float = 0.0
    hopeless_count: int = 0
    hopeless_until_s: float = 0.0
    late: SloOutcome | None = None


def step(state: SloState, seen: SloView, *, spec: ScalingSpec, now_s: float) -> tuple[SloState, SloOutcome]:
    """Judge the latency goal in ``spec``, and change the target by at most one step.

    Returns the next state and the outcome. ``spec`` also has the configured target.
    """
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
    """How long requests that began before a change may still run, in seconds: the response time of late requests."""
    return min(slo.limit_s if state.late is None else state.late.quantile_s, _SETTLE_S)


def is_late(bins: Sequence[float], slo: Slo) -> bool:
    """Whether more requests are late than the goal allows and chance explains.

    Example: a p95 goal allows 3 late requests of 60. Up to 6 may be late by chance, so 7 are too many.
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
    """Request the pods for a load at the current target, and wait for them; return the next state and the outcome.

    The scale-up rate and the maximum scale limit the pods.
    """
    assert state.target is not None
    most = math.ceil(spec.max_scale_up_rate * max(1, seen.ready_count))
    wanted = min(math.ceil(load / state.target), most, spec.max_scale or most)
    outcome = msgspec.structs.replace(late, target=state.target, more_count=max(0, wanted - seen.ready_count))
    return msgspec.structs.replace(state, since_s=now_s, awaited_count=wanted, late=outcome), outcome


def _bounds(spec: ScalingSpec) -> tuple[float, float]:
    """The lowest and the highest allowed target. A hard limit bounds the highest."""
    own = spec.target_value
    if spec.metric != CONCURRENCY.name:
        return own / _RANGE, own * _RANGE
    return min(own, _IN_FLIGHT_MIN), max(own, float(spec.container_concurrency or _IN_FLIGHT_MAX))


def _outcome(slo: Slo, verdict: SloVerdict, bins: Sequence[float], *, target: float) -> SloOutcome:
    return SloOutcome(slo=slo, verdict=verdict, quantile_s=quantile_s(bins, slo), target=target)


class RevisionSlo:
    """The latency goal of one revision, and its measurements. ``outcome`` is None before the first decision."""

    __slots__ = ("_bins", "_loads", "_own", "_ready_count", "_resized_s", "_state", "outcome")

    def __init__(self, now_s: float) -> None:
        self._own: ScalingSpec | None = None
        self._state = SloState(since_s=now_s)
        # Timed entries: latency bins of reports; load of seconds, with the number of ready pods.
        self._bins: deque[tuple[float, tuple[float, ...]]] = deque()
        self._loads: deque[tuple[float, float, int]] = deque()
        self._ready_count = 0
        self._resized_s = now_s
        self.outcome: SloOutcome | None = None

    def record(self, bins: tuple[float, ...], now_s: float) -> None:
        """Add the latency bins of a pod's report."""
        if bins:
            self._bins.append((now_s, bins))

    def record_load(self, load: float, at_s: float) -> None:
        """Add a second's load, in the unit of the revision's metric."""
        if self._ready_count:
            self._loads.append((at_s, load, self._ready_count))

    def update(self, spec: ScalingSpec, *, ready_count: int, present_scale: int, now_s: float) -> ScalingSpec:
        """Decide, and return the scaling numbers with the target that the goal needs."""
        if spec.slo is None:
            self._own = self.outcome = None
            return spec
        if spec != self._own:
            self._own = spec
            self._state = SloState(since_s=now_s)
        if ready_count and not self._ready_count:
            # Requests that waited for the first pod do not reflect its target.
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
    """The scaling numbers with another target, at the same utilisation."""
    if target == spec.target_value:
        return spec
    changed = msgspec.structs.replace(
        spec, target_value=target, total_value=target * spec.total_value / spec.target_value
    )
    is_in_flight = spec.metric == CONCURRENCY.name
    return msgspec.structs.replace(changed, target_concurrency=target) if is_in_flight else changed
