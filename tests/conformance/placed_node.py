"""A node and its pods in the placement daemon: API objects, read by ``placement.facts``, stored by ``placement.book``."""

from collections.abc import Iterable

from serving.core.model.quantity import Resources
from serving.nodes.placement.book import NodeBook, demand_of, node_of, pod_of
from serving.nodes.placement.scores.metrics import NodeUsage
from serving.nodes.placement.scores.nodes import NodeTable
from serving.nodes.placement.scores.pod import Container, PodContainers, PodDemand

NODE = "node"


def table_of_node(
    cpu_m: int, memory_bytes: int, pods: Iterable[PodContainers], *, usage: NodeUsage | None = None
) -> NodeTable:
    """The daemon's table of one node with these pods on it."""
    book = NodeBook()
    allocatable = {"cpu": f"{cpu_m}m", "memory": str(memory_bytes)}
    book.set_node(node_of({"metadata": {"name": NODE}, "status": {"allocatable": allocatable}}))
    for number, containers in enumerate(pods):
        placed = pod_of({**_object(containers, f"p{number}"), "status": {"phase": "Running"}})
        assert placed is not None, "it has a node"
        book.set_pod(placed)
    if usage is not None:
        book.set_usages({NODE: usage})
    return book.table()


def demand_as_read(containers: PodContainers) -> PodDemand:
    """The demand that the daemon reads from the Pod."""
    return demand_of(_object(containers, "pending"))


def _object(pod: PodContainers, name: str) -> dict[str, object]:
    spec = {
        "nodeName": NODE,
        "containers": [_container(container) for container in pod.containers],
        "initContainers": [_container(container) for container in pod.init_containers],
        "overhead": _amounts(pod.overhead),
    }
    return {"metadata": {"namespace": "default", "name": name}, "spec": spec}


def _container(container: Container) -> dict[str, object]:
    return {"resources": {"requests": _amounts(container.request), "limits": _amounts(container.limit)}}


def _amounts(resources: Resources) -> dict[str, str]:
    written = {"cpu": None if resources.cpu_m is None else f"{resources.cpu_m}m", "memory": resources.memory_bytes}
    return {name: str(amount) for name, amount in written.items() if amount is not None}
