"""Which slots an activator owns."""

import pytest

from serving.settings.activator import ORIGINAL
from serving.traffic.share import share

FIVE = ["p0", "p1", "p2", "p3", "p4"]


def shares(pods: list[str], activator_count: int, slots_per_pod: int) -> list[dict[str, int | None]]:
    return [
        share(pods, activator_count=activator_count, index=index, slots_per_pod=slots_per_pod)
        for index in range(activator_count)
    ]


def original(pods: list[str], activator_count: int, slots_per_pod: int = 10) -> list[dict[str, int | None]]:
    return [
        share(pods, activator_count=activator_count, index=index, slots_per_pod=slots_per_pod, quirks=ORIGINAL)
        for index in range(activator_count)
    ]


def test_one_activator_owns_every_slot() -> None:
    assert shares(["b", "a"], 1, 10) == [{"a": 10, "b": 10}]


def test_slots_are_cut_in_equal_pieces_in_the_order_of_addresses() -> None:
    assert shares(["c", "a", "b"], 2, 10) == [{"a": 10, "b": 5}, {"b": 5, "c": 10}]


def test_what_does_not_divide_goes_one_by_one_to_the_first() -> None:
    assert shares(["a"], 3, 10) == [{"a": 4}, {"a": 3}, {"a": 3}]


def test_with_fewer_slots_than_activators_the_last_own_none() -> None:
    assert shares(["a"], 3, 2) == [{"a": 1}, {"a": 1}, {}]


def test_without_pods_there_is_nothing_to_own() -> None:
    assert shares([], 2, 10) == [{}, {}]


def test_pods_without_a_limit_are_everybodys() -> None:
    assert shares(["b", "a"], 2, 0) == [{"a": None, "b": None}] * 2


def test_an_activator_that_does_not_know_its_place_owns_nothing() -> None:
    assert share(FIVE, activator_count=2, index=None, slots_per_pod=10) == {}


def test_an_activator_without_a_place_uses_pods_that_have_no_limit() -> None:
    assert share(["a"], activator_count=0, index=None, slots_per_pod=0) == {"a": None}


def test_in_the_original_an_activator_without_a_place_uses_everything() -> None:
    assert share(FIVE, activator_count=2, index=None, slots_per_pod=10, quirks=ORIGINAL) == dict.fromkeys(FIVE, 10)


def test_the_original_assigns_whole_pods_in_blocks_and_the_rest_one_by_one_to_the_first() -> None:
    assert original(FIVE, 2) == [{"p0": 10, "p1": 10, "p4": 10}, {"p2": 10, "p3": 10}]


def test_the_original_assigns_blocks_where_pods_divide() -> None:
    assert original(FIVE[:4], 2) == [{"p0": 10, "p1": 10}, {"p2": 10, "p3": 10}]


def test_in_the_original_few_pods_are_used_whole_by_several_activators() -> None:
    assert original(FIVE[:2], 3) == [{"p0": 10}, {"p1": 10}, {"p0": 10}]


def test_the_original_without_pods_assigns_none() -> None:
    assert original([], 2) == [{}, {}]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_place_outside_the_list_is_our_bug(index: int) -> None:
    with pytest.raises(AssertionError, match="2"):
        share(FIVE, activator_count=2, index=index, slots_per_pod=1)
