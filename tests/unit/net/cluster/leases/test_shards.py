"""Shards on a virtual clock, over one memory store with interrupted connections."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import NotLeading, Unavailable
from serving.core.model.objects import Object
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import LEASE, Kind
from serving.net.cluster.leases.shards import ShardOptions, ShardPlan, Shards, plan, shard_name, shard_of
from serving.net.cluster.port import Cluster, Listing, Selection, Subresource, WatchEvent, Write
from tests.virtual_time import pass_s, run_virtually

SPACE = "knative-serving"


class Line(Cluster):
    """One member's connection to the store; while it is cut, every call fails."""

    def __init__(self, store: MemoryCluster) -> None:
        self.store = store
        self.is_cut = False

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        self._go()
        return await self.store.get(kind, namespace, name, subresource=subresource)

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        self._go()
        return await self.store.list_selection(selection, page_size=page_size, page=page)

    @contextlib.asynccontextmanager
    async def watch_selection(
        self, selection: Selection, resource_version: str
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self._go()
        async with self.store.watch_selection(selection, resource_version) as events:
            yield self._seen(events)

    async def _seen(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
        async for event in events:
            self._go()
            yield event

    async def write(self, write: Write) -> Object:
        self._go()
        return await self.store.write(write)

    def _go(self) -> None:
        if self.is_cut:
            raise Unavailable("cut")


class Member:
    """A process with a share of the work. ``skew_s`` moves its clock ahead, as a freeze does."""

    def __init__(self, name: str, store: MemoryCluster, *, count: int = 4, others: Sequence[str] = ()) -> None:
        self.line = Line(store)
        self.name = name
        self.skew_s = 0.0
        self.others = list(others)
        self.story: list[str] = []
        self.stop, self.rests = asyncio.Event(), asyncio.Event()
        self.rests.set()
        self.shards = Shards(
            self.line,
            ShardOptions(daemon="autoscaler", namespace=SPACE, count=count, me=name, address=f"10.0.0.1:{ord(name)}"),
            on_won=lambda shard: self.story.append(f"won {shard}"),
            on_lost=self._lost,
            others=lambda: self.others,
            clock=lambda: now_s() + self.skew_s,
        )

    async def _lost(self, shard: int) -> None:
        assert not self.shards.owns(shard), "nothing is owned any more when it is told"
        self.story.append(f"lost {shard}")
        await self.rests.wait()


@contextlib.asynccontextmanager
async def at_work(*members: Member) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each_member.shards.run(each_member.stop)) for each_member in members]
    try:
        yield
    finally:
        for member in members:
            member.stop.set()
            member.shards.wake()
        await asyncio.gather(*tasks)


def held_once(*members: Member) -> list[int]:
    """The number of shards of each; no shard is held twice."""
    results = [shard for member in members for shard in member.shards.owned]
    assert len(results) == len(set(results)), [member.shards.owned for member in members]
    return [len(member.shards.owned) for member in members]


def test_a_single_process_holds_all_shards_and_releases_them_at_its_stop() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member = Member("a", store)
        async with at_work(member):
            await pass_s(60)
            assert member.shards.owned == [0, 1, 2, 3]
            assert member.shards.owner(0) is None
            member.shards.check(3)
        assert sorted(member.story) == sorted([f"won {n}" for n in range(4)] + [f"lost {n}" for n in range(4)])
        leases = (await store.list(LEASE, SPACE)).items
        assert {lease["spec"]["holderIdentity"] for lease in leases} == {""}
        assert [lease["metadata"]["name"] for lease in leases] == [f"autoscaler-bucket-0{n}-of-04" for n in range(4)]

    run_virtually(run())


def test_two_who_begin_together_come_to_hold_half_each() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, two = Member("a", store, others=["b"]), Member("b", store, others=["a"])
        async with at_work(member, two):
            await pass_s(20)
            assert held_once(member, two) == [2, 2]
            shard = member.shards.owned[0]
            owner = two.shards.owner(shard)
            assert owner is not None
            assert (owner.name, owner.address) == ("a", "10.0.0.1:97")
            assert two.shards.owners() == {"a": "10.0.0.1:97"}
            with pytest.raises(NotLeading, match=f"autoscaler-bucket-0{shard}-of-04"):
                two.shards.check(shard)

    run_virtually(run())


def test_one_who_comes_later_gets_a_share_one_shard_after_the_other() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, two = Member("a", store), Member("b", store)
        async with at_work(member):
            await pass_s(10)
            async with at_work(two):
                await pass_s(10)
                assert held_once(member, two) == [4, 0], "nobody has said that there is another one"
                member.others = ["b"]
                member.shards.wake()
                await pass_s(1)
                assert held_once(member, two) == [3, 1]
                await pass_s(3)
                assert held_once(member, two) == [2, 2]
            member.others = []
            member.shards.wake()
            await pass_s(1)
            assert held_once(member) == [4], "what was let go is taken at once"

    run_virtually(run())


def test_a_shard_is_not_renewed_in_the_turn_that_releases_it(caplog: pytest.LogCaptureFixture) -> None:
    """In one of about twenty runs the second release falls on a renewal: both would write the same version of the lease."""

    async def run() -> None:
        member = Member("a", MemoryCluster())
        async with at_work(member):
            await pass_s(10)
            member.others = ["b"]
            member.shards.wake()
            await pass_s(3)
            assert held_once(member) == [2]

    for _ in range(60):
        run_virtually(run())
    assert [record.message for record in caplog.records if record.message == "lease.unreleased"] == []


def test_what_one_held_who_died_is_taken_when_its_leases_have_run_out() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, two = Member("a", store, others=["b"]), Member("b", store, others=["a"])
        async with at_work(two):
            dead = asyncio.create_task(member.shards.run(member.stop))
            await pass_s(20)
            assert held_once(member, two) == [2, 2]
            member.line.is_cut = True
            dead.cancel()
            two.others = []
            await pass_s(12)
            assert held_once(member, two) == [0, 2]
            await pass_s(4)
            assert held_once(member, two) == [0, 4]

    run_virtually(run())


def test_one_who_is_cut_off_stops_before_another_begins_and_returns() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, two = Member("a", store, others=["b"]), Member("b", store, others=["a"])
        async with at_work(member, two):
            await pass_s(20)
            member.line.is_cut = True
            for _ in range(600):
                await pass_s(0.1)
                held_once(member, two)
            # Whoever it was, its leases lie free for long: the other does the work.
            assert held_once(member, two) == [0, 4]
            two.story.clear()
            await pass_s(60)
            assert two.story == [], "it does not play with what nobody else takes"
            member.line.is_cut = False
            await pass_s(180)
            assert held_once(member, two) == [2, 2]

    run_virtually(run())


def test_one_who_was_frozen_owns_nothing_before_it_has_looked() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member = Member("a", store)
        async with at_work(member):
            await pass_s(20)
            member.story.clear()
            member.skew_s = 60.0
            assert member.shards.owned == []
            with pytest.raises(NotLeading):
                member.shards.check(0)
            await pass_s(5)
            assert member.shards.owned == [0, 1, 2, 3]
            assert sorted(member.story[:4]) == [f"lost {n}" for n in range(4)], "it begins anew"

    run_virtually(run())


def test_leases_of_another_number_of_shards_are_waited_for() -> None:
    async def run() -> None:
        store = MemoryCluster()
        old, new = Member("a", store, count=2), Member("b", store, count=4)
        async with at_work(old):
            await pass_s(5)
            async with at_work(new):
                await pass_s(30)
                assert new.shards.owned == []
                old.stop.set()
                old.shards.wake()
                await pass_s(3)
                assert new.shards.owned == [0, 1, 2, 3]

    run_virtually(run())


def test_work_that_does_not_rest_keeps_its_shard_from_others_and_not_the_other_shards_from_us() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, two = Member("a", store), Member("b", store)
        async with at_work(member, two):
            await pass_s(10)
            member.others = ["b"]
            member.rests.clear()
            member.shards.wake()
            await pass_s(8)
            assert member.shards.owned == [0, 1], "renewed all the time"
            assert two.shards.owned == [], "what is still written there is nobody's to decide on"
            await pass_s(15)
            assert held_once(member, two) == [2, 2]
            member.rests.set()

    run_virtually(run())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_no_shard_is_held_twice_whichever_process_is_cut_off(seed: int) -> None:
    async def run() -> None:
        store, dice = MemoryCluster(), random.Random(seed)
        names = "abc"
        members = [
            Member(name, store, count=6, others=[each_name for each_name in names if each_name != name])
            for name in names
        ]
        async with at_work(*members):
            for _ in range(60):
                member = dice.choice(members)
                member.line.is_cut = dice.random() < 0.5
                for each in members:
                    # Who is cut off from the store may be cut off from the others as well.
                    each.others = [other.name for other in members if not other.line.is_cut]
                for _ in range(dice.randrange(80)):
                    await pass_s(0.1)
                    held_once(*members)
            for member in members:
                member.line.is_cut, member.others = False, list(names)
            await pass_s(300)
            assert held_once(*members) == [2, 2, 2]

    run_virtually(run())


def test_a_process_without_leases_takes_no_shard_and_stops_on_request() -> None:
    async def run() -> None:
        member = Member("a", MemoryCluster())
        member.line.is_cut = True
        async with at_work(member):
            await pass_s(30)
            assert member.shards.owned == []

    run_virtually(run())


def test_a_shard_is_the_same_everywhere_and_for_ever() -> None:
    # The numbers are promised: two versions at work side by side must agree.
    assert [shard_of(("default", name), 10) for name in ("hello", "world", "a-00001")] == [5, 8, 2]
    assert shard_of(("default", "hello"), 1) == 0


def test_shards_are_evenly_filled() -> None:
    counts = [0] * 10
    for number in range(10_000):
        counts[shard_of(("space", f"service-{number:05d}"), 10)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_the_names_of_leases_are_those_of_knatives_buckets() -> None:
    assert shard_name("autoscaler", 0, 1) == "autoscaler-bucket-00-of-01"
    assert shard_name("autoscaler", 7, 10) == "autoscaler-bucket-07-of-10"


def test_who_is_alone_takes_all() -> None:
    shard_plan = plan(4, me="a", holders={}, others=(), free_long=())
    assert sorted(shard_plan.take) == [0, 1, 2, 3]


def test_what_is_free_is_shared_with_those_who_are_known() -> None:
    shard_plan = plan(4, me="a", holders={}, others=("b",), free_long=())
    assert len(shard_plan.take) == 2
    shard_plan = plan(4, me="a", holders={0: "b", 1: "b", 2: "a"}, others=(), free_long=())
    assert shard_plan == ShardPlan(take=(3,))


def test_who_has_more_than_an_allotment_lets_go_of_one() -> None:
    assert plan(4, me="a", holders=dict.fromkeys(range(4), "a"), others=("b",), free_long=()) == ShardPlan(let_go=3)
    assert plan(4, me="a", holders=dict.fromkeys(range(2), "a"), others=("b",), free_long=()).let_go is None


def test_an_allotment_is_rounded_up_so_that_nothing_is_left() -> None:
    assert plan(3, me="a", holders={0: "a", 1: "a"}, others=("b",), free_long=()) == ShardPlan()
    assert plan(3, me="b", holders={0: "a", 1: "a"}, others=(), free_long=()) == ShardPlan(take=(2,))


def test_what_is_free_for_long_is_taken_by_anybody() -> None:
    shard_plan = plan(4, me="a", holders={0: "a", 1: "a"}, others=("b",), free_long={2, 3})
    assert shard_plan == ShardPlan(take=(2, 3))
    shard_plan = plan(4, me="a", holders=dict.fromkeys((0, 1, 2), "a"), others=("b",), free_long={3})
    assert shard_plan == ShardPlan(take=(3,), let_go=2)


def test_more_members_than_shards_is_no_trouble() -> None:
    assert plan(1, me="c", holders={0: "a"}, others=("b",), free_long=()) == ShardPlan()


@given(
    shard_count=st.integers(1, 12),
    names=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    data=st.data(),
)
def test_shards_become_fair_parts_from_any_start(shard_count: int, names: list[str], data: st.DataObject) -> None:
    holders = data.draw(st.dictionaries(st.integers(0, shard_count - 1), st.sampled_from(names), max_size=shard_count))
    for _ in range(4 * shard_count * len(names)):
        for me in names:
            shard_plan = plan(shard_count, me=me, holders=holders, others=names, free_long=())
            if shard_plan.let_go is not None:
                assert holders.pop(shard_plan.let_go) == me
            for shard in shard_plan.take:
                assert shard not in holders
                holders[shard] = me
    allotment = -(-shard_count // len(names))
    assert set(holders) == set(range(shard_count))
    assert max(list(holders.values()).count(name) for name in names) <= allotment
