"""The adaptive policy in the decisions of one revision, and its explanation."""

import msgspec
import pytest

from serving.core.model.knative import ServingState
from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.decision.policy import Advice, KeepReason, RegretReason
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.settings.autoscaler import AdaptiveSettings, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import facts_of, revision_with

SPEC = spec_with(policy="adaptive", container_concurrency=10, total_value=10.0, target_value=7.0)
SETTINGS = AutoscalerSettings()
BEGIN_S = 1000.0


class Stage:
    """A scaler with one pod that reports each second; decisions take effect at once."""

    def __init__(self) -> None:
        self.now_s = BEGIN_S
        self.facts = facts_of(1)
        self.scaler = Scaler(
            revision_with(SPEC),
            self.facts,
            SETTINGS,
            is_restart=False,
            now_s=self.now_s,
            policy=adaptive_policy(SPEC, SETTINGS),
        )

    def live(self, seconds: int, load: float, *, reports: bool = True) -> ScalerOutcome:
        outcome = None
        for _ in range(seconds):
            if reports and self.facts.ready_count:
                stat = Stat(pod="pod-0", at_s=self.now_s + 0.3, concurrency=load, request_count=load)
                self.scaler.record(stat, StatSource.POD)
            self.now_s += 1.0
            outcome = self.decide()
        assert outcome is not None
        return outcome

    def decide(self) -> ScalerOutcome:
        outcome = self.scaler.tick(self.facts, DecisionCause.PERIOD, self.now_s)
        if outcome.to_prove:
            self.facts = msgspec.structs.replace(self.facts, proved_at_s=self.now_s)
            outcome = self.scaler.tick(self.facts, DecisionCause.PROOF, self.now_s)
        if outcome.apply_count is not None:
            if not outcome.apply_count:
                self.scaler.forget_pod("pod-0", self.now_s)
            self.facts = facts_of(outcome.apply_count, proved_at_s=self.facts.proved_at_s)
        return outcome

    def called_each(self, period_s: int, times: int) -> ScalerOutcome:
        outcome = None
        for _ in range(times):
            if not self.facts.present_scale:
                self.facts = ScalerView(present_scale=1, ready_count=1, serving_state=ServingState.ACTIVE)
            self.live(1, 1.0)
            outcome = self.live(period_s - 1, 0.0)
        assert outcome is not None
        return outcome


def test_last_pod_is_retained_for_calls_every_90_s() -> None:
    stage = Stage()
    outcome = stage.called_each(90, 20)

    assert outcome.view.present_scale == 1
    assert "of a request: one comes within the next" in explain(outcome)
    # Knative's algorithm wants no pod: its window is shorter than the gap.
    assert explain(outcome).startswith("stays 1 by policy adaptive: ")
    assert outcome.recheck_in_s is not None


def test_last_pod_is_removed_early_if_no_request_is_expected() -> None:
    stage = Stage()
    stage.called_each(900, 14)
    stage.facts = ScalerView(present_scale=1, ready_count=1, serving_state=ServingState.ACTIVE)
    stage.live(1, 1.0)
    sentences = [explain(stage.live(1, 0.0)) for _ in range(30)]

    assert stage.facts.present_scale == 0
    assert any("no request is expected: one comes within the next 60 s with" in text for text in sentences)


def test_pods_without_reports_get_no_advice() -> None:
    stage = Stage()
    stage.called_each(900, 3)
    stage.facts = facts_of(1)
    stage.live(5, 1.0)

    assert stage.live(10, 0.0, reports=False).inputs.advice == Advice()


def test_changed_spec_reaches_policy() -> None:
    stage = Stage()
    stage.called_each(90, 20)
    generous = msgspec.structs.replace(SPEC, cold_start_worth_s=1e6)
    stage.scaler.update(revision_with(generous), stage.now_s)

    assert stage.live(600, 0.0).view.present_scale == 1


def test_changed_spec_reaches_shadow() -> None:
    stage = Stage()
    shadow = stage.scaler.shadow = BUILT_IN.shadow_of(SPEC, SETTINGS, present_scale=1, wall_offset_s=0.0, now_s=BEGIN_S)
    assert shadow is not None
    stage.scaler.update(revision_with(msgspec.structs.replace(SPEC, min_scale=4)), stage.now_s)
    stage.live(6, 1.0)
    assert shadow.scale == 4


def test_explanation_prints_long_times_in_minutes_and_missing_gaps() -> None:
    outcome = Stage().live(1, 0.0)
    keep = KeepReason(
        age_s=10.0,
        until_s=310.0,
        ahead_s=300.0,
        is_ahead=False,
        probability=0.71,
        gaps_lasted=48.0,
        gaps_ended=34.0,
    )

    def sentence_of(keep: KeepReason) -> str:
        inputs = msgspec.structs.replace(outcome.inputs, advice=Advice(keep=keep))
        return explain(msgspec.structs.replace(outcome, inputs=inputs))

    assert "one comes within the next 5 minutes with 71%, as 34 of the last 48 gaps did" in sentence_of(keep)
    assert "started ahead of a request: one comes" in sentence_of(msgspec.structs.replace(keep, is_ahead=True))
    assert "with 71%, though no gap lasted as long" in sentence_of(msgspec.structs.replace(keep, gaps_lasted=0.2))


@pytest.mark.parametrize(("min_s", "count"), [(6.0, 0), (1900.0, 1)])
def test_keep_alive_minimum_above_maximum_is_a_clash(min_s: float, count: int) -> None:
    assert len(list(AdaptiveSettings(keep_alive_min_s=min_s).check())) == count


def test_explanation_prints_regret_of_learnt_keep_alive() -> None:
    outcome = Stage().live(1, 0.0)
    advice = Advice(regret=RegretReason(pod_seconds=70.0, cold_requests=-0.5))
    inputs = msgspec.structs.replace(outcome.inputs, advice=advice)
    message = explain(msgspec.structs.replace(outcome, inputs=inputs))
    assert "kept as by Knative, for what it learnt would have cost +70 pod-seconds and -0.5 cold requests" in message


def test_start_durations_reach_only_learning_policy() -> None:
    stage = Stage()
    stage.scaler.started(12.0, stage.now_s)
    assert stage.scaler.policy.start_s == 4.0
    knative = Scaler(revision_with(SPEC), facts_of(1), SETTINGS, is_restart=False, now_s=BEGIN_S)
    knative.started(12.0, BEGIN_S)
    assert (knative.policy.start_s, knative.learner) == (2.0, None)


def test_explanation_prints_policy_failure() -> None:
    outcome = Stage().live(1, 0.0)
    inputs = msgspec.structs.replace(
        outcome.inputs, advice=Advice(failure="policy mine failed (propose: ValueError: no)")
    )
    sentence = explain(msgspec.structs.replace(outcome, inputs=inputs))
    assert "Knative's policy decides: policy mine failed (propose: ValueError: no)" in sentence
