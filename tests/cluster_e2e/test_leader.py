"""Two controllers with one lease: one is frozen or stopped, and they never both write."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serving.net.cluster.kinds import CONFIGURATION, LEASE
from tests.cluster_e2e.server import NAMESPACE, is_real
from tests.cluster_e2e.stage import Daemon, Stage, service, staged

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(is_real(), reason="who wrote what is kept by our own server alone"),
]

QUICK = {
    "SERVING_ELECTION_ENABLED": "true",
    "SERVING_ELECTION_LEASE_DURATION_S": "8",
    "SERVING_ELECTION_RENEW_DEADLINE_S": "6",
    "SERVING_ELECTION_RETRY_PERIOD_S": "0.4",
}
PAIR = ("controller-a", "controller-b")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with staged(tmp_path_factory.mktemp("leader"), daemons=(), settings=QUICK) as new_stage:
        for instance in PAIR:
            await new_stage.start("controller", instance=instance)
        await new_stage.start("autoscaler")
        yield new_stage


async def leader_of(stage: Stage, *, other_than: str = "", within_s: float = 60.0) -> str:
    """The controller that holds the lease, once one does."""
    async with asyncio.timeout(within_s):
        while True:
            for lease in (await stage.cluster.list(LEASE, NAMESPACE)).items:
                holder = str(lease["spec"]["holderIdentity"]).partition("_")[0]
                if lease["metadata"]["name"] == "controller" and holder not in {"", other_than}:
                    return holder
            await asyncio.sleep(0.05)


def other(instance: str) -> str:
    return PAIR[1 - PAIR.index(instance)]


def losses(daemon: Daemon) -> int:
    return sum(line["event"] == "lease.lost" for line in daemon.log)


async def freeze(stage: Stage, name: str, *, count: int) -> tuple[float, list[str]]:
    """Freeze the leader during work; the seconds until the other has finished it, and the frozen one's later writes."""
    leader = await leader_of(stage)
    frozen: Daemon = stage.daemons[leader]
    await stage.apply(service(f"{name}-before"))
    await stage.until(CONFIGURATION, f"{name}-before", lambda configuration: configuration.get("status"))
    lost_count = losses(frozen)
    frozen.process.send_signal(signal.SIGSTOP)
    begun_s = time.monotonic()
    for number in range(count):
        # What the frozen one will find in its sockets, to be worked on at once.
        await stage.apply(service(f"{name}-{number}"))
    try:
        assert await leader_of(stage, other_than=leader) == other(leader)
        took_s = time.monotonic() - begun_s
        for number in range(count):
            await stage.ready(f"{name}-{number}")
        since = stage.write_count()
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    await stage.apply(service(f"{name}-after"))
    await stage.ready(f"{name}-after")
    async with asyncio.timeout(240):
        while losses(frozen) == lost_count:  # noqa: ASYNC110 - a file is polled
            await asyncio.sleep(0.05)
    assert stage.writes_of(other(leader), since=since), "the other one did the work"
    return took_s, stage.writes_of(leader, since=since)


async def term_of(stage: Stage) -> int:
    """How often the leader has changed."""
    lease = await stage.cluster.get(LEASE, NAMESPACE, "controller")
    return int(lease["spec"]["leaseTransitions"])


async def test_a_frozen_leader_is_relieved_and_writes_nothing_when_it_continues(stage: Stage) -> None:
    _, written = await freeze(stage, "frozen", count=5)
    assert written == []


async def test_one_that_was_relieved_leads_again_when_the_other_is_gone(stage: Stage) -> None:
    leader = await leader_of(stage)
    assert await stage.daemons[leader].stop() == 0
    lease = await stage.cluster.get(LEASE, NAMESPACE, "controller")
    assert not lease["spec"]["holderIdentity"].startswith(f"{leader}_"), (
        "it released the lease: no candidate waits for its end"
    )
    assert await leader_of(stage, other_than=leader) == other(leader)
    await stage.apply(service("again"))
    await stage.ready("again")
    await stage.start("controller", instance=leader)


async def test_one_that_waits_writes_nothing(stage: Stage) -> None:
    for number in range(5):
        leader, term = await leader_of(stage), await term_of(stage)
        since = stage.write_count()
        await stage.apply(service(f"quiet-{number}"))
        await stage.ready(f"quiet-{number}")
        written, other_written = (stage.writes_of(name, since=since) for name in (leader, other(leader)))
        # On a busy machine the lease may expire; then both led.
        if await term_of(stage) == term:
            assert written
            assert other_written == []
            return
    pytest.fail("the leader changed in each attempt")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_with_the_times_of_a_cluster_another_one_works_within_fifteen_seconds(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"SERVING_ELECTION_ENABLED": "true"}
    async with staged(tmp_path_factory.mktemp("leader-slow"), daemons=(), settings=settings) as stage:
        for instance in PAIR:
            await stage.start("controller", instance=instance)
        await stage.start("autoscaler")
        for round_number in range(3):
            took_s, written = await freeze(stage, f"slow-{round_number}", count=20)
            print(f"taken over after {took_s:.1f} s")  # noqa: T201 - a figure
            assert written == []
            assert took_s <= 15
