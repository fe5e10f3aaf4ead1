"""Admission: running, waiting and refused requests."""

import pytest

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.breaker import (
    ADMITTED,
    Admitted,
    Breaker,
    Granted,
    Queued,
    QueueLimit,
    Rejected,
    TimedOut,
)
from tests.invariants import validate


def breaker(
    capacity: int | None = 2, *, depth_max: int = 3, wait_max_s: float = 30.0, depth_bytes_max: int | None = None
) -> Breaker[str]:
    return Breaker(capacity=capacity, depth_max=depth_max, wait_max_s=wait_max_s, depth_bytes_max=depth_bytes_max)


def filled(
    names: str, capacity: int | None = 2, *, depth_max: int = 3, wait_max_s: float = 30.0, now_s: float = 0.0
) -> Breaker[str]:
    """A breaker with one request for each letter."""
    made = breaker(capacity, depth_max=depth_max, wait_max_s=wait_max_s)
    for name in names:
        made.admit(name, now_s)
    validate(made)
    return made


def granted(*names: str, waited_s: float = 1.0) -> list[Granted[str]]:
    return [Granted(request_id=name, waited_s=waited_s) for name in names]


def test_a_request_with_a_free_slot_runs() -> None:
    assert breaker().admit("a", 0.0) == Admitted()


def test_a_request_without_a_free_slot_waits_at_the_end_of_the_queue() -> None:
    assert filled("abc").admit("d", 5.0) == Queued(position=2, deadline_s=35.0)


def test_a_request_without_a_place_is_refused_with_the_depth() -> None:
    assert filled("abcde").admit("f", 0.0) == Rejected(
        limited_by=QueueLimit.COUNT, depth=3, depth_max=3, depth_bytes=0, depth_bytes_max=None
    )


def test_with_10_slots_and_100_places_the_111th_at_once_is_refused() -> None:
    made: Breaker[int] = Breaker(capacity=10, depth_max=100, wait_max_s=30.0)
    responses = [type(made.admit(number, 0.0)) for number in range(111)]
    assert responses == [Admitted] * 10 + [Queued] * 100 + [Rejected]


def test_a_queue_of_depth_0_refuses_who_cannot_run() -> None:
    assert isinstance(filled("ab", depth_max=0).admit("c", 0.0), Rejected)


def test_without_a_limit_all_run() -> None:
    assert len(filled("abcdefgh", capacity=None)._running) == 8


def test_with_capacity_0_all_wait() -> None:
    assert filled("abc", capacity=0).waiting_count == 3


def test_the_queue_is_bounded_in_bytes() -> None:
    made = breaker(0, depth_bytes_max=100)
    made.admit("a", 0.0, weight_bytes=60)
    assert made.admit("b", 0.0, weight_bytes=41) == Rejected(
        limited_by=QueueLimit.BYTES, depth=1, depth_max=3, depth_bytes=60, depth_bytes_max=100
    )


def test_a_request_that_just_fits_the_bytes_waits() -> None:
    made = breaker(0, depth_bytes_max=100)
    made.admit("a", 0.0, weight_bytes=60)
    assert isinstance(made.admit("b", 0.0, weight_bytes=40), Queued)


def test_the_bytes_of_a_request_that_runs_at_once_are_not_counted() -> None:
    made = breaker(1, depth_bytes_max=100)
    assert made.admit("a", 0.0, weight_bytes=1000) is ADMITTED


@pytest.mark.parametrize("leaving", ["cancel", "grant", "expire"])
def test_who_leaves_the_queue_gives_its_bytes_back(leaving: str) -> None:
    made = breaker(0, depth_bytes_max=100)
    made.admit("a", 0.0, weight_bytes=100)
    match leaving:
        case "cancel":
            made.cancel("a", 0.0)
        case "grant":
            made.set_capacity(1, 0.0)
        case "expire":
            made.expire(30.0)
    assert made._waiting_bytes == 0


def test_a_freed_slot_goes_to_who_waits_longest() -> None:
    assert filled("abcd").release("a", 1.0) == granted("c")


def test_a_newcomer_does_not_pass_who_waits() -> None:
    made = filled("abc")
    made.release("a", 1.0)
    assert isinstance(made.admit("d", 1.0), Queued)


def test_a_released_slot_is_free_for_a_newcomer_when_the_queue_is_empty() -> None:
    made = filled("ab")
    made.release("a", 1.0)
    assert made.admit("c", 1.0) is ADMITTED


def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    made = filled("abcde")
    made.cancel("d", 1.0)
    assert made.admit("f", 1.0) == Queued(position=3, deadline_s=31.0)


def test_a_client_that_leaves_the_queue_is_never_granted() -> None:
    made = filled("abcd")
    made.cancel("c", 1.0)
    assert made.release("a", 1.0) == granted("d")


def test_a_client_that_leaves_while_it_runs_frees_its_slot() -> None:
    assert filled("abc").cancel("a", 1.0) == granted("c")


def test_more_capacity_grants_in_order() -> None:
    assert filled("abcde").set_capacity(4, 1.0) == granted("c", "d")


def test_no_limit_grants_all() -> None:
    assert filled("abcde").set_capacity(None, 1.0) == granted("c", "d", "e")


def test_less_capacity_interrupts_no_request() -> None:
    made = filled("abcd", capacity=4)
    made.set_capacity(1, 1.0)
    assert (made.capacity, len(made._running)) == (1, 4)


def test_after_less_capacity_no_slot_is_granted_before_enough_have_finished() -> None:
    made = filled("abcde", capacity=4)
    made.set_capacity(2, 1.0)
    assert [list(made.release(name, 1.0)) for name in "abc"] == [[], [], granted("e")]


def test_from_10_to_4_slots_the_7th_release_grants() -> None:
    made = filled("abcdefghijk", capacity=10)
    made.set_capacity(4, 1.0)
    assert [len(made.release(name, 1.0)) for name in "abcdefg"] == [0, 0, 0, 0, 0, 0, 1]


def test_who_waited_for_as_long_as_allowed_times_out_in_order() -> None:
    made = filled("abcd")
    made.admit("e", 10.0)
    assert made.expire(30.5) == [
        TimedOut(request_id="c", waited_s=30.5),
        TimedOut(request_id="d", waited_s=30.5),
    ]


def test_no_request_times_out_before_the_wake_time() -> None:
    assert filled("abc").expire(29.999) == []


def test_the_wake_time_is_when_the_oldest_times_out() -> None:
    made = filled("abc", now_s=0.1, wait_max_s=0.2)
    wake_s = made.next_wake_s()
    assert wake_s is not None
    assert [one.request_id for one in made.expire(wake_s)] == ["c"]


def test_there_is_no_wake_time_while_the_queue_is_empty() -> None:
    assert filled("ab").next_wake_s() is None


def test_a_slot_freed_before_expire_goes_to_the_oldest_though_late() -> None:
    assert filled("abc").release("a", 31.0) == granted("c", waited_s=31.0)


@pytest.mark.parametrize("call", ["release", "cancel"])
def test_what_is_not_inside_can_be_released_and_cancelled_without_effect(call: str) -> None:
    made = filled("abc")
    before = repr(made)
    assert list(getattr(made, call)("z", 1.0)) == []
    assert repr(made) == before


def test_a_second_release_frees_no_second_slot() -> None:
    made = filled("abcd")
    made.release("a", 1.0)
    assert list(made.release("a", 1.0)) == []


def test_what_waits_cannot_be_released() -> None:
    with pytest.raises(IllegalTransition, match="request 'c': release in phase waiting"):
        filled("abc").release("c", 1.0)


@pytest.mark.parametrize(("name", "phase"), [("a", "running"), ("c", "waiting")])
def test_what_is_inside_cannot_come_again(name: str, phase: str) -> None:
    with pytest.raises(IllegalTransition, match=f"request '{name}': admit in phase {phase}"):
        filled("abc").admit(name, 1.0)


def test_the_counts_tell_what_became_of_everyone() -> None:
    made = filled("abcdefg", capacity=2, depth_max=4)
    made.release("a", 1.0)
    made.cancel("d", 1.0)
    made.admit("h", 1.0)
    made.expire(30.0)
    assert repr(made) == (
        "Breaker(running 2 of 2, waiting 1 of 4, bytes 0, finished 1, cancelled 1, timed out 2, refused 1)"
    )


@pytest.mark.parametrize("capacity", [-1, -10])
def test_a_negative_capacity_is_our_bug(capacity: int) -> None:
    with pytest.raises(AssertionError, match=str(capacity)):
        breaker(capacity)
    with pytest.raises(AssertionError, match=str(capacity)):
        breaker().set_capacity(capacity, 0.0)


def test_validate_tells_a_request_that_was_lost() -> None:
    made = filled("abc")
    made._running.remove("a")
    with pytest.raises(AssertionError, match="running 1 of 2"):
        validate(made)
