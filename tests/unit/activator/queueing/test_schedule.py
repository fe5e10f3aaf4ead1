"""When to look at which revision."""

from serving.activator.queueing.schedule import TickSchedule

A = ("default", "a")
B = ("default", "b")


def test_revisions_with_news_are_due_at_once_and_once() -> None:
    made = TickSchedule()
    made.schedule_tick(A)
    made.schedule_tick(A)
    assert made.has_pending_work
    assert made.take_due(0.0) == {A}
    assert (made.has_pending_work, made.take_due(0.0)) == (False, set())


def test_the_earlier_of_two_times_counts() -> None:
    made = TickSchedule()
    made.schedule_at(A, 2.0)
    made.schedule_at(A, 1.0)
    made.schedule_at(A, 3.0)
    assert made.next_due_s() == 1.0
    assert [made.take_due(now_s) for now_s in (0.5, 1.0, 2.0, 3.0)] == [set(), {A}, set(), set()]
    assert made.next_due_s() is None


def test_a_revision_that_was_forgotten_is_not_due() -> None:
    made = TickSchedule()
    made.schedule_at(A, 1.0)
    made.schedule_at(B, 1.0)
    made.forget(A)
    made.forget(A)
    assert repr(made) == "TickSchedule(0 pending, 1 due later)"
    assert made.take_due(1.0) == {B}
