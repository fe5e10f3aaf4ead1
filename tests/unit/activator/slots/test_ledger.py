"""Rights to slots: views, loans, and starts and ends of processes."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.slots.ledger import Ledger, loans_between, share_of
from serving.activator.slots.messages import Declare, Give, InUse, SlotMessage, ViewReady

KEY = ("default", "hello-00001")

PODS = [f"127.64.{number // 250}.{number % 250}:8012" for number in range(1000)]


class Net:
    """Ledgers and their undelivered messages; ``settle`` delivers them."""

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


def test_ledger_has_no_slots_before_its_peers_are_known() -> None:
    ledger = Ledger(index=0, first_round=0, in_use=list, send=lambda peer, message: None)  # noqa: ARG005 - it has no peers
    assert ledger.right(KEY, "p", 10) == 0


def test_single_ledger_owns_all_slots() -> None:
    net = Net()
    net.start(0)
    assert net.rights(slots=10) == [10]


def test_two_ledgers_share_the_slots() -> None:
    net = two()
    assert sum(net.rights()) == 1
    assert net.rights(slots=10) == [5, 5]
    assert not net.ledgers[0].is_frozen


def test_transferred_slot_has_no_owner_until_received() -> None:
    net = two(slots=10)
    net.ledgers[0].transfer(KEY, "p", peer=1, count=2)
    assert net.rights(slots=10) == [3, 5]
    net.settle()
    assert net.rights(slots=10) == [3, 7]
    assert list(net.ledgers[1].borrowed()) == [(KEY, "p", 0, 2)]
    assert list(net.ledgers[0].borrowed()) == []


def test_returned_loan_leaves_no_record() -> None:
    net = two(slots=10)
    net.ledgers[0].transfer(KEY, "p", peer=1, count=2)
    net.settle()
    net.ledgers[1].transfer(KEY, "p", peer=0, count=2)
    net.settle()
    assert net.rights(slots=10) == [5, 5]
    assert not any(ledger._loans for ledger in net.ledgers.values())


def test_only_slots_in_use_are_usable_while_a_view_is_negotiated() -> None:
    net = Net()
    net.start(0, slots=10)
    net.in_use[0] = {"p": 7}
    net.start(1, slots=10)
    assert net.ledgers[0].is_frozen
    assert net.ledgers[0].silent_peers == [1]
    assert net.rights(slots=10) == [7, 0]
    net.settle()
    assert net.ledgers[0].silent_peers == []
    # 7 slots are in use, so the other process lends 2 of its 5.
    assert net.rights(slots=10) == [7, 3]


def test_slots_of_an_ended_peer_are_redistributed() -> None:
    net = two()
    net.stop(1)
    assert net.rights() == [1]


def test_transfer_of_an_earlier_view_is_ignored() -> None:
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


def test_declaration_of_an_unknown_peer_is_ignored() -> None:
    net = two(slots=10)
    net.ledgers[0].receive(7, Declare(round=1, in_use=()))
    assert not net.ledgers[0].is_frozen
    assert net.queue == []
    net.start(2, slots=10)
    net.ledgers[0].receive(7, Declare(round=1, in_use=()))
    net.settle()
    assert not net.ledgers[0].is_frozen
    assert sum(net.rights(slots=10)) == 10


def test_late_declaration_does_not_restart_the_view() -> None:
    net = two()
    net.ledgers[0].receive(1, Declare(round=100, in_use=()))
    assert not net.ledgers[0].is_frozen


def test_declaration_of_a_new_round_is_answered_and_completes() -> None:
    net = two()
    net.ledgers[1].set_peers([0])
    net.settle()
    assert not any(ledger.is_frozen for ledger in net.ledgers.values())
    assert sum(net.rights()) == 1


def test_three_ledgers_agree_when_peers_are_learnt_one_by_one() -> None:
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


def test_remind_resends_lost_messages() -> None:
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


def test_remind_without_peers_sends_nothing() -> None:
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
def test_slots_of_many_single_slot_pods_are_shared_equally(count: int) -> None:
    results = [shares(pod, slot_count=1, members=range(count)) for pod in PODS]
    for index in range(count):
        assert sum(pod_shares[index] for pod_shares in results) == pytest.approx(len(PODS) / count, rel=0.1)


def test_single_member_owns_all_slots() -> None:
    assert share_of("p", slot_count=7, members=[3], index=3) == 7


def test_use_beyond_a_share_is_a_loan_from_a_member_with_room() -> None:
    assert loans_between([1, 1], [0, 2]) == {(1, 0): 1}


def test_use_within_shares_is_no_loan() -> None:
    assert loans_between([2, 1], [2, 0]) == {}


def test_loan_is_split_over_several_lenders() -> None:
    assert loans_between([1, 1, 1], [0, 0, 3]) == {(2, 1): 1, (2, 0): 1}


def test_several_members_borrow_from_one_lender() -> None:
    assert loans_between([4, 1, 1], [1, 3, 2]) == {(1, 0): 2, (2, 0): 1}


def test_use_beyond_all_slots_is_no_loan() -> None:
    assert loans_between([1, 1], [1, 3]) == {}
