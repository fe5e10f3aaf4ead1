"""PodRun without processes: status, end and repeated runs. With processes: tests/integration/test_local_pods.py."""

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


async def test_evicted_pod_is_failed_and_stops(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path)
    await pod.evict("too large", grace_s=1.0)
    assert pod.stop.is_set()
    assert (pod.manifest["status"]["phase"], pod.manifest["status"]["reason"]) == ("Failed", "Evicted")


async def test_pod_without_api_object_stops_at_next_status_write(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path)
    await pod._node.cluster.delete(POD, *pod.key, grace_s=0)
    assert await pod.write_status({"phase": "Running"})
    assert pod.stop.is_set()


async def test_failed_pod_run_is_removed_and_its_successor_ends_with_it(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path)
    with pytest.raises(InvalidValue):
        await pod.run(LOCATION)
    assert pod.state is PodState.ADMITTED
    await pod.free()
    other = pod.again()
    assert (pod.state, other.state) == (PodState.REMOVED, PodState.PLANNED)
    pod.end()
    assert other.stop.is_set()


async def test_pod_ended_before_start_leaves_no_folder(tmp_path: Path) -> None:
    pod = await pod_of(tmp_path, ({"name": "app", "image": "none"},))
    pod.end(grace_s=0)
    async with asyncio.timeout(60):
        await pod.run(LOCATION)
    assert (pod.state, pod.is_ready, pod.folder.is_dir()) == (PodState.TERMINATING, False, True)
    await pod.free()
    assert (pod.state, pod.folder.exists()) == (PodState.REMOVED, False)
