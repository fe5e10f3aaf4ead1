"""ScalingPolicies in the decision loop, over the memory store on virtual time."""

import asyncio
from collections.abc import Mapping
from typing import Any

from serving.autoscaler.io.autoscaler import Autoscaler
from serving.core.model.errors import Forbidden
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import POD, POD_METRICS, REVISION, SCALING_POLICY
from serving.net.cluster.port import Listing, Selection
from tests.integration.autoscaler_stage import NAME, Store
from tests.unit.autoscaler.test_loop import Stage, awake, staged
from tests.virtual_time import pass_s, run_virtually

Json = dict[str, Any]
ROOM = {
    "up": {"triggers": [{"type": "occupancy", "usagePercent": 50, "timeSeconds": 10}], "cooldownSeconds": 60},
    "down": {"triggers": [{"type": "occupancy", "usagePercent": 20, "timeSeconds": 10}], "cooldownSeconds": 60},
}
CPU = {"up": {"triggers": [{"type": "cpu", "usagePercent": 50, "timeSeconds": 10, "limitPercent": 1000}]}}


async def attach(stage: Stage, spec: Mapping[str, Any], *, name: str = "p", target: str = NAME) -> None:
    body = {
        "apiVersion": "serving.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"targetRef": {"kind": "Revision", "name": target}, **spec},
    }
    await stage.cluster.create(SCALING_POLICY, body)


async def status(stage: Stage, name: str = "p") -> Json:
    result = (await stage.cluster.get(SCALING_POLICY, "default", name)).get("status") or {}
    assert isinstance(result, dict)
    return result


async def reason(stage: Stage, name: str = "p") -> str:
    return str((await status(stage, name))["conditions"][0]["reason"])


def test_occupancy_trigger_scales_up_beyond_the_request_load() -> None:
    async def run() -> tuple[int, Json]:
        async with awake("p", "q") as stage:
            await attach(stage, ROOM)
            # Each of 2 pods has 1 request of 10: the request load alone needs one pod.
            await stage.report(15, p=1.0, q=1.0)
            return await stage.store.scaled(4), await status(stage)

    scale, reported = run_virtually(run())
    assert scale == 4
    assert reported["lastDecision"]["revision"] == NAME
    assert reported["conditions"][0]["status"] == "True"


def test_missing_or_conflicting_policy_target_is_reported() -> None:
    async def run() -> list[str]:
        async with awake("p") as stage:
            await attach(stage, ROOM, name="lost", target="nobody")
            await attach(stage, ROOM, name="first")
            await pass_s(1)
            await attach(stage, ROOM, name="second")
            await stage.report(10, p=1.0)
            return [await reason(stage, name) for name in ("lost", "first", "second")]

    assert run_virtually(run()) == ["TargetNotFound", "Attached", "Conflict"]


async def request_cpu(stage: Stage, *pods: str) -> None:
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
    for name in pods:
        await stage.cluster.patch(POD, "default", name, patch={"spec": {"containers": containers}})
    await stage.cluster.patch(REVISION, "default", NAME, patch={"spec": {"containers": containers}})


async def measure(stage: Stage, pod: str, cpu: str) -> None:
    body = {
        "apiVersion": "metrics.k8s.io/v1beta1",
        "kind": "PodMetrics",
        "metadata": {"namespace": "default", "name": pod, "labels": {"serving.knative.dev/revision": NAME}},
        "timestamp": f"{now_s():.3f}",
        "window": "2s",
        "containers": [{"name": "c", "usage": {"cpu": cpu, "memory": "1Mi"}}],
    }
    await stage.cluster.create(POD_METRICS, body)


def test_cpu_trigger_scales_up_a_revision_with_few_requests() -> None:
    async def run() -> tuple[int, str]:
        async with awake("p") as stage:
            await request_cpu(stage, "p")
            await attach(stage, CPU)
            await measure(stage, "p", "900m")
            await stage.report(20, p=1.0)
            scale = await stage.store.scaled(2)
            return scale, (await status(stage))["lastDecision"]["message"]

    scale, message = run_virtually(run())
    assert (scale, "90 % of the requested cpu" in message) == (2, True)


def test_cpu_policy_without_metrics_removes_no_pod() -> None:
    async def run() -> tuple[int, str]:
        async with awake("p", "q") as stage:
            await request_cpu(stage, "p", "q")
            await attach(stage, CPU)
            await stage.report(100, p=0.0, q=0.0)
            return await stage.store.scale(), (await status(stage))["lastDecision"]["rule"]

    assert run_virtually(run()) == (2, "no-data")


def test_cpu_trigger_without_cpu_requests_is_reported() -> None:
    async def run() -> str:
        async with awake("p") as stage:
            await attach(stage, CPU)
            await stage.report(10, p=1.0)
            return await reason(stage)

    assert run_virtually(run()) == "NoRequests"


def test_policy_status_is_written_once_per_period() -> None:
    async def run() -> int:
        async with awake("p") as stage:
            await attach(stage, ROOM)
            await stage.report(100, p=1.0)
            return stage.autoscaler.numbers()["policy_status_writes_total"]

    assert 9 <= run_virtually(run()) <= 12


def test_policy_min_sets_a_reserve_revision_active() -> None:
    async def run() -> tuple[int, str]:
        async with staged() as stage:
            await attach(stage, {"min": 2})
            count = await stage.store.scaled(2)
            await pass_s(1)
            return count, await stage.store.serving_state()

    assert run_virtually(run()) == (2, "Active")


def test_deleted_policy_no_longer_limits_the_scale() -> None:
    async def run() -> tuple[int, int]:
        async with awake("p", "q") as stage:
            await attach(stage, {"min": 2})
            await stage.report(100, p=0.0, q=0.0)
            scale = await stage.store.scale()
            await stage.cluster.delete(SCALING_POLICY, "default", "p")
            await stage.report(10, p=0.0, q=0.0)
            return scale, await stage.store.scaled(0, 1)

    result, after = run_virtually(run())
    assert result == 2
    assert after < 2


def test_new_autoscaler_continues_the_points_of_the_policy_status() -> None:
    async def run() -> tuple[int, int]:
        slow = {
            "up": {"triggers": [{"type": "occupancy", "usagePercent": 50, "timeSeconds": 60, "limitPercent": 1000}]}
        }
        async with awake("p") as stage:
            await attach(stage, slow)
            await stage.report(35, p=1.0)
            before = len((await status(stage))["revisions"][0]["points"]["occupancy"])
        # Its successor, over the same store.
        stop = asyncio.Event()
        stage.autoscaler = Autoscaler(stage.cluster, settings=AutoscalerSettings(), prove=stage.prove)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.autoscaler.run(stop))
            await stage.synced()
            await stage.report(15, p=1.0)
            after = len((await status(stage))["revisions"][0]["points"]["occupancy"])
            stop.set()
        return before, after

    before, after = run_virtually(run())
    assert before >= 3
    assert after > before


class Blind(MemoryCluster):
    """A cluster that forbids listing policies."""

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        if selection.kind == SCALING_POLICY:
            raise Forbidden("policies are not yours to read")
        return await super().list_selection(selection, page_size=page_size, page=page)


def test_revision_is_scaled_without_the_right_to_list_policies() -> None:
    async def allow() -> bool:
        return True

    async def run() -> int:
        store, stop = Store(Blind()), asyncio.Event()
        await store.fill(scale=0, serving_state="Active")
        autoscaler = Autoscaler(store.cluster, settings=AutoscalerSettings(), prove=allow)
        async with asyncio.TaskGroup() as group:
            group.create_task(autoscaler.run(stop))
            count = await store.scaled(1)
            stop.set()
        return count

    assert run_virtually(run()) == 1


def test_first_requests_trigger_the_panic_scale() -> None:
    async def run() -> tuple[int, float]:
        panic = {"up": {"trigger": {"type": "fixed-step", "usagePercent": 50, "limitPercent": 60}, "delta": 3}}
        async with awake("p", "q") as stage:
            await attach(stage, {**panic, "panicScale": True})
            await stage.report(5, p=0.0, q=0.0)
            begin_s = now_s()
            await stage.report(1, p=1.0, q=1.0)
            return await stage.store.scaled(5), now_s() - begin_s

    scale, waited_s = run_virtually(run())
    assert (scale, waited_s <= 1.0) == (5, True)


def test_schedule_min_scales_a_reserve_revision() -> None:
    async def run() -> tuple[int, Json]:
        async with staged() as stage:
            hours = {"name": "always", "start": "0 0 * * *", "end": "59 23 * * *", "min": 3}
            others = {"name": "the rest", "start": "59 23 * * *", "end": "1 0 * * *", "min": 3}
            await attach(stage, {"schedules": [hours, others]})
            scale = await stage.store.scaled(3)
            await pass_s(15)
            return scale, await status(stage)

    scale, reported = run_virtually(run())
    assert (scale, reported["scheduledMin"]) == (3, 3)
    assert [schedule["name"] for schedule in reported["schedules"]] == ["always", "the rest"]


def test_new_policy_scales_an_idle_revision_at_zero() -> None:
    async def run() -> tuple[int, int]:
        async with staged() as stage:
            await pass_s(300)
            before = stage.autoscaler.counts.decisions
            await attach(stage, {"min": 2, **ROOM})
            await pass_s(2.5)
            return before, await stage.store.scale()

    decisions, scale = run_virtually(run())
    assert decisions <= 20, "one in half a minute, not one in each period"
    assert scale == 2
