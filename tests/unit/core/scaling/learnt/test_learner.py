import itertools

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import TargetMode
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause
from serving.core.scaling.learnt.learner import RevisionTarget, TargetLearner
from serving.core.scaling.learnt.target import LearntTarget, TargetBound
from serving.core.scaling.revision import ServingContainer
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import AdaptiveSettings, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import DEFAULTS, spec_with
from tests.unit.core.scaling.learnt.served_app import MIB, ServedApp, learn
from tests.unit.core.scaling.scaler_builders import facts_of, revision_with

RISING = [2.0 + 2 * step for step in range(10)] + [20.0] * 20

LEARNT = '{"total": 10.0, "bound": "cpu", "above": 7.7}'
ACTING = spec_with(target_mode=TargetMode.USE)
SETTINGS = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target_period_s=1.0))


def last(targets: list[LearntTarget | None]) -> LearntTarget:
    assert targets[-1] is not None
    return targets[-1]


def test_no_target_is_learnt_without_requests() -> None:
    assert learn(ServedApp(), loads=[0.0] * 5) == [None] * 5


def test_single_core_app_is_bound_by_latency() -> None:
    learnt = last(learn(ServedApp(cpu_s=0.02), loads=RISING))
    assert learnt.bound is TargetBound.LATENCY
    # A knee of 1 and a utilisation of 70 %: 1 - 1 + 1 / 0.3.
    assert 2.5 < learnt.total < 6
    assert not learnt.is_used


def test_cpu_limit_makes_cpu_the_bound() -> None:
    learnt = last(learn(ServedApp(cpu_s=0.02), loads=RISING, limits=Resources(cpu_m=1000)))
    assert learnt.bound is TargetBound.CPU
    assert 2.5 < learnt.total < 6


def test_app_that_mostly_waits_gets_knee_of_its_core() -> None:
    # 90 ms elsewhere and 10 ms of a core: a knee of 10, and 2.3 more for the queue there.
    learnt = last(learn(ServedApp(wait_s=0.09, cpu_s=0.01), loads=[2.0 + 3 * step for step in range(20)] + [60.0] * 20))
    assert learnt.bound is TargetBound.LATENCY
    assert 8 < learnt.total < 18


def test_overload_from_start_is_detected_by_cpu_limit() -> None:
    learnt = last(learn(ServedApp(cpu_s=0.02), loads=[30.0] * 30, limits=Resources(cpu_m=1000)))
    assert learnt.bound is TargetBound.CPU
    # As with a load that rises: a knee of 1, and a utilisation of 70 %.
    assert 2.5 < learnt.total < 6


def test_app_that_only_waits_gets_target_above_default() -> None:
    targets = learn(ServedApp(wait_s=1.0, cpu_s=0.0001), loads=[20.0 * step for step in range(1, 16)] + [300.0] * 20)
    learnt = last(targets)
    assert learnt.bound is None
    assert learnt.total > 200
    assert max(target.total for target in targets if target is not None) < 1.6 * 150 / 0.7


def test_target_remains_default_without_higher_load() -> None:
    learnt = last(learn(ServedApp(wait_s=1.0, cpu_s=0.0001), loads=[5.0] * 20))
    assert (learnt.total, learnt.bound) == (100.0, None)


def test_memory_bound_leaves_room_for_three_deviations() -> None:
    app = ServedApp(wait_s=1.0, cpu_s=0.0001, request_bytes=12 * MIB)
    targets = learn(app, loads=RISING, limits=Resources(memory_bytes=160 * MIB))
    learnt = last(targets)
    assert learnt.bound is TargetBound.MEMORY
    # (0.9 x 160 - 20) / 12 = 10.3 fit; the mean is 3.5, which is 70 % of 5.
    assert learnt.above == pytest.approx(10.3, abs=0.5)
    assert 4 < learnt.total < 7


def test_memory_bound_applies_at_once() -> None:
    app = ServedApp(wait_s=1.0, cpu_s=0.0001, request_bytes=12 * MIB)
    targets = learn(app, loads=[2.0, 4.0, 6.0], limits=Resources(memory_bytes=160 * MIB))
    totals = [100.0 if target is None else target.total for target in targets]
    assert min(totals) < 10


def test_target_changes_by_at_most_half_down_and_a_quarter_up() -> None:
    targets = learn(ServedApp(cpu_s=0.02), loads=RISING)
    totals = [100.0, *(100.0 if target is None else target.total for target in targets)]
    assert all(after >= before / 2 - 1e-9 for before, after in itertools.pairwise(totals))
    assert all(after <= before * 1.25 + 1e-9 for before, after in itertools.pairwise(totals))


def test_oom_kill_lowers_memory_bound() -> None:
    learner = TargetLearner()
    learner.killed()
    assert learner.update(DEFAULTS, Resources(), period_s=30, total_max=1000, now_s=0) is None
    for _ in range(3):
        learner.record(40.0, 40.0, 1.0)
    learner.killed()
    learnt = learner.update(DEFAULTS, Resources(), period_s=30, total_max=1000, now_s=1.0)
    assert learnt is not None
    assert learnt.bound is TargetBound.MEMORY
    assert learnt.above == pytest.approx(20, rel=0.01)
    assert learnt.total == pytest.approx(20 / 0.7, rel=0.01)

    learner.record(20.0, 20.0, 1.0)
    learner.killed()
    again = learner.update(DEFAULTS, Resources(), period_s=30, total_max=1000, now_s=2.0)
    assert again is not None
    assert again.total < learnt.total


def test_bound_of_oom_kill_rises_slowly() -> None:
    learner = TargetLearner()
    learner.record(40.0, 40.0, 1.0)
    learner.killed()
    targets = learn(ServedApp(wait_s=1.0, cpu_s=0.0001), loads=[10.0] * 50, learner=learner)
    assert last(targets).above == pytest.approx(20 * 1.002**51, rel=0.01)


def test_slower_app_is_relearnt_with_fewer_requests() -> None:
    learner = TargetLearner()
    learn(ServedApp(cpu_s=0.02), loads=RISING, learner=learner)
    learnt = last(learn(ServedApp(wait_s=0.5, cpu_s=0.0001), loads=[60.0] * 120, learner=learner))
    # A response time of 500 ms that was taken for a queue would have led to 2.3.
    assert learnt.total > 8


def test_gauge_metric_has_no_learnt_target() -> None:
    assert learn(ServedApp(), loads=RISING, spec=spec_with(metric="queue-length"))[-1] is None


def test_rps_target_is_rate_at_knee() -> None:
    in_flight = learn(ServedApp(), loads=RISING)[-1]
    rate = learn(ServedApp(), loads=RISING, spec=spec_with(metric="rps", total_value=200.0, target_value=140.0))[-1]
    assert in_flight is not None
    assert rate is not None
    assert rate.bound is in_flight.bound is TargetBound.LATENCY
    assert rate.total == rate.above


def test_target_never_exceeds_container_concurrency() -> None:
    spec = spec_with(container_concurrency=10, total_value=10.0, target_value=7.0)
    targets = learn(ServedApp(wait_s=1.0, cpu_s=0.0001), loads=[100.0] * 20, spec=spec)
    assert last(targets).total == 10.0


def test_learnt_target_is_restored_after_restart() -> None:
    learner = TargetLearner()
    before = last(learn(ServedApp(cpu_s=0.02), loads=RISING, limits=Resources(cpu_m=1000), learner=learner))
    saved = learner.due_save(DEFAULTS, 1000.0)
    assert saved is not None
    assert learner.due_save(DEFAULTS, 2000.0) is None

    again = TargetLearner()
    again.load(saved)
    update = again.update(
        spec_with(target_mode=TargetMode.USE), Resources(cpu_m=1000), period_s=30, total_max=1000, now_s=5.0
    )
    assert update == msgspec.structs.replace(before, is_used=True)
    assert again.due_save(DEFAULTS, 6.0) is None
    assert last(learn(ServedApp(cpu_s=0.02), loads=[20.0] * 5, limits=Resources(cpu_m=1000), learner=again)).total < 6


def test_target_is_saved_when_settled_or_after_60_s() -> None:
    learner = TargetLearner()
    assert learner.due_save(DEFAULTS, 0.0) is None
    learn(ServedApp(wait_s=1.0, cpu_s=0.0001), loads=[5.0] * 3, learner=learner)
    assert learner.due_save(DEFAULTS, 0.0) is None
    learn(ServedApp(cpu_s=0.02), loads=RISING[:4], learner=learner)
    assert learner.due_save(DEFAULTS, 100.0) is None
    assert learner.due_save(DEFAULTS, 159.0) is None
    assert learner.due_save(DEFAULTS, 160.0) is not None
    learn(ServedApp(cpu_s=0.02), loads=RISING, learner=learner)
    assert learner.due_save(DEFAULTS, 161.0) is not None


@pytest.mark.parametrize("text", ["", "7", '{"total": "x"}', '{"total": -1}', '{"knee": 0}', '{"bound": "disk"}'])
def test_invalid_saved_target_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        TargetLearner().load(text)


def test_clock_jump_retains_target_in_range() -> None:
    learner = TargetLearner()
    learn(ServedApp(cpu_s=0.02), loads=RISING, learner=learner)
    for now_s in (1e9, 0.0, -1e9):
        learner.record(1.0, 50.0, 0.02)
        learnt = learner.update(DEFAULTS, Resources(), period_s=30, total_max=1000, now_s=now_s)
        assert learnt is not None
        assert 2 < learnt.total < 8


def test_cpu_per_request_counts_when_response_time_is_known() -> None:
    learner, limits = TargetLearner(), Resources(cpu_m=1000)
    results = []
    for second in range(40):
        if second >= 20:
            learner.record(2.0, 50.0, 0.04)
        learner.measure(2.0, 50.0, used=Resources(cpu_m=500, memory_bytes=MIB), limits=limits)
        results.append(learner.update(DEFAULTS, limits, period_s=5, total_max=1000, now_s=float(second)))
    assert results[19] is None
    # 10 ms of a core: 40 ms x 100 requests a second are 4, and 2.3 for the queue.
    assert results[39] is not None
    assert results[39].bound is TargetBound.CPU
    assert results[39].above == pytest.approx(4.0, rel=0.01)


def test_missing_usage_bounds_no_target() -> None:
    learner = TargetLearner()
    learner.measure(4.0, 10.0, used=Resources(), limits=Resources(cpu_m=1000, memory_bytes=MIB))
    learner.measure(4.0, 0.0, used=Resources(cpu_m=900), limits=Resources(cpu_m=1000))
    learner.measure(4.0, 1.0, used=Resources(cpu_m=100), limits=Resources(cpu_m=1000))
    assert learner.update(DEFAULTS, Resources(cpu_m=1000), period_s=1, total_max=1000, now_s=0.0) is None


def target_of(
    spec: ScalingSpec, *, settings: AdaptiveSettings = SETTINGS.adaptive, learnt: str = LEARNT
) -> RevisionTarget:
    target = RevisionTarget(revision_with(spec), settings)
    if learnt:
        target.load(learnt)
        target.update(1.0)
    return target


def test_target_without_data_is_that_of_revision() -> None:
    target = target_of(ACTING, learnt="")
    target.update(1.0)
    assert target.spec is ACTING
    assert target.learnt is None
    assert target.due_save(1.0) is None


def test_shadow_target_is_learnt_but_not_in_force() -> None:
    target = target_of(DEFAULTS)
    assert target.spec is DEFAULTS
    assert target.learnt is not None
    assert (target.learnt.total, target.learnt.is_used) == (10.0, False)


def test_target_in_use_is_scaled_by_utilization() -> None:
    spec = target_of(ACTING).spec
    assert (spec.total_value, spec.target_value, spec.target_concurrency) == (10.0, 7.0, 7.0)
    assert msgspec.structs.replace(spec, total_value=100.0, target_value=70.0, target_concurrency=70.0) == ACTING


def test_target_mode_off_learns_nothing() -> None:
    off = spec_with(target_mode=TargetMode.OFF)
    target = target_of(off)
    stat = Stat(pod="p", concurrency=5.0, ended_count=5.0, response_time_s=1.0)
    target.update(1.0)
    target.record(stat)
    target.measure(stat, Resources())
    target.killed()
    assert target.spec is off
    assert target.learnt is None
    target.update_revision(revision_with(ACTING))
    assert target.spec.total_value == 10.0


def test_changed_spec_retains_learnt_target() -> None:
    target = target_of(ACTING)
    target.update_revision(revision_with(spec_with(target_mode=TargetMode.USE, max_scale=3)))
    assert (target.spec.total_value, target.spec.max_scale) == (10.0, 3)
    target.update_revision(revision_with(target.spec))
    target.update_revision(revision_with(DEFAULTS))
    target.update_revision(revision_with(DEFAULTS))
    assert target.spec is DEFAULTS


def scaler_with(spec: ScalingSpec) -> Scaler:
    revision = msgspec.structs.replace(
        revision_with(spec), container=ServingContainer(name="c", limits=Resources(memory_bytes=160_000_000))
    )
    return Scaler(revision, facts_of(1), SETTINGS, is_restart=False, now_s=0.0)


def test_scaler_decides_with_learnt_target() -> None:
    scaler = scaler_with(ACTING)
    scaler.target.load(LEARNT)
    scaler.record(Stat(pod="p", at_s=0.5, concurrency=21.0, request_count=21.0), StatSource.POD)
    outcome = scaler.tick(facts_of(1), DecisionCause.PERIOD, 1.5)

    assert outcome.inputs.spec.target_value == 7.0
    assert outcome.apply_count == 3
    assert "learnt target 10 (cpu-bound above 7.7)" in explain(outcome)
    assert "not used" not in explain(outcome)


def test_shadow_target_is_explained_without_effect() -> None:
    outcomes = []
    for learnt in ("", LEARNT):
        scaler = scaler_with(DEFAULTS)
        if learnt:
            scaler.target.load(learnt)
        scaler.record(Stat(pod="p", at_s=0.5, concurrency=21.0, request_count=21.0), StatSource.POD)
        outcomes.append(scaler.tick(facts_of(1), DecisionCause.PERIOD, 1.5))

    without, shadow = outcomes
    assert shadow.inputs.learnt is not None
    assert msgspec.structs.replace(shadow, inputs=without.inputs) == without
    assert "; learnt target 10 (cpu-bound above 7.7), not used: target 100" in explain(shadow)
    assert "learnt" not in explain(without)


@pytest.mark.parametrize(
    ("learnt", "spec", "phrase"),
    [
        ('{"total": 100.0}', DEFAULTS, ""),
        ('{"total": 250.0}', DEFAULTS, "learnt target 250 (nothing bounds it yet), not used: target 100"),
        ('{"total": 250.0}', ACTING, "learnt target 250 (nothing bounds it yet)"),
        ("{}", ACTING, "no target is learnt yet: 100"),
    ],
)
def test_unbounded_target_is_explained_only_if_larger_or_in_force(learnt: str, spec: ScalingSpec, phrase: str) -> None:
    scaler = scaler_with(spec)
    scaler.target.load(learnt)
    sentence = explain(scaler.tick(facts_of(1), DecisionCause.PERIOD, 1.5))
    assert (phrase in sentence) if phrase else ("learnt" not in sentence)


def test_reports_and_oom_kills_reach_learner() -> None:
    scaler = scaler_with(ACTING)
    for second in range(10):
        stat = Stat(pod="p", at_s=second + 0.5, concurrency=40.0, ended_count=40.0, response_time_s=1.0)
        scaler.record(stat, StatSource.POD)
        scaler.target.measure(stat, Resources(memory_bytes=50_000_000))
    scaler.target.killed()
    outcome = scaler.tick(facts_of(1), DecisionCause.PERIOD, 11.0)

    assert outcome.inputs.learnt is not None
    assert outcome.inputs.learnt.bound == "memory"
    assert outcome.inputs.spec.total_value < 30
    assert scaler.target.due_save(12.0) is not None


def test_cpu_limit_without_measured_cpu_sets_no_bound() -> None:
    learner = TargetLearner()
    for second in (0.0, 30.0):
        learner.record(5.0, 5.0, 1.0)
        assert learner.update(DEFAULTS, Resources(cpu_m=1000), period_s=30, total_max=1000, now_s=second) is None
