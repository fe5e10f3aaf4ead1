"""The slot broker: asks, gifts, and their order."""

import pytest

from serving.activator.queueing.outcome import Dispatch
from serving.activator.slots.ledger import share_of
from serving.activator.slots.messages import Ask, Give, PeerHello
from tests.property.slot_world import KEY, Life, World

_ADDRESSES = [f"127.64.0.{number}:8012" for number in range(2, 40)]
_FIRSTS = [pod for pod in _ADDRESSES if share_of(pod, slot_count=1, members=(0, 1), index=0)]
# Of one slot each: the first two are the share of process 0 of two, the third is that of 1.
PODS = (*_FIRSTS[:2], next(pod for pod in _ADDRESSES if pod not in _FIRSTS))


def settle(world: World) -> None:
    """Let everybody do what is to be done, until nobody has anything to say."""
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
    """Who asks for how many."""
    return [(sender.index, message.waiting_count) for sender, _, message in world.messages if isinstance(message, Ask)]


def come(life: Life, *requests: int) -> None:
    for request in requests:
        life.arrive(request)


def test_who_waits_is_given_what_another_does_not_need() -> None:
    world, (first, second) = world_of(*PODS)
    come(second, 1, 2, 3)
    assert list(world.running) == [1]
    settle(world)
    assert {world.running[request][1] for request in (1, 2, 3)} == set(PODS)
    assert [first.broker.ledger.right(KEY, pod, 1) for pod in PODS] == [0, 0, 0]


def test_a_free_slot_goes_to_a_peer_that_asked_when_no_own_request_waits() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1)
    come(second, 2)
    settle(world)
    assert list(world.running) == [1]
    first.finish(1)
    settle(world)
    assert world.running == {2: (second, PODS[0])}


def test_a_given_slot_stays_until_a_peer_asks() -> None:
    world, (first, second) = world_of(PODS[0])
    come(second, 1)
    settle(world)
    second.finish(1)
    settle(world)
    assert second.broker.ledger.right(KEY, PODS[0], 1) == 1
    come(first, 2)
    settle(world)
    assert world.running == {2: (first, PODS[0])}


def test_who_waits_longest_is_given_first() -> None:
    world, (first, second, third) = world_of("p", count=3)
    owner = next(life for life in world.living if life.broker.ledger.right(KEY, "p", 1))
    others = [life for life in (first, second, third) if life is not owner]
    come(owner, 1)
    world.now_s = 1.0
    come(others[1], 2)
    settle(world)
    world.now_s = 2.0
    come(others[0], 3)
    settle(world)
    owner.finish(1)
    settle(world)
    assert list(world.running) == [2]


def test_a_slot_passes_to_an_older_request_elsewhere() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1)
    come(second, 2)
    settle(world)
    world.now_s = 1.0
    come(first, 3)
    settle(world)
    first.finish(1)
    settle(world)
    assert list(world.running) == [2]
    assert list(world.waiting) == [3]


def test_a_slot_stays_for_an_older_request_here() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1, 2)
    world.now_s = 1.0
    come(second, 3)
    settle(world)
    first.finish(1)
    settle(world)
    assert list(world.running) == [2]


def test_one_ask_lets_one_request_pass_before_ours() -> None:
    world, (first, second) = world_of(*PODS[:2])
    come(first, 1, 2)
    come(second, 3, 4)
    settle(world)
    world.now_s = 1.0
    come(first, 5, 6)
    settle(world)
    first.finish(1)
    first.finish(2)
    assert set(world.running) == {5}
    settle(world)
    assert set(world.running) == {3, 5}


def test_a_retry_waits_at_least_10_ms() -> None:
    world, (_, second) = world_of()
    second.observe([PODS[0]])
    come(second, 1)
    second.tick()
    come(second, 2)
    second.tick()
    assert asked_counts(world) == [(1, 1)]
    assert second.router.schedule.next_due_s() == pytest.approx(0.01)
    world.now_s = 0.01
    second.tick()
    assert asked_counts(world) == [(1, 1), (1, 2)]


def test_who_was_given_nothing_asks_again_after_100_ms() -> None:
    world, (_, second) = world_of()
    second.observe([PODS[0]])
    come(second, 1)
    second.tick()
    world.now_s = 0.05
    second.tick()
    assert asked_counts(world) == [(1, 1)]
    assert second.router.schedule.next_due_s() == pytest.approx(0.1)
    world.now_s = 0.1
    second.tick()
    assert asked_counts(world) == [(1, 1), (1, 1)]


def test_an_ask_that_says_nothing_new_waits_for_100_ms() -> None:
    world, (_, second) = world_of()
    second.observe([PODS[0]])
    come(second, 1)
    second.tick()
    second.broker.settle(KEY, 0.05)
    assert asked_counts(world) == [(1, 1)]
    assert second.router.schedule.next_due_s() == pytest.approx(0.1)


def test_who_waits_no_more_says_so() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1)
    come(second, 2)
    settle(world)
    second.go(second.router.finish(KEY, 2, 0.0))
    assert asked_counts(world) == [(1, 0)]
    settle(world)
    first.finish(1)
    assert not world.messages


def test_without_pods_no_request_is_sent() -> None:
    world, (_, second) = world_of()
    come(second, 1)
    second.tick()
    assert not asked_counts(world)


def test_pods_without_a_limit_need_no_slots() -> None:
    world, (first, second) = world_of(PODS[0], slots=0)
    come(first, 1, 2)
    come(second, 3, 4)
    settle(world)
    assert len(world.running) == 4
    assert not world.messages
    first.broker.receive(1, Ask(key=KEY, waiting_count=1, waited_s=0.0), 0.0)
    first.finish(1)
    assert not world.messages


def test_a_pod_that_cannot_be_reached_is_given_to_who_asks_though_ours_wait() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1)
    come(second, 2)
    settle(world)
    del world.running[1]
    first.go(first.router.requeue(KEY, 1, 0.0))
    settle(world)
    assert world.running == {2: (second, PODS[0])}


def test_slots_of_pods_that_are_gone_are_given_back() -> None:
    world, (first, second) = world_of(PODS[0])
    come(second, 1)
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


def test_a_gift_for_a_revision_without_requests_is_kept() -> None:
    _, (first, second) = world_of(PODS[0])
    rounds = tuple((life.index, life.broker.ledger.view_number) for life in (first, second))
    assert (
        second.broker.receive(0, Give(rounds=rounds, key=("default", "other"), pod="p", count=1), 0.0).dispatches == ()
    )


def test_what_strangers_and_greetings_say_changes_nothing() -> None:
    world, (first, _) = world_of(PODS[0])
    for peer, message in ((7, Ask(key=KEY, waiting_count=1, waited_s=0.0)), (1, PeerHello(index=1))):
        outcome = first.broker.receive(peer, message, 0.0)
        assert not outcome.dispatches
    assert not world.messages
    assert first.broker.ledger.right(KEY, PODS[0], 1) == 1


def test_one_that_ended_is_given_nothing() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1)
    come(second, 2)
    settle(world)
    world.kill(second)
    first.lose(1)
    first.finish(1)
    assert not world.messages
    assert first.broker.ledger.right(KEY, PODS[0], 1) == 1


def test_while_shares_are_made_nothing_is_given() -> None:
    world, (first, second) = world_of(PODS[0])
    come(first, 1)
    come(second, 2)
    settle(world)
    first.do(first.broker.set_peers([1], 0.0))
    world.messages.clear()
    first.finish(1)
    assert not world.messages
    assert isinstance(first.router.arrive(KEY, 3, 0.0), Dispatch)


def test_more_slots_than_are_asked_for_are_not_given() -> None:
    world, (first, second) = world_of(PODS[0], slots=10)
    come(second, *range(6))
    settle(world)
    assert len(world.running) == 6
    assert [life.broker.ledger.right(KEY, PODS[0], 10) for life in (first, second)] == [4, 6]


def test_a_pod_without_a_limit_has_no_part_in_a_view() -> None:
    world, (first, second) = world_of(PODS[0], slots=0)
    come(first, 1)
    second.do(second.broker.set_peers([0], 0.0))
    settle(world)
    assert not first.broker.ledger.is_frozen
    assert list(first.broker.ledger.borrowed()) == []
