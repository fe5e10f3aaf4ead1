"""The rivals of ``bench/arena.py``: their keep windows, by the rules of their papers."""

import numpy as np
import pytest

from bench.rivals.base import GapRival, joined
from bench.rivals.control import PredictiveControl, cheapest
from bench.rivals.fourier import FourierForecast, continued
from bench.rivals.histogram import HybridHistogram
from bench.rivals.rules import PatternRules
from bench.rivals.switching import FORECASTS, ForecastSwitch, markov, mean, smoothed
from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior, KeepWindow
from serving.core.scaling.decision.policy import PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, AutoscalerSettings


def new_rival(kind: type[GapRival], *gaps_s: int, **parameters: float) -> GapRival:
    """A rival that saw a call of one second after each gap."""
    autoscaler = AutoscalerSettings(policy=ADAPTIVE_POLICY)
    spec = resolve(autoscaler, ScalingAnnotations(), container_concurrency=1, reachable=True)
    gap_rival = kind(spec, autoscaler, prior=GapPrior(SHIPPED_PRIOR), budget=PreWarmBudget(60), **parameters)
    second = 0
    gap_rival.observe(SecondOfLoad(second, 1.0, 1.0))
    for gap_s in gaps_s:
        second += 1 + gap_s
        gap_rival.observe(SecondOfLoad(second, 1.0, 1.0))
    return gap_rival


def windows(gap_rival: GapRival) -> list[tuple[float, float]]:
    return [(round(window.from_s), round(window.to_s)) for window in gap_rival.windows()]


def test_histogram_of_equal_gaps_plans_a_window_around_their_length() -> None:
    """From minute 10 less 10 % to the end of minute 10 plus 10 %."""
    assert windows(new_rival(HybridHistogram, *[630] * 20)) == [(540, 726)]


def test_histogram_without_a_pattern_plans_the_standard_window() -> None:
    spread = [60 * minute for minute in range(1, 200)]
    assert windows(new_rival(HybridHistogram, *spread, standard_s=900.0)) == [(0, 900)]
    assert windows(new_rival(HybridHistogram, *[20_000] * 6, standard_s=900.0)) == [(0, 900)]


def test_periodic_series_is_continued_by_its_harmonics() -> None:
    at = np.arange(120)
    wave = 1.0 + np.cos(2 * np.pi * at / 12)
    assert continued(wave[:96], 24) == pytest.approx(wave[96:], abs=0.2)


def test_fourier_forecast_plans_one_minute_windows_at_periodic_calls() -> None:
    results = windows(new_rival(FourierForecast, *[599] * 24, threshold=0.5))
    assert results[0][0] == 0
    assert any(from_s <= 599 <= to_s for from_s, to_s in results[1:])
    assert all(to_s - from_s == 60 for from_s, to_s in results[1:])


def test_the_cheapest_plan_starts_a_pod_for_a_worthwhile_call_and_bridges_short_gaps() -> None:
    calls = np.array([0.0, 0.0, 9.0, 0.0, 9.0])
    assert cheapest(calls, worth_s=120.0, start_s=2.0).tolist() == [False, False, True, False, True]
    assert cheapest(calls, worth_s=120.0, start_s=61.0).tolist() == [False] * 5
    assert cheapest(calls, worth_s=240.0, start_s=61.0).tolist() == [False, False, True, True, True]
    assert cheapest(calls, worth_s=50.0, start_s=2.0).tolist() == [False] * 5


def test_predictive_control_plans_a_pod_for_periodic_calls() -> None:
    results = windows(new_rival(PredictiveControl, *[599] * 24, worth_s=480.0))
    assert any(from_s <= 599 <= to_s for from_s, to_s in results), results


def test_mean_smoothed_and_markov_forecasts_match_a_sequence() -> None:
    past = np.array([0.0, 4.0, 0.0, 4.0, 0.0, 4.0, 0.0, 4.0])
    assert mean(past, 2).tolist() == [2.0, 2.0]
    assert 2.0 < smoothed(past, 1)[0] < 4.0
    first, second = markov(past, 2).tolist()
    assert (first < 0.2, second > 0.6) == (True, True)


def test_forecast_switch_selects_the_forecast_with_the_lowest_cost() -> None:
    """Calls every two minutes: the Markov chain predicts the next minute; a mean keeps a pod all the time."""
    rival = new_rival(ForecastSwitch, *[119] * 100, threshold=0.6, worth_s=480.0)
    assert isinstance(rival, ForecastSwitch)
    rival.windows()
    past = rival.past()
    assert rival._forecast is min(FORECASTS, key=lambda forecast: rival.cost_s(forecast, past))
    assert rival.cost_s(mean, past) > rival.cost_s(rival._forecast, past)


def test_pattern_rules_recognize_regular_dense_and_repeated_gaps() -> None:
    assert windows(new_rival(PatternRules, *[1200] * 9)) == [(0, 60), (1080, 1320)]
    assert windows(new_rival(PatternRules, *[30] * 9)) == [(0, 120)]
    two = windows(new_rival(PatternRules, *[600, 3000] * 5))
    assert sorted(two[1:]) == [(480, 720), (2880, 3120)]


def test_a_rival_decides_from_the_sixth_gap_on() -> None:
    algorithm = Proposal(decider="kpa", desired=1, reason="")
    for gap_count, decides in ((4, False), (5, True)):
        policy = new_rival(PatternRules, *[1200] * gap_count)
        view = PolicyView(
            now_s=(policy.idle_since_s or 0.0) + 300.0,
            algorithm=algorithm,
            in_flight=0.0,
            present_scale=1,
            ready_count=1,
            spec=policy._spec,
        )
        assert (policy.propose(view).proposals is not None) == decides


def test_overlapping_windows_are_joined_and_near_ones_start_immediately() -> None:
    keep_windows = [KeepWindow(100.0, 200.0), KeepWindow(150.0, 300.0), KeepWindow(5.0, 20.0)]
    assert joined(keep_windows, 10.0) == (KeepWindow(0.0, 20.0), KeepWindow(100.0, 300.0))


def test_rival_plan_starts_with_a_short_window_at_zero() -> None:
    gap_rival = new_rival(HybridHistogram, *[630] * 20)
    assert [(window.from_s, round(window.to_s)) for window in gap_rival._plan()] == [(0.0, 6), (540.0, 726)]
