"""One pod without processes: its status, its end and its attempts. With processes: tests/integration/test_local_pods.py."""

import asyncio
from pathlib import Path

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import Object
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.pod import PodRun
from serving.home.kubelet.podstate import PodState
from serving.home.pods.locations import PodLocation
from serving.home.processes.processruntime import ProcessRuntime
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import POD

LOCATION = PodLocation(address="127.64.0.3", port=4000)


async def pod_of(folder: Path, containers: tuple[Object, ...] = ()) -> PodRun:
    cluster = MemoryCluster()
    manifest: Object = {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "local", "containers": list(containers)},
    }
    node = NodeContext(
        cluster=cluster,
        runtime=ProcessRuntime(folder / "socket"),
        pods=folder / "pods",
        logs=folder / "logs",
        snapshots=folder / "snapshots",
        stats_url="ws://127.0.0.1:1/stats",
        key=bytes(32),
    )
    return PodRun(node, await cluster.create(POD, manifest), pod_id="1")


async def test_an_evicted_pod_has_failed_and_ends(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path)
    await pod.evict("too large", grace_s=1.0)
    assert pod.stop.is_set()
    assert (pod.manifest["status"]["phase"], pod.manifest["status"]["reason"]) == ("Failed", "Evicted")


async def test_a_pod_without_an_object_ends_at_its_next_status(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path)
    await pod._node.cluster.delete(POD, *pod.key, grace_s=0)
    assert await pod.write_status({"phase": "Running"})
    assert pod.stop.is_set()


async def test_a_failed_attempt_is_removed_and_the_next_one_ends_with_it(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path)
    with pytest.raises(InvalidValue):
        await pod.run(LOCATION)
    assert pod.state is PodState.ADMITTED
    await pod.free()
    other = pod.again()
    assert (pod.state, other.state) == (PodState.REMOVED, PodState.PLANNED)
    pod.end()
    assert other.stop.is_set()


async def test_a_pod_that_ends_before_its_start_leaves_no_file(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path, ({"name": "app", "image": "none"},))
    pod.end(grace_s=0)
    async with asyncio.timeout(60):
        await pod.run(LOCATION)
    assert (pod.state, pod.is_ready, pod.folder.is_dir()) == (PodState.TERMINATING, False, True)
    await pod.free()
    assert (pod.state, pod.folder.exists()) == (PodState.REMOVED, False)
