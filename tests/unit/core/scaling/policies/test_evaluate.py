"""Evaluation of the triggers of one direction."""

import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.evaluate import Evaluation, Situation, VerdictKind, evaluate, triggers_in_force
from serving.core.scaling.policies.points import Points, ScaleWay
from serving.core.scaling.policies.scalingpolicy import Direction, Trigger
from serving.core.scaling.policies.triggertypes import REGISTRY, ObservedPods
from serving.core.settings.triggers import ORIGINAL, TriggerQuirks, TriggerSettings
from tests.unit.core.scaling.policies.builders import SETTINGS, pods, points, trigger, using

FULL = pods(idle=2, occupied=8)
EMPTY = pods(idle=9, occupied=1)
ABOVE = points(*[0.8] * 10)
BELOW = points(*[0.1] * 10)
COOLDOWN_S = 300.0


def situation(
    observed: ObservedPods,
    usage_points: Points = (),
    *,
    last_change_at_s: float | None = None,
    settings: TriggerSettings = SETTINGS,
) -> Situation:
    return Situation(
        observed=observed,
        usages={kind: policy.usage_ratio(observed, settings.quirks) for kind, policy in REGISTRY.items()},
        points=dict.fromkeys(REGISTRY, usage_points),
        last_change_at_s=last_change_at_s,
        now_s=0.0,
        settings=settings,
        policies=REGISTRY,
    )


def up(seen: Situation, *triggers: Trigger) -> Evaluation:
    return evaluate(triggers, ScaleWay.UP, seen, cooldown_s=COOLDOWN_S)


def down(seen: Situation, *triggers: Trigger) -> Evaluation:
    return evaluate(triggers, ScaleWay.DOWN, seen, cooldown_s=COOLDOWN_S)


def verdicts(evaluation: Evaluation) -> list[VerdictKind]:
    return [trigger_verdict.verdict for trigger_verdict in evaluation.verdicts]


def test_original_needs_one_more_point() -> None:
    seen = situation(FULL, points(*[0.8] * 8, *[0.5] * 3), settings=TriggerSettings(quirks=ORIGINAL))
    assert verdicts(up(seen, trigger(70))) == [VerdictKind.TOO_FEW_POINTS]


def test_verdict_has_its_inputs() -> None:
    (trigger_verdict,) = up(situation(FULL, ABOVE, last_change_at_s=-100.0), trigger(70)).verdicts
    assert msgspec.structs.asdict(trigger_verdict) == {
        "way": ScaleWay.UP,
        "index": 0,
        "type": "occupancy",
        "verdict": VerdictKind.COOLDOWN,
        "observed_usage_ratio": 0.8,
        "target_usage_ratio": 0.7,
        "limit_ratio": 0.9,
        "examined_count": 10,
        "counted_count": 10,
        "needed_count": 8,
        "delta": 1,
        "cooldown_left_s": 200.0,
    }


def test_first_acting_trigger_ends_evaluation() -> None:
    evaluation = up(situation(FULL, ABOVE), trigger(75), trigger(70))
    assert evaluation.acting is evaluation.verdicts[0]


def test_next_trigger_is_evaluated_if_earlier_one_does_not_act() -> None:
    evaluation = up(situation(FULL, ABOVE), trigger(85), trigger(70))
    assert (verdicts(evaluation), evaluation.delta) == ([VerdictKind.TOO_FEW_POINTS, VerdictKind.POINTS], 1)


def test_low_occupancy_acts_downwards() -> None:
    evaluation = down(situation(EMPTY, BELOW), trigger(50))
    assert (verdicts(evaluation), evaluation.delta) == ([VerdictKind.POINTS], -8)


def test_delta_of_wrong_sign_does_not_act() -> None:
    evaluation = up(situation(EMPTY, ABOVE), trigger(70))
    assert (verdicts(evaluation), evaluation.in_sync) == ([VerdictKind.WRONG_SIGN], True)


def test_zero_delta_does_not_act_in_either_direction() -> None:
    evaluations = [
        up(situation(pods(idle=3, occupied=7), ABOVE), trigger(70)),
        down(situation(pods(idle=5, occupied=5), BELOW), trigger(50)),
    ]
    assert [verdicts(evaluation) for evaluation in evaluations] == [[VerdictKind.WRONG_SIGN]] * 2


def test_trigger_in_cooldown_is_out_of_sync() -> None:
    evaluation = up(situation(FULL, ABOVE, last_change_at_s=0.0), trigger(70))
    assert (evaluation.acting, evaluation.delta, evaluation.in_sync) == (None, 0, False)


def test_later_trigger_acts_on_limit_while_earlier_one_is_in_cooldown() -> None:
    seen = situation(using(900, 1000), ABOVE, last_change_at_s=-10.0)
    evaluation = up(seen, trigger(70, limit=95), trigger(50, kind="cpu", limit=85))
    assert (verdicts(evaluation), evaluation.delta) == ([VerdictKind.COOLDOWN, VerdictKind.LIMIT], 8)


def test_limit_acts_without_points_and_during_cooldown() -> None:
    evaluation = up(situation(FULL, last_change_at_s=0.0), trigger(70, limit=80))
    assert (verdicts(evaluation), evaluation.delta) == ([VerdictKind.LIMIT], 1)


def test_down_trigger_has_no_limit() -> None:
    (trigger_verdict,) = down(situation(FULL), trigger(50)).verdicts
    assert (trigger_verdict.limit_ratio, trigger_verdict.verdict) == (None, VerdictKind.TOO_FEW_POINTS)


@pytest.mark.parametrize(
    ("any_delta", "verdict", "delta"), [(False, VerdictKind.WRONG_SIGN, 0), (True, VerdictKind.LIMIT, -1)]
)
def test_limit_below_target_removes_pods_only_in_original(verdict: VerdictKind, delta: int, *, any_delta: bool) -> None:
    settings = TriggerSettings(quirks=TriggerQuirks(limit_takes_any_delta=any_delta))
    evaluation = up(situation(FULL, settings=settings), trigger(90, limit=60))
    assert (verdicts(evaluation), evaluation.delta) == ([verdict], delta)


def test_infinite_usage_meets_limit_without_change_in_original() -> None:
    seen = situation(using(100, None), settings=TriggerSettings(quirks=ORIGINAL))
    evaluation = up(seen, trigger(70, kind="cpu"))
    assert (verdicts(evaluation), evaluation.delta, evaluation.in_sync) == ([VerdictKind.LIMIT], 0, False)


def test_limit_without_delta_has_no_data() -> None:
    quirks = TriggerQuirks(divides_by_zero=True, counts_unmeasured_containers=True)
    settings = TriggerSettings(quirks=quirks)
    assert verdicts(up(situation(using(100, None), settings=settings), trigger(70, kind="cpu"))) == [
        VerdictKind.NO_DATA
    ]


def test_unknown_delta_has_no_data() -> None:
    seen = situation(pods(idle=1), ABOVE, settings=TriggerSettings(quirks=ORIGINAL))
    assert verdicts(up(seen, trigger(70, kind="cpu"))) == [VerdictKind.NO_DATA]


def test_points_without_present_usage_do_not_act() -> None:
    evaluation = up(situation(pods(), ABOVE), trigger(70))
    assert (verdicts(evaluation), evaluation.in_sync) == ([VerdictKind.NO_DATA], True)
    assert isinstance(evaluation.verdicts[0].observed_usage_ratio, NoData)


def test_empty_triggers_are_in_sync() -> None:
    assert up(situation(FULL)) == Evaluation(verdicts=(), acting=None, delta=0, in_sync=True)


@pytest.mark.parametrize(("way", "delta"), [(ScaleWay.UP, 5), (ScaleWay.DOWN, -5)])
def test_old_style_trigger_uses_delta_of_its_direction(way: ScaleWay, delta: int) -> None:
    (old,) = triggers_in_force(Direction(trigger=trigger(70), delta=5), way, TriggerQuirks())
    assert (old.type, old.delta, old.usage_percent) == ("fixed-step", delta, 70)


def test_old_style_trigger_is_occupancy_trigger_in_original() -> None:
    old = trigger(70, kind="fixed-step")
    assert triggers_in_force(Direction(trigger=old, delta=5), ScaleWay.UP, ORIGINAL) == (trigger(70),)


def test_trigger_list_overrides_old_style_trigger() -> None:
    listed = (trigger(60),)
    assert triggers_in_force(Direction(triggers=listed, trigger=trigger(70)), ScaleWay.UP, TriggerQuirks()) == listed


def test_direction_without_triggers_has_none() -> None:
    assert triggers_in_force(Direction(), ScaleWay.UP, ORIGINAL) == ()
