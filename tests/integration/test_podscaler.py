"""The HorizontalPodAutoscaler controller of one machine: objects of the store in, scale and status out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from serving.core.model.objects import Object, condition_of
from serving.home.controllers.podscaler import PodScaler
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import stamp
from serving.net.cluster.kinds import DEPLOYMENT, EVENT, HORIZONTAL_POD_AUTOSCALER, POD, POD_METRICS

NAME = "web"
LABELS = {"app": NAME}


async def add_pod(cluster: MemoryCluster, name: str, *, cpu: str | None, request: str | None = "200m") -> None:
    resources = {} if request is None else {"resources": {"requests": {"cpu": request}}}
    metadata = {"namespace": "default", "name": name, "labels": LABELS}
    await cluster.create(
        POD,
        {"metadata": metadata, "spec": {"containers": [{"name": "app", "image": "x", **resources}]}},
    )
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"status": {"phase": "Running", "conditions": [ready]}}
    await cluster.patch(POD, "default", name, patch=status, subresource="status")
    if cpu is not None:
        container_usage = {"name": "app", "usage": {"cpu": cpu, "memory": "20Mi"}}
        await cluster.create(
            POD_METRICS,
            {"metadata": metadata, "timestamp": stamp(), "window": "15.0s", "containers": [container_usage]},
        )


@contextlib.asynccontextmanager
async def staged(*, target: str = NAME, replicas: int = 1, **pod: Any) -> AsyncIterator[MemoryCluster]:  # noqa: ANN401 - options
    cluster = MemoryCluster()
    metadata = {"namespace": "default", "name": NAME}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "app", "image": "x"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template}
    await cluster.create(DEPLOYMENT, {"metadata": metadata, "spec": spec})
    for number in range(replicas):
        await add_pod(cluster, f"web-{number}", **pod)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    await cluster.create(
        HORIZONTAL_POD_AUTOSCALER, {"metadata": metadata, "spec": {"scaleTargetRef": reference, "maxReplicas": 3}}
    )
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(PodScaler(cluster).run())
        yield cluster
        running.cancel()


async def watched_condition(cluster: MemoryCluster, kind: str) -> Object:
    """Wait for the condition and return it."""
    async with cluster.watch(HORIZONTAL_POD_AUTOSCALER, resource_version="0") as events:
        async for event in events:
            condition = condition_of(event.object, kind)
            if condition:
                return condition
    raise AssertionError


async def test_busy_deployment_scales_up_and_autoscaler_reports_reason() -> None:
    async with staged(cpu="400m") as cluster:
        condition = await watched_condition(cluster, "ScalingActive")
        assert (condition["status"], condition["reason"]) == ("True", "ValidMetricFound")
        # 200 % of the request with a target of 80 %: 1 x 2.5, rounded up to 3.
        assert condition["message"] == "1 → 3: cpu at 200%/80%"
        assert (await cluster.get(DEPLOYMENT, "default", NAME))["spec"]["replicas"] == 3
        status = (await cluster.get(HORIZONTAL_POD_AUTOSCALER, "default", NAME))["status"]
        assert (status["currentReplicas"], status["desiredReplicas"]) == (1, 3)
        current = {"averageValue": "400m", "averageUtilization": 200}
        assert status["currentMetrics"] == [{"type": "Resource", "resource": {"name": "cpu", "current": current}}]
        (event,) = (await cluster.list(EVENT, "default")).items
        assert (event["reason"], event["message"]) == ("SuccessfulRescale", "New size: 3; reason: cpu at 200%/80%")


async def test_missing_cpu_request_is_reported_and_scale_is_unchanged() -> None:
    async with staged(cpu="400m", request=None) as cluster:
        condition = await watched_condition(cluster, "ScalingActive")
        assert condition["message"] == "stays 1: cpu: a pod requests none, so that there is no share of it"
        assert (await cluster.get(DEPLOYMENT, "default", NAME))["spec"]["replicas"] == 1


async def test_missing_cpu_measurement_is_reported_and_scale_is_unchanged() -> None:
    async with staged(cpu=None) as cluster:
        condition = await watched_condition(cluster, "ScalingActive")
        assert (condition["status"], condition["message"]) == ("False", "stays 1: cpu: no ready pod is measured yet")


async def test_missing_scale_target_is_reported() -> None:
    async with staged(cpu="400m", target="other") as cluster:
        condition = await watched_condition(cluster, "AbleToScale")
        assert condition["status"] == "False"
        assert condition["message"] == "there is no Deployment other; only Deployments are scaled here"
