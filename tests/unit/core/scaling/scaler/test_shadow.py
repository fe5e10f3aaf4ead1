"""Knative's decisions as the shadow of adaptive decisions, and vice versa."""

import msgspec
import pytest

from serving.core.model.stat import Stat
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.scaler.shadow import PolicyShadow
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with

SPEC = spec_with(policy="adaptive", container_concurrency=10, total_value=10.0, target_value=7.0)
KNATIVE_SPEC = msgspec.structs.replace(SPEC, policy="knative")
BEGIN_S = 1000.0


class Stage:
    """Seconds with load and arrivals; the shadow decides every other second."""

    def __init__(
        self,
        *,
        scale: int = 0,
        start_s: float = 2.0,
        spec: ScalingSpec = SPEC,
        settings: AutoscalerSettings | None = None,
    ) -> None:
        self.in_flight: Stat | None = Stat()
        self.now_s, self.scale, self.start_s = BEGIN_S, scale, start_s
        self.other_proposals: tuple[Proposal, ...] = ()
        policy_shadow = BUILT_IN.shadow_of(
            spec, settings or AutoscalerSettings(), present_scale=scale, wall_offset_s=0.0, now_s=BEGIN_S
        )
        assert policy_shadow is not None
        self.shadow: PolicyShadow = policy_shadow

    def pass_s(self, seconds: int, *, load: float = 0.0, requests: float = 0.0) -> None:
        for _ in range(seconds):
            self.shadow.arrive(requests, self.now_s + 0.1)
            self.now_s += 1.0
            if load or requests:
                self.shadow.record(int(self.now_s) - 1, Stat(concurrency=load, request_count=requests))
            self.in_flight = Stat(concurrency=load)
            if int(self.now_s) % 2 == 0:
                self.decide()

    def decide(self) -> None:
        self.shadow.decide(
            self.other_proposals,
            in_flight=self.in_flight,
            present_scale=self.scale,
            ready_count=self.scale,
            start_s=self.start_s,
            now_s=self.now_s,
        )

    def cold(self) -> tuple[float, float]:
        costs = self.shadow.costs(self.now_s)
        return costs.adaptive_cold_requests, costs.knative_cold_requests

    def pod_seconds(self) -> tuple[float, float]:
        costs = self.shadow.costs(self.now_s)
        return costs.adaptive_pod_seconds, costs.knative_pod_seconds


def test_knative_shadow_retains_pod_for_stable_window() -> None:
    stage = Stage()
    stage.pass_s(1, load=0.2, requests=1.0)
    stage.scale = 1
    stage.pass_s(10)
    stage.scale = 0
    stage.pass_s(20)
    assert stage.shadow.scale == 1
    # A request now is cold, and with Knative's pod it would not be.
    stage.pass_s(1, load=0.2, requests=1.0)
    assert stage.cold() == (2.0, 1.0)
    stage.pass_s(59)
    assert stage.shadow.scale == 1
    stage.pass_s(10)
    assert stage.shadow.scale == 0
    chosen, knative = stage.pod_seconds()
    assert chosen == pytest.approx(10.0, abs=2.0)
    # Up to the second request 31 s, and 62 s from it on.
    assert knative == pytest.approx(93.0, abs=3.0)


def test_requests_during_start_of_shadow_pod_are_cold() -> None:
    stage = Stage(scale=1, start_s=5.0)
    stage.pass_s(70)
    assert stage.shadow.scale == 0
    stage.decide()
    stage.pass_s(4, load=1.0, requests=2.0)
    stage.pass_s(4, load=1.0, requests=2.0)
    # Five seconds of two requests each, and the chosen policy had a pod.
    assert stage.cold() == (0.0, 10.0)


def test_shadow_scales_with_load_after_start_duration() -> None:
    stage = Stage(scale=1, start_s=30.0)
    stage.pass_s(20, load=100.0, requests=10.0)
    high = stage.shadow.scale
    assert high == 15
    stage.pass_s(60, load=40.0, requests=10.0)
    stage.pass_s(60, load=40.0, requests=10.0)
    assert stage.shadow.scale == 6


def test_shadow_removes_starting_pods_before_ready_pods() -> None:
    stage = Stage(scale=2, start_s=1000.0)
    stage.pass_s(10, load=40.0)
    stage.pass_s(6, load=90.0)
    rising = stage.shadow.scale
    stage.pass_s(130, load=15.0)
    assert rising > 6
    assert stage.shadow.scale == 3
    stage.pass_s(130, load=6.0)
    assert stage.shadow.scale == 1


@pytest.mark.parametrize("spec", [SPEC, KNATIVE_SPEC], ids=["knative shadow", "adaptive shadow"])
def test_shadow_merges_other_proposals(spec: ScalingSpec) -> None:
    stage = Stage(spec=spec)
    stage.other_proposals = (Proposal(decider="cron", desired=3, reason="schedule"),)
    stage.pass_s(4)
    assert stage.shadow.scale == 3


def test_changed_spec_applies_to_shadow() -> None:
    stage = Stage(scale=1)
    stage.pass_s(4, load=5.0)
    stage.shadow.update(msgspec.structs.replace(SPEC, min_scale=4), stage.now_s)
    stage.pass_s(4, load=5.0)
    assert stage.shadow.scale == 4


def test_frozen_process_counts_10_s_of_pod_seconds() -> None:
    stage = Stage(scale=1)
    stage.decide()
    stage.now_s += 500.0
    stage.decide()
    assert stage.pod_seconds() == (10.0, 10.0)


def test_long_decision_period_is_counted_entirely() -> None:
    settings = AutoscalerSettings(decision_period_s=30.0)
    stage = Stage(scale=1, settings=settings)
    for _ in range(4):
        stage.now_s += 30.0
        stage.decide()
    assert stage.pod_seconds()[0] == 120.0


def test_shadow_decides_at_most_once_per_period() -> None:
    stage = Stage(scale=1)
    stage.pass_s(2, load=5.0)
    stage.shadow.record(int(stage.now_s), Stat(concurrency=500.0))
    stage.now_s += 1.0
    stage.decide()
    assert stage.shadow.scale == 1
    stage.now_s += 1.0
    stage.decide()
    assert stage.shadow.scale > 1


def test_costs_are_saved_hourly_or_on_request() -> None:
    stage = Stage(scale=1)
    stage.pass_s(10)
    assert stage.shadow.due_save(is_now=False) is None
    text = stage.shadow.due_save(is_now=True)
    assert text is not None
    other = Stage()
    other.shadow.load(text)
    assert other.shadow.costs(stage.now_s) == stage.shadow.costs(stage.now_s)
    stage.now_s += 3600.0
    stage.decide()
    assert stage.shadow.due_save(is_now=False) is not None
    assert stage.shadow.due_save(is_now=False) is None


def test_revision_at_zero_is_not_saved_again() -> None:
    stage = Stage()
    stage.pass_s(10)
    stage.now_s += 3600.0
    # Reading the costs advances the hour.
    assert stage.shadow.costs(stage.now_s).adaptive_pod_seconds == 0.0
    assert stage.shadow.due_save(is_now=True) is None


def called(stage: Stage, *, times: int, gap_s: int) -> None:
    """Calls of a second each, with gaps between; the running policy always has a pod."""
    for _ in range(times):
        stage.pass_s(1, load=1.0, requests=1.0)
        stage.pass_s(gap_s)


def test_adaptive_shadow_removes_pod_if_no_call_is_expected() -> None:
    stage = Stage(scale=1, spec=KNATIVE_SPEC)
    called(stage, times=14, gap_s=900)
    stage.pass_s(1, load=1.0, requests=1.0)
    stage.pass_s(30)
    assert stage.shadow.scale == 0
    adaptive, knative = stage.pod_seconds()
    assert knative == pytest.approx(14 * 901 + 31, abs=2)
    assert adaptive < knative / 2
    stage.shadow.update(msgspec.structs.replace(KNATIVE_SPEC, cold_start_worth_s=1e6), stage.now_s)
    called(stage, times=1, gap_s=60)
    assert stage.shadow.scale == 1


def test_adaptive_shadow_starts_pod_ahead_of_periodic_call() -> None:
    stage = Stage(spec=KNATIVE_SPEC)
    called(stage, times=30, gap_s=600)
    cold = stage.cold()
    stage.pass_s(1, load=1.0, requests=1.0)
    # The running policy has no pod at all.
    assert stage.cold() == (cold[0], cold[1] + 1.0)


def test_adaptive_shadow_retains_pods_while_load_is_unknown() -> None:
    stage = Stage(scale=1, spec=KNATIVE_SPEC)
    stage.pass_s(10, load=5.0, requests=5.0)
    stage.in_flight = None
    stage.decide()
    assert stage.shadow.scale == 1
