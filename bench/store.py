"""What the memory store costs: writes, reads, watches, and a journal's commits. Prints a line each.

Run: ``python bench/store.py [COUNT]``. Times are of one core, with nothing else to do.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from serving.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, REVISION
from serving.cluster.port import EventType, Selection
from serving.home.store.journal import Journal
from serving.home.store.memory import MemoryCluster

_COUNT = 10_000
_PAGE = 500
_CLIENTS = 64


def pod(number: int) -> dict[str, Any]:
    """A pod as the local controller-manager makes it, about 1 KiB."""
    revision = f"revision-{number % 100:05}"
    return {
        "metadata": {
            "name": f"{revision}-deployment-{number:05}",
            "labels": {
                "serving.knative.dev/revision": revision,
                "serving.knative.dev/service": "service",
                "serving.knative.dev/configuration": "service",
                "serving.knative.dev/revisionUID": "6f6c7e62-7f6c-4ce0-8f5e-3f1d2f4f9c11",
                "app": revision,
            },
        },
        "spec": {
            "containers": [
                {
                    "name": "user-container",
                    "image": "dev.local/sample",
                    "command": ["python3", "-m", "sample"],
                    "env": [{"name": f"VARIABLE_{index}", "value": "some value"} for index in range(4)],
                    "ports": [{"containerPort": 8080, "name": "http1", "protocol": "TCP"}],
                    "readinessProbe": {"tcpSocket": {"port": 0}, "successThreshold": 1},
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                }
            ],
            "terminationGracePeriodSeconds": 300,
        },
    }


async def timed(name: str, count: int, work: Callable[[], Awaitable[object]]) -> None:
    """Run once and print what one of ``count`` cost."""
    began_s = time.perf_counter()
    await work()
    took_s = time.perf_counter() - began_s
    print(f"{name:48} {took_s / count * 1e6:9.1f} us each, {count / took_s:10,.0f} a second")


async def longest_pause_ms(work: Callable[[], Awaitable[object]]) -> float:
    """The longest that the loop did not get to a task that only asks to be called again."""
    longest_s = 0.0
    done = asyncio.Event()

    async def look() -> None:
        nonlocal longest_s
        last_s = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0)
            at_s = time.perf_counter()
            longest_s, last_s = max(longest_s, at_s - last_s), at_s

    looking = asyncio.create_task(look())
    await asyncio.sleep(0)
    await work()
    done.set()
    await looking
    return longest_s * 1e3


async def measure(count: int) -> None:
    """All figures."""
    cluster = MemoryCluster()
    pods = [pod(number) for number in range(count)]
    await measure_pods(cluster, pods)
    await measure_lists(cluster, count)
    for watches in (1, 10):
        await measure_watches(count, watches)
    await measure_scale()
    await measure_journal(count)


async def measure_pods(cluster: MemoryCluster, pods: list[dict[str, Any]]) -> None:
    """Pods one by one."""
    names = [one["metadata"]["name"] for one in pods]
    conditions = [{"type": "Ready", "status": "True"}]
    patch = {"status": {"phase": "Running", "podIP": "127.64.0.1", "conditions": conditions}}

    async def create() -> None:
        for one in pods:
            await cluster.create(POD, one)

    async def get() -> None:
        for name in names:
            await cluster.get(POD, "default", name)

    async def patch_status() -> None:
        for name in names:
            await cluster.patch(POD, "default", name, patch=patch, subresource="status")

    await timed("create a pod", len(pods), create)
    await timed("get a pod", len(pods), get)
    await timed("patch a pod's status", len(pods), patch_status)


async def measure_lists(cluster: MemoryCluster, count: int) -> None:
    """All pods at once."""

    async def page() -> None:
        token = ""
        while True:
            listing = await cluster.list(POD, page_size=_PAGE, page=token)
            token = listing.next_page
            if not token:
                return

    async def list_encoded() -> None:
        cluster.list_encoded(Selection(kind=POD))

    async def list_one_revision() -> None:
        await cluster.list(POD, label_selector="serving.knative.dev/revision=revision-00007")

    await timed("list all pods, decoded, per pod", count, lambda: cluster.list(POD))
    await timed("list all pods, encoded, per pod", count, list_encoded)
    await timed(f"list all pods in pages of {_PAGE}, per pod", count, page)
    await timed("list the pods of one revision of 100, per pod there", count, list_one_revision)
    pause_ms = await longest_pause_ms(lambda: cluster.list(POD))
    print(f"{'longest pause of the loop while all are listed':48} {pause_ms:9.1f} ms")
    gc.freeze()
    pause_ms = await longest_pause_ms(lambda: cluster.list(POD))
    print(f"{'the same with all that was there frozen':48} {pause_ms:9.1f} ms")


async def measure_watches(count: int, watches: int) -> None:
    """Creations that are watched to the last."""
    cluster = MemoryCluster()

    async def read_all() -> None:
        seen = 0
        async with cluster.watch(POD, resource_version="0") as events:
            async for event in events:
                seen += event.type is EventType.ADDED and event.encoded is not None
                if seen == count:
                    return

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(watches):
                group.create_task(read_all())
            await asyncio.sleep(0)
            for number in range(count):
                await cluster.create(POD, pod(number))

    await timed(f"create a pod and read it in {watches} watches", count, work)


async def measure_scale() -> None:
    """What a decision of the autoscaler writes, and what a request from zero flips."""
    cluster = MemoryCluster()
    await cluster.create(DEPLOYMENT, {"metadata": {"name": "one"}, "spec": {"replicas": 0, "template": pod(1)}})
    await cluster.create(REVISION, {"metadata": {"name": "one"}, "spec": {**pod(1)["spec"], "servingState": "Active"}})

    async def scale() -> None:
        for number in range(1000):
            await cluster.patch(
                DEPLOYMENT, "default", "one", patch={"spec": {"replicas": number + 1}}, subresource="scale"
            )

    async def flip() -> None:
        for number in range(1000):
            state = ("Reserve", "Active")[number % 2]
            await cluster.patch(REVISION, "default", "one", patch={"spec": {"servingState": state}})

    await timed("patch /scale", 1000, scale)
    await timed("flip servingState", 1000, flip)


async def measure_journal(count: int) -> None:
    """Commits of one client after the other, and of many at once."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = MemoryCluster(Journal(Path(folder) / "journal.db"))

        async def create(first: int, step: int, behind: int) -> None:
            for number in range(first, behind, step):
                body = {"metadata": {"name": f"map-{first}-{number}"}, "data": {"key": "value" * 100}}
                await cluster.create(CONFIG_MAP, body)

        async def together() -> None:
            async with asyncio.TaskGroup() as group:
                for client in range(_CLIENTS):
                    group.create_task(create(client, _CLIENTS, count))

        await timed("create a ConfigMap on disk, one client", 500, lambda: create(count, 1, count + 500))
        await timed(f"create a ConfigMap on disk, {_CLIENTS} clients", count, together)
        await cluster.close()
        began_s = time.perf_counter()
        again = MemoryCluster(Journal(Path(folder) / "journal.db"))
        print(
            f"{'start with ' + format(count + 500, ',') + ' objects':48} {(time.perf_counter() - began_s) * 1e3:9.1f} ms"
        )
        await again.close()


if __name__ == "__main__":
    uvloop.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else _COUNT))
