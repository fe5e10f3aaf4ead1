"""The budget of pods started ahead."""

from serving.core.scaling.adaptive.advice import PreWarmBudget


def test_budget_permits_at_most_its_count_at_once() -> None:
    budget = PreWarmBudget(3)

    assert [budget.spend(100.0) for _ in range(5)] == [True, True, True, False, False]


def test_permits_are_restored_at_constant_rate() -> None:
    budget = PreWarmBudget(2)
    permits = [budget.spend(at_s) for at_s in (0.0, 0.0, 10.0, 31.0, 32.0)]

    assert permits == [True, True, False, True, False]


def test_backward_clock_step_restores_no_permit() -> None:
    budget = PreWarmBudget(1)

    assert [budget.spend(at_s) for at_s in (100.0, 40.0, 60.0)] == [True, False, False]
