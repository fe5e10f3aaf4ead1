"""The slot broker: slot requests, transfers and their order."""

import pytest

from serving.activator.queueing.outcome import Dispatch
from serving.activator.slots.ledger import share_of
from serving.activator.slots.messages import Ask, Give, PeerHello
from tests.property.slot_world import KEY, Life, World

_ADDRESSES = [f"127.64.0.{number}:8012" for number in range(2, 40)]
_FIRSTS = [pod for pod in _ADDRESSES if share_of(pod, slot_count=1, members=(0, 1), index=0)]
# Pods with one slot: process 0 of 2 owns the first two, process 1 the third.
PODS = (*_FIRSTS[:2], next(pod for pod in _ADDRESSES if pod not in _FIRSTS))


def settle(world: World) -> None:
    """Run ticks and deliver messages until no process sends any."""
    for _ in range(20):
        for life in world.living:
            life.tick()
        while world.messages:
            world.deliver()


def world_of(*pods: str, count: int = 2, slots: int = 1) -> tuple[World, list[Life]]:
    world = World(count=count, slots_per_pod=slots)
    world.pods = pods
    lives = [world.start(index) for index in range(count)]
    settle(world)
    return world, lives


def asked_counts(world: World) -> list[tuple[int, int]]:
    """The process and number of slots of each request for slots."""
    return [(sender.index, message.waiting_count) for sender, _, message in world.messages if isinstance(message, Ask)]


def arrive_all(life: Life, *requests: int) -> None:
    for request in requests:
        life.arrive(request)


def test_unused_slots_are_transferred_to_an_activator_with_queued_requests() -> None:
    world, (first, second) = world_of(*PODS)
    arrive_all(second, 1, 2, 3)
    assert list(world.running) == [1]
    settle(world)
    assert {world.running[request][1] for request in (1, 2, 3)} == set(PODS)
    assert [first.broker.ledger.right(KEY, pod, 1) for pod in PODS] == [0, 0, 0]


def test_freed_slot_is_transferred_to_a_requesting_peer() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1)
    arrive_all(second, 2)
    settle(world)
    assert list(world.running) == [1]
    first.finish(1)
    settle(world)
    assert world.running == {2: (second, PODS[0])}


def test_transferred_slot_remains_until_a_peer_requests_it() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(second, 1)
    settle(world)
    second.finish(1)
    settle(world)
    assert second.broker.ledger.right(KEY, PODS[0], 1) == 1
    arrive_all(first, 2)
    settle(world)
    assert world.running == {2: (first, PODS[0])}


def test_peer_with_the_longest_wait_receives_the_slot() -> None:
    world, (first, second, third) = world_of("p", count=3)
    owner = next(life for life in world.living if life.broker.ledger.right(KEY, "p", 1))
    others = [life for life in (first, second, third) if life is not owner]
    arrive_all(owner, 1)
    world.now_s = 1.0
    arrive_all(others[1], 2)
    settle(world)
    world.now_s = 2.0
    arrive_all(others[0], 3)
    settle(world)
    owner.finish(1)
    settle(world)
    assert list(world.running) == [2]


def test_freed_slot_is_transferred_to_an_older_request_of_a_peer() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1)
    arrive_all(second, 2)
    settle(world)
    world.now_s = 1.0
    arrive_all(first, 3)
    settle(world)
    first.finish(1)
    settle(world)
    assert list(world.running) == [2]
    assert list(world.waiting) == [3]


def test_freed_slot_is_used_by_an_older_local_request() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1, 2)
    world.now_s = 1.0
    arrive_all(second, 3)
    settle(world)
    first.finish(1)
    settle(world)
    assert list(world.running) == [2]


def test_ask_lets_only_one_request_of_a_peer_precede_local_requests() -> None:
    world, (first, second) = world_of(*PODS[:2])
    arrive_all(first, 1, 2)
    arrive_all(second, 3, 4)
    settle(world)
    world.now_s = 1.0
    arrive_all(first, 5, 6)
    settle(world)
    first.finish(1)
    first.finish(2)
    assert set(world.running) == {5}
    settle(world)
    assert set(world.running) == {3, 5}


def test_a_retry_waits_at_least_10_ms() -> None:
    world, (_, second) = world_of()
    second.observe([PODS[0]])
    arrive_all(second, 1)
    second.tick()
    arrive_all(second, 2)
    second.tick()
    assert asked_counts(world) == [(1, 1)]
    assert second.router.schedule.next_due_s() == pytest.approx(0.01)
    world.now_s = 0.01
    second.tick()
    assert asked_counts(world) == [(1, 1), (1, 2)]


def test_unanswered_ask_is_repeated_after_100_ms() -> None:
    world, (_, second) = world_of()
    second.observe([PODS[0]])
    arrive_all(second, 1)
    second.tick()
    world.now_s = 0.05
    second.tick()
    assert asked_counts(world) == [(1, 1)]
    assert second.router.schedule.next_due_s() == pytest.approx(0.1)
    world.now_s = 0.1
    second.tick()
    assert asked_counts(world) == [(1, 1), (1, 1)]


def test_unchanged_ask_is_not_repeated_before_100_ms() -> None:
    world, (_, second) = world_of()
    second.observe([PODS[0]])
    arrive_all(second, 1)
    second.tick()
    second.broker.settle(KEY, 0.05)
    assert asked_counts(world) == [(1, 1)]
    assert second.router.schedule.next_due_s() == pytest.approx(0.1)


def test_ask_is_withdrawn_when_no_request_is_queued() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1)
    arrive_all(second, 2)
    settle(world)
    second.go(second.router.finish(KEY, 2, 0.0))
    assert asked_counts(world) == [(1, 0)]
    settle(world)
    first.finish(1)
    assert not world.messages


def test_no_ask_is_sent_without_pods() -> None:
    world, (_, second) = world_of()
    arrive_all(second, 1)
    second.tick()
    assert not asked_counts(world)


def test_pods_without_a_concurrency_limit_need_no_slots() -> None:
    world, (first, second) = world_of(PODS[0], slots=0)
    arrive_all(first, 1, 2)
    arrive_all(second, 3, 4)
    settle(world)
    assert len(world.running) == 4
    assert not world.messages
    first.broker.receive(1, Ask(key=KEY, waiting_count=1, waited_s=0.0), 0.0)
    first.finish(1)
    assert not world.messages


def test_slot_of_an_ejected_pod_is_transferred_despite_local_queue() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1)
    arrive_all(second, 2)
    settle(world)
    del world.running[1]
    first.go(first.router.requeue(KEY, 1, 0.0))
    settle(world)
    assert world.running == {2: (second, PODS[0])}


def test_borrowed_slots_of_unlisted_pods_are_returned() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(second, 1)
    settle(world)
    for life in (first, second):
        life.observe([])
    second.router.report(1.0)
    assert not world.messages
    second.finish(1)
    second.router.report(2.0)
    settle(world)
    assert [life.broker.ledger.right(KEY, PODS[0], 1) for life in (first, second)] == [1, 0]
    assert list(second.broker.ledger.borrowed()) == []


def test_transfer_for_a_revision_without_requests_is_stored_and_dispatches_nothing() -> None:
    world, (first, second) = world_of(PODS[0])
    other = ("default", "other")
    first.broker.ledger.transfer(other, "p", peer=1, count=2)
    ((_, _, give),) = world.messages
    assert isinstance(give, Give)
    assert second.broker.receive(0, give, 0.0).dispatches == ()
    assert [life.broker.ledger.right(other, "p", 10) for life in (first, second)] == [3, 7]


def test_ask_of_an_unknown_peer_and_hello_have_no_effect() -> None:
    world, (first, _) = world_of(PODS[0])
    for peer, message in ((7, Ask(key=KEY, waiting_count=1, waited_s=0.0)), (1, PeerHello(index=1))):
        outcome = first.broker.receive(peer, message, 0.0)
        assert not outcome.dispatches
    assert not world.messages
    assert first.broker.ledger.right(KEY, PODS[0], 1) == 1


def test_ended_peer_receives_no_slots() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1)
    arrive_all(second, 2)
    settle(world)
    world.kill(second)
    first.lose(1)
    first.finish(1)
    assert not world.messages
    assert first.broker.ledger.right(KEY, PODS[0], 1) == 1


def test_no_slot_is_transferred_while_a_view_is_negotiated() -> None:
    world, (first, second) = world_of(PODS[0])
    arrive_all(first, 1)
    arrive_all(second, 2)
    settle(world)
    first.do(first.broker.set_peers([1], 0.0))
    world.messages.clear()
    first.finish(1)
    assert not world.messages
    assert isinstance(first.router.arrive(KEY, 3, 0.0), Dispatch)


def test_transferred_slots_do_not_exceed_the_requested_count() -> None:
    world, (first, second) = world_of(PODS[0], slots=10)
    arrive_all(second, *range(6))
    settle(world)
    assert len(world.running) == 6
    assert [life.broker.ledger.right(KEY, PODS[0], 10) for life in (first, second)] == [4, 6]


def test_pod_without_a_concurrency_limit_is_not_part_of_a_view() -> None:
    world, (first, second) = world_of(PODS[0], slots=0)
    arrive_all(first, 1)
    second.do(second.broker.set_peers([0], 0.0))
    settle(world)
    assert not first.broker.ledger.is_frozen
    assert list(first.broker.ledger.borrowed()) == []
