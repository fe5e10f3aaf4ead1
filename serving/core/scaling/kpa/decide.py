"""Decides the number of pods of a revision as Knative does: every two seconds, and on poke.

Input: the last decision's state, the load over both windows, the number of ready pods, the revision's numbers and the
time. Output: the next state and a ``ScaleDecision`` with every intermediate value, or ``NoData``, which changes
nothing. The count is load divided by target, rounded up, within a factor of the ready pods. If the panic window asks
for a multiple of the ready pods (panic), the count only grows. Minimum, maximum and gate are applied later (bounds,
merge, zero). Follows knative/serving 98e5ef90, pkg/autoscaler/scaling, but for what ``KpaQuirks`` lists.
"""

import enum
import math

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.quantity import INT32_MAX
from serving.core.scaling.kpa.burst import excess_burst_capacity
from serving.core.scaling.kpa.delay import DelayWindow, slot_count
from serving.core.scaling.kpa.merge import bounded
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import SAFE, KpaQuirks


class ScalerMode(enum.StrEnum):
    """The window that decided the pod count: the stable window, or during panic the window with more pods."""

    STABLE = "stable"
    PANIC = "panic"


class ScaleLimit(enum.StrEnum):
    """The last rule that changed the count computed from the load.

    The rates limit one step. activation-scale is the least number of pods for any load. panic-hold keeps the most pods
    of the current panic, scale-down-delay the most pods wanted within the delay, and start-hold the scale found when
    the autoscaler started.
    """

    UP_RATE = "max-scale-up-rate"
    DOWN_RATE = "max-scale-down-rate"
    ACTIVATION_SCALE = "activation-scale"
    PANIC_HOLD = "panic-hold"
    SCALE_DOWN_DELAY = "scale-down-delay"
    START_HOLD = "start-hold"


class KpaState(msgspec.Struct, frozen=True, kw_only=True):
    """The algorithm's state between two decisions.

    ``panic_since_s`` is when the panic threshold was last reached; None outside panic. ``panic_count_max`` are the most
    pods wanted since panic began; before the first panic, the pods that were ready at the start. ``delay`` has the
    counts wanted within the scale-down delay; ``starting_delay_slot_count`` is its initial length, only for the quirk
    ``delay_keeps_its_length``. ``start_hold_count`` is the scale when the autoscaler started: decisions are not lower
    for one stable window, then it is 0. ``watched_since_s`` is the time of the first decision with data.
    """

    panic_since_s: float | None = None
    panic_count_max: int = 0
    delay: DelayWindow = DelayWindow()
    starting_delay_slot_count: int = 0
    start_hold_count: int = 0
    watched_since_s: float | None = None


class ScaleDecision(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The wanted pods, with all intermediate values needed to repeat the decision."""

    desired_count: int
    """The result, before minimum, maximum and the gate to zero."""

    mode: ScalerMode
    limited_by: ScaleLimit | None
    """The rule that changed the count computed from the load; None if none did."""

    excess_burst_capacity: int
    """Free request capacity beyond the target burst capacity. If it is negative, the activator stays in the path."""

    at_s: float
    ready_count: int
    observed_stable: float
    observed_panic: float

    desired_stable_count: int
    """Load of the stable window over the target, rounded up, before any limit."""

    desired_panic_count: int
    """Load of the panic window over the target, rounded up, before any limit."""

    rate_count_min: int
    """Fewest pods that ``max_scale_down_rate`` allows; 0 if the revision is unreachable."""

    rate_count_max: int
    """Most pods that ``max_scale_up_rate`` allows."""

    stable_count: int
    """Pods for the stable window within the rates, raised to the activation scale."""

    panic_count: int
    """Pods for the panic window within the rates, raised to the activation scale."""

    is_over_panic_threshold: bool
    panic_since_s: float | None
    panic_count_max: int

    undelayed_count: int
    """Pods before the scale-down delay: ``stable_count``, in panic ``panic_count_max``."""

    delayed_count: int
    """Pods after the scale-down delay."""

    start_hold_count: int
    """Lower bound shortly after a start of the autoscaler; otherwise 0."""


def starting_state(
    *, ready_count: int, present_scale: int, spec: ScalingSpec, now_s: float, quirks: KpaQuirks = SAFE
) -> KpaState:
    """The initial state of a scaler whose revision may already have pods.

    ``ready_count`` is 0 if it is unknown. ``present_scale`` is the revision's current scale. With more than one ready
    pod the scaler starts in panic, so that a restart of the autoscaler, which loses all history, removes no pod.
    """
    return KpaState(
        panic_since_s=now_s if ready_count > 1 else None,
        panic_count_max=ready_count,
        starting_delay_slot_count=slot_count(spec.scale_down_delay_s),
        start_hold_count=0 if quirks.restart_may_lower else max(present_scale, ready_count),
    )


def decide(
    state: KpaState,
    *,
    observed: Observation | NoData,
    ready_count: int | NoData,
    spec: ScalingSpec,
    now_s: float,
    quirks: KpaQuirks = SAFE,
) -> tuple[KpaState, ScaleDecision | NoData]:
    """Make one decision; return the next state and the decision.

    If either input is ``NoData``, return the state unchanged, and this input. Example: a load of 95 at a target of 70
    per pod, with 1 ready pod, needs 95 / 70 = 1.36, so 2 pods. That is below the scale-up limit of 1000 times the ready
    pods. It is twice the ready pods, so a panic threshold of 2 is reached.
    """
    if isinstance(ready_count, NoData):
        return state, ready_count
    if isinstance(observed, NoData):
        return state, observed
    return _decide(state, observed, ready_count=ready_count, spec=spec, now_s=now_s, quirks=quirks)


def with_initial_scale(state: KpaState, *, spec: ScalingSpec, now_s: float, quirks: KpaQuirks = SAFE) -> KpaState:
    """Record the initial scale in the scale-down delay of an uninitialised revision, so that the delay holds it too.

    ``decide`` records only the count computed from the load, because the initial scale is applied after it.
    """
    if quirks.delay_ignores_initial_scale:
        return state
    count = bounded(max(spec.initial_scale, spec.min_scale), spec=spec, is_initialized=False).count
    delay, _ = _delayed(state, count, spec=spec, now_s=now_s, quirks=quirks)
    return msgspec.structs.replace(state, delay=delay)


def _decide(
    state: KpaState, observed: Observation, *, ready_count: int, spec: ScalingSpec, now_s: float, quirks: KpaQuirks
) -> tuple[KpaState, ScaleDecision]:
    # Without ready pods, growth starts at 1. 1.1 x 2 pods = 2.2 is rounded up; otherwise 2 would stay 2 forever.
    base_count = max(1, ready_count)
    count_max = math.ceil(spec.max_scale_up_rate * base_count)
    count_min = math.floor(base_count / spec.max_scale_down_rate) if spec.reachable else 0
    desired_stable_count = count_for(observed.stable, spec.target_value)
    desired_panic_count = count_for(observed.panic, spec.target_value)
    stable_count, limit = _limited(desired_stable_count, spec, count_min=count_min, count_max=count_max)
    panic_count, panic_limit = _limited(desired_panic_count, spec, count_min=count_min, count_max=count_max)

    is_over = desired_panic_count / base_count >= spec.panic_threshold_ratio
    panic_since_s, panic_count_max = _panic(state, is_over=is_over, hold_s=spec.stable_window_s, now_s=now_s)
    undelayed_count = stable_count
    if panic_since_s is not None:
        if panic_count > undelayed_count:
            undelayed_count, limit = panic_count, panic_limit
        if panic_count_max > undelayed_count:
            undelayed_count, limit = panic_count_max, ScaleLimit.PANIC_HOLD
        panic_count_max = undelayed_count

    delay, delayed_count = _delayed(state, undelayed_count, spec=spec, now_s=now_s, quirks=quirks)
    if delayed_count > undelayed_count:
        limit = ScaleLimit.SCALE_DOWN_DELAY
    watched_since_s = now_s if state.watched_since_s is None else state.watched_since_s
    start_hold_count = state.start_hold_count if now_s - watched_since_s < spec.stable_window_s else 0
    if start_hold_count > delayed_count:
        limit = ScaleLimit.START_HOLD

    next_state = KpaState(
        panic_since_s=panic_since_s,
        panic_count_max=panic_count_max,
        delay=delay,
        starting_delay_slot_count=state.starting_delay_slot_count,
        start_hold_count=start_hold_count,
        watched_since_s=watched_since_s,
    )
    decision = ScaleDecision(
        desired_count=max(delayed_count, start_hold_count),
        mode=ScalerMode.STABLE if panic_since_s is None else ScalerMode.PANIC,
        limited_by=limit,
        excess_burst_capacity=excess_burst_capacity(ready_count=ready_count, observed_panic=observed.panic, spec=spec),
        at_s=now_s,
        ready_count=ready_count,
        observed_stable=observed.stable,
        observed_panic=observed.panic,
        desired_stable_count=desired_stable_count,
        desired_panic_count=desired_panic_count,
        rate_count_min=count_min,
        rate_count_max=count_max,
        stable_count=stable_count,
        panic_count=panic_count,
        is_over_panic_threshold=is_over,
        panic_since_s=panic_since_s,
        panic_count_max=panic_count_max,
        undelayed_count=undelayed_count,
        delayed_count=delayed_count,
        start_hold_count=start_hold_count,
    )
    return next_state, decision


def count_for(observed: float, target: float) -> int:
    """Pods for a load: 95 at 70 per pod are 1.36, so 2. A negative load needs no pods."""
    pods = observed / target
    if pods <= 0:
        return 0
    return math.ceil(pods) if pods < INT32_MAX else INT32_MAX


def _limited(desired_count: int, spec: ScalingSpec, *, count_min: int, count_max: int) -> tuple[int, ScaleLimit | None]:
    """The count within the rates, raised to the activation scale under load, and the rule that changed it, if any.

    If the rates contradict each other, the upper one wins.
    """
    count, limit = desired_count, None
    if count < count_min:
        count, limit = count_min, ScaleLimit.DOWN_RATE
    if count > count_max:
        count, limit = count_max, ScaleLimit.UP_RATE
    if count < spec.activation_scale and desired_count > 0:
        count, limit = spec.activation_scale, ScaleLimit.ACTIVATION_SCALE
    return count, limit


def _panic(state: KpaState, *, is_over: bool, hold_s: float, now_s: float) -> tuple[float | None, int]:
    """The next panic state: when the threshold was last reached (None outside panic), and the most pods wanted.

    Panic ends ``hold_s`` after the load was last over the threshold.
    """
    if is_over:
        return now_s, state.panic_count_max
    if state.panic_since_s is not None and state.panic_since_s + hold_s < now_s:
        return None, 0
    return state.panic_since_s, state.panic_count_max


def _delayed(
    state: KpaState, count: int, *, spec: ScalingSpec, now_s: float, quirks: KpaQuirks
) -> tuple[DelayWindow, int]:
    """The scale-down delay with this count recorded, and the maximum count within the delay.

    An unreachable revision has no delay, and records no count.
    """
    slots = state.starting_delay_slot_count if quirks.delay_keeps_its_length else slot_count(spec.scale_down_delay_s)
    if slots and spec.reachable:
        delay = state.delay.record(count, slot_count=slots, now_s=now_s)
        return delay, delay.maximum
    return state.delay, count
