"""Limits the change that triggers want to a safe amount, within the policy's minimum and maximum.

A policy's min and max bound the result. In addition, one change adds and removes at most a fixed number of pods. A pod
with a request is never removed, and the last pod stays. The result names each effective bound, with the amounts before
and after it.

The amount is a number of *idle* pods to remove; the caller must select idle pods. Source: topfreegames/maestro v9
(dbbfd74), controller.SetScalingAmount and ScaleUp.
"""

import enum

import msgspec

from serving.core.scaling.policies.scalingpolicy import LIMIT_PERCENT_DEFAULT, ScalingPolicySpec, limit_percent_of
from serving.core.scaling.policies.triggertypes import ObservedPods
from serving.core.settings.triggers import TriggerSettings


class Clamp(enum.StrEnum):
    """The bound that changed the number of pods to add or remove.

    last-pod: one pod must remain. idle-pods: pods with requests are not removed. pending-pods and failing-pods: no pod
    is added while such pods exist. The others are named after settings.
    """

    MIN = "min"
    MAX = "max"
    SCALE_UP_AMOUNT = "max-scale-up-amount"
    SCALE_DOWN_AMOUNT = "max-scale-down-amount"
    LAST_POD = "last-pod"
    IDLE_PODS = "idle-pods"
    PENDING_PODS = "pending-pods"
    FAILING_PODS = "failing-pods"


class AppliedClamp(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that changed the number of pods, with the number before and after."""

    clamp: Clamp
    amount_before: int
    amount_after: int


class ScaleChange(msgspec.Struct, frozen=True, kw_only=True):
    """Pods to add (above 0) or remove (below 0), and the steps from ``wanted_delta`` to this count."""

    wanted_delta: int
    delta: int
    clamps: tuple[AppliedClamp, ...] = ()


def bounded_up_amount(amount: int, *, current_count: int, min_count: int, max_count: int) -> int:
    """Pods that may be added within min and max; ``max_count`` 0 means no maximum.

    Examples: with 90 pods and a maximum of 100, an amount of 11 becomes 10. With 50 pods and a minimum of 80, an amount
    of 10 becomes 30.
    """
    if 0 < max_count < current_count + amount:
        return max(0, max_count - current_count)
    return max(amount, min_count - current_count)


def bounded_down_amount(amount: int, *, current_count: int, min_count: int, max_count: int) -> int:
    """Pods that may be removed within min and max; ``min_count`` 0 means no minimum.

    Examples: with 50 pods and a minimum of 5, an amount of 60 becomes 45. With 200 pods and a maximum of 100, an amount
    of 1 becomes 100.
    """
    if min_count > 0 and current_count - amount < min_count:
        return max(0, current_count - min_count)
    if 0 < max_count < current_count - amount:
        return current_count - max_count
    return amount


def change_of(
    wanted_delta: int, *, observed: ObservedPods, spec: ScalingPolicySpec, settings: TriggerSettings
) -> ScaleChange:
    """Apply all bounds to a wanted change."""
    if wanted_delta > 0:
        steps = _up_steps(wanted_delta, observed, spec=spec, settings=settings)
    elif wanted_delta < 0:
        steps = _down_steps(-wanted_delta, observed, spec=spec, settings=settings)
    else:
        return ScaleChange(wanted_delta=0, delta=0)
    amount = steps[-1].amount_after
    assert amount >= 0, "a bound never turns an addition into a removal, nor the reverse"
    assert wanted_delta > 0 or amount <= observed.idle_count, "a pod that holds a request is never removed"
    return ScaleChange(
        wanted_delta=wanted_delta,
        delta=amount if wanted_delta > 0 else -amount,
        clamps=tuple(step for step in steps if step.amount_before != step.amount_after),
    )


def _up_steps(
    amount: int, observed: ObservedPods, *, spec: ScalingPolicySpec, settings: TriggerSettings
) -> list[AppliedClamp]:
    bounded = bounded_up_amount(
        amount, current_count=observed.available_count, min_count=spec.min_count, max_count=spec.max_count
    )
    steps = [_step(Clamp.MAX if bounded < amount else Clamp.MIN, amount, bounded)]
    steps.append(_at_most(steps, Clamp.SCALE_UP_AMOUNT, settings.max_scale_up_amount))
    if observed.pending_count and settings.quirks.any_pending_pod_refuses_up:
        steps.append(_at_most(steps, Clamp.PENDING_PODS, 0))
    if observed.failing_count and settings.failing_pod_refuses_up:
        steps.append(_at_most(steps, Clamp.FAILING_PODS, 0))
    return steps


def _down_steps(
    amount: int, observed: ObservedPods, *, spec: ScalingPolicySpec, settings: TriggerSettings
) -> list[AppliedClamp]:
    available_count = observed.available_count
    bounded = bounded_down_amount(
        amount, current_count=available_count, min_count=spec.min_count, max_count=spec.max_count
    )
    steps = [_step(Clamp.MIN if bounded < amount else Clamp.MAX, amount, bounded)]
    if not settings.quirks.down_may_reach_zero:
        steps.append(_at_most(steps, Clamp.LAST_POD, max(0, available_count - 1)))
    steps.append(_at_most(steps, Clamp.SCALE_DOWN_AMOUNT, settings.max_scale_down_amount))
    steps.append(_at_most(steps, Clamp.IDLE_PODS, observed.idle_count))
    return steps


def _at_most(steps: list[AppliedClamp], clamp: Clamp, amount_max: int) -> AppliedClamp:
    amount = steps[-1].amount_after
    return _step(clamp, amount, min(amount, amount_max))


def _step(clamp: Clamp, before: int, after: int) -> AppliedClamp:
    return AppliedClamp(clamp=clamp, amount_before=before, amount_after=after)


class PanicVerdict(enum.StrEnum):
    """Why panic adds pods, or adds none. within-limit: too few pods are occupied."""

    PANIC = "panic"
    DISABLED = "disabled"
    WITHIN_LIMIT = "within-limit"
    LOCKED = "locked"
    """An earlier panic is still in effect."""


class PanicDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that panic adds.

    The caller passes ``locked_until_s`` to the next call, or None once the pods exist. If ``starts_cooldown``, the
    caller calls ``tick.changed`` after the change, which starts the triggers' cooldown.
    """

    verdict: PanicVerdict
    change: ScaleChange
    locked_until_s: float | None
    starts_cooldown: bool = False


def exceeds_panic_limit(observed: ObservedPods, limit_percent: int) -> bool:
    """Whether more pods are occupied than the limit allows: at 90 percent, 91 of 100 exceed it, 90 do not."""
    return 100 * observed.occupied_count > observed.available_count * limit_percent


def panic(
    observed: ObservedPods,
    spec: ScalingPolicySpec,
    settings: TriggerSettings,
    *,
    locked_until_s: float | None,
    now_s: float,
) -> PanicDecision:
    """Decide on panic when a pod of ``observed`` becomes occupied. ``locked_until_s`` is None outside panic."""
    limit_percent = LIMIT_PERCENT_DEFAULT if spec.up.trigger is None else limit_percent_of(spec.up.trigger)
    if not spec.panic_scale:
        verdict = PanicVerdict.DISABLED
    elif not exceeds_panic_limit(observed, limit_percent):
        verdict = PanicVerdict.WITHIN_LIMIT
    elif locked_until_s is not None and now_s < locked_until_s:
        verdict = PanicVerdict.LOCKED
    else:
        return _panicking(observed, spec, settings, now_s=now_s)
    return PanicDecision(verdict=verdict, change=ScaleChange(wanted_delta=0, delta=0), locked_until_s=locked_until_s)


def _panicking(
    observed: ObservedPods, spec: ScalingPolicySpec, settings: TriggerSettings, *, now_s: float
) -> PanicDecision:
    quirks = settings.quirks
    if quirks.panic_ignores_cap:
        settings = msgspec.structs.replace(settings, max_scale_up_amount=max(1, spec.up.delta, spec.min_count))
    change = change_of(spec.up.delta, observed=observed, spec=spec, settings=settings)
    return PanicDecision(
        verdict=PanicVerdict.PANIC,
        change=change,
        locked_until_s=now_s + settings.panic_lock_s,
        starts_cooldown=not quirks.panic_starts_no_cooldown,
    )
