"""The straight line through a load."""

import random

import pytest

from serving.scaling.scaler.trend import LoadTrend


def trend(loads: list[float], *, step_s: float = 1.0, window_s: float = 30.0) -> LoadTrend:
    made = LoadTrend()
    for number, load in enumerate(loads):
        made.record(load, at_s=number * step_s, window_s=window_s)
    return made


def test_a_climb_without_noise_goes_on() -> None:
    assert trend([0.0, 2.0, 4.0, 6.0, 8.0]).expected(ahead_s=10.0) == pytest.approx(28.0)


def test_few_samples_are_no_trend() -> None:
    assert trend([0.0, 2.0, 4.0, 6.0]).expected(ahead_s=10.0) is None


def test_a_fall_and_a_constant_are_no_climb() -> None:
    assert trend([8.0, 6.0, 4.0, 2.0, 0.0]).expected(ahead_s=10.0) is None
    assert trend([3.0] * 10).expected(ahead_s=10.0) is None


def test_noise_around_a_constant_is_seldom_a_climb() -> None:
    dice = random.Random(7)
    found = [trend([dice.gauss(20.0, 4.5) for _ in range(30)]).expected(ahead_s=30.0) is not None for _ in range(300)]
    assert sum(found) <= 6


def test_only_the_window_counts() -> None:
    # Long ago it was high: all that is left climbs by 1 a second.
    loads = [100.0] * 20 + [float(number) for number in range(31)]
    assert trend(loads).expected(ahead_s=10.0) == pytest.approx(40.0)


def test_samples_that_come_close_together_are_left_out() -> None:
    made = trend([float(number) for number in range(1000)], step_s=0.1)
    assert repr(made) == "LoadTrend(31 samples)"
    assert made.expected(ahead_s=1.0) == pytest.approx(1009.0, abs=11.0)
