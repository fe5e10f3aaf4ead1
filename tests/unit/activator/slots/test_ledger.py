"""Rights to slots: views, loans, and what happens when processes come and go."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.slots.ledger import Ledger, loans_between, share_of
from serving.activator.slots.messages import Declare, Give, InUse, SlotMessage, ViewReady

KEY = ("default", "hello-00001")

PODS = [f"127.64.{number // 250}.{number % 250}:8012" for number in range(1000)]


class Net:
    """Ledgers that receive messages at once, except for held ones."""

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.in_use: dict[int, dict[str, int]] = {}
        self.queue: list[tuple[int, int, SlotMessage]] = []

    def start(self, index: int, *, slots: int = 1) -> Ledger:
        self.in_use[index] = {}

        def in_use() -> Iterable[InUse]:
            used = self.in_use[index].items()
            return [InUse(key=KEY, pod=pod, in_flight=count, slot_count=slots) for pod, count in used]

        self.ledgers[index] = Ledger(
            index=index,
            first_round=index * 100,
            in_use=in_use,
            send=lambda peer, message: self.queue.append((index, peer, message)),
        )
        self.meet()
        return self.ledgers[index]

    def stop(self, index: int) -> None:
        del self.ledgers[index]
        self.meet()

    def meet(self) -> None:
        for ledger in self.ledgers.values():
            ledger.set_peers(self.ledgers)

    def settle(self) -> None:
        while self.queue:
            sender, receiver, message = self.queue.pop(0)
            if receiver in self.ledgers:
                assert isinstance(message, Declare | ViewReady | Give)
                self.ledgers[receiver].receive(sender, message)

    def rights(self, pod: str = "p", *, slots: int = 1) -> list[int]:
        return [ledger.right(KEY, pod, slots) for ledger in self.ledgers.values()]


def two(*, slots: int = 1) -> Net:
    net = Net()
    net.start(0, slots=slots)
    net.start(1, slots=slots)
    net.settle()
    return net


def test_before_it_knows_its_peers_one_has_nothing() -> None:
    ledger = Ledger(index=0, first_round=0, in_use=list, send=lambda peer, message: None)  # noqa: ARG005 - it has no peers
    assert ledger.right(KEY, "p", 10) == 0


def test_one_alone_has_all() -> None:
    net = Net()
    net.start(0)
    assert net.rights(slots=10) == [10]


def test_two_share() -> None:
    net = two()
    assert sum(net.rights()) == 1
    assert net.rights(slots=10) == [5, 5]
    assert not net.ledgers[0].is_frozen


def test_a_given_slot_has_no_owner_until_it_arrives() -> None:
    net = two(slots=10)
    net.ledgers[0].transfer(KEY, "p", peer=1, count=2)
    assert net.rights(slots=10) == [3, 5]
    net.settle()
    assert net.rights(slots=10) == [3, 7]
    assert list(net.ledgers[1].borrowed()) == [(KEY, "p", 0, 2)]
    assert list(net.ledgers[0].borrowed()) == []


def test_what_was_given_back_is_not_remembered() -> None:
    net = two(slots=10)
    net.ledgers[0].transfer(KEY, "p", peer=1, count=2)
    net.settle()
    net.ledgers[1].transfer(KEY, "p", peer=0, count=2)
    net.settle()
    assert net.rights(slots=10) == [5, 5]
    assert not any(ledger._loans for ledger in net.ledgers.values())


def test_while_a_view_is_made_one_uses_what_is_in_use_and_no_more() -> None:
    net = Net()
    net.start(0, slots=10)
    net.in_use[0] = {"p": 7}
    net.start(1, slots=10)
    assert net.ledgers[0].is_frozen
    assert net.ledgers[0].silent_peers == [1]
    assert net.rights(slots=10) == [7, 0]
    net.settle()
    assert net.ledgers[0].silent_peers == []
    # 7 are in use, so that 2 of the other's share of 5 are lent.
    assert net.rights(slots=10) == [7, 3]


def test_the_slots_of_one_that_ended_are_the_others() -> None:
    net = two()
    net.stop(1)
    assert net.rights() == [1]


def test_a_gift_of_an_earlier_view_is_void() -> None:
    net = two(slots=10)
    net.ledgers[0].transfer(KEY, "p", peer=1, count=2)
    gift = net.queue.pop()[2]
    assert isinstance(gift, Give)
    net.start(2, slots=10)
    net.settle()
    before = net.rights(slots=10)
    net.ledgers[1].receive(0, gift)
    assert net.rights(slots=10) == before
    assert sum(before) == 10


def test_messages_of_strangers_are_ignored() -> None:
    net = two()
    net.ledgers[0].receive(7, Declare(round=1, in_use=()))
    assert not net.ledgers[0].is_frozen


def test_a_declaration_that_comes_late_does_not_replace_a_newer_one() -> None:
    net = two()
    net.ledgers[0].receive(1, Declare(round=100, in_use=()))
    assert not net.ledgers[0].is_frozen


def test_who_has_begun_a_view_answers_a_new_declaration_with_a_new_one() -> None:
    net = two()
    net.ledgers[1].set_peers([0])
    net.settle()
    assert not any(ledger.is_frozen for ledger in net.ledgers.values())
    assert sum(net.rights()) == 1


def test_three_agree_though_they_learn_of_each_other_one_after_the_other() -> None:
    net = two(slots=9)
    newcomer = Ledger(
        index=2, first_round=200, in_use=list, send=lambda peer, message: net.queue.append((2, peer, message))
    )
    net.ledgers[2] = newcomer
    net.in_use[0] = {"p": 5}
    newcomer.set_peers([0, 1])
    net.ledgers[0].set_peers([1, 2])
    net.settle()
    assert net.ledgers[0].is_frozen
    net.ledgers[1].set_peers([0, 2])
    newcomer.remind()
    net.settle()
    assert net.rights(slots=9) == [5, 3, 1]


def test_what_was_lost_is_said_again() -> None:
    net = Net()
    net.start(0)
    net.start(1)
    net.queue.clear()
    net.ledgers[0].remind()
    net.ledgers[1].remind()
    net.settle()
    assert sum(net.rights()) == 1
    net.ledgers[0].remind()
    assert [type(message) for _, _, message in net.queue] == [Declare, ViewReady]


def test_nothing_was_said_that_could_be_said_again() -> None:
    lines: list[SlotMessage] = []
    ledger = Ledger(index=0, first_round=0, in_use=list, send=lambda _, message: lines.append(message))
    ledger.remind()
    assert lines == []


def shares(pod: str, *, slot_count: int, members: Sequence[int]) -> list[int]:
    return [share_of(pod, slot_count=slot_count, members=members, index=index) for index in members]


@given(st.sampled_from(PODS), st.integers(1, 50), st.lists(st.integers(0, 63), min_size=1, unique=True))
def test_shares_add_up_to_the_slots_and_differ_by_one_at_most(pod: str, slot_count: int, members: list[int]) -> None:
    results = shares(pod, slot_count=slot_count, members=sorted(members))
    assert sum(results) == slot_count
    assert max(results) - min(results) <= 1


@pytest.mark.parametrize("count", [2, 3])
def test_over_many_pods_of_one_slot_all_have_as_many(count: int) -> None:
    results = [shares(pod, slot_count=1, members=range(count)) for pod in PODS]
    for index in range(count):
        assert sum(pod_shares[index] for pod_shares in results) == pytest.approx(len(PODS) / count, rel=0.1)


def test_one_alone_has_all_of_shares() -> None:
    assert share_of("p", slot_count=7, members=[3], index=3) == 7


def test_what_is_used_beyond_a_share_is_had_of_those_with_room() -> None:
    assert loans_between([1, 1], [0, 2]) == {(1, 0): 1}


def test_use_within_shares_is_no_loan() -> None:
    assert loans_between([2, 1], [2, 0]) == {}


def test_one_may_need_room_of_several() -> None:
    assert loans_between([1, 1, 1], [0, 0, 3]) == {(2, 1): 1, (2, 0): 1}


def test_several_may_need_the_room_of_one() -> None:
    assert loans_between([4, 1, 1], [1, 3, 2]) == {(1, 0): 2, (2, 0): 1}


def test_use_beyond_all_slots_is_no_loan() -> None:
    assert loans_between([1, 1], [1, 3]) == {}
