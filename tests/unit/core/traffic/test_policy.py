"""The order of free pods."""

from collections.abc import Callable, Iterable

import pytest

from serving.core.traffic.policy import (
    BalancedPod,
    BalancingPolicy,
    FirstFree,
    FreePods,
    RoundRobin,
    TwoChoices,
    policy_for,
)


def pod(address: str, in_flight: int = 0) -> BalancedPod:
    balanced_pod = BalancedPod(address)
    balanced_pod.listed, balanced_pod.slots, balanced_pod.in_flight = True, None, in_flight
    return balanced_pod


def draws(*numbers: float) -> Callable[[], float]:
    """A source of randomness that gives these numbers, in order."""
    remaining = iter(numbers)
    return lambda: next(remaining)


def holding(free: FreePods, pods: Iterable[BalancedPod]) -> FreePods:
    for balanced_pod in pods:
        free.add(balanced_pod)
    return free


@pytest.mark.parametrize(
    ("container_concurrency", "policy"),
    [
        (0, BalancingPolicy.TWO_CHOICES),
        (1, BalancingPolicy.FIRST_FREE),
        (3, BalancingPolicy.FIRST_FREE),
        (4, BalancingPolicy.ROUND_ROBIN),
        (1000, BalancingPolicy.ROUND_ROBIN),
    ],
)
def test_policy_depends_on_container_concurrency(container_concurrency: int, policy: BalancingPolicy) -> None:
    assert policy_for(container_concurrency, first_free_concurrency_max=3) is policy


def test_first_free_maximum_0_selects_round_robin() -> None:
    assert policy_for(1, first_free_concurrency_max=0) is BalancingPolicy.ROUND_ROBIN


@pytest.mark.parametrize(
    ("listed", "slots", "in_flight", "free"),
    [
        (True, 2, 1, True),
        (True, 2, 2, False),
        (True, 2, 3, False),
        (True, None, 1000, True),
        (False, None, 0, False),
        (True, 0, 0, False),
    ],
)
def test_pod_is_free_if_listed_and_not_full(
    listed: bool,
    slots: int | None,
    in_flight: int,
    free: bool,
) -> None:
    balanced_pod = BalancedPod("10.0.0.1:80")
    balanced_pod.listed, balanced_pod.slots, balanced_pod.in_flight = listed, slots, in_flight
    assert balanced_pod.free is free


@pytest.mark.parametrize("free", [FirstFree(), RoundRobin(), TwoChoices(draws(0.0, 0.0))])
def test_removed_pods_are_not_picked(free: FreePods) -> None:
    a, b, c = pod("a"), pod("b"), pod("c")
    holding(free, [a, b, c])
    free.remove(a)
    free.remove(c)
    assert (len(free), free.pick()) == (1, b)


def test_first_free_orders_pods_by_address() -> None:
    c, a, b = pod("c"), pod("a"), pod("b")
    assert holding(FirstFree(), [c, a, b]).pick() is a


def test_round_robin_appends_pod_that_becomes_free() -> None:
    free = holding(RoundRobin(), [pod("b"), pod("c")])
    free.pick()
    free.add(pod("a"))
    assert [free.pick().address for _ in range(3)] == ["c", "b", "a"]


def test_two_choices_picks_pod_with_fewer_requests() -> None:
    free = holding(TwoChoices(draws(0.0, 0.0, 0.5, 0.0)), [pod("a", in_flight=3), pod("b", in_flight=2)])
    assert [free.pick().address for _ in range(2)] == ["b", "b"]


def test_two_choices_picks_first_drawn_pod_on_tie() -> None:
    free = holding(TwoChoices(draws(0.0, 0.0, 0.5, 0.0)), [pod("a"), pod("b")])
    assert [free.pick().address for _ in range(2)] == ["a", "b"]


def test_two_choices_compares_two_different_pods() -> None:
    # 0.4 of 3 is pod 1; 0.99 of the other two is the second of them, pod 2.
    free = holding(TwoChoices(draws(0.4, 0.99)), [pod("a"), pod("b", in_flight=1), pod("c")])
    assert free.pick().address == "c"


def test_two_choices_picks_only_pod_without_draw() -> None:
    assert holding(TwoChoices(draws()), [pod("a")]).pick().address == "a"
