"""The comparison of the learnt keep-alive with Knative's, gap by gap."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.scaling.adaptive.gaps import KeepWindow
from serving.core.scaling.adaptive.regret import GapCost, KeepRegret, cost_of, difference
from serving.core.scaling.decision.policy import RegretReason
from tests.unit.core.scaling.kpa_builders import spec_with

ONE_WINDOW = (KeepWindow(0.0, 60.0),)
WARMED = (KeepWindow(0.0, 30.0), KeepWindow(290.0, 310.0))


@pytest.mark.parametrize(
    ("gap_s", "windows", "pod_count", "expected"),
    [
        (20.0, ONE_WINDOW, 1, GapCost(20.0, is_cold=False)),
        (20.0, ONE_WINDOW, 3, GapCost(60.0, is_cold=False)),
        (100.0, ONE_WINDOW, 2, GapCost(130.0, is_cold=True)),
        (100.0, WARMED, 1, GapCost(40.0, is_cold=True)),
        (300.0, WARMED, 1, GapCost(50.0, is_cold=False)),
        (400.0, WARMED, 1, GapCost(70.0, is_cold=True)),
    ],
)
def test_gap_costs_pod_seconds_of_its_windows_and_of_a_start(
    gap_s: float, windows: tuple[KeepWindow, ...], pod_count: int, expected: GapCost
) -> None:
    assert cost_of(gap_s, windows, pod_count=pod_count, start_s=10.0) == expected


def test_knative_retains_pods_for_window_period_and_retention() -> None:
    spec = spec_with(stable_window_s=60.0, decision_period_s=2.0, scale_to_zero_pod_retention_s=30.0)
    assert difference(90.0, ONE_WINDOW, spec=spec, pod_count=1, start_s=10.0) == (60.0 + 10.0 - 90.0, 1)
    assert difference(50.0, ONE_WINDOW, spec=spec, pod_count=1, start_s=10.0) == (0.0, 0)


@pytest.mark.parametrize(
    ("pod_seconds", "cold", "is_worse"),
    [
        (1.0, 0.0, True),
        (-14.0, 0.0, True),
        (-15.0, 0.0, False),
        (-1000.0, 0.5, False),
        (-1000.0, 0.6, True),
        (105.0, -2.0, False),
        (106.0, -2.0, True),
    ],
)
def test_learnt_keep_alive_requires_savings(pod_seconds: float, cold: float, is_worse: bool) -> None:
    regret = KeepRegret()
    regret.record(pod_seconds, cold)
    assert regret.is_worse(120.0) is is_worse
    assert regret.reason(120.0) == (RegretReason(pod_seconds=pod_seconds, cold_requests=cold) if is_worse else None)


def test_missing_gaps_are_worse_without_reason() -> None:
    regret = KeepRegret()
    assert regret.is_worse(120.0)
    assert regret.reason(120.0) is None


def test_gap_weight_halves_after_50_gaps() -> None:
    regret = KeepRegret()
    regret.record(100.0, 2.0)
    for _ in range(50):
        regret.record(0.0, 0.0)
    assert regret.pod_seconds == pytest.approx(50.0)
    assert regret.cold_requests == pytest.approx(1.0)


def test_regret_round_trips_and_leaves_gap_counts() -> None:
    before, after = KeepRegret(), KeepRegret()
    assert before.dump() == {}
    before.record(100.0, -2.0)
    assert after.load(before.dump() | {"61": 3.0}) == {"61": 3.0}
    assert (after.pod_seconds, after.cold_requests) == (100.0, -2.0)


@pytest.mark.parametrize("name", ["regret-cold", "regret-pod-seconds"])
def test_regret_out_of_range_is_rejected(name: str) -> None:
    regret = KeepRegret()
    with pytest.raises(InvalidValue, match=name):
        regret.load({name: 1e12})
    assert (regret.pod_seconds, regret.cold_requests) == (0.0, 0.0)
