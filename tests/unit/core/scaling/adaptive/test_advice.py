"""The budget of pods started ahead."""

from serving.core.scaling.adaptive.advice import PreWarmBudget


def test_no_more_than_the_budget_is_taken_within_a_minute() -> None:
    budget = PreWarmBudget(3)

    assert [budget.spend(100.0) for _ in range(5)] == [True, True, True, False, False]


def test_permits_return_at_a_steady_rate() -> None:
    budget = PreWarmBudget(2)
    taken = [budget.spend(at_s) for at_s in (0.0, 0.0, 10.0, 31.0, 32.0)]

    assert taken == [True, True, False, True, False]


def test_a_clock_that_jumps_back_adds_nothing() -> None:
    budget = PreWarmBudget(1)

    assert [budget.spend(at_s) for at_s in (100.0, 40.0, 60.0)] == [True, False, False]
