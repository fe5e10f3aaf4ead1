"""Anticipated pods of a revision by the time a new node is ready."""

import random

import msgspec
import pytest

from serving.core.model.anticipation import AnticipatedPods
from serving.core.model.nodata import NoData
from serving.core.scaling.adaptive.policy import AdaptivePolicy, adaptive_policy
from serving.core.scaling.decision.policy import PolicyView, RevisionPolicy, SecondOfLoad
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.scaler.anticipation import Anticipation, LoadTrend, Publication
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import CLASSIC_CLASS
from tests.unit.core.scaling.kpa_builders import DEFAULTS
from tests.unit.core.scaling.scaler_builders import SETTINGS, facts_of, revision_with, stat_of

BOOT_S = 30.0
# 7 requests in flight for each pod.
SPEC = msgspec.structs.replace(DEFAULTS, target_value=7.0, total_value=10.0)


def outcome_of(loads: list[float], spec: ScalingSpec = SPEC, *, scale: int = 1) -> ScalerOutcome:
    """The decision after seconds of load."""
    scaler = Scaler(revision_with(spec), facts_of(scale), SETTINGS, is_restart=False, now_s=0.0)
    for second, load in enumerate(loads):
        scaler.record(msgspec.structs.replace(stat_of(load), at_s=second + 0.9), StatSource.ACTIVATOR)
    return scaler.tick(facts_of(scale), DecisionCause.PERIOD, len(loads) + 0.5)


def warmed(loads: list[float]) -> AdaptivePolicy:
    policy = adaptive_policy(msgspec.structs.replace(SPEC, policy="adaptive"), SETTINGS)
    for second, load in enumerate(loads):
        policy.observe(SecondOfLoad(second, load, load))
    return policy


def test_constant_load_anticipates_decided_count() -> None:
    outcome = outcome_of([10.0] * 70)
    count = Anticipation().update(outcome, RevisionPolicy(), boot_s=BOOT_S)
    assert count == 2
    assert Anticipation().due(count, outcome=outcome, written=None, boot_s=BOOT_S, wall_s=0.0) is None


def test_panic_window_extrapolates_stable_window() -> None:
    # 54 s of 7 and 6 s of 12: 7.5 in the stable window, 12 in the panic window. In 30 s 9.75, in 60 s all of it.
    outcome = outcome_of([7.0] * 54 + [12.0] * 6, scale=2)
    spec = msgspec.structs.replace(SPEC, target_value=1.0)
    assert Anticipation().update(with_spec(outcome, spec), RevisionPolicy(), boot_s=BOOT_S) == 10
    assert Anticipation().update(with_spec(outcome, spec), RevisionPolicy(), boot_s=600.0) == 12


def with_spec(outcome: ScalerOutcome, spec: ScalingSpec) -> ScalerOutcome:
    return msgspec.structs.replace(outcome, inputs=msgspec.structs.replace(outcome.inputs, spec=spec))


def test_anticipated_count_is_bounded_by_max_scale() -> None:
    outcome = outcome_of([7.0] * 54 + [120.0] * 6, scale=2)
    bounded = with_spec(outcome, msgspec.structs.replace(SPEC, max_scale=5))
    merged = msgspec.structs.replace(outcome.merged, desired_count=5)
    assert Anticipation().update(msgspec.structs.replace(bounded, merged=merged), RevisionPolicy(), boot_s=BOOT_S) == 5


def test_unreachable_revision_anticipates_no_further_pods() -> None:
    outcome = outcome_of([7.0] * 54 + [12.0] * 6, scale=2)
    gone = with_spec(outcome, msgspec.structs.replace(SPEC, target_value=1.0, reachable=False))
    assert Anticipation().update(gone, RevisionPolicy(), boot_s=BOOT_S) == 2


def test_missing_data_anticipates_no_pods() -> None:
    scaler = Scaler(revision_with(SPEC), facts_of(1), SETTINGS, is_restart=False, now_s=0.0)
    outcome = scaler.tick(facts_of(1), DecisionCause.PERIOD, 100.0)
    assert isinstance(outcome.merged, NoData)
    assert Anticipation().update(outcome, RevisionPolicy(), boot_s=BOOT_S) == 0
    written = AnticipatedPods(count=9, until_s=1060.0)
    assert Anticipation().due(0, outcome=outcome, written=written, boot_s=BOOT_S, wall_s=1000.0) == Publication(
        pods=None
    )


def test_periodic_request_anticipates_pod_one_boot_time_ahead() -> None:
    loads = ([1.0] + [0.0] * 119) * 20 + [1.0]
    policy = warmed(loads)
    outcome = outcome_of([1.0])
    end_s = float(len(loads))
    counts = []
    for now_s in (10.0, 60.0, 95.0):
        policy.propose(
            PolicyView(
                now_s=end_s + now_s,
                algorithm=outcome.decided.proposal,
                in_flight=0.0,
                present_scale=0,
                ready_count=0,
                spec=SPEC,
            )
        )
        counts.append(policy.anticipated_count(ahead_s=BOOT_S, now_s=end_s + now_s))
    # A gap lasts 119 s: a node that boots in 30 s is requested after about 87 s, or earlier if a pod is retained.
    assert counts[1:] == [0, 1]


def test_falling_anticipation_is_retained_for_one_boot_time() -> None:
    anticipation = Anticipation()
    high = decided_on(outcome_of([7.0] * 54 + [120.0] * 6, scale=2), 2)
    low = msgspec.structs.replace(outcome_of([7.0] * 60), inputs=high.inputs)
    first = anticipation.update(high, RevisionPolicy(), boot_s=BOOT_S)
    update = anticipation.update(at(low, high.at_s + 20), RevisionPolicy(), boot_s=BOOT_S)
    over = anticipation.update(at(low, high.at_s + 32), RevisionPolicy(), boot_s=BOOT_S)
    assert first > 2
    assert (update, over) == (first, 1)


def test_removed_decided_pods_are_not_retained() -> None:
    anticipation = Anticipation()
    high = decided_on(outcome_of([7.0] * 54 + [120.0] * 6, scale=2), 50)
    low = msgspec.structs.replace(outcome_of([7.0] * 60), inputs=high.inputs)
    assert anticipation.update(high, RevisionPolicy(), boot_s=BOOT_S) == 50
    assert anticipation.update(at(low, high.at_s + 2), RevisionPolicy(), boot_s=BOOT_S) == 1


def decided_on(outcome: ScalerOutcome, count: int) -> ScalerOutcome:
    assert not isinstance(outcome.merged, NoData)
    return msgspec.structs.replace(outcome, merged=msgspec.structs.replace(outcome.merged, desired_count=count))


def at(outcome: ScalerOutcome, at_s: float) -> ScalerOutcome:
    return msgspec.structs.replace(outcome, inputs=msgspec.structs.replace(outcome.inputs, at_s=at_s))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, True),
        (AnticipatedPods(count=7, until_s=1060.0), True),
        (AnticipatedPods(count=9, until_s=1060.0), False),
        (AnticipatedPods(count=9, until_s=1031.0), False),
        (AnticipatedPods(count=9, until_s=1030.0), True),
    ],
)
def test_anticipation_is_published_when_changed_or_half_expired(
    written: AnticipatedPods | None, *, expected: bool
) -> None:
    outcome = outcome_of([10.0] * 60)
    publication = Anticipation().due(9, outcome=outcome, written=written, boot_s=BOOT_S, wall_s=1000.0)
    wanted = Publication(pods=AnticipatedPods(count=9, until_s=1060.0)) if expected else None
    assert publication == wanted


def test_anticipation_of_decided_pods_is_withdrawn() -> None:
    outcome = outcome_of([10.0] * 60)
    written = AnticipatedPods(count=9, until_s=1060.0)
    publication = Anticipation().due(2, outcome=outcome, written=written, boot_s=BOOT_S, wall_s=1000.0)
    assert publication == Publication(pods=None)


def test_short_boot_time_is_published_for_20_s() -> None:
    publication = Anticipation().due(9, outcome=outcome_of([10.0] * 60), written=None, boot_s=1.0, wall_s=1000.0)
    assert publication == Publication(pods=AnticipatedPods(count=9, until_s=1020.0))


def test_classic_algorithm_anticipates_by_trend_only() -> None:
    classic = Scaler(revision_with(SPEC, class_name=CLASSIC_CLASS), facts_of(2), SETTINGS, is_restart=False, now_s=0.0)
    anticipation = Anticipation()
    counts = []
    for second in range(60):
        classic.record(msgspec.structs.replace(stat_of(second / 2), at_s=second + 0.9), StatSource.ACTIVATOR)
        outcome = classic.tick(facts_of(2), DecisionCause.PERIOD, second + 1.5)
        assert not isinstance(outcome.merged, NoData)
        alone = msgspec.structs.replace(outcome, merged=msgspec.structs.replace(outcome.merged, desired_count=1))
        counts.append(anticipation.update(alone, RevisionPolicy(), boot_s=BOOT_S))
    # 29.5 in flight, half a request more each second: some 44 in 30 s, at 7 a pod 7.
    assert 6 <= counts[-1] <= 8


def new_trend(loads: list[float], *, step_s: float = 1.0, window_s: float = 30.0) -> LoadTrend:
    load_trend = LoadTrend()
    for number, load in enumerate(loads):
        load_trend.record(load, at_s=number * step_s, window_s=window_s)
    return load_trend


def test_linear_rise_is_extrapolated() -> None:
    assert new_trend([0.0, 2.0, 4.0, 6.0, 8.0]).expected(ahead_s=10.0) == pytest.approx(28.0)


def test_fewer_than_five_samples_have_no_trend() -> None:
    assert new_trend([0.0, 2.0, 4.0, 6.0]).expected(ahead_s=10.0) is None


def test_falling_or_constant_load_has_no_trend() -> None:
    assert new_trend([8.0, 6.0, 4.0, 2.0, 0.0]).expected(ahead_s=10.0) is None
    assert new_trend([3.0] * 10).expected(ahead_s=10.0) is None


def test_noise_around_constant_seldom_has_trend() -> None:
    dice = random.Random(7)
    results = [
        new_trend([dice.gauss(20.0, 4.5) for _ in range(30)]).expected(ahead_s=30.0) is not None for _ in range(300)
    ]
    assert sum(results) <= 6


def test_trend_uses_only_samples_in_window() -> None:
    # The high load has left the window: the remaining load rises by 1 per second.
    loads = [100.0] * 20 + [float(number) for number in range(31)]
    assert new_trend(loads).expected(ahead_s=10.0) == pytest.approx(40.0)


def test_close_samples_are_omitted() -> None:
    load_trend = new_trend([float(number) for number in range(1000)], step_s=0.1)
    assert load_trend.expected(ahead_s=1.0) == pytest.approx(1009.0, abs=11.0)
