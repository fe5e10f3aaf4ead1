"""Nodes and pods for tests: by default 4000 m, and 2 MiB of memory for each millicore."""

from serving.core.model.nodata import NoData
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import Placing, ScoredNode, node_table, place
from serving.nodes.placement.scores.pod import PodDemand

GIB = 2**30
CPU_M = 4000
BYTES_PER_M = 2 * 2**20
MEMORY_BYTES = CPU_M * BYTES_PER_M


def demand(nonzero_m: int = 0, request_m: int | None = None, limit_m: int | None = None) -> PodDemand:
    """Memory is proportional to cpu; requests default to the non-zero amounts, limits to the requests."""
    request = nonzero_m if request_m is None else request_m
    limit = request if limit_m is None else limit_m
    return PodDemand(
        nonzero_cpu_m=nonzero_m,
        nonzero_memory_bytes=nonzero_m * BYTES_PER_M,
        request_cpu_m=request,
        request_memory_bytes=request * BYTES_PER_M,
        limit_cpu_m=limit,
        limit_memory_bytes=limit * BYTES_PER_M,
    )


def load(mean_percent: float, deviation_percent: float = 0.0, *, at_s: float = 0.0) -> NodeUsage:
    """The same load of cpu and memory."""
    usage = Usage(mean_percent=mean_percent, deviation_percent=deviation_percent)
    return NodeUsage(at_s=at_s, cpu=usage, memory=usage)


def node(
    name: str = "a",
    pods: PodDemand | None = None,
    *,
    usage: NodeUsage | NoData | None = None,
    cpu_m: int = CPU_M,
    memory_bytes: int = MEMORY_BYTES,
) -> ScoredNode:
    """A node without pods and without metrics unless given."""
    return ScoredNode(
        name=name,
        allocatable_cpu_m=cpu_m,
        allocatable_memory_bytes=memory_bytes,
        demand=pods or PodDemand(),
        usage=usage or NoData(missing="entry"),
    )


def new_placing(pod: PodDemand, *nodes: ScoredNode, now_s: float = 0.0) -> Placing:
    """A pod placed on nodes."""
    return place(node_table(nodes, version=1), pod, now_s=now_s)
