"""Panic scale: a pod takes its first request, and most of the others are taken, too.

Asked at that very moment, not once a period: it is the one rule that does not wait. In: the pods, the policy, until
when an earlier panic keeps others away. Out: the pods to add, and why (not). Deprecated in the original and off by
default here as there: request metrics see a burst just as soon, and know how large it is.

Source: topfreegames/maestro v9 (dbbfd74), models.LimitManager and the room's status handler.
"""

import enum

import msgspec

from serving.scaling.policies.apply import ScaleChange, change_of
from serving.scaling.policies.observation import ObservedPods
from serving.scaling.policies.scalingpolicy import LIMIT_PERCENT_DEFAULT, ScalingPolicySpec, limit_percent_of
from serving.settings.triggers import TriggerSettings


class PanicVerdict(enum.StrEnum):
    """Why pods are added, or not."""

    PANIC = "panic"
    DISABLED = "disabled"
    WITHIN_LIMIT = "within-limit"
    LOCKED = "locked"
    """An earlier panic is still at work."""


class PanicDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The pods to add.

    ``locked_until_s`` is to be handed to the next call, or None instead once the pods are there. ``starts_cooldown``
    says whether the change, once made, is one to tell the triggers about (``tick.changed``).
    """

    verdict: PanicVerdict
    change: ScaleChange
    locked_until_s: float | None
    starts_cooldown: bool = False


def exceeds_panic_limit(observed: ObservedPods, limit_percent: int) -> bool:
    """Whether more pods are occupied than the limit allows: 91 of 100 at 90 percent do, 90 do not."""
    return 100 * observed.occupied_count > observed.available_count * limit_percent


def panic(
    observed: ObservedPods,
    spec: ScalingPolicySpec,
    settings: TriggerSettings,
    *,
    locked_until_s: float | None,
    now_s: float,
) -> PanicDecision:
    """Decide as a pod becomes occupied; ``observed`` counts it already. ``locked_until_s`` None: no panic is at work."""
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
