import msgspec
import pytest

from serving.model.resources import Resources
from serving.model.stat import Stat
from serving.scaling.learnt.revision_target import RevisionTarget
from serving.scaling.revision import ServingContainer
from serving.scaling.scaler.explain import explain
from serving.scaling.scaler.scaler import DecisionCause, Scaler, StatSource
from serving.scaling.spec import ScalingSpec
from serving.settings.adaptive import AdaptiveSettings
from serving.settings.autoscaler import AutoscalerSettings
from tests.unit.scaling.kpa_builders import DEFAULTS, spec_with
from tests.unit.scaling.scaler_builders import facts_of, revision_with

LEARNT = '{"total": 10.0, "bound": "cpu", "above": 7.7}'
ACTING = spec_with(learns_target=True)
SETTINGS = AutoscalerSettings(adaptive=AdaptiveSettings(learnt_target_period_s=1.0))


def target_of(
    spec: ScalingSpec, *, settings: AdaptiveSettings = SETTINGS.adaptive, learnt: str = LEARNT
) -> RevisionTarget:
    target = RevisionTarget(revision_with(spec), settings)
    if learnt:
        target.load(learnt)
        target.look(1.0)
    return target


def test_before_anything_is_known_the_target_is_the_revision_s_own() -> None:
    target = target_of(ACTING, learnt="")
    target.look(1.0)
    assert target.spec is ACTING
    assert target.learnt is None
    assert target.due_save(1.0) is None


def test_in_shadow_the_learnt_target_is_known_and_not_in_force() -> None:
    target = target_of(DEFAULTS)
    assert target.spec is DEFAULTS
    assert target.learnt is not None
    assert (target.learnt.total, target.learnt.is_used) == (10.0, False)


def test_a_revision_that_asks_for_it_gets_it_with_its_utilisation() -> None:
    spec = target_of(ACTING).spec
    assert (spec.total_value, spec.target_value, spec.target_concurrency) == (10.0, 7.0, 7.0)
    assert msgspec.structs.replace(spec, total_value=100.0, target_value=70.0, target_concurrency=70.0) == ACTING


def test_without_the_setting_nothing_is_learnt() -> None:
    settings = AdaptiveSettings(learnt_target=False)
    target = target_of(ACTING, settings=settings)
    stat = Stat(pod="p", concurrency=5.0, ended_count=5.0, response_time_s=1.0)
    target.look(1.0)
    target.take(stat)
    target.measure(stat, Resources())
    target.killed()
    assert target.spec is ACTING
    assert target.learnt is None


def test_numbers_that_change_keep_the_learnt_target() -> None:
    target = target_of(ACTING)
    target.follow(revision_with(spec_with(learns_target=True, max_scale=3)))
    assert (target.spec.total_value, target.spec.max_scale) == (10.0, 3)
    target.follow(revision_with(target.spec))
    target.follow(revision_with(DEFAULTS))
    target.follow(revision_with(DEFAULTS))
    assert target.spec is DEFAULTS


def test_its_state_is_shown_in_a_line() -> None:
    assert repr(target_of(ACTING)) == "RevisionTarget(TargetLearner(10.0, cpu))"


def scaler_with(spec: ScalingSpec) -> Scaler:
    revision = msgspec.structs.replace(
        revision_with(spec), container=ServingContainer(name="c", limits=Resources(memory_bytes=160_000_000))
    )
    return Scaler(revision, facts_of(1), SETTINGS, is_restart=False, now_s=0.0)


def test_a_scaler_decides_with_the_learnt_target() -> None:
    scaler = scaler_with(ACTING)
    scaler.target.load(LEARNT)
    scaler.record(Stat(pod="p", at_s=0.5, concurrency=21.0, request_count=21.0), StatSource.POD)
    outcome = scaler.tick(facts_of(1), DecisionCause.PERIOD, 1.5)

    assert outcome.inputs.spec.target_value == 7.0
    assert outcome.apply_count == 3
    assert "learnt target 10 (cpu-bound above 7.7)" in explain(outcome)
    assert "not used" not in explain(outcome)


def test_in_shadow_a_decision_is_as_without_and_says_what_was_learnt() -> None:
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
    ("learnt", "spec", "said"),
    [
        ('{"total": 100.0}', DEFAULTS, ""),
        ('{"total": 250.0}', DEFAULTS, "learnt target 250 (nothing bounds it yet), not used: target 100"),
        ('{"total": 250.0}', ACTING, "learnt target 250 (nothing bounds it yet)"),
        ("{}", ACTING, "no target is learnt yet: 100"),
    ],
)
def test_a_target_that_nothing_bounds_is_said_where_it_is_in_force_or_larger(
    learnt: str, spec: ScalingSpec, said: str
) -> None:
    scaler = scaler_with(spec)
    scaler.target.load(learnt)
    sentence = explain(scaler.tick(facts_of(1), DecisionCause.PERIOD, 1.5))
    assert (said in sentence) if said else ("learnt" not in sentence)


def test_reports_of_pods_and_killed_containers_reach_the_learner() -> None:
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
