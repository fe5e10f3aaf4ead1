"""Keeps nodes and pods by group with their sums, updated by single changes.

Input: changed nodes and pods; output: the ``GroupFacts`` of a group. A property test compares them with sums over all
objects. The book saves each group's pass from reading every pod of the cluster.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.records import (
    Amount,
    CloudGroup,
    Failures,
    GroupFacts,
    GroupNode,
    GroupPod,
    OthersUsage,
    PodPhase,
)
from serving.nodes.nodegroup.states import NodeState, node_belongs, state_of
from serving.nodes.nodegroup.view import PodRole, as_counted, others_usage, pod_role, takes_room


class RoomExtremes(msgspec.Struct, frozen=True, kw_only=True):
    """The largest requests of pending pods, and the free amounts of the nodes with the most room.

    Fields with ``_cpu`` belong to the pod or node with the most cpu, fields with ``_memory`` to that with the most
    memory.
    """

    pending_cpu: Amount
    pending_memory: Amount
    free_cpu: Amount
    free_memory: Amount


class _Shelf(msgspec.Struct):
    """The objects of one group. ``cpu_m`` and ``memory_bytes`` are the sums of its pods' requests.

    ``pending`` are the requests of pods without a node, by pod. ``taken`` are the requests of the group's other pods,
    by node. ``others_taken`` are the requests of pods outside the group, by node.
    """

    settings: NodeGroupSettings
    nodes: dict[str, GroupNode]
    pods: dict[str, GroupPod]
    pod_counts: Counter[str]
    cpu_m: int = 0
    memory_bytes: int = 0
    anticipated_count: int = 0
    pending: dict[str, Amount] = msgspec.field(default_factory=dict)
    taken: dict[str, Amount] = msgspec.field(default_factory=dict)
    others_taken: dict[str, OthersUsage] = msgspec.field(default_factory=dict)

    def put_node(self, node: GroupNode) -> None:
        if node_belongs(node.labels, label_key=self.settings.label_key, label_value=self.settings.label_value):
            self.nodes[node.name] = node
        else:
            self.nodes.pop(node.name, None)

    def count(self, pod: GroupPod, sign: int) -> None:
        """Add (``sign`` 1) or remove (-1) a pod."""
        role = pod_role(pod, self.settings)
        if role is PodRole.OWN:
            pod = as_counted(pod, self.settings)
            self.cpu_m += sign * pod.request.cpu_m
            self.memory_bytes += sign * pod.request.memory_bytes
            self.anticipated_count += sign * pod.is_anticipated
            self._count_room(pod, sign)
            if sign > 0:
                self.pods[pod.name] = pod
            else:
                self.pods.pop(pod.name, None)
        elif pod.node_name is not None and (usage := others_usage(pod, self.settings)) is not None:
            self._count_others(pod.node_name, usage, sign)
        if role is not None and pod.node_name is not None:
            self.pod_counts[pod.node_name] += sign
            if not self.pod_counts[pod.node_name]:
                del self.pod_counts[pod.node_name]

    def _count_room(self, pod: GroupPod, sign: int) -> None:
        """Update pending requests, and the used amounts of each node, by the rules of ``rules.free_amounts``."""
        if pod.node_name is None:
            if pod.phase is PodPhase.PENDING and not pod.is_anticipated:
                if sign > 0:
                    self.pending[pod.name] = pod.request
                else:
                    self.pending.pop(pod.name, None)
        elif takes_room(pod):
            before = self.taken.get(pod.node_name, Amount())
            after = before + pod.request if sign > 0 else before - pod.request
            if after == Amount():
                self.taken.pop(pod.node_name, None)
            else:
                self.taken[pod.node_name] = after

    def _count_others(self, node_name: str, taken: OthersUsage, sign: int) -> None:
        """Update the amounts that pods outside the group use on a node."""
        before = self.others_taken.get(node_name, OthersUsage())
        after = before + taken if sign > 0 else before - taken
        if after == OthersUsage():
            self.others_taken.pop(node_name, None)
        else:
            self.others_taken[node_name] = after


class NodeGroupBook:
    """The nodes and pods of a cluster, by group. ``set_groups`` sets the groups."""

    def __init__(self) -> None:
        self._nodes: dict[str, GroupNode] = {}
        self._pods: dict[str, GroupPod] = {}
        self._shelves: dict[str, _Shelf] = {}

    def set_groups(self, groups: Iterable[NodeGroupSettings]) -> None:
        """Replace the groups. The objects of a group with changed settings are assigned again."""
        before = self._shelves
        self._shelves = {}
        for settings in groups:
            shelf = before.get(settings.name)
            if shelf is None or shelf.settings != settings:
                shelf = self._sorted_shelf(settings)
            self._shelves[settings.name] = shelf

    def set_node(self, node: GroupNode) -> None:
        """Add or update a node."""
        self._nodes[node.name] = node
        for shelf in self._shelves.values():
            shelf.put_node(node)

    def drop_node(self, name: str) -> None:
        """Drop a deleted node."""
        self._nodes.pop(name, None)
        for shelf in self._shelves.values():
            shelf.nodes.pop(name, None)

    def set_pod(self, pod: GroupPod) -> None:
        """Add or update a pod."""
        before = self._pods.get(pod.name)
        if before == pod:
            return
        self._pods[pod.name] = pod
        for shelf in self._shelves.values():
            if before is not None:
                shelf.count(before, -1)
            shelf.count(pod, 1)

    def drop_pod(self, name: str) -> None:
        """Drop a deleted pod."""
        before = self._pods.pop(name, None)
        if before is not None:
            for shelf in self._shelves.values():
                shelf.count(before, -1)

    def facts(self, group: str, cloud: CloudGroup, failures: Failures) -> GroupFacts:
        """The current objects of a group. The pods are a live view: use the facts before the next change."""
        shelf = self._shelves[group]
        return GroupFacts(
            nodes=tuple(shelf.nodes.values()),
            pods=shelf.pods.values(),
            pod_counts=shelf.pod_counts,
            request=Amount(cpu_m=shelf.cpu_m, memory_bytes=shelf.memory_bytes),
            anticipated_count=shelf.anticipated_count,
            others_taken=shelf.others_taken,
            cloud=cloud,
            failures=failures,
        )

    def extremes(self, group: str) -> RoomExtremes:
        """The largest pending pods of a group and its nodes with the most room, for metrics."""
        shelf = self._shelves[group]
        nothing, no_others = Amount(), OthersUsage()
        free = [
            node.allocatable - shelf.taken.get(node.name, nothing) - shelf.others_taken.get(node.name, no_others).total
            for node in shelf.nodes.values()
            if state_of(node) is NodeState.UNTAINTED
        ]
        pending = list(shelf.pending.values())
        return RoomExtremes(
            pending_cpu=max(pending, key=lambda amount: amount.cpu_m, default=nothing),
            pending_memory=max(pending, key=lambda amount: amount.memory_bytes, default=nothing),
            free_cpu=max(free, key=lambda amount: amount.cpu_m, default=nothing),
            free_memory=max(free, key=lambda amount: amount.memory_bytes, default=nothing),
        )

    def _sorted_shelf(self, settings: NodeGroupSettings) -> _Shelf:
        shelf = _Shelf(settings=settings, nodes={}, pods={}, pod_counts=Counter())
        for node in self._nodes.values():
            shelf.put_node(node)
        for pod in self._pods.values():
            shelf.count(pod, 1)
        return shelf
