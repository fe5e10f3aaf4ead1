"""The pod for the next request, and the number of admitted requests."""

import pytest

from serving.core.model.errors import IllegalTransition
from serving.core.traffic.balance import Balancer
from serving.core.traffic.policy import BalancingPolicy
from tests.invariants import validate


def new_balancer(policy: BalancingPolicy = BalancingPolicy.FIRST_FREE, **slots_by_pod: int | None) -> Balancer:
    """A balancer with these pods, whose random draws are all 0: it draws the first pod."""
    balancer = Balancer(policy, random=lambda: 0.0)
    balancer.set_pods(slots_by_pod)
    return balancer


def pick(balancer: Balancer, count: int = 1) -> list[str | None]:
    """The pods of consecutive picks; None if no pod is free."""
    balanced_pods = [balancer.pick() for _ in range(count)]
    validate(balancer)
    return [None if pod is None else pod.address for pod in balanced_pods]


def test_first_free_fills_pods_in_order_of_addresses() -> None:
    assert pick(new_balancer(b=1, a=2), 3) == ["a", "a", "b"]


def test_pods_with_free_slot_are_listed() -> None:
    balancer = new_balancer(b=1, a=2)
    pick(balancer, 2)
    assert balancer.free_addresses() == ["b"]


def test_round_robin_skips_full_pods() -> None:
    assert pick(new_balancer(BalancingPolicy.ROUND_ROBIN, a=1, b=3, c=2), 6) == ["a", "b", "c", "b", "c", "b"]


def test_two_choices_counts_released_requests() -> None:
    balancer = new_balancer(BalancingPolicy.TWO_CHOICES, a=None, b=None)
    pick(balancer, 4)
    balancer.release("b")
    assert pick(balancer) == ["b"]


def test_unlisted_pod_is_removed_after_its_last_request() -> None:
    balancer = new_balancer(a=2)
    pick(balancer, 2)
    balancer.set_pods({})
    balancer.release("a")
    assert (pick(balancer), balancer.in_flight_by_pod()) == ([None], {"a": 1})
    balancer.release("a")
    assert (pick(balancer), balancer.in_flight_by_pod()) == ([None], {})


def test_pod_without_requests_cannot_release() -> None:
    with pytest.raises(IllegalTransition, match="pod a: give_back in phase idle"):
        new_balancer(a=1).release("a")


def test_unknown_pod_cannot_release() -> None:
    with pytest.raises(IllegalTransition, match="pod b: give_back in phase idle"):
        new_balancer(a=1).release("b")


def test_validate_reports_wrong_in_flight_count() -> None:
    balancer = new_balancer(a=2)
    pick(balancer)
    balancer._in_flight += 1
    with pytest.raises(AssertionError, match="in flight 2"):
        validate(balancer)


def test_set_slots_changes_only_its_pod() -> None:
    balancer = new_balancer(a=1, b=1)
    pick(balancer, 2)
    balancer.set_slots("a", 2)
    validate(balancer)
    assert balancer.capacity == 3
    assert pick(balancer, 2) == ["a", None]
    assert balancer.in_flight_by_pod() == {"a": 2, "b": 1}


def test_set_slots_of_unlisted_pod_has_no_effect() -> None:
    balancer = new_balancer(a=1)
    pick(balancer)
    balancer.set_pods({})
    balancer.set_slots("a", 5)
    balancer.set_slots("b", 5)
    validate(balancer)
    assert pick(balancer) == [None]
