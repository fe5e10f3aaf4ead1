"""A budget over two revisions: reports over a real websocket, scales in a store."""

import asyncio

from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.net.cluster.kinds import DEPLOYMENT
from serving.net.wire.frames import ActivatorStats, RevisionStat, encode_activator_stats
from tests.integration.autoscaler_stage import NAME, Store
from tests.integration.test_autoscaler import staged

OTHER = "other-00001"
BUDGET = 6


def loads(**in_flight: float) -> bytes:
    stats = [
        RevisionStat(namespace="default", revision=f"{name}-00001", concurrency=count, request_count=count)
        for name, count in in_flight.items()
    ]
    return encode_activator_stats(ActivatorStats(stats=stats))


async def test_two_revisions_divide_a_budget_by_load_and_never_exceed_it() -> None:
    settings = AutoscalerSettings(
        policy=KNATIVE_POLICY,
        budget=f"{BUDGET} pods",
        decision_period_s=0.1,
        stats_address="127.0.0.1:0",
        activator_address="127.0.0.1:1",
    )
    async with staged(settings=settings) as stage, stage.as_activator() as connection, asyncio.timeout(240):
        first, other = stage.store, Store(stage.store.cluster, name=OTHER)
        await other.fill(scale=0, serving_state="Active")
        await first.wake()
        scales: dict[str, int] = {}
        listing = await first.cluster.list(DEPLOYMENT, "default")

        async def watch() -> None:
            async with first.cluster.watch(DEPLOYMENT, "default", resource_version=listing.resource_version) as events:
                async for event in events:
                    scales[event.object["metadata"]["name"]] = int(event.object["spec"]["replicas"])
                    assert sum(scales.values()) <= BUDGET

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            reporting = group.create_task(report(connection.send, hello=200.0, other=100.0))
            await first.scaled(4)
            await other.scaled(2)
            reporting.cancel()
            # The load moves, and the pods after it.
            reporting = group.create_task(report(connection.send, hello=20.0, other=400.0))
            await first.scaled(1)
            await other.scaled(5)
            reporting.cancel()
            watching.cancel()
        assert scales == {f"{NAME}-deployment": 1, f"{OTHER}-deployment": 5}


async def report(send: object, **in_flight: float) -> None:
    """Report the load over and over, as an activator does while it changes."""
    assert callable(send)
    while True:
        await send(loads(**in_flight))
        await asyncio.sleep(0.2)
