"""The daemon's loop: metrics of its passes, and the scan interval."""

import asyncio

import msgspec

from serving.core.settings.nodegroup import NodeGroupDaemonSettings
from serving.net.metrics.nodegroup import NodeGroupMetrics
from serving.nodes.nodegroup.io.loop import NodeGroupLoop
from tests.eventually import until
from tests.integration.nodegroup_stage import NodeGroupStage, staged_groups

SETTINGS = NodeGroupDaemonSettings(cloud_provider="memory")


def value(metrics: NodeGroupMetrics, name: str, **labels: str) -> float | None:
    return metrics.page.registry.get_sample_value(name, {"node_group": "shared", **labels})


async def set_gauges(stage: NodeGroupStage, loop: NodeGroupLoop, *, after_s: float) -> None:
    stage.now_s += after_s
    await stage._seen_all()
    await loop._pass()


async def test_scale_lock_and_node_registration_are_timed_and_pending_pods_measured() -> None:
    async with staged_groups() as stage:
        metrics = stage.metrics
        loop = NodeGroupLoop(stage.passes, lambda: SETTINGS, metrics)
        for name in ("a", "b", "c"):
            await stage.node(name)
        for number in range(12):
            await stage.pod(f"p{number}", on="abc"[number % 3])
        await stage.pod("waiting", cpu="700m")
        await set_gauges(stage, loop, after_s=60)
        prefix = "escalator_node_group"
        assert value(metrics, f"{prefix}_cpu_request_largest_pending_cpu") == 700
        assert value(metrics, f"{prefix}_cpu_capacity_largest_available_cpu") == 0
        assert value(metrics, f"{prefix}_scale_lock") == 1
        stage.now_s += 70
        for name in ("d", "e", "f"):
            await stage.node(name)
        await set_gauges(stage, loop, after_s=60)
        # The lock of 2 minutes has ended, and nodes registered 70 s after the request.
        assert value(metrics, f"{prefix}_scale_lock") == 0
        assert value(metrics, f"{prefix}_scale_lock_duration_sum") == 130
        assert value(metrics, f"{prefix}_node_registration_lag_count") == 3
        assert value(metrics, f"{prefix}_node_registration_lag_bucket", le="60.0") == 0
        assert value(metrics, f"{prefix}_node_registration_lag_bucket", le="120.0") == 3
        # Metrics of a deleted group are removed.
        metrics.passed(0.1, [])
        assert value(metrics, f"{prefix}_scale_lock") is None


async def test_shorter_scan_interval_applies_immediately() -> None:
    async with staged_groups() as stage:
        await stage.stop()
        settings = [msgspec.structs.replace(SETTINGS, scan_interval_s=3600.0)]
        loop, stop = NodeGroupLoop(stage.passes, lambda: settings[0], NodeGroupMetrics()), asyncio.Event()
        passes = stage.finished
        running = asyncio.create_task(loop.run(stop))
        await until(lambda: len(passes) == 1)
        settings[0] = msgspec.structs.replace(SETTINGS, scan_interval_s=0.01)
        await until(lambda: len(passes) >= 2)
        stop.set()
        await running
