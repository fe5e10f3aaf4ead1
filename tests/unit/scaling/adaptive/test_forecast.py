"""The load to expect."""

import random

import pytest

from serving.scaling.adaptive.forecast import LoadForecast


def forecast_of(*loads: float) -> LoadForecast:
    forecast = LoadForecast()
    for second, load in enumerate(loads):
        forecast.take(second, load)
    return forecast


def test_a_steady_load_is_expected_to_stay() -> None:
    level = forecast_of(*[20.0] * 200).level(ahead_s=10.0, now_s=200.0)

    assert level.mean == pytest.approx(20.0)
    assert level.deviation == pytest.approx(20.0**0.5)
    assert level.slope == 0.0


def test_a_steady_climb_is_extrapolated() -> None:
    level = forecast_of(*[second * 0.5 for second in range(400)]).level(ahead_s=10.0, now_s=400.0)

    assert level.slope == pytest.approx(0.5, rel=0.1)
    assert level.mean == pytest.approx(0.5 * 410, rel=0.05)


def test_a_fall_is_followed_and_not_extrapolated() -> None:
    level = forecast_of(*[300 - second * 0.5 for second in range(400)]).level(ahead_s=100.0, now_s=400.0)

    assert level.slope < 0
    assert level.mean == pytest.approx(100.0, rel=0.1)


def test_a_step_of_one_long_request_is_no_trend() -> None:
    """A request of 30 s is one step of the load, not thirty equal observations."""
    step = forecast_of(*[0.0] * 60, *[1.0] * 10)

    assert step.level(ahead_s=10.0, now_s=70.0, request_s=30.0).slope == 0.0
    assert step.level(ahead_s=10.0, now_s=70.0, request_s=0.1).slope > 0.0


def test_noise_is_no_trend() -> None:
    dice = random.Random(1)
    loads = [50 + dice.gauss(0, 10) for _ in range(600)]

    assert forecast_of(*loads).level(ahead_s=60.0, now_s=600.0).slope == pytest.approx(0.0, abs=0.01)


def test_a_burst_shows_in_the_deviation() -> None:
    level = forecast_of(*[0.0, 40.0] * 100).level(ahead_s=2.0, now_s=200.0)

    assert level.deviation > 15


def test_silent_seconds_count_as_none() -> None:
    forecast = forecast_of(*[10.0] * 100)
    reported, silent = forecast_of(*[10.0] * 100, *[0.0] * 30), forecast.level(ahead_s=2.0, now_s=130.0)
    forecast.take(130, 10.0)
    again = forecast.level(ahead_s=2.0, now_s=131.0)

    assert silent.recent == pytest.approx(reported.level(ahead_s=2.0, now_s=130.0).recent)
    assert again.recent < 2.0


def test_seconds_of_the_past_are_not_taken() -> None:
    forecast = forecast_of(1.0, 1.0, 1.0)
    forecast.take(1, 1000.0)

    assert forecast.level(ahead_s=0.0, now_s=3.0).recent == 1.0


def test_before_the_first_load_there_is_none() -> None:
    forecast = LoadForecast()

    assert forecast.level(ahead_s=5.0, now_s=9.0).mean == 0.0
    assert forecast.seen_s(9.0) == 0.0
