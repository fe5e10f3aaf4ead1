"""Pods that get no requests for a while."""

import pytest

from serving.traffic.ejection import EjectedPods, Ejection


def test_a_pod_that_fails_is_ejected_until_its_pause_is_over() -> None:
    made = EjectedPods()
    assert made.failed("p", 1.0)
    assert (made.addresses, made.next_due_s()) == ({"p"}, 1.05)
    assert not made.readmit(1.04)
    assert made.readmit(1.05)
    assert (made.addresses, made.next_due_s()) == (set(), None)


def test_another_failure_during_the_pause_changes_nothing() -> None:
    made = EjectedPods()
    made.failed("p", 1.0)
    assert not made.failed("p", 1.04)
    assert made.next_due_s() == 1.05


def test_pauses_double_up_to_a_second_until_the_pod_answers() -> None:
    made, now_s, pauses_s = EjectedPods(), 0.0, []
    for _ in range(7):
        made.failed("p", now_s)
        due_s = made.next_due_s()
        assert due_s is not None
        pauses_s.append(round(due_s - now_s, 3))
        now_s = due_s
        made.readmit(now_s)
    assert pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    made.succeeded("p")
    made.failed("p", 10.0)
    assert made.next_due_s() == 10.05


def test_an_answer_during_the_pause_does_not_end_it() -> None:
    made = EjectedPods()
    made.failed("p", 0.0)
    made.succeeded("p")
    made.succeeded("q")
    assert made.addresses == {"p"}


def test_pods_off_the_list_are_forgotten() -> None:
    made = EjectedPods()
    made.failed("p", 0.0)
    made.failed("q", 0.0)
    made.keep({"q"})
    assert repr(made) == "EjectedPods(q)"
    assert repr(EjectedPods()) == "EjectedPods(none)"


def test_a_silent_pod_is_ejected_for_longer_and_until_it_answers() -> None:
    made = EjectedPods()
    assert made.silent("p", 0.0)
    assert not made.silent("p", 1.0)
    assert made.next_due_s() == 5.0
    assert made.succeeded("p")
    assert made.addresses == set()


def test_pauses_of_a_silent_pod_double_up_to_a_minute() -> None:
    made, now_s, pauses_s = EjectedPods(), 0.0, []
    for _ in range(6):
        made.silent("p", now_s)
        due_s = made.next_due_s()
        assert due_s is not None
        pauses_s.append(due_s - now_s)
        now_s = due_s
        made.readmit(now_s)
    assert pauses_s == [5, 10, 20, 40, 60, 60]


def test_a_pod_that_was_unreachable_can_turn_out_to_be_silent() -> None:
    made = EjectedPods()
    made.failed("p", 0.0)
    assert made.silent("p", 0.01)
    assert made.next_due_s() == 5.01


def test_failures_in_a_row_count_from_the_first_and_one_of_another_kind_begins_again() -> None:
    made = EjectedPods()
    made.failed("p", 1.0)
    made.readmit(1.05)
    made.failed("p", 2.0)
    assert made.ejections["p"] == Ejection(failure_count=2, since_s=1.0, until_s=2.1, is_silent=False)
    made.silent("p", 3.0)
    assert made.ejections["p"] == Ejection(failure_count=1, since_s=3.0, until_s=8.0, is_silent=True)
    made.readmit(8.0)
    made.silent("p", 9.0)
    assert made.ejections["p"] == Ejection(failure_count=2, since_s=3.0, until_s=19.0, is_silent=True)


@pytest.mark.parametrize(("is_silent", "longest_s"), [(False, 1.0), (True, 60.0)])
def test_a_pod_that_stays_listed_and_unreachable_for_hours_is_ejected_each_time(
    is_silent: bool, longest_s: float
) -> None:
    """A pause of 1 s each: after 1,024 of them 2^1024 was more than a float holds."""
    made, now_s = EjectedPods(), 0.0
    for _ in range(2_500):
        assert made.silent("p", now_s) if is_silent else made.failed("p", now_s)
        assert made.addresses == {"p"}
        due_s = made.next_due_s()
        assert due_s is not None
        assert due_s - now_s <= longest_s + 1e-6
        now_s = due_s
        assert made.readmit(now_s)
    assert made.ejections["p"].failure_count == 2_500
