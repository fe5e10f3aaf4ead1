"""The next period whose decision may differ."""

import math

import msgspec

from serving.core.model.knative import ServingState
from serving.core.scaling.budget import UNLIMITED
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.scaler.rest import REST_MAX_S, Periods, rest_in_s
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import SETTINGS, World, facts_of, revision_with, stat_of


def periods_after(decided_s: float) -> Periods:
    periods = Periods(2.0)
    periods.made_s = decided_s
    return periods


def test_next_period_follows_last_decision() -> None:
    periods = periods_after(1.5)
    assert [periods.at(at_s) for at_s in (0.0, 1.5, 3.5, 3.6)] == [3.5, 3.5, 3.5, 5.5]


def test_until_includes_period_at_time_unless_it_is_first() -> None:
    periods = periods_after(1.5)
    assert [periods.until(at_s) for at_s in (1.0, 1.6, 3.5, 5.6)] == [1.5, 1.5, 3.5, 5.5]
    assert [periods.until(at_s, is_first=True) for at_s in (1.6, 3.5, 3.6)] == [1.5, 1.5, 3.5]


def test_before_returns_time_itself_if_no_period_precedes() -> None:
    periods = periods_after(1.5)
    assert [periods.before(at_s) for at_s in (3.0, 3.5, 5.5, 5.6, math.inf)] == [3.0, 3.5, 3.5, 5.5, math.inf]


def world_at_zero() -> World:
    """A revision that has been at zero for long."""
    return World(revision_with(serving_state=ServingState.RESERVE), facts_of(0))


def rest_of(world: World) -> float | None:
    return rest_in_s(world.decide(), world.scaler, 2.0)


def test_revision_at_zero_rests_for_maximum_time() -> None:
    assert rest_of(world_at_zero()) == REST_MAX_S


def test_revision_with_pods_or_load_does_not_rest() -> None:
    world = World(revision_with(), facts_of(1))
    assert rest_of(world) is None
    world = world_at_zero()
    world.poke(1.0)
    assert rest_of(world) is None


def test_revision_with_idle_pod_rests_until_load() -> None:
    world = World(revision_with(), facts_of(1))
    world.live(4, load=1.0)
    assert rest_in_s(world.outcomes[-1], world.scaler, 2.0) is None
    world.live(4, load=0.0)
    assert rest_in_s(world.outcomes[-1], world.scaler, 2.0) == REST_MAX_S
    world.record(stat_of(1.0, by="pod-0"), StatSource.POD)
    assert rest_in_s(world.outcomes[-1], world.scaler, 2.0) is None


def test_classic_or_budgeted_revision_does_not_rest() -> None:
    world = world_at_zero()
    outcome = world.decide()
    inputs = msgspec.structs.replace(outcome.inputs, spec=spec_with(class_name=CLASSIC_CLASS))
    assert rest_in_s(msgspec.structs.replace(outcome, inputs=inputs), world.scaler, 2.0) is None
    inputs = msgspec.structs.replace(outcome.inputs, allowance=UNLIMITED)
    assert rest_in_s(msgspec.structs.replace(outcome, inputs=inputs), world.scaler, 2.0) is None


def test_rest_ends_in_last_period_before_recheck() -> None:
    world = world_at_zero()
    outcome = msgspec.structs.replace(world.decide(), recheck_in_s=7.0)
    assert rest_in_s(outcome, world.scaler, 2.0) == 6.0
    assert rest_in_s(msgspec.structs.replace(outcome, recheck_in_s=1.5), world.scaler, 2.0) is None


def test_revision_whose_shadow_has_pods_does_not_rest() -> None:
    world, rests = world_at_zero(), []
    for scale in (0, 1):
        spec = spec_with(policy="adaptive")
        world.scaler.shadow = BUILT_IN.shadow_of(
            spec, SETTINGS, present_scale=scale, wall_offset_s=0.0, now_s=world.now_s
        )
        rests.append(rest_of(world))
    assert rests == [REST_MAX_S, None]


def test_shadow_with_idle_pod_rests_with_real_pods() -> None:
    spec = spec_with(policy="adaptive", target_burst_capacity=0.0)
    world = World(revision_with(spec), facts_of(1))
    world.scaler.shadow = BUILT_IN.shadow_of(spec, SETTINGS, present_scale=1, wall_offset_s=0.0, now_s=world.now_s)
    shadow = world.scaler.shadow
    assert shadow is not None
    assert shadow.due_s == 0.0
    world.live(4, load=1.0)
    world.live(4, load=0.0)
    assert shadow.due_s == math.inf
    assert rest_in_s(world.outcomes[-1], world.scaler, 2.0) == REST_MAX_S
    times = [world.now_s + 2.0 * number for number in range(1, 60)]
    assert shadow.change_in_silence_s(times) < times[-1]
    world.live(70, load=0.0)
    assert shadow.scale == 0
    assert shadow.change_in_silence_s(times) == times[-1]
