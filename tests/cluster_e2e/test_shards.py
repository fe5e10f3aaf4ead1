"""Two autoscalers share the revisions: stats are relayed, and one alone writes for each."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.activator.io.reports import StatsClient
from serving.activator.queueing.wake import RevisionLoad
from serving.core.settings.activator import ActivatorSettings
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, LEASE
from serving.net.cluster.leases.shards import shard_name, shard_of
from tests.cluster_e2e.server import NAMESPACE, SPACE, is_real
from tests.cluster_e2e.stage import KEY, Stage, of_objects, service, staged

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(is_real(), reason="who wrote what is kept by our own server alone"),
]

COUNT = 4
PAIR = ("autoscaler-a", "autoscaler-b")
QUICK = {
    "SERVING_ELECTION_ENABLED": "true",
    "SERVING_ELECTION_LEASE_DURATION_S": "8",
    "SERVING_ELECTION_RENEW_DEADLINE_S": "6",
    "SERVING_ELECTION_RETRY_PERIOD_S": "0.4",
}
_SHARED_MAX_S = 240.0
NAMES = [f"shared-{number}" for number in range(6)]


class Reporter:
    """An activator that is connected to one of the two."""

    def __init__(self, stage: Stage, instance: str) -> None:
        url = f"ws://127.0.0.1:{stage.port(f'stats-{instance}')}/stats"
        settings = ActivatorSettings(stats_url=url, name=f"teller-{instance}")
        self._client = StatsClient(settings, key=KEY, draw=random.Random(1).random, on_connected=lambda: None)
        self.loads: dict[str, float] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._client.link.run())
            while True:
                loads = self.loads.items()
                self._client.report(
                    [
                        ((SPACE, f"{name}-00001"), RevisionLoad(concurrency=load, request_count=load))
                        for name, load in loads
                    ]
                )
                await asyncio.sleep(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("shards"), daemons=(), settings=QUICK) as new_stage:
        config = {
            "metadata": {"name": "config-leader-election", "namespace": NAMESPACE},
            "data": {"buckets": str(COUNT)},
        }
        await new_stage.cluster.create(CONFIG_MAP, config)
        await new_stage.start("controller")
        for instance in PAIR:
            await new_stage.start("autoscaler", instance=instance)
        for name in NAMES:
            await new_stage.apply(service(name))
        for name in NAMES:
            await new_stage.ready(name)
        yield new_stage


@contextlib.asynccontextmanager
async def telling(stage: Stage, instance: str) -> AsyncIterator[Reporter]:
    reporter = Reporter(stage, instance)
    running = asyncio.create_task(reporter.run())
    try:
        yield reporter
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def holders(stage: Stage) -> list[str]:
    """Which of the two holds each shard; "" if it is free."""
    result = {lease["metadata"]["name"]: lease for lease in (await stage.cluster.list(LEASE, NAMESPACE)).items}
    leases = [result.get(shard_name("autoscaler", shard, COUNT)) for shard in range(COUNT)]
    return ["" if lease is None else str(lease["spec"]["holderIdentity"]).partition("_")[0] for lease in leases]


async def shared_by(stage: Stage, *, counts: dict[str, int]) -> list[str]:
    """The holders, once each has so many shards.

    A slow start lets one process take a shard that is the other's, and keep it for 64 s: eight durations of a lease.
    """
    results: list[str] = []
    try:
        async with asyncio.timeout(_SHARED_MAX_S):
            while True:
                results = await holders(stage)
                if {count: results.count(count) for count in counts} == counts:
                    return results
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{results}, not {counts}") from None


def scaled_by(stage: Stage, instance: str, *, since: int) -> set[str]:
    """The services whose scale an autoscaler has written."""
    paths = [what for what in stage.writes_of(instance, since=since) if what.endswith("/scale")]
    return {path.rsplit("/", 2)[1].removesuffix("-00001-deployment") for path in paths}


async def test_a_revision_is_scaled_by_its_owner_whichever_process_receives_its_load(stage: Stage) -> None:
    results = await shared_by(stage, counts=dict.fromkeys(PAIR, COUNT // 2))
    owned = {
        instance: {name for name in NAMES if results[shard_of((SPACE, name), COUNT)] == instance} for instance in PAIR
    }
    assert all(owned.values()), "both have some"
    for instance, load in zip(PAIR, (3, 5), strict=True):
        since = stage.write_count()
        async with telling(stage, instance) as reporter:
            reporter.loads = dict.fromkeys(NAMES, load)
            for name in NAMES:
                await stage.scaled(f"{name}-00001", load)
        for text in PAIR:
            assert scaled_by(stage, text, since=since) == owned[text]


async def test_what_one_had_who_was_killed_the_other_scales_and_never_down_at_first(stage: Stage) -> None:
    results = await shared_by(stage, counts=dict.fromkeys(PAIR, COUNT // 2))
    dead, remaining = PAIR
    orphans = [name for name in NAMES if results[shard_of((SPACE, name), COUNT)] == dead]
    seen: dict[str, list[int]] = {}
    async with telling(stage, remaining) as reporter:
        reporter.loads = dict.fromkeys(NAMES, 5)
        for name in NAMES:
            await stage.scaled(f"{name}-00001", 5)
        stage.daemons[dead].process.kill()
        await stage.daemons[dead].process.wait()
        watching = asyncio.create_task(_scales(stage, seen))
        await shared_by(stage, counts={remaining: COUNT})
        reporter.loads = dict.fromkeys(NAMES, 6)
        for name in NAMES:
            await stage.scaled(f"{name}-00001", 6)
        watching.cancel()
        for name in orphans:
            scales = seen[f"{name}-00001-deployment"]
            assert scales[-1] == 6
            assert scales == sorted(scales)
        await stage.start("autoscaler", instance=dead)


async def _scales(stage: Stage, seen: dict[str, list[int]]) -> None:
    """Every scale by Deployment, from what it is now, until cancelled."""
    listing = await stage.cluster.list(DEPLOYMENT, SPACE)
    seen |= {item["metadata"]["name"]: [item["spec"]["replicas"]] for item in listing.items}
    async with stage.cluster.watch(DEPLOYMENT, SPACE, resource_version=listing.resource_version) as events:
        async for event in of_objects(events):
            seen[event.object["metadata"]["name"]].append(event.object["spec"]["replicas"])


@pytest.mark.slow
async def test_one_who_was_frozen_writes_nothing_about_what_is_not_its_own_any_more(stage: Stage) -> None:
    await shared_by(stage, counts=dict.fromkeys(PAIR, COUNT // 2))
    frozen, remaining = PAIR
    async with telling(stage, frozen) as there, telling(stage, remaining) as here:
        here.loads = dict.fromkeys(NAMES, 2)
        stage.daemons[frozen].process.send_signal(signal.SIGSTOP)
        try:
            # What it will find in its sockets, to be decided on at once.
            there.loads = dict.fromkeys(NAMES, 9)
            await shared_by(stage, counts={remaining: COUNT})
            since = stage.write_count()
        finally:
            stage.daemons[frozen].process.send_signal(signal.SIGCONT)
        there.loads = {}
        results = await shared_by(stage, counts=dict.fromkeys(PAIR, COUNT // 2))
        again = {name for name in NAMES if results[shard_of((SPACE, name), COUNT)] == frozen}
        assert scaled_by(stage, frozen, since=since) <= again, "only what it has won anew"
