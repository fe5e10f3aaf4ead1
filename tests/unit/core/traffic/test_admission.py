"""Admission: running, waiting and refused requests."""

import pytest

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.admission import Admission, AdmissionTerms
from serving.core.traffic.places import Admitted, Granted, Queued, QueueLimit, Rejected
from tests.invariants import validate


def admission(
    capacity: int | None = 2, *, depth_max: int = 3, wait_max_s: float = 30.0, depth_bytes_max: int | None = None
) -> Admission[str]:
    terms = AdmissionTerms(depth_max=depth_max, wait_max_s=wait_max_s, depth_bytes_max=depth_bytes_max)
    return Admission(terms, capacity=capacity)


def filled(
    names: str, capacity: int | None = 2, *, depth_max: int = 3, wait_max_s: float = 30.0, now_s: float = 0.0
) -> Admission[str]:
    """An admission with one request for each letter."""
    made = admission(capacity, depth_max=depth_max, wait_max_s=wait_max_s)
    for name in names:
        made.arrive(name, now_s)
    validate(made)
    return made


def granted(*names: str, waited_s: float = 1.0) -> list[Granted[str]]:
    return [Granted(request_id=name, waited_s=waited_s) for name in names]


def test_a_request_with_a_free_slot_runs() -> None:
    assert admission().arrive("a", 0.0) == Admitted()


def test_a_request_without_a_free_slot_waits_at_the_end_of_the_queue() -> None:
    assert filled("abc").arrive("d", 5.0) == Queued(position=2, deadline_s=35.0)


def test_a_request_without_a_place_is_refused_with_the_depth() -> None:
    assert filled("abcde").arrive("f", 0.0) == Rejected(
        limited_by=QueueLimit.COUNT, depth=3, depth_max=3, depth_bytes=0, depth_bytes_max=None
    )


def test_the_queue_is_bounded_in_bytes() -> None:
    made = admission(0, depth_bytes_max=100)
    made.arrive("a", 0.0, weight_bytes=60)
    assert made.arrive("b", 0.0, weight_bytes=41) == Rejected(
        limited_by=QueueLimit.BYTES, depth=1, depth_max=3, depth_bytes=60, depth_bytes_max=100
    )


@pytest.mark.parametrize("leaving", ["withdraw", "grant", "expire"])
def test_who_leaves_the_queue_gives_its_bytes_back(leaving: str) -> None:
    made = admission(0, depth_bytes_max=100)
    made.arrive("a", 0.0, weight_bytes=100)
    match leaving:
        case "withdraw":
            made.withdraw("a", 0.0)
        case "grant":
            made.set_capacity(1, 0.0)
        case "expire":
            made.expire(30.0)
    assert made._waiting_bytes == 0


def test_a_freed_slot_goes_to_who_waits_longest() -> None:
    assert filled("abcd").release("a", 1.0) == granted("c")


def test_a_client_that_leaves_while_it_runs_frees_its_slot() -> None:
    assert filled("abc").end("a", 1.0, has_response=False) == granted("c")


def test_more_capacity_grants_in_order() -> None:
    assert filled("abcde").set_capacity(4, 1.0) == granted("c", "d")


def test_who_waited_for_as_long_as_allowed_times_out_in_order() -> None:
    made = filled("abcd")
    made.arrive("e", 10.0)
    assert made.expire(30.5) == ["c", "d"]


def test_the_wake_time_is_when_the_oldest_times_out() -> None:
    made = filled("abc", now_s=0.1, wait_max_s=0.2)
    wake_s = made.expires_s()
    assert wake_s is not None
    assert made.expire(wake_s) == ["c"]


def test_a_request_that_is_not_inside_can_be_released_and_withdrawn_without_effect() -> None:
    made = filled("abc")
    before = repr(made)
    assert (made.release("z", 1.0), made.withdraw("z", 1.0), made.end("z", 1.0, has_response=False)) == ((), None, ())
    assert repr(made) == before


def test_what_waits_cannot_be_released() -> None:
    with pytest.raises(IllegalTransition, match="request 'c': release in phase waiting"):
        filled("abc").release("c", 1.0)


@pytest.mark.parametrize(("name", "phase"), [("a", "running"), ("c", "waiting")])
def test_what_is_inside_cannot_come_again(name: str, phase: str) -> None:
    with pytest.raises(IllegalTransition, match=f"request '{name}': arrive in phase {phase}"):
        filled("abc").arrive(name, 1.0)


def test_it_shows_its_requests() -> None:
    made = filled("abcdefg", capacity=2, depth_max=4)
    made.requeue("a", 1.0)
    assert repr(made) == "Admission(running 2 of 2, requeued 1, waiting 4 of 4, bytes 0, parked 0)"


def test_a_requeued_request_goes_before_the_queue_and_keeps_its_slot() -> None:
    made = filled("abc")
    made.requeue("a", 1.0)
    # Its pod is gone: the other slot is in use.
    assert (made.set_capacity(1, 1.0), made.waiting_count, made.waiting_since_s) == ([], 2, 0.0)
    assert made.release("b", 2.0) == granted("a")
    assert made.release("a", 3.0) == granted("c", waited_s=3.0)
    validate(made)


def test_a_requeued_request_expires_and_can_be_withdrawn() -> None:
    made = filled("abc")
    made.requeue("a", 1.0)
    made.requeue("b", 2.0)
    made.set_capacity(0, 2.0)
    assert made.withdraw("b", 3.0) == []
    assert (made.expires_s(), made.expire(30.9), made.expires_s(), made.expire(31.0)) == (30.0, ["c"], 31.0, ["a"])
    validate(made)


@pytest.mark.parametrize("capacity", [-1, -10])
def test_a_negative_capacity_is_our_bug(capacity: int) -> None:
    with pytest.raises(AssertionError, match=str(capacity)):
        admission(capacity)
    with pytest.raises(AssertionError, match=str(capacity)):
        admission().set_capacity(capacity, 0.0)


def test_validate_reports_a_request_that_was_lost() -> None:
    made = filled("abc")
    made._running.remove("a")
    with pytest.raises(AssertionError, match="running 1 of 2"):
        validate(made)
