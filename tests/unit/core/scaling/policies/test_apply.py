"""Bounds on a change."""

import msgspec
import pytest

from serving.core.scaling.policies.apply import (
    AppliedClamp,
    Clamp,
    PanicDecision,
    PanicVerdict,
    change_of,
    exceeds_panic_limit,
    panic,
)
from serving.core.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec
from serving.core.scaling.policies.triggertypes import ObservedPods
from serving.core.settings.triggers import ORIGINAL, TriggerSettings
from tests.unit.core.scaling.policies.builders import SETTINGS, pods, trigger

AS_ORIGINAL = TriggerSettings(quirks=ORIGINAL)
UNBOUNDED = ScalingPolicySpec()

FULL = pods(idle=9, occupied=91)
SPEC = ScalingPolicySpec(panic_scale=True, up=Direction(delta=5))


def change(
    delta: int,
    observed: ObservedPods,
    spec: ScalingPolicySpec = UNBOUNDED,
    settings: TriggerSettings = SETTINGS,
) -> tuple[int, list[Clamp]]:
    scale_change = change_of(delta, observed=observed, spec=spec, settings=settings)
    return scale_change.delta, [applied.clamp for applied in scale_change.clamps]


def test_change_within_bounds_has_no_clamps() -> None:
    assert change(5, pods(idle=5)) == (5, [])


def test_clamp_has_amounts_before_and_after() -> None:
    scale_change = change_of(11, observed=pods(idle=90), spec=ScalingPolicySpec(max_count=100), settings=SETTINGS)
    assert scale_change.clamps == (AppliedClamp(clamp=Clamp.MAX, amount_before=11, amount_after=10),)


def test_max_count_increases_removal() -> None:
    assert change(-1, pods(idle=12), ScalingPolicySpec(max_count=5)) == (-7, [Clamp.MAX])


def test_all_effective_clamps_are_listed_in_order() -> None:
    assert change(-100, pods(idle=10, occupied=40), ScalingPolicySpec(min_count=5)) == (
        -10,
        [Clamp.MIN, Clamp.SCALE_DOWN_AMOUNT, Clamp.IDLE_PODS],
    )


@pytest.mark.parametrize(("settings", "delta"), [(SETTINGS, 5), (AS_ORIGINAL, 0)])
def test_pending_pod_prevents_additions_only_in_original(settings: TriggerSettings, delta: int) -> None:
    assert change(5, ObservedPods(creating_count=1, pending_count=1), settings=settings)[0] == delta


@pytest.mark.parametrize(("refuses", "expected"), [(False, (5, [])), (True, (0, [Clamp.FAILING_PODS]))])
def test_failing_pod_prevents_additions_if_configured(*, refuses: bool, expected: tuple[int, list[Clamp]]) -> None:
    settings = TriggerSettings(failing_pod_refuses_up=refuses)
    assert change(5, ObservedPods(creating_count=1, failing_count=1), settings=settings) == expected


def test_pending_pod_does_not_prevent_removals() -> None:
    observed = ObservedPods(creating_count=1, pending_count=1, failing_count=1, idle_count=9)
    settings = TriggerSettings(failing_pod_refuses_up=True, quirks=ORIGINAL)
    assert change(-5, observed, settings=settings) == (-5, [])


def panics(
    spec: ScalingPolicySpec = SPEC,
    observed: ObservedPods = FULL,
    *,
    locked_until_s: float | None = None,
    settings: TriggerSettings = SETTINGS,
) -> PanicDecision:
    return panic(observed, spec, settings, locked_until_s=locked_until_s, now_s=100.0)


@pytest.mark.parametrize(("occupied", "idle", "exceeds"), [(91, 9, True), (90, 10, False), (0, 0, False)])
def test_panic_begins_above_limit(occupied: int, idle: int, *, exceeds: bool) -> None:
    assert exceeds_panic_limit(pods(idle=idle, occupied=occupied), 90) is exceeds


def test_panic_adds_up_amount_and_locks_for_60_s() -> None:
    decision = panics()
    assert (decision.verdict, decision.change.delta, decision.locked_until_s) == (PanicVerdict.PANIC, 5, 160.0)


def test_panic_is_off_by_default() -> None:
    assert panics(ScalingPolicySpec()).verdict is PanicVerdict.DISABLED


def test_panic_adds_no_pods_within_limit() -> None:
    decision = panics(observed=pods(idle=10, occupied=90))
    assert (decision.verdict, decision.change.delta) == (PanicVerdict.WITHIN_LIMIT, 0)


def test_panic_limit_is_that_of_old_style_trigger() -> None:
    spec = msgspec.structs.replace(SPEC, up=Direction(trigger=trigger(limit=95)))
    assert panics(spec).verdict is PanicVerdict.WITHIN_LIMIT


def test_locked_panic_retains_its_lock() -> None:
    decision = panics(locked_until_s=101.0)
    assert (decision.verdict, decision.locked_until_s) == (PanicVerdict.LOCKED, 101.0)


def test_expired_panic_lock_has_no_effect() -> None:
    assert panics(locked_until_s=100.0).verdict is PanicVerdict.PANIC


def test_panic_does_not_exceed_max_count() -> None:
    spec = msgspec.structs.replace(SPEC, max_count=103)
    decision = panics(spec)
    assert (decision.change.delta, [applied.clamp for applied in decision.change.clamps]) == (3, [Clamp.MAX])


@pytest.mark.parametrize(("settings", "delta"), [(SETTINGS, 300), (AS_ORIGINAL, 500)])
def test_panic_is_capped_except_in_original(settings: TriggerSettings, delta: int) -> None:
    spec = msgspec.structs.replace(SPEC, up=Direction(delta=500))
    assert panics(spec, settings=settings).change.delta == delta


@pytest.mark.parametrize(("settings", "starts"), [(SETTINGS, True), (AS_ORIGINAL, False)])
def test_panic_starts_cooldown_except_in_original(settings: TriggerSettings, *, starts: bool) -> None:
    assert panics(settings=settings).starts_cooldown is starts
