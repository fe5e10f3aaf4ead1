"""A ScalingPolicy between real frames and a Deployment's scale, across a restart of the daemon."""

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection

from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.triggers import TriggerSettings
from serving.net.cluster.kinds import SCALING_POLICY
from serving.net.wire.frames import PodStat, encode_pod_stat
from tests.integration.autoscaler_stage import NAME, Store
from tests.integration.test_autoscaler import staged

SETTINGS = AutoscalerSettings(
    decision_period_s=0.1, stats_address="127.0.0.1:0", triggers=TriggerSettings(period_s=1.0)
)
SPEC = {
    "targetRef": {"kind": "Revision", "name": NAME},
    "up": {"triggers": [{"type": "occupancy", "usagePercent": 50, "timeSeconds": 3, "limitPercent": 1000}]},
}


async def attach(store: Store) -> None:
    body = {
        "apiVersion": "serving.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "default", "name": "p"},
        "spec": SPEC,
    }
    await store.cluster.create(SCALING_POLICY, body)


async def points(store: Store) -> dict[int, float]:
    """The points that the policy's status keeps, by time."""
    status: dict[str, Any] = (await store.cluster.get(SCALING_POLICY, "default", "p")).get("status") or {}
    return {
        at_ms: usage for one in status.get("revisions") or () for at_ms, usage in one["points"].get("occupancy", ())
    }


async def report(pod: ClientConnection) -> None:
    """One request in flight, of ten that a pod takes."""
    while True:
        await pod.send(encode_pod_stat(PodStat(at_s=0.0, concurrency=1.0)))
        await asyncio.sleep(0.3)


async def test_one_request_makes_room_for_another_when_there_were_points_enough() -> None:
    async with staged(scale=1, serving_state="Active", settings=SETTINGS) as stage, stage.as_pod("p") as pod:
        await stage.store.add_pod("p")
        await attach(stage.store)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            reports = group.create_task(report(pod))
            await stage.store.scaled(2)
            reports.cancel()
        # 80 percent of three points is three.
        assert sum(usage == 1.0 for usage in (await points(stage.store)).values()) >= 2
        status, text = await stage.get(f"/decisions?namespace=default&revision={NAME}")
        assert status == 200
        assert "policy p" in text
        assert "3 of 3 points" in text
