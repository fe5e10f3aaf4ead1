"""Shares of a pod's slots, and who owes whom when they change."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.slots.shares import loans_between, share_of

PODS = [f"127.64.{number // 250}.{number % 250}:8012" for number in range(1000)]


def shares(pod: str, *, slot_count: int, members: Sequence[int]) -> list[int]:
    return [share_of(pod, slot_count=slot_count, members=members, index=index) for index in members]


@given(st.sampled_from(PODS), st.integers(1, 50), st.lists(st.integers(0, 63), min_size=1, unique=True))
def test_shares_add_up_to_the_slots_and_differ_by_one_at_most(pod: str, slot_count: int, members: list[int]) -> None:
    found = shares(pod, slot_count=slot_count, members=sorted(members))
    assert sum(found) == slot_count
    assert max(found) - min(found) <= 1


@pytest.mark.parametrize("count", [2, 3])
def test_over_many_pods_of_one_slot_all_have_as_many(count: int) -> None:
    found = [shares(pod, slot_count=1, members=range(count)) for pod in PODS]
    for index in range(count):
        assert sum(one[index] for one in found) == pytest.approx(len(PODS) / count, rel=0.1)


def test_one_alone_has_all() -> None:
    assert share_of("p", slot_count=7, members=[3], index=3) == 7


def test_what_is_used_beyond_a_share_is_had_of_those_with_room() -> None:
    assert loans_between([1, 1], [0, 2]) == {(1, 0): 1}


def test_what_is_used_within_shares_is_nobodys_loan() -> None:
    assert loans_between([2, 1], [2, 0]) == {}


def test_one_may_need_room_of_several() -> None:
    assert loans_between([1, 1, 1], [0, 0, 3]) == {(2, 1): 1, (2, 0): 1}


def test_several_may_need_the_room_of_one() -> None:
    assert loans_between([4, 1, 1], [1, 3, 2]) == {(1, 0): 2, (2, 0): 1}


def test_what_is_used_beyond_all_slots_is_nobodys_loan() -> None:
    assert loans_between([1, 1], [1, 3]) == {}
