"""Admission: running, waiting and refused requests."""

import pytest

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.admission import Admission, AdmissionTerms
from serving.core.traffic.places import Admitted, Granted, Queued, QueueLimit, Rejected
from tests.invariants import validate


def new_admission(
    capacity: int | None = 2, *, depth_max: int = 3, wait_max_s: float = 30.0, depth_bytes_max: int | None = None
) -> Admission[str]:
    terms = AdmissionTerms(depth_max=depth_max, wait_max_s=wait_max_s, depth_bytes_max=depth_bytes_max)
    return Admission(terms, capacity=capacity)


def filled(
    names: str, capacity: int | None = 2, *, depth_max: int = 3, wait_max_s: float = 30.0, now_s: float = 0.0
) -> Admission[str]:
    """An admission with one request for each letter."""
    admission = new_admission(capacity, depth_max=depth_max, wait_max_s=wait_max_s)
    for name in names:
        admission.arrive(name, now_s)
    validate(admission)
    return admission


def granted(*names: str, waited_s: float = 1.0) -> list[Granted[str]]:
    return [Granted(request_id=name, waited_s=waited_s) for name in names]


def test_a_request_with_a_free_slot_runs() -> None:
    assert new_admission().arrive("a", 0.0) == Admitted()


def test_a_request_without_a_free_slot_waits_at_the_end_of_the_queue() -> None:
    assert filled("abc").arrive("d", 5.0) == Queued(position=2, deadline_s=35.0)


def test_a_request_without_a_place_is_refused_with_the_depth() -> None:
    assert filled("abcde").arrive("f", 0.0) == Rejected(
        limited_by=QueueLimit.COUNT, depth=3, depth_max=3, depth_bytes=0, depth_bytes_max=None
    )


def test_the_queue_is_bounded_in_bytes() -> None:
    admission = new_admission(0, depth_bytes_max=100)
    admission.arrive("a", 0.0, weight_bytes=60)
    assert admission.arrive("b", 0.0, weight_bytes=41) == Rejected(
        limited_by=QueueLimit.BYTES, depth=1, depth_max=3, depth_bytes=60, depth_bytes_max=100
    )


@pytest.mark.parametrize("leaving", ["withdraw", "grant", "expire"])
def test_who_leaves_the_queue_gives_its_bytes_back(leaving: str) -> None:
    admission = new_admission(0, depth_bytes_max=100)
    admission.arrive("a", 0.0, weight_bytes=100)
    match leaving:
        case "withdraw":
            admission.withdraw("a", 0.0)
        case "grant":
            admission.set_capacity(1, 0.0)
        case "expire":
            admission.expire(30.0)
    assert admission._waiting_bytes == 0


def test_a_freed_slot_goes_to_who_waits_longest() -> None:
    assert filled("abcd").release("a", 1.0) == granted("c")


def test_a_client_that_leaves_while_it_runs_frees_its_slot() -> None:
    assert filled("abc").end("a", 1.0, has_response=False) == granted("c")


def test_more_capacity_grants_in_order() -> None:
    assert filled("abcde").set_capacity(4, 1.0) == granted("c", "d")


def test_who_waited_for_as_long_as_allowed_times_out_in_order() -> None:
    admission = filled("abcd")
    admission.arrive("e", 10.0)
    assert admission.expire(30.5) == ["c", "d"]


def test_the_wake_time_is_when_the_oldest_times_out() -> None:
    admission = filled("abc", now_s=0.1, wait_max_s=0.2)
    wake_s = admission.expires_s()
    assert wake_s is not None
    assert admission.expire(wake_s) == ["c"]


def test_a_request_that_is_not_inside_can_be_released_and_withdrawn_without_effect() -> None:
    admission = filled("abc")
    before = repr(admission)
    assert (admission.release("z", 1.0), admission.withdraw("z", 1.0), admission.end("z", 1.0, has_response=False)) == (
        (),
        None,
        (),
    )
    assert repr(admission) == before


def test_what_waits_cannot_be_released() -> None:
    with pytest.raises(IllegalTransition, match="request 'c': release in phase waiting"):
        filled("abc").release("c", 1.0)


@pytest.mark.parametrize(("name", "phase"), [("a", "running"), ("c", "waiting")])
def test_what_is_inside_cannot_come_again(name: str, phase: str) -> None:
    with pytest.raises(IllegalTransition, match=f"request '{name}': arrive in phase {phase}"):
        filled("abc").arrive(name, 1.0)


def test_it_shows_its_requests() -> None:
    admission = filled("abcdefg", capacity=2, depth_max=4)
    admission.requeue("a", 1.0)
    assert repr(admission) == "Admission(running 2 of 2, requeued 1, waiting 4 of 4, bytes 0, parked 0)"


def test_a_requeued_request_goes_before_the_queue_and_keeps_its_slot() -> None:
    admission = filled("abc")
    admission.requeue("a", 1.0)
    # Its pod is gone: the other slot is in use.
    assert (admission.set_capacity(1, 1.0), admission.waiting_count, admission.waiting_since_s) == ([], 2, 0.0)
    assert admission.release("b", 2.0) == granted("a")
    assert admission.release("a", 3.0) == granted("c", waited_s=3.0)
    validate(admission)


def test_a_requeued_request_expires_and_can_be_withdrawn() -> None:
    admission = filled("abc")
    admission.requeue("a", 1.0)
    admission.requeue("b", 2.0)
    admission.set_capacity(0, 2.0)
    assert admission.withdraw("b", 3.0) == []
    assert (admission.expires_s(), admission.expire(30.9), admission.expires_s(), admission.expire(31.0)) == (
        30.0,
        ["c"],
        31.0,
        ["a"],
    )
    validate(admission)


@pytest.mark.parametrize("capacity", [-1, -10])
def test_a_negative_capacity_is_our_bug(capacity: int) -> None:
    with pytest.raises(AssertionError, match=str(capacity)):
        new_admission(capacity)
    with pytest.raises(AssertionError, match=str(capacity)):
        new_admission().set_capacity(capacity, 0.0)


def test_validate_reports_a_request_that_was_lost() -> None:
    admission = filled("abc")
    admission._running.remove("a")
    with pytest.raises(AssertionError, match="running 1 of 2"):
        validate(admission)
