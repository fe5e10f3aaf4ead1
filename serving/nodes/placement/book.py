"""Keeps all nodes with the requests of their pods, and provides them as a table.

Input: changes of nodes and pods, and the usage of nodes. Output: the ``NodeTable`` for node scores, and the number of
pods on a node. A change of a pod costs a few additions. The table is built on request, and only the columns of changed
nodes are rebuilt. A pod on an unknown node is stored until its node appears. The book is independent of the cluster and
of scores.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.nodata import NoData
from serving.core.model.objects import FINISHED_PHASES, key_of
from serving.core.model.quantity import parse_bytes, parse_millicores, resources_of
from serving.nodes.placement.scores.metrics import NodeUsage, usage_of
from serving.nodes.placement.scores.nodes import NodeTable, ScoredNode, node_table
from serving.nodes.placement.scores.pod import Container, PodContainers, PodDemand, pod_demand, total_demand

_NOTHING = PodDemand()
_UNMEASURED = NoData(missing="entry for the node among the metrics")

_NOTHING_MEASURED = NoData(missing="measurement of the node")


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A node's facts for placement. ``pod_count_max`` is the most pods that it may run; None if unset."""

    name: str
    allocatable_cpu_m: int
    allocatable_memory_bytes: int
    pod_count_max: int | None


class PlacedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a node, with its requests."""

    key: tuple[str, str]
    node: str
    demand: PodDemand


def node_of(node: Mapping[str, Any]) -> NodeFacts:
    """The facts of a Node object."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    amounts = resources_of(allocatable)
    pods = str(allocatable.get("pods", ""))
    return NodeFacts(
        name=node["metadata"]["name"],
        allocatable_cpu_m=amounts.cpu_m or 0,
        allocatable_memory_bytes=amounts.memory_bytes or 0,
        pod_count_max=int(pods) if pods.isdecimal() else None,
    )


def pod_of(pod: Mapping[str, Any]) -> PlacedPod | None:
    """The node and the requests of a bound Pod; None for a pending or ended Pod."""
    spec = pod.get("spec") or {}
    node, phase = spec.get("nodeName"), (pod.get("status") or {}).get("phase")
    if not node or phase in FINISHED_PHASES:
        return None
    return PlacedPod(key=key_of(pod), node=node, demand=demand_of(pod))


def demand_of(pod: Mapping[str, Any]) -> PodDemand:
    """The requests and limits of a Pod, summed over its containers."""
    spec = pod.get("spec") or {}
    return pod_demand(
        PodContainers(
            containers=_containers(spec.get("containers") or ()),
            init_containers=_containers(spec.get("initContainers") or ()),
            overhead=resources_of(spec.get("overhead")),
        )
    )


def _containers(written: Iterable[Mapping[str, Any]]) -> tuple[Container, ...]:
    return tuple(
        Container(
            request=resources_of((container.get("resources") or {}).get("requests")),
            limit=resources_of((container.get("resources") or {}).get("limits")),
            is_sidecar=container.get("restartPolicy") == "Always",
        )
        for container in written
    )


class NodeBook:
    """Nodes and the pods on them."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeFacts] = {}
        self._pods: dict[tuple[str, str], PlacedPod] = {}
        self._by_node: dict[str, dict[tuple[str, str], PodDemand]] = {}
        self._usages: dict[str, NodeUsage] = {}
        self._dirty: set[str] = set()
        self._is_other_set = True
        self._table = node_table((), version=0)

    def node(self, name: str) -> NodeFacts | None:
        """The node with this name; None if it is unknown."""
        return self._nodes.get(name)

    def usage(self, name: str) -> NodeUsage | NoData:
        """The measured load of a node."""
        return self._usages.get(name, _UNMEASURED)

    def pod_count(self, node: str) -> int:
        """The number of pods on a node."""
        return len(self._by_node.get(node, ()))

    def set_node(self, node: NodeFacts) -> None:
        """Add or update a node."""
        before = self._nodes.get(node.name)
        if before == node:
            return
        self._is_other_set = self._is_other_set or before is None
        self._nodes[node.name] = node
        self._dirty.add(node.name)

    def drop_node(self, name: str) -> None:
        """Drop a deleted node."""
        if self._nodes.pop(name, None) is not None:
            self._is_other_set = True

    def set_pod(self, pod: PlacedPod) -> None:
        """Add or update a pod on a node."""
        before = self._pods.get(pod.key)
        if before == pod:
            return
        self.drop_pod(pod.key)
        self._pods[pod.key] = pod
        self._by_node.setdefault(pod.node, {})[pod.key] = pod.demand
        self._dirty.add(pod.node)

    def drop_pod(self, key: tuple[str, str]) -> None:
        """Drop a deleted or ended pod."""
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        pods = self._by_node[pod.node]
        del pods[key]
        if not pods:
            del self._by_node[pod.node]
        self._dirty.add(pod.node)

    def set_usages(self, usages: Mapping[str, NodeUsage]) -> None:
        """Replace the measured usage of all nodes."""
        self._dirty |= usages.keys() | self._usages.keys()
        self._usages = dict(usages)

    def table(self) -> NodeTable:
        """All nodes as arrays. Returns the same object until something changes."""
        version = self._table.version + 1
        if self._is_other_set:
            self._table = node_table((self._row(name) for name in sorted(self._nodes)), version=version)
        else:
            changed = sorted(self._dirty & self._nodes.keys())
            if changed:
                self._table = self._table.with_nodes((self._row(name) for name in changed), version=version)
        self._dirty.clear()
        self._is_other_set = False
        return self._table

    def _row(self, name: str) -> ScoredNode:
        node, pods = self._nodes[name], self._by_node.get(name)
        return ScoredNode(
            name=name,
            allocatable_cpu_m=node.allocatable_cpu_m,
            allocatable_memory_bytes=node.allocatable_memory_bytes,
            demand=total_demand(pods.values()) if pods else _NOTHING,
            usage=self.usage(name),
        )


class _LoadSample(msgspec.Struct, frozen=True):
    """A node's measured load in percent of its allocatable amounts; None if an amount or the load is unknown."""

    stamp: str
    at_s: float
    cpu_percent: float | None
    memory_percent: float | None


class NodeLoads:
    """The newest samples of each node, at most ``samples_max``."""

    def __init__(self, samples_max: int) -> None:
        self._samples_max = samples_max
        self._by_node: dict[str, deque[_LoadSample]] = {}

    def update(
        self, items: Iterable[Mapping[str, Any]], node: Callable[[str], NodeFacts | None], now_s: float
    ) -> dict[str, NodeUsage]:
        """Add a complete list of NodeMetrics; return the usage of each node. ``node`` finds a node by name."""
        before, self._by_node = self._by_node, {}
        for item in items:
            name, stamp = item["metadata"]["name"], str(item.get("timestamp", ""))
            samples = before.get(name) or deque(maxlen=self._samples_max)
            self._by_node[name] = samples
            facts = node(name)
            if facts is not None and (not samples or samples[-1].stamp != stamp):
                used = item.get("usage") or {}
                cpu = _percent(used.get("cpu"), parse_millicores, facts.allocatable_cpu_m)
                memory = _percent(used.get("memory"), parse_bytes, facts.allocatable_memory_bytes)
                samples.append(_LoadSample(stamp, now_s, cpu, memory))
        return {name: _usage(samples) for name, samples in self._by_node.items() if samples}


def _usage(samples: deque[_LoadSample]) -> NodeUsage:
    return NodeUsage(
        at_s=samples[-1].at_s,
        cpu=usage_of((sample.cpu_percent for sample in samples), missing=_NOTHING_MEASURED),
        memory=usage_of((sample.memory_percent for sample in samples), missing=_NOTHING_MEASURED),
    )


def _percent(written: object, parse: Callable[[str], int], allocatable: int) -> float | None:
    if written is None or allocatable <= 0:
        return None
    try:
        return 100.0 * parse(str(written)) / allocatable
    except InvalidValue:
        return None
