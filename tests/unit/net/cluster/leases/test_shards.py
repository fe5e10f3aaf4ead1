"""Shards on a virtual clock, over one memory store with interrupted connections."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import Conflict, NotLeading, Unavailable
from serving.core.model.objects import Object
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import LEASE, Kind
from serving.net.cluster.leases.shards import ShardOptions, ShardPlan, Shards, plan, shard_name, shard_of
from serving.net.cluster.port import Cluster, Listing, Selection, Subresource, WatchEvent, Write
from tests.eventually import next_turn
from tests.virtual_time import pass_s, run_virtually

SPACE = "knative-serving"


class MemberConnection(Cluster):
    """One member's connection to the store; while it is cut, every call fails. Records rejected writes."""

    def __init__(self, store: MemoryCluster) -> None:
        self.store = store
        self.is_cut = False
        self.conflicts: list[Conflict] = []

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
        # Concurrent writes are all sent before the store processes the first.
        await next_turn()
        try:
            return await self.store.write(write)
        except Conflict as conflict:
            self.conflicts.append(conflict)
            raise

    def _go(self) -> None:
        if self.is_cut:
            raise Unavailable("cut")


class Member:
    """A process with a share of the work. ``skew_s`` moves its clock ahead, as a freeze does."""

    def __init__(self, name: str, store: MemoryCluster, *, count: int = 4, others: Sequence[str] = ()) -> None:
        self.connection = MemberConnection(store)
        self.name = name
        self.skew_s = 0.0
        self.others = list(others)
        self.story: list[str] = []
        self.stop, self.rests = asyncio.Event(), asyncio.Event()
        self.rests.set()
        self.shards = Shards(
            self.connection,
            ShardOptions(daemon="autoscaler", namespace=SPACE, count=count, me=name, address=f"10.0.0.1:{ord(name)}"),
            on_won=lambda shard: self.story.append(f"won {shard}"),
            on_lost=self._lost,
            others=lambda: self.others,
            clock=lambda: now_s() + self.skew_s,
        )

    async def _lost(self, shard: int) -> None:
        assert not self.shards.owns(shard), "a lost shard is no longer owned when the callback runs"
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


def owned_counts(*members: Member) -> list[int]:
    """The number of shards that each member owns. Fails if a shard has two owners."""
    results = [shard for member in members for shard in member.shards.owned]
    assert len(results) == len(set(results)), [member.shards.owned for member in members]
    return [len(member.shards.owned) for member in members]


def test_single_member_owns_all_shards_and_releases_them_on_stop() -> None:
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


def test_two_members_that_start_together_own_half_each() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, other_member = Member("a", store, others=["b"]), Member("b", store, others=["a"])
        async with at_work(member, other_member):
            await pass_s(20)
            assert owned_counts(member, other_member) == [2, 2]
            shard = member.shards.owned[0]
            owner = other_member.shards.owner(shard)
            assert owner is not None
            assert (owner.name, owner.address) == ("a", "10.0.0.1:97")
            assert other_member.shards.owners() == {"a": "10.0.0.1:97"}
            with pytest.raises(NotLeading, match=f"autoscaler-bucket-0{shard}-of-04"):
                other_member.shards.check(shard)

    run_virtually(run())


def test_late_member_receives_its_shards_one_by_one() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, other_member = Member("a", store), Member("b", store)
        async with at_work(member):
            await pass_s(10)
            async with at_work(other_member):
                await pass_s(10)
                assert owned_counts(member, other_member) == [4, 0], "the members do not know each other yet"
                member.others = ["b"]
                member.shards.wake()
                await pass_s(1)
                assert owned_counts(member, other_member) == [3, 1]
                await pass_s(3)
                assert owned_counts(member, other_member) == [2, 2]
            member.others = []
            member.shards.wake()
            await pass_s(1)
            assert owned_counts(member) == [4], "released shards are acquired immediately"

    run_virtually(run())


def test_shard_is_not_renewed_while_being_released() -> None:
    async def run() -> None:
        member = Member("a", MemoryCluster())
        async with at_work(member):
            await pass_s(10)
            # Without a wake the next plan is due with the renewals: both would write the same version of the lease.
            member.others = ["b"]
            await pass_s(5)
            assert owned_counts(member) == [2]

            assert member.connection.conflicts == []

    run_virtually(run())


def test_shards_of_dead_member_are_acquired_after_lease_expiry() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, other_member = Member("a", store, others=["b"]), Member("b", store, others=["a"])
        async with at_work(other_member):
            dead = asyncio.create_task(member.shards.run(member.stop))
            await pass_s(20)
            assert owned_counts(member, other_member) == [2, 2]
            member.connection.is_cut = True
            dead.cancel()
            other_member.others = []
            await pass_s(12)
            assert owned_counts(member, other_member) == [0, 2]
            await pass_s(4)
            assert owned_counts(member, other_member) == [0, 4]

    run_virtually(run())


def test_disconnected_member_loses_shards_before_takeover_and_rejoins() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, other_member = Member("a", store, others=["b"]), Member("b", store, others=["a"])
        async with at_work(member, other_member):
            await pass_s(20)
            member.connection.is_cut = True
            for _ in range(600):
                await pass_s(0.1)
                owned_counts(member, other_member)
            # The leases of the disconnected member are free for long: the other member acquires them.
            assert owned_counts(member, other_member) == [0, 4]
            other_member.story.clear()
            await pass_s(60)
            assert other_member.story == [], "it does not release shards that no other member acquires"
            member.connection.is_cut = False
            await pass_s(180)
            assert owned_counts(member, other_member) == [2, 2]

    run_virtually(run())


def test_frozen_member_owns_no_shard_before_reading_leases() -> None:
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
            assert sorted(member.story[:4]) == [f"lost {n}" for n in range(4)], "it loses all shards first"

    run_virtually(run())


def test_leases_of_another_shard_count_block_acquisition() -> None:
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


def test_unfinished_work_delays_release_of_its_shard_only() -> None:
    async def run() -> None:
        store = MemoryCluster()
        member, other_member = Member("a", store), Member("b", store)
        async with at_work(member, other_member):
            await pass_s(10)
            member.others = ["b"]
            member.rests.clear()
            member.shards.wake()
            await pass_s(8)
            assert member.shards.owned == [0, 1], "their leases are still renewed"
            assert other_member.shards.owned == [], "a shard is not released before its work has ended"
            await pass_s(15)
            assert owned_counts(member, other_member) == [2, 2]
            member.rests.set()

    run_virtually(run())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_no_shard_has_two_owners_under_random_disconnections(seed: int) -> None:
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
                member.connection.is_cut = dice.random() < 0.5
                for each in members:
                    # A member that is disconnected from the store may be disconnected from the others as well.
                    each.others = [other.name for other in members if not other.connection.is_cut]
                for _ in range(dice.randrange(80)):
                    await pass_s(0.1)
                    owned_counts(*members)
            for member in members:
                member.connection.is_cut, member.others = False, list(names)
            await pass_s(300)
            assert owned_counts(*members) == [2, 2, 2]

    run_virtually(run())


def test_member_without_lease_access_owns_no_shard_and_stops() -> None:
    async def run() -> None:
        member = Member("a", MemoryCluster())
        member.connection.is_cut = True
        async with at_work(member):
            await pass_s(30)
            assert member.shards.owned == []

    run_virtually(run())


def test_shard_of_a_key_never_changes() -> None:
    # The numbers are fixed: two versions that run at the same time must agree.
    assert [shard_of(("default", name), 10) for name in ("hello", "world", "a-00001")] == [5, 8, 2]
    assert shard_of(("default", "hello"), 1) == 0


def test_keys_are_distributed_evenly_over_shards() -> None:
    counts = [0] * 10
    for number in range(10_000):
        counts[shard_of(("space", f"service-{number:05d}"), 10)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_lease_names_equal_knative_bucket_names() -> None:
    assert shard_name("autoscaler", 0, 1) == "autoscaler-bucket-00-of-01"
    assert shard_name("autoscaler", 7, 10) == "autoscaler-bucket-07-of-10"


def test_plan_of_single_member_acquires_all_shards() -> None:
    shard_plan = plan(4, me="a", holders={}, others=(), free_long=())
    assert sorted(shard_plan.take) == [0, 1, 2, 3]


def test_plan_acquires_its_allotment_of_free_shards() -> None:
    shard_plan = plan(4, me="a", holders={}, others=("b",), free_long=())
    assert len(shard_plan.take) == 2
    shard_plan = plan(4, me="a", holders={0: "b", 1: "b", 2: "a"}, others=(), free_long=())
    assert shard_plan == ShardPlan(take=(3,))


def test_plan_above_allotment_releases_one_shard() -> None:
    assert plan(4, me="a", holders=dict.fromkeys(range(4), "a"), others=("b",), free_long=()) == ShardPlan(let_go=3)
    assert plan(4, me="a", holders=dict.fromkeys(range(2), "a"), others=("b",), free_long=()).let_go is None


def test_allotment_is_rounded_up() -> None:
    assert plan(3, me="a", holders={0: "a", 1: "a"}, others=("b",), free_long=()) == ShardPlan()
    assert plan(3, me="b", holders={0: "a", 1: "a"}, others=(), free_long=()) == ShardPlan(take=(2,))


def test_plan_acquires_shards_free_for_long_beyond_allotment() -> None:
    shard_plan = plan(4, me="a", holders={0: "a", 1: "a"}, others=("b",), free_long={2, 3})
    assert shard_plan == ShardPlan(take=(2, 3))
    shard_plan = plan(4, me="a", holders=dict.fromkeys((0, 1, 2), "a"), others=("b",), free_long={3})
    assert shard_plan == ShardPlan(take=(3,), let_go=2)


def test_plan_with_more_members_than_shards_is_empty() -> None:
    assert plan(1, me="c", holders={0: "a"}, others=("b",), free_long=()) == ShardPlan()


@given(
    shard_count=st.integers(1, 12),
    names=st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    data=st.data(),
)
def test_plans_converge_to_fair_shares_from_any_start(shard_count: int, names: list[str], data: st.DataObject) -> None:
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
