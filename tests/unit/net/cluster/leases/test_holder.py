"""The elector on a virtual clock, over a memory store that can hang, fail and lose responses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from serving.core.model.errors import NotLeading, Unavailable
from serving.core.model.objects import Object
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import LEASE, Kind
from serving.net.cluster.leases.holder import Leader
from serving.net.cluster.leases.lease import LeaseClient, LeaseName, record_of
from serving.net.cluster.port import Subresource, Write
from tests.virtual_time import pass_s, run_virtually

NAME = LeaseName(namespace="knative-serving", name="controller")


class FaultyCluster(MemoryCluster):
    """A memory store: ``hangs`` blocks every call, ``loses`` applies writes and loses their responses."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = self.fails = self.loses = False

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        await self._trouble()
        return await super().get(kind, namespace, name, subresource=subresource)

    async def write(self, write: Write) -> Object:
        await self._trouble()
        written = await super().write(write)
        if self.loses:
            raise Unavailable("lost")
        return written

    async def _trouble(self) -> None:
        if self.fails:
            raise Unavailable("down")
        if self.hangs:
            await asyncio.Event().wait()


class Worker:
    """An elector with work that records its runs. ``skew_s`` moves its clock ahead, as a freeze does."""

    def __init__(self, name: str, cluster: FaultyCluster) -> None:
        self.name = name
        self.skew_s = 0.0
        self.terms: list[tuple[float, float]] = []
        self._begun_s: float | None = None
        self.stop = asyncio.Event()
        self.ended = asyncio.Event()
        self.leader = Leader(LeaseClient(cluster, NAME), name, clock=lambda: now_s() + self.skew_s)

    async def run(self) -> None:
        await self.leader.run(self._work, self.stop)
        self.ended.set()

    async def _work(self) -> None:
        self._begun_s = begun_s = now_s()
        try:
            await self.stop.wait()
        finally:
            self._begun_s = None
            self.terms.append((begun_s, now_s()))

    def works(self) -> bool:
        return self._begun_s is not None


@contextlib.asynccontextmanager
async def at_work(*workers: Worker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def holder(cluster: FaultyCluster) -> str:
    return record_of(await MemoryCluster.get(cluster, LEASE, NAME.namespace, NAME.name)).holder


def test_first_candidate_leads_and_second_waits() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker, standby = Worker("one", cluster), Worker("two", cluster)
        async with at_work(worker, standby):
            await pass_s(100)
            assert (worker.works(), standby.works()) == (True, False)
            assert (worker.leader.is_leading, standby.leader.is_leading) == (True, False)
            assert standby.leader._candidate.holder == "one"
            assert repr(standby.leader._candidate).endswith("two, does not hold it)")
            worker.leader.check()
            with pytest.raises(NotLeading):
                standby.leader.check()
        assert (len(worker.terms), standby.terms) == (1, [])

    run_virtually(run())


def test_stopping_leader_releases_lease_and_standby_leads_at_next_retry() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker, standby = Worker("one", cluster), Worker("two", cluster)
        async with at_work(worker, standby):
            await pass_s(31)
            worker.stop.set()
            await worker.ended.wait()
            assert await holder(cluster) == ""
            await pass_s(2.1)
            assert standby.works()
            assert await holder(cluster) == "two"
        assert worker.terms[0][1] == 31

    run_virtually(run())


def test_cancelled_leader_releases_lease() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        async with at_work(worker):
            await pass_s(5)
        assert await holder(cluster) == ""
        assert not worker.works()

    run_virtually(run())


def test_waiting_standby_stops_immediately() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker, standby = Worker("one", cluster), Worker("two", cluster)
        async with at_work(worker, standby):
            await pass_s(5)
            standby.stop.set()
            await standby.ended.wait()
            assert now_s() == 5
            assert await holder(cluster) == "one"

    run_virtually(run())


@pytest.mark.parametrize("trouble", ["hangs", "fails"])
def test_unreachable_server_cancels_work_at_renew_deadline(trouble: str) -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        async with at_work(worker):
            await pass_s(20.5)
            setattr(cluster, trouble, True)
            await pass_s(9.4)
            assert worker.works()
            await pass_s(4.2)
            assert not worker.works()
            setattr(cluster, trouble, False)
            await pass_s(10)
            assert worker.works(), "it acquires the lease again"
        (_, ended_s), _ = worker.terms
        assert 30.0 <= ended_s <= 34.0

    run_virtually(run())


def test_outage_shorter_than_renew_deadline_keeps_leadership() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        async with at_work(worker):
            await pass_s(20.5)
            cluster.fails = True
            await pass_s(6)
            cluster.fails = False
            await pass_s(30)
            assert worker.works()
        assert len(worker.terms) == 1

    run_virtually(run())


def test_acquisition_with_lost_response_is_recovered() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        cluster.loses = True
        async with at_work(worker):
            await pass_s(1)
            assert (await holder(cluster), worker.leader.is_leading) == ("one", False)
            cluster.loses = False
            await pass_s(2)
            assert worker.works()

    run_virtually(run())


def test_frozen_leader_does_not_lead_before_reading_the_lease() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker, standby = Worker("one", cluster), Worker("two", cluster)
        async with at_work(worker, standby):
            await pass_s(20)
            worker.skew_s = 60.0
            assert worker.works(), "its task has not run yet"
            with pytest.raises(NotLeading):
                worker.leader.check()
            await pass_s(2.1)
            assert len(worker.terms) == 1
            # No other candidate acquired the lease: it leads again, for another term.
            assert worker.leader.is_leading
        assert len(worker.terms) == 2

    run_virtually(run())


def test_leader_whose_lease_was_taken_over_steps_down_at_next_renewal() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        async with at_work(worker):
            await pass_s(5)
            patch = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 5}}
            await cluster.patch(LEASE, NAME.namespace, NAME.name, patch=patch)
            await pass_s(2)
            assert (worker.works(), worker.leader._candidate.holder) == (False, "thief")
            await pass_s(6)
            assert worker.works()

    run_virtually(run())


def test_error_of_work_is_raised_and_lease_is_released() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        leader = Leader(LeaseClient(cluster, NAME), "one", clock=now_s)

        async def work() -> None:
            await pass_s(3)
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await leader.run(work, asyncio.Event())
        assert (now_s(), await holder(cluster)) == (3, "")

    run_virtually(run())


def test_work_that_fails_for_lost_lease_starts_new_term() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        terms = 0

        async def work() -> None:
            nonlocal terms
            terms += 1
            await pass_s(3)
            if terms == 1:
                worker.skew_s = 60.0
                worker.leader.check()

        await worker.leader.run(work, asyncio.Event())
        assert terms == 2

    run_virtually(run())


def test_work_that_fails_on_cancellation_starts_new_term() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        ends: list[float] = []

        async def work() -> None:
            try:
                await worker.stop.wait()
            except asyncio.CancelledError:
                ends.append(now_s())
                raise ValueError("broken") from None

        running = asyncio.create_task(worker.leader.run(work, worker.stop))
        await pass_s(5)
        worker.skew_s = 60.0
        await pass_s(10)
        assert len(ends) == 1
        assert worker.leader.is_leading
        worker.stop.set()
        await running

    run_virtually(run())


def test_failed_release_leaves_holder_and_ends_normally() -> None:
    async def run() -> None:
        cluster = FaultyCluster()
        worker = Worker("one", cluster)
        async with at_work(worker):
            await pass_s(5)
            cluster.fails = True
            worker.stop.set()
            await worker.ended.wait()
        assert await holder(cluster) == "one"

    run_virtually(run())
