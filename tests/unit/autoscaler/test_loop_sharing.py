"""The loop with shared revisions, on virtual time: foreign revisions are followed and not written."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serving.autoscaler.io.autoscaler import Autoscaler
from serving.autoscaler.io.sharing import Sharing
from serving.core.model.errors import NotLeading
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import SCALING_POLICY
from serving.net.cluster.leases.shards import ShardOptions, Shards
from tests.eventually import until
from tests.integration.autoscaler_stage import NAME, Store
from tests.virtual_time import pass_s, run_virtually

KEY = ("default", NAME)


class Member:
    """One autoscaler. It takes the lease on request; ``skew_s`` moves that lease's clock ahead, as a freeze does."""

    def __init__(self, name: str, cluster: MemoryCluster) -> None:
        self.skew_s = 0.0
        self.stop = asyncio.Event()
        self.sharing = Sharing()
        self.autoscaler = Autoscaler(cluster, settings=AutoscalerSettings(), prove=self.prove, sharing=self.sharing)
        self.relay = self.autoscaler.relay
        self.shards = self.sharing.shards = Shards(
            cluster,
            ShardOptions(daemon="autoscaler", namespace="knative-serving", count=1, me=name, address="10.0.0.1:6081"),
            on_won=self.autoscaler.won,
            on_lost=self.autoscaler.lost,
            clock=lambda: now_s() + self.skew_s,
        )

    async def prove(self) -> bool:
        return True

    async def synced(self) -> None:
        await until(lambda: self.autoscaler.is_synced)

    async def let_go(self) -> None:
        self.stop.set()
        self.shards.wake()
        await pass_s(0.1)

    def send_report(self, concurrency: float) -> None:
        stat = Stat(pod="activator", at_s=now_s(), concurrency=concurrency, request_count=concurrency)
        self.autoscaler.record(KEY, stat, StatSource.ACTIVATOR)

    async def report(self, seconds: int, concurrency: float) -> None:
        for _ in range(seconds):
            self.send_report(concurrency)
            await pass_s(1)


@asynccontextmanager
async def at_work(one: Member, group: asyncio.TaskGroup) -> AsyncIterator[Member]:
    """Follow everything, and compete for the lease."""
    ending = asyncio.Event()
    group.create_task(one.autoscaler.run(ending))
    await one.synced()
    group.create_task(one.shards.run(one.stop))
    await pass_s(0.1)
    try:
        yield one
    finally:
        ending.set()
        await one.let_go()


async def filled(scale: int) -> Store:
    """A revision with as many ready pods as its scale."""
    store = Store()
    await store.fill(scale=scale, serving_state="Active")
    for number in range(scale):
        await store.add_pod(f"pod-{number}")
    return store


def test_one_without_the_lease_decides_nothing_and_begins_when_it_has_it() -> None:
    async def run() -> None:
        store = await filled(1)
        async with asyncio.TaskGroup() as group:
            one, two = Member("one", store.cluster), Member("two", store.cluster)
            async with at_work(one, group), at_work(two, group):
                assert (one.shards.held, two.shards.held) == ([0], [])
                await two.report(3, 100.0)
                assert (await store.scale(), two.relay.relayed_count) == (1, 3)
                assert two.autoscaler.numbers()["revisions"] == 0
                await one.report(3, 100.0)
                assert await store.scale() == 15
                await one.let_go()
                assert (one.autoscaler.numbers()["revisions"], two.autoscaler.numbers()["revisions"]) == (0, 1)
                await one.report(1, 300.0)
                await two.report(3, 200.0)
                assert await store.scale() == 29
                assert two.autoscaler.numbers()["scale_writes_total"] >= 1

    run_virtually(run())


def test_who_takes_over_takes_no_pod_before_a_window_was_seen() -> None:
    async def run() -> None:
        store = await filled(4)
        async with asyncio.TaskGroup() as group:
            one, two = Member("one", store.cluster), Member("two", store.cluster)
            async with at_work(one, group), at_work(two, group):
                await one.report(30, 28.0)
                await one.let_go()
                assert two.shards.held == [0]
                await two.report(58, 2.0)
                assert await store.scale() == 4
                await two.report(70, 2.0)
                assert await store.scale() < 4

    run_virtually(run())


def test_one_who_was_frozen_decides_and_writes_nothing() -> None:
    async def run() -> None:
        store = await filled(1)
        async with asyncio.TaskGroup() as group, at_work(Member("one", store.cluster), group) as one:
            await one.report(2, 5.0)
            made = one.autoscaler.numbers()["decisions_total"]
            one.skew_s = 60.0
            stat = Stat(pod="a", at_s=now_s(), concurrency=500, request_count=1)
            one.autoscaler.record(KEY, stat, StatSource.ACTIVATOR, is_relayed=True)
            await pass_s(0)
            assert one.autoscaler.numbers()["decisions_total"] == made
            with pytest.raises(NotLeading), one.sharing.writing(one.autoscaler.group(KEY)):
                pass
            assert await store.scale() == 1

    run_virtually(run())


def test_a_write_is_waited_for_before_a_shard_is_let_go() -> None:
    async def run() -> None:
        store = await filled(1)
        async with asyncio.TaskGroup() as group, at_work(Member("one", store.cluster), group) as one:
            with one.sharing.writing(one.autoscaler.group(KEY)):
                await one.let_go()
                assert one.shards.held == []
                lost = group.create_task(one.autoscaler.lost(0))
                await pass_s(1)
                assert not lost.done()
            await lost

    run_virtually(run())


def test_the_status_of_a_policy_is_written_by_the_one_whose_target_it_is() -> None:
    async def run() -> None:
        store = await filled(1)
        body: dict[str, Any] = {
            "metadata": {"namespace": "default", "name": "p"},
            "spec": {"targetRef": {"kind": "Revision", "name": NAME}, "min": 2},
        }
        await store.cluster.create(SCALING_POLICY, body)
        async with asyncio.TaskGroup() as group:
            one, two = Member("one", store.cluster), Member("two", store.cluster)
            async with at_work(one, group), at_work(two, group):
                await pass_s(20)
                counts = [each.autoscaler.numbers()["policy_status_writes_total"] for each in (one, two)]
                assert counts[0] >= 1
                assert counts[1] == 0
                assert await store.scale() == 2
                await one.let_go()
                await pass_s(20)
                assert two.autoscaler.numbers()["policy_status_writes_total"] >= 1
                assert one.autoscaler.numbers()["policy_status_writes_total"] == counts[0]

    run_virtually(run())


def test_stats_without_an_owner_are_counted_and_dropped() -> None:
    async def run() -> None:
        one = Member("one", MemoryCluster())
        one.send_report(5.0)
        numbers = one.relay.numbers
        assert (numbers["stats_ownerless_total"], numbers["stats_passed_on_total"], numbers["shards"]) == (1, 0, 0)
        assert one.relay.elsewhere({"namespace": "default", "revision": NAME}) == ""

    run_virtually(run())
