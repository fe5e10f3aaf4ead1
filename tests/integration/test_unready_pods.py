"""The reasons for which pods are not ready, written to their conditions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from serving.autoscaler.io import unreadypods
from serving.autoscaler.io.unreadypods import UnreadyPods
from serving.core.model.knative import CONDITION_LISTENS
from serving.core.model.objects import Object, condition_of
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD
from serving.net.cluster.port import Write

KEY = ("default", "p")


class Counted(MemoryCluster):
    """A store that counts writes."""

    count = 0

    async def write(self, write: Write) -> Object:
        """Count, and write."""
        self.count += 1
        return await super().write(write)


@contextlib.asynccontextmanager
async def staged() -> AsyncIterator[tuple[Counted, UnreadyPods]]:
    cluster = Counted()
    pods = UnreadyPods(cluster)
    metadata = {"namespace": "default", "name": "p"}
    await cluster.create(POD, {"metadata": metadata, "spec": {"containers": [{"name": "app", "image": "a"}]}})
    try:
        yield cluster, pods
    finally:
        await pods.end()
        await cluster.close()


async def until(cluster: MemoryCluster, status: str) -> str:
    async with asyncio.timeout(60):
        while (condition := condition_of(await cluster.get(POD, *KEY), CONDITION_LISTENS)).get("status") != status:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.01)
    return str(condition["message"])


async def test_reason_is_written_once_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreadypods, "_PAUSE_S", 0.0)
    async with staged() as (cluster, pods):
        pods.update(KEY, "")
        pods.update(KEY, "it listens on 5000")
        assert await until(cluster, "False") == "it listens on 5000"
        before = cluster.count
        pods.update(KEY, "it listens on 5000")
        pods.update(KEY, "")
        assert await until(cluster, "True") == ""
        assert cluster.count == before + 1


async def test_changing_reason_causes_few_writes() -> None:
    async with staged() as (cluster, pods):
        for number in range(100):
            pods.update(KEY, f"it listens on {number}")
        assert await until(cluster, "False") == "it listens on 0"
        assert cluster.count == 2


async def test_deleted_pod_is_removed_from_unready_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreadypods, "_PAUSE_S", 0.0)
    async with staged() as (cluster, pods):
        pods.update(("default", "gone"), "it listens on 5000")
        pods.update(KEY, "it listens on 5000")
        await until(cluster, "False")
        pods.forget(KEY)
        assert pods._written == {}
