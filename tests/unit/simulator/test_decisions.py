"""Periods from one decision on."""

import math

from serving.simulator.decisions import Periods


def made_at(made_s: float) -> Periods:
    periods = Periods(2.0)
    periods.made_s = made_s
    return periods


def test_the_next_period_is_after_the_last_decision() -> None:
    periods = made_at(1.5)
    assert [periods.at(at_s) for at_s in (0.0, 1.5, 3.5, 3.6)] == [3.5, 3.5, 3.5, 5.5]


def test_the_last_period_counts_one_that_falls_on_the_time_unless_that_is_still_to_come() -> None:
    periods = made_at(1.5)
    assert [periods.until(at_s) for at_s in (1.0, 1.6, 3.5, 5.6)] == [1.5, 1.5, 3.5, 5.5]
    assert [periods.until(at_s, is_first=True) for at_s in (1.6, 3.5, 3.6)] == [1.5, 1.5, 3.5]


def test_the_period_before_a_time_is_that_time_where_there_is_none() -> None:
    periods = made_at(1.5)
    assert [periods.before(at_s) for at_s in (3.0, 3.5, 5.5, 5.6, math.inf)] == [3.0, 3.5, 3.5, 5.5, math.inf]
