import pytest

from serving.core.model.errors import Forbidden
from serving.core.model.objects import Object, name_of
from serving.home.kubelet.localnodes import LocalNodes, instance_of
from serving.home.pods.machine import read_machine
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import NODE, POD

FOREIGN = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1"}}


def local_nodes(cluster: MemoryCluster, *, name: str = "local", key: bytes = b"key") -> LocalNodes:
    return LocalNodes(cluster, read_machine(), name=name, instance=instance_of(key))


async def names(cluster: MemoryCluster) -> set[str]:
    return {name_of(node) for node in (await cluster.list(NODE)).items}


def bound_pod(node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": f"on-{node}"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    }


async def test_registration_retains_other_nodes_and_their_pods() -> None:
    cluster = MemoryCluster()
    await cluster.create(NODE, FOREIGN)
    await cluster.create(POD, bound_pod("worker-1"))
    await local_nodes(cluster, name="elsewhere", key=b"other").register()
    await local_nodes(cluster).register()
    assert await names(cluster) == {"worker-1", "elsewhere", "local"}
    assert [name_of(pod) for pod in (await cluster.list(POD)).items] == ["on-worker-1"]


async def test_registration_deletes_renamed_node_and_its_pods() -> None:
    cluster = MemoryCluster()
    await local_nodes(cluster, name="before").register()
    await cluster.create(POD, bound_pod("before"))
    await local_nodes(cluster).register()
    assert await names(cluster) == {"local"}
    assert all("deletionTimestamp" in pod["metadata"] for pod in (await cluster.list(POD)).items)


async def test_registration_is_forbidden_with_nodes_of_another_kubelet() -> None:
    cluster = MemoryCluster()
    await cluster.create(NODE, FOREIGN)
    status = {"status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}}}
    await cluster.patch(NODE, "", "worker-1", patch=status, subresource="status")
    with pytest.raises(Forbidden, match="worker-1 has another kubelet"):
        await local_nodes(cluster).register()
    assert await names(cluster) == {"worker-1"}


async def test_registration_labels_node_of_an_earlier_version() -> None:
    cluster = MemoryCluster()
    await cluster.create(NODE, {**FOREIGN, "metadata": {"name": "local"}})
    await local_nodes(cluster).register()
    await local_nodes(cluster, name="renamed").register()
    assert await names(cluster) == {"renamed"}
