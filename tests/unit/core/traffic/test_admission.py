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


def test_request_with_free_slot_is_admitted() -> None:
    assert new_admission().arrive("a", 0.0) == Admitted()


def test_request_without_free_slot_is_queued_last() -> None:
    assert filled("abc").arrive("d", 5.0) == Queued(position=2, deadline_s=35.0)


def test_request_beyond_queue_depth_is_rejected() -> None:
    assert filled("abcde").arrive("f", 0.0) == Rejected(
        limited_by=QueueLimit.COUNT, depth=3, depth_max=3, depth_bytes=0, depth_bytes_max=None
    )


def test_request_beyond_queue_bytes_is_rejected() -> None:
    admission = new_admission(0, depth_bytes_max=100)
    admission.arrive("a", 0.0, weight_bytes=60)
    assert admission.arrive("b", 0.0, weight_bytes=41) == Rejected(
        limited_by=QueueLimit.BYTES, depth=1, depth_max=3, depth_bytes=60, depth_bytes_max=100
    )


@pytest.mark.parametrize("leaving", ["withdraw", "grant", "expire"])
def test_leaving_queued_request_releases_its_bytes(leaving: str) -> None:
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


def test_released_slot_is_granted_to_oldest_queued_request() -> None:
    assert filled("abcd").release("a", 1.0) == granted("c")


def test_running_request_whose_client_disconnects_releases_slot() -> None:
    assert filled("abc").end("a", 1.0, has_response=False) == granted("c")


def test_added_capacity_is_granted_in_queue_order() -> None:
    assert filled("abcde").set_capacity(4, 1.0) == granted("c", "d")


def test_queued_requests_expire_in_order_after_maximum_wait() -> None:
    admission = filled("abcd")
    admission.arrive("e", 10.0)
    assert admission.expire(30.5) == ["c", "d"]


def test_expires_s_is_expiry_of_oldest_queued_request() -> None:
    admission = filled("abc", now_s=0.1, wait_max_s=0.2)
    wake_s = admission.expires_s()
    assert wake_s is not None
    assert admission.expire(wake_s) == ["c"]


def test_release_withdraw_and_end_ignore_unknown_requests() -> None:
    admission = filled("abc")
    before = repr(admission)
    assert (admission.release("z", 1.0), admission.withdraw("z", 1.0), admission.end("z", 1.0, has_response=False)) == (
        (),
        None,
        (),
    )
    assert repr(admission) == before


def test_queued_request_cannot_be_released() -> None:
    with pytest.raises(IllegalTransition, match="request 'c': release in phase waiting"):
        filled("abc").release("c", 1.0)


@pytest.mark.parametrize(("name", "phase"), [("a", "running"), ("c", "waiting")])
def test_running_or_queued_request_cannot_arrive_again(name: str, phase: str) -> None:
    with pytest.raises(IllegalTransition, match=f"request '{name}': arrive in phase {phase}"):
        filled("abc").arrive(name, 1.0)


def test_repr_shows_counts_and_limits() -> None:
    admission = filled("abcdefg", capacity=2, depth_max=4)
    admission.requeue("a", 1.0)
    assert repr(admission) == "Admission(running 2 of 2, requeued 1, waiting 4 of 4, bytes 0, parked 0)"


def test_requeued_request_precedes_queue_and_retains_slot() -> None:
    admission = filled("abc")
    admission.requeue("a", 1.0)
    # Its pod is gone: the other slot is in use.
    assert (admission.set_capacity(1, 1.0), admission.waiting_count, admission.waiting_since_s) == ([], 2, 0.0)
    assert admission.release("b", 2.0) == granted("a")
    assert admission.release("a", 3.0) == granted("c", waited_s=3.0)
    validate(admission)


def test_requeued_request_expires_and_can_be_withdrawn() -> None:
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
def test_negative_capacity_raises_assertion_error(capacity: int) -> None:
    with pytest.raises(AssertionError, match=str(capacity)):
        new_admission(capacity)
    with pytest.raises(AssertionError, match=str(capacity)):
        new_admission().set_capacity(capacity, 0.0)


def test_validate_reports_lost_running_request() -> None:
    admission = filled("abc")
    admission._running.remove("a")
    with pytest.raises(AssertionError, match="running 1 of 2"):
        validate(admission)
