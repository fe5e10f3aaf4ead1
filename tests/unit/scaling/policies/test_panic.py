"""Panic scale."""

import msgspec
import pytest

from serving.scaling.policies.apply import Clamp
from serving.scaling.policies.observation import ObservedPods
from serving.scaling.policies.panic import PanicDecision, PanicVerdict, exceeds_panic_limit, panic
from serving.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec
from serving.settings.triggers import ORIGINAL, TriggerSettings
from tests.unit.scaling.policies.builders import SETTINGS, pods, trigger

AS_ORIGINAL = TriggerSettings(quirks=ORIGINAL)
FULL = pods(idle=9, occupied=91)
SPEC = ScalingPolicySpec(panic_scale=True, up=Direction(delta=5))


def panics(
    spec: ScalingPolicySpec = SPEC,
    observed: ObservedPods = FULL,
    *,
    locked_until_s: float | None = None,
    settings: TriggerSettings = SETTINGS,
) -> PanicDecision:
    return panic(observed, spec, settings, locked_until_s=locked_until_s, now_s=100.0)


@pytest.mark.parametrize(("occupied", "idle", "exceeds"), [(91, 9, True), (90, 10, False), (0, 0, False)])
def test_panic_begins_above_the_limit(occupied: int, idle: int, *, exceeds: bool) -> None:
    assert exceeds_panic_limit(pods(idle=idle, occupied=occupied), 90) is exceeds


def test_panic_adds_the_amount_of_the_up_direction_and_locks_for_a_minute() -> None:
    decision = panics()
    assert (decision.verdict, decision.change.delta, decision.locked_until_s) == (PanicVerdict.PANIC, 5, 160.0)


def test_panic_is_off_by_default() -> None:
    assert panics(ScalingPolicySpec()).verdict is PanicVerdict.DISABLED


def test_within_the_limit_nothing_is_added() -> None:
    decision = panics(observed=pods(idle=10, occupied=90))
    assert (decision.verdict, decision.change.delta) == (PanicVerdict.WITHIN_LIMIT, 0)


def test_the_limit_is_that_of_the_old_style_trigger() -> None:
    spec = msgspec.structs.replace(SPEC, up=Direction(trigger=trigger(limit=95)))
    assert panics(spec).verdict is PanicVerdict.WITHIN_LIMIT


def test_one_panic_keeps_another_away_and_its_lock_stays() -> None:
    decision = panics(locked_until_s=101.0)
    assert (decision.verdict, decision.locked_until_s) == (PanicVerdict.LOCKED, 101.0)


def test_a_lock_that_ran_out_keeps_nobody_away() -> None:
    assert panics(locked_until_s=100.0).verdict is PanicVerdict.PANIC


def test_panic_stays_within_max() -> None:
    spec = msgspec.structs.replace(SPEC, max_count=103)
    decision = panics(spec)
    assert (decision.change.delta, [applied.clamp for applied in decision.change.clamps]) == (3, [Clamp.MAX])


@pytest.mark.parametrize(("settings", "delta"), [(SETTINGS, 300), (AS_ORIGINAL, 500)])
def test_panic_is_held_to_the_cap_unless_as_the_original(settings: TriggerSettings, delta: int) -> None:
    spec = msgspec.structs.replace(SPEC, up=Direction(delta=500))
    assert panics(spec, settings=settings).change.delta == delta


@pytest.mark.parametrize(("settings", "starts"), [(SETTINGS, True), (AS_ORIGINAL, False)])
def test_panic_starts_the_cooldown_unless_as_the_original(settings: TriggerSettings, *, starts: bool) -> None:
    assert panics(settings=settings).starts_cooldown is starts
