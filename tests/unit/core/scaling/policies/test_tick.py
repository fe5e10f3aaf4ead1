"""The decision of one evaluation, and the state for the next one."""

import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.evaluate import VerdictKind
from serving.core.scaling.policies.points import ScaleWay
from serving.core.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec
from serving.core.scaling.policies.tick import TriggerPhase, TriggerRule, TriggerState, decide, rebased
from serving.core.settings.triggers import ORIGINAL, TriggerSettings
from tests.unit.core.scaling.policies.builders import SETTINGS, pods, points, policy, ran, run, trigger, using

AS_ORIGINAL = TriggerSettings(quirks=ORIGINAL)
FULL = pods(idle=2, occupied=8)
EMPTY = pods(idle=9, occupied=1)
ROOMS = policy(up=(trigger(70),), down=(trigger(50),), min_count=2, max_count=20)
UNBOUNDED = policy(up=(trigger(70),), down=(trigger(50),))
# As many points as an evaluation at 0 s needs in addition to its own.
ABOVE = {"occupancy": points(*[0.8] * 9, newest_s=-10.0)}
BELOW = {"occupancy": points(*[0.1] * 9, newest_s=-10.0)}


def test_worked_example_adds_one_pod() -> None:
    decision = run(ROOMS, FULL, TriggerState(points=ABOVE))
    assert (decision.rule, decision.change.delta, decision.desired_count) == (TriggerRule.POINTS, 1, 11)


def test_acting_trigger_is_in_decision() -> None:
    decision = run(ROOMS, FULL, TriggerState(points=ABOVE))
    assert decision.acting is decision.verdicts[0]


def test_new_state_waits_for_points() -> None:
    decision = run(ROOMS, FULL)
    assert (decision.rule, [trigger_verdict.verdict for trigger_verdict in decision.verdicts]) == (
        TriggerRule.IN_SYNC,
        [VerdictKind.TOO_FEW_POINTS, VerdictKind.TOO_FEW_POINTS],
    )


def test_threshold_of_80_percent_over_100_s_acts_after_8_points() -> None:
    state = TriggerState()
    rules = []
    for tick in range(9):
        state, decision = decide(state, FULL, ROOMS, settings=SETTINGS, now_s=10.0 * tick)
        rules.append(decision.rule)
    assert rules == [TriggerRule.IN_SYNC] * 7 + [TriggerRule.POINTS] * 2


@pytest.mark.parametrize("phase", [TriggerPhase.CREATING, TriggerPhase.TERMINATING])
def test_creating_or_terminating_revision_is_paused(phase: TriggerPhase) -> None:
    decision = run(ROOMS, pods(), TriggerState(phase=phase))
    assert (decision.rule, decision.change.delta, decision.phase_changed) == (TriggerRule.PAUSED, 0, False)
    assert isinstance(decision.desired_count, NoData)


def test_points_are_recorded_while_revision_is_created() -> None:
    state = ran(ROOMS, FULL, TriggerState(phase=TriggerPhase.CREATING))
    assert (state.phase, len(state.points["occupancy"])) == (TriggerPhase.CREATING, 1)


def test_min_and_max_do_not_change_phase() -> None:
    state = ran(ROOMS, pods(idle=1), TriggerState(phase=TriggerPhase.OVERDIMENSIONED))
    assert state.phase is TriggerPhase.OVERDIMENSIONED


def test_up_triggers_are_not_evaluated_at_max() -> None:
    decision = run(ROOMS, pods(occupied=20))
    assert [trigger_verdict.way for trigger_verdict in decision.verdicts] == [ScaleWay.DOWN]


def test_down_triggers_are_not_evaluated_at_min() -> None:
    decision = run(ROOMS, pods(idle=2), TriggerState(points=BELOW))
    assert [trigger_verdict.way for trigger_verdict in decision.verdicts] == [ScaleWay.UP]


def test_low_occupancy_removes_pods() -> None:
    decision = run(ROOMS, EMPTY, TriggerState(points=BELOW))
    assert (decision.rule, decision.change.delta, decision.desired_count) == (TriggerRule.POINTS, -8, 2)


def test_up_trigger_in_cooldown_prevents_scale_down() -> None:
    observed = using(100, 1000)
    spec = policy(up=(trigger(70),), down=(trigger(50, kind="cpu"),), min_count=2)
    usage_points = {**ABOVE, "cpu": BELOW["occupancy"]}
    decision = run(spec, observed, TriggerState(points=usage_points, last_change_at_s=-10.0))
    assert (decision.rule, decision.change.delta, decision.desired_count) == (TriggerRule.COOLDOWN, 0, 10)


def test_type_without_implementation_has_no_data() -> None:
    decision = run(policy(up=(trigger(kind="queue"),)), FULL)
    assert decision.usages == {"queue": NoData(missing="a policy of type queue")}


def test_revision_without_pods_has_no_data() -> None:
    decision = run(UNBOUNDED, pods())
    assert (decision.rule, decision.change.delta) == (TriggerRule.NO_DATA, 0)
    assert isinstance(decision.desired_count, NoData)


def test_content_policy_retains_present_count() -> None:
    assert run(ROOMS, pods(idle=4, occupied=6)).desired_count == 10


def test_policy_without_down_triggers_retains_only_min_count() -> None:
    assert run(policy(up=(trigger(70),)), pods(idle=4, occupied=6)).desired_count == 0
    assert run(policy(up=(trigger(70),), min_count=3), pods(idle=4, occupied=6)).desired_count == 3


def test_policy_with_min_0_does_not_retain_last_idle_pod() -> None:
    spec = policy(up=(trigger(70),), down=(trigger(30),))
    assert run(spec, pods(idle=1)).desired_count == 0
    assert (
        run(spec, pods(idle=1), TriggerState(points={"occupancy": points(*[0.0] * 10, newest_s=-10.0)})).desired_count
        == 0
    )
    assert run(spec, pods(occupied=1)).desired_count == 1
    assert run(policy(up=(trigger(70),), down=(trigger(30),), min_count=1), pods(idle=1)).desired_count == 1


def test_policy_without_down_triggers_adds_pods() -> None:
    spec = policy(up=(trigger(70),))
    assert run(spec, FULL, TriggerState(points=ABOVE)).desired_count == 11


@pytest.mark.parametrize(("settings", "desired"), [(SETTINGS, 1), (AS_ORIGINAL, 0)])
def test_triggers_leave_last_pod_to_request_metrics_except_in_original(settings: TriggerSettings, desired: int) -> None:
    usage_points = {"occupancy": points(*[0.0] * 10, newest_s=-10.0)}
    assert run(UNBOUNDED, pods(idle=5), TriggerState(points=usage_points), settings=settings).desired_count == desired


def test_down_triggers_are_not_evaluated_for_last_pod() -> None:
    decision = run(UNBOUNDED, pods(idle=1))
    assert [trigger_verdict.way for trigger_verdict in decision.verdicts] == [ScaleWay.UP]


@pytest.mark.parametrize(("settings", "delta"), [(SETTINGS, 5), (AS_ORIGINAL, 1)])
def test_old_style_trigger_scales_by_its_delta(settings: TriggerSettings, delta: int) -> None:
    up = Direction(trigger=trigger(70), delta=5)
    usage_points = {kind: points(*[0.8] * 10, newest_s=-10.0) for kind in ("fixed-step", "occupancy")}
    decision = run(ScalingPolicySpec(up=up), FULL, TriggerState(points=usage_points), settings=settings)
    assert decision.change.delta == delta


@pytest.mark.parametrize(("settings", "rule"), [(SETTINGS, TriggerRule.POINTS), (AS_ORIGINAL, TriggerRule.IN_SYNC)])
def test_shorter_down_trigger_suppresses_up_triggers_only_in_original(
    settings: TriggerSettings, rule: TriggerRule
) -> None:
    spec = policy(up=(trigger(70, time_s=600),), down=(trigger(50, time_s=100),), min_count=2)
    usage_points = {"occupancy": points(*[0.8] * 60, newest_s=-10.0)}
    assert run(spec, FULL, TriggerState(points=usage_points), settings=settings).rule is rule


def test_phase_is_subdimensioned_after_scale_up() -> None:
    state = ran(ROOMS, FULL, TriggerState(points=ABOVE), now_s=1.0)
    assert (state.phase, state.phase_changed_at_s) == (TriggerPhase.SUBDIMENSIONED, 1.0)


def test_phase_is_overdimensioned_after_scale_down() -> None:
    assert ran(ROOMS, EMPTY, TriggerState(points=BELOW)).phase is TriggerPhase.OVERDIMENSIONED


def test_unchanged_phase_retains_its_time() -> None:
    before = TriggerState(points=ABOVE, phase=TriggerPhase.SUBDIMENSIONED, phase_changed_at_s=-50.0)
    state, decision = decide(before, FULL, ROOMS, settings=SETTINGS, now_s=0.0)
    assert (state.phase_changed_at_s, decision.phase_changed) == (-50.0, False)


def test_limit_renews_time_of_phase() -> None:
    before = TriggerState(phase=TriggerPhase.SUBDIMENSIONED, phase_changed_at_s=-50.0)
    state, decision = decide(before, pods(idle=1, occupied=18), ROOMS, settings=SETTINGS, now_s=0.0)
    assert (state.phase_changed_at_s, decision.phase_changed) == (0.0, True)


def test_phase_is_in_sync_if_no_trigger_acts() -> None:
    state = ran(ROOMS, pods(idle=4, occupied=6), TriggerState(phase=TriggerPhase.SUBDIMENSIONED))
    assert state.phase is TriggerPhase.IN_SYNC


def test_failed_change_starts_no_cooldown() -> None:
    state = ran(ROOMS, FULL, TriggerState(points=ABOVE))
    assert run(ROOMS, FULL, state, now_s=10.0).rule is TriggerRule.POINTS


def test_evaluation_directly_after_restart_adds_no_point() -> None:
    state = TriggerState()
    for tick in range(7):
        state = ran(ROOMS, FULL, state, now_s=10.0 * tick)
    assert run(ROOMS, FULL, state, now_s=61.0).verdicts[0].counted_count == 7


@pytest.mark.parametrize(("settings", "rule"), [(SETTINGS, TriggerRule.IN_SYNC), (AS_ORIGINAL, TriggerRule.POINTS)])
def test_old_points_act_after_long_absence_only_in_original(settings: TriggerSettings, rule: TriggerRule) -> None:
    state = TriggerState(points={"occupancy": points(*[0.8] * 11, newest_s=-3600.0)})
    assert run(ROOMS, FULL, state, settings=settings).rule is rule


def test_rebased_moves_all_times() -> None:
    state = TriggerState(phase_changed_at_s=5.0, last_change_at_s=6.0, points={"occupancy": points(0.5, newest_s=7.0)})
    assert rebased(state, by_s=10.0) == TriggerState(
        phase_changed_at_s=15.0, last_change_at_s=16.0, points={"occupancy": points(0.5, newest_s=17.0)}
    )


def test_rebased_leaves_unset_times() -> None:
    assert rebased(TriggerState(), by_s=10.0) == TriggerState()


def test_policy_without_triggers_is_in_sync_at_min() -> None:
    decision = run(policy(min_count=1, max_count=9), pods(idle=5))
    assert (decision.rule, decision.desired_count) == (TriggerRule.IN_SYNC, 1)


def test_trigger_without_data_prevents_removal_of_pods() -> None:
    spec = policy(up=(trigger(70), trigger(70, kind="cpu")))
    decision = run(spec, pods(idle=5))
    assert (decision.rule, isinstance(decision.desired_count, NoData)) == (TriggerRule.IN_SYNC, True)
