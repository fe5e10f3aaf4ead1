"""In-place resizes of dormant and started pods, with a store that holds pods like a cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from serving.autoscaler.io import podsizes
from serving.autoscaler.io.podsizes import PodSizes
from serving.core.model.errors import Forbidden
from serving.core.model.knative import AWAKE_RESOURCES_ANNOTATION, CONDITION_DORMANT
from serving.core.model.objects import Object, annotations_of, condition_of
from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD
from serving.net.cluster.port import Patch, Write
from tests.eventually import until

KEY = ("default", "p")
DORMANT, AWAKE = Stat(is_dormant=True, unfrozen="no namespace"), Stat(concurrency=1.0)
FULL = {"cpu": "1", "memory": "1Gi"}


class Quota(MemoryCluster):
    """A store that records patches and can reject resizes, as with a quota."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.writes: list[str | None] = []

    async def write(self, write: Write) -> Object:
        """Write, or reject a resize like an API server with a quota."""
        if isinstance(write, Patch):
            self.writes.append(write.subresource)
            if write.subresource == "resize" and self.refuses:
                raise Forbidden("exceeded quota: cpu")
        return await super().write(write)


class Stage:
    def __init__(self) -> None:
        self.cluster = Quota()
        self.cached: Object = {}
        self.sizes = PodSizes(
            self.cluster,
            pod=lambda *_: self.cached,
            used=lambda *_: {"app": Resources(memory_bytes=100 * 2**20)},
        )

    async def pod(self) -> Object:
        return await self.cluster.get(POD, *KEY)

    async def requests(self) -> dict[str, str]:
        requests: dict[str, str] = (await self.pod())["spec"]["containers"][0]["resources"]["requests"]
        return requests

    async def until_requests(self, wanted: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while True:
                if await self.requests() == wanted:
                    return
                await asyncio.sleep(0.01)

    async def until_condition(self, status: str, reason: str) -> str:
        async with asyncio.timeout(60):
            while True:
                condition = condition_of(await self.pod(), CONDITION_DORMANT)
                if (condition.get("status"), condition.get("reason")) == (status, reason):
                    return str(condition["message"])
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def staged(annotations: dict[str, str] | None = None, **requests: str) -> AsyncIterator[Stage]:
    stage = Stage()
    containers: list[dict[str, Any]] = [
        {"name": "app", "image": "a", "resources": {"requests": requests or FULL}},
        {"name": "queue-proxy", "image": "q", "resources": {"requests": {"cpu": "25m"}}},
    ]
    metadata = {"namespace": "default", "name": "p", "annotations": annotations or {}}
    stage.cached = await stage.cluster.create(POD, {"metadata": metadata, "spec": {"containers": containers}})
    try:
        yield stage
    finally:
        await stage.sizes.end()


async def test_requests_are_reduced_for_dormant_pod_and_restored_when_it_wakes() -> None:
    async with staged() as stage:
        stage.sizes.update(KEY, DORMANT, is_ready=True)
        await stage.until_requests({"cpu": "1m", "memory": "118Mi"})
        assert "no namespace" in await stage.until_condition("True", "NotFrozen")
        assert (await stage.pod())["spec"]["containers"][1]["resources"]["requests"] == {"cpu": "25m"}
        stage.sizes.update(KEY, AWAKE, is_ready=True)
        await stage.until_requests(FULL)
        await stage.until_condition("False", "Running")
        assert stage.sizes.write_count == 2


async def test_repeated_report_makes_no_api_call() -> None:
    async with staged() as stage:
        for _ in range(100):
            stage.sizes.update(KEY, AWAKE, is_ready=True)
        stage.sizes.update(KEY, DORMANT, is_ready=True)
        await stage.until_condition("True", "NotFrozen")
        before = list(stage.cluster.writes)
        assert before == [None, "resize", "status"]
        for _ in range(100):
            stage.sizes.update(KEY, DORMANT, is_ready=True)
        await asyncio.sleep(0)
        assert stage.cluster.writes == before


async def test_pod_that_wakes_during_resize_regains_its_requests() -> None:
    async with staged() as stage:
        for stat in (DORMANT, AWAKE, DORMANT, AWAKE):
            stage.sizes.update(KEY, stat, is_ready=True)
            await asyncio.sleep(0)
        await until(lambda: not stage.sizes._busy)
        assert await stage.requests() == FULL


async def test_rejected_resize_is_a_condition_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podsizes, "_RETRY_FIRST_S", 0.01)
    async with staged() as stage:
        stage.cluster.refuses = True
        stage.sizes.update(KEY, DORMANT, is_ready=True)
        assert "exceeded quota" in await stage.until_condition("True", "ResizeRefused")
        assert await stage.requests() == FULL
        stage.cluster.refuses = False
        await stage.until_requests({"cpu": "1m", "memory": "118Mi"})
        await stage.until_condition("True", "NotFrozen")
        assert stage.sizes.refused_count >= 1


async def test_started_pod_is_resized_to_awake_resources_once_ready() -> None:
    awake = msgspec.json.encode({"app": {"requests": {"cpu": "100m"}}}).decode()
    async with staged({AWAKE_RESOURCES_ANNOTATION: awake}, cpu="2") as stage:
        stage.sizes.update(KEY, Stat(), is_ready=False)
        await asyncio.sleep(0)
        assert not stage.sizes._busy
        stage.sizes.update(KEY, Stat(), is_ready=True)
        await stage.until_requests({"cpu": "100m"})
        await until(lambda: not stage.sizes._busy)
        # A pod without dormancy has no Dormant condition.
        assert condition_of(await stage.pod(), CONDITION_DORMANT) == {}


async def test_deleted_pod_is_removed_from_pod_sizes() -> None:
    async with staged() as stage:
        await stage.cluster.delete(POD, *KEY, grace_s=0)
        stage.sizes.update(KEY, DORMANT, is_ready=True)
        await until(lambda: not stage.sizes._busy)
        stage.sizes.forget(KEY)
        assert stage.sizes._wanted == {}


async def test_restarted_autoscaler_restores_requests_from_pod_annotation() -> None:
    async with staged() as stage:
        stage.sizes.update(KEY, DORMANT, is_ready=True)
        await stage.until_condition("True", "NotFrozen")
        assert AWAKE_RESOURCES_ANNOTATION in annotations_of(await stage.pod())
        await stage.sizes.end()
        stage.cached = await stage.pod()
        stage.sizes = PodSizes(stage.cluster, pod=lambda *_: stage.cached, used=lambda *_: {})
        stage.sizes.update(KEY, AWAKE, is_ready=True)
        await stage.until_requests(FULL)
