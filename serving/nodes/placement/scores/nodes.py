"""All nodes as arrays, and one pod placed on each of them.

Input: plain records of nodes, each with the demand of the pods it runs and its measured load. Output: ``NodeTable``,
which is immutable and has a version, and ``Placing``, the sums with the pending pod. The module does not decide which
nodes a pod may run on.

A table of 5,000 nodes is built in milliseconds. ``with_nodes`` builds a table with a few changed nodes in a small part
of that time. Scores then recompute their cached results for the changed nodes only.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from serving.core.model.errors import InvalidValue
from serving.core.model.nodata import NoData
from serving.nodes.placement.scores.arrays import AMOUNT_MAX, BoolArray, FloatArray, IntArray
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.pod import PodDemand

Number = TypeVar("Number", bound=np.generic)

_NO_ENTRY = NoData(missing="entry for the node among the metrics")
_NOT_MEASURED = (0.0, 0.0, 0.0)


class ScoredNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its allocatable amounts, the requests of its pods, and its measured load.

    ``usage`` is NoData if the source of metrics has no entry for the node.
    """

    name: str
    allocatable_cpu_m: int
    allocatable_memory_bytes: int
    demand: PodDemand = PodDemand()
    usage: NodeUsage | NoData = _NO_ENTRY


class NodeTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All nodes at one moment, as read-only arrays: two rows (cpu, memory), a column per node.

    Each content has a unique ``version``. ``changed_from`` is the version from which this table was made, and
    ``changed`` are the changed columns; None for a complete table. ``nonzero``, ``request`` and ``limit`` are sums over
    the pods of a node, without a cap. ``mean_percent`` and ``deviation_percent`` are 0 where ``measured`` is false.
    ``listed``: whether the metrics have an entry for the node. ``usage_at_s`` is the entry's time, minus infinity
    without an entry. ``listed`` and ``usage_at_s`` have one row.
    """

    version: int
    index_by_name: Mapping[str, int]
    allocatable: IntArray
    nonzero: IntArray
    request: IntArray
    limit: IntArray
    mean_percent: FloatArray
    deviation_percent: FloatArray
    measured: BoolArray
    listed: BoolArray
    usage_at_s: FloatArray
    changed_from: int | None = None
    changed: IntArray | None = None

    @property
    def node_count(self) -> int:
        """The number of nodes."""
        return len(self.index_by_name)

    def with_nodes(self, nodes: Iterable[ScoredNode], *, version: int) -> "NodeTable":
        """A copy of the table with some nodes changed, and another version. Raises ``KeyError`` for an unknown node."""
        new = node_table(nodes, version=version)
        at = np.array([self.index_by_name[name] for name in new.index_by_name], dtype=np.int64)
        return NodeTable(
            version=version,
            index_by_name=self.index_by_name,
            allocatable=_replaced(self.allocatable, at, new.allocatable),
            nonzero=_replaced(self.nonzero, at, new.nonzero),
            request=_replaced(self.request, at, new.request),
            limit=_replaced(self.limit, at, new.limit),
            mean_percent=_replaced(self.mean_percent, at, new.mean_percent),
            deviation_percent=_replaced(self.deviation_percent, at, new.deviation_percent),
            measured=_replaced(self.measured, at, new.measured),
            listed=_replaced(self.listed, at, new.listed),
            usage_at_s=_replaced(self.usage_at_s, at, new.usage_at_s),
            changed_from=self.version,
            changed=_read_only(at),
        )


class Placing(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One pending pod on all nodes at one time: the sums of requests and limits on each node, including the pod.

    ``pod`` is the pod's own demand; ``pod_request`` is its request as a column, cpu above memory. ``nonzero``,
    ``request`` and ``limit`` are the sums that ``PodDemand`` defines.
    """

    table: NodeTable
    pod: PodDemand
    now_s: float
    pod_request: IntArray
    nonzero: IntArray
    request: IntArray
    limit: IntArray


def place(table: NodeTable, pod: PodDemand, *, now_s: float) -> Placing:
    """Compute the sums of a pod on every node. Raises ``InvalidValue`` for a negative demand."""
    nonzero, request, limit = np.array(_demand_row("the pod", pod), dtype=np.int64).reshape(3, 2, 1)
    return Placing(
        table=table,
        pod=pod,
        now_s=now_s,
        pod_request=request,
        nonzero=table.nonzero + nonzero,
        request=table.request + request,
        limit=table.limit + limit,
    )


def node_table(nodes: Iterable[ScoredNode], *, version: int) -> NodeTable:
    """Create the arrays of all nodes, in the given order.

    Demands above 2**62 - 1 are reduced to this value, which exceeds every node's capacity.

    Raises:
        InvalidValue: for a repeated name, a negative amount, or more than 2**62 - 1 allocatable.
    """
    nodes = tuple(nodes)
    index_by_name = {node.name: index for index, node in enumerate(nodes)}
    if len(index_by_name) != len(nodes):
        twice = next(node.name for index, node in enumerate(nodes) if index_by_name[node.name] != index)
        raise InvalidValue(text=twice, expected="a name that only one node has")
    # Transposed, so that one quantity of all nodes is contiguous, as it is read.
    amounts = np.array([_amount_row(node) for node in nodes], dtype=np.int64).reshape(len(nodes), 4, 2)
    allocatable, nonzero, request, limit = _read_only(np.ascontiguousarray(amounts.transpose(1, 2, 0)))
    loads = np.array([_load_row(node.usage) for node in nodes], dtype=np.float64).reshape(len(nodes), 8).T
    return NodeTable(
        version=version,
        index_by_name=index_by_name,
        allocatable=allocatable,
        nonzero=nonzero,
        request=request,
        limit=limit,
        mean_percent=_read_only(loads[[0, 3]]),
        deviation_percent=_read_only(loads[[1, 4]]),
        measured=_read_only(loads[[2, 5]] > 0.0),
        listed=_read_only(loads[6] > 0.0),
        usage_at_s=_read_only(loads[7].copy()),
    )


def _amount_row(node: ScoredNode) -> tuple[int, ...]:
    """Allocatable amounts, then the demand, each as cpu and memory."""
    for amount in (node.allocatable_cpu_m, node.allocatable_memory_bytes):
        if not 0 <= amount <= AMOUNT_MAX:
            raise InvalidValue(
                text=f"{amount} allocatable on node {node.name}", expected=f"an amount from 0 to {AMOUNT_MAX}"
            )
    return (node.allocatable_cpu_m, node.allocatable_memory_bytes, *_demand_row(f"node {node.name}", node.demand))


def _demand_row(owner: str, demand: PodDemand) -> tuple[int, ...]:
    """The sums in the order of the record's fields: non-zero, request and limit, each as cpu and memory."""
    row: tuple[int, ...] = msgspec.structs.astuple(demand)
    if min(row) < 0:
        raise InvalidValue(text=f"{min(row)} asked for by {owner}", expected="an amount of at least 0")
    return row if max(row) <= AMOUNT_MAX else tuple(min(amount, AMOUNT_MAX) for amount in row)


def _load_row(usage: NodeUsage | NoData) -> tuple[float, ...]:
    """Mean, deviation and presence for cpu and memory; whether there is an entry, and the entry's time."""
    if isinstance(usage, NoData):
        return (*_NOT_MEASURED, *_NOT_MEASURED, 0.0, float("-inf"))
    return (*_measured(usage.cpu), *_measured(usage.memory), 1.0, usage.at_s)


def _measured(usage: Usage | NoData) -> tuple[float, float, float]:
    return _NOT_MEASURED if isinstance(usage, NoData) else (usage.mean_percent, usage.deviation_percent, 1.0)


def _replaced(array: npt.NDArray[Number], at: IntArray, columns: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """A read-only copy of an array with some columns replaced."""
    copy = array.copy()
    copy[..., at] = columns
    return _read_only(copy)


def _read_only(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    array.setflags(write=False)
    return array
