"""The budget of pods started ahead, and the credit for pods beyond Knative's."""

from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.adaptive.advice import PodCredit, PreWarmBudget


def test_no_more_than_the_budget_is_taken_within_a_minute() -> None:
    budget = PreWarmBudget(3)

    assert [budget.take(100.0) for _ in range(5)] == [True, True, True, False, False]


def test_permits_come_back_at_a_steady_rate() -> None:
    budget = PreWarmBudget(2)
    taken = [budget.take(at_s) for at_s in (0.0, 0.0, 10.0, 31.0, 32.0)]

    assert taken == [True, True, False, True, False]


def test_a_clock_that_jumps_back_adds_nothing() -> None:
    budget = PreWarmBudget(1)

    assert [budget.take(at_s) for at_s in (100.0, 40.0, 60.0)] == [True, False, False]


def test_without_savings_there_are_no_more_pods_than_knative_wants() -> None:
    credit = PodCredit()

    assert [credit.bound(9, 4, at_s) for at_s in (0.0, 2.0, 4.0)] == [4, 4, 4]
    assert credit.bound(3, 4, 6.0) == 3


def test_saved_pods_pay_for_more() -> None:
    credit = PodCredit()
    credit.bound(4, 5, 0.0)

    # A minute of one pod less pays for three more, at 20 s each.
    assert credit.bound(20, 5, 60.0) == 8
    # In 10 s they have cost 30 of the 60 pod-seconds.
    assert credit.bound(20, 5, 70.0) == 6


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 40), st.integers(0, 40)), max_size=60))
def test_the_pods_cost_no_more_than_knatives(steps: list[tuple[float, int, int]]) -> None:
    credit, at_s, saved_s = PodCredit(), 0.0, 0.0
    for passed_s, count, knative_count in steps:
        bounded = credit.bound(count, knative_count, at_s)
        assert bounded <= count
        assert bounded == count or bounded >= knative_count
        at_s += passed_s
        saved_s += passed_s * (knative_count - bounded)
        # What the last step may cost beyond the credit: that many pods until the next decision.
        assert saved_s >= -30.0 * 40
