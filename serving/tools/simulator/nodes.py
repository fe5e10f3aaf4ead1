"""Simulates nodes shared by several revisions: places for a number of pods, and a FIFO queue of waiting pods.

A pod keeps its place until it has drained. All pods request the same, so ``SharedNodes`` counts the nodes as one;
``SimulatedPlacing`` places pods on single nodes by their scores. Revisions on shared nodes are simulated together, each
up to the next event of another revision.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from serving.core.scaling.decision.policy import RevisionPolicy
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.core.settings.placement import NODE_POLICIES, PlacementSettings
from serving.nodes.nodegroup.records import Amount
from serving.nodes.placement.book import NodeBook, NodeFacts, PlacedPod
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.provider import Scorer, pick
from serving.tools.simulator.pods import PodSet, SimulatedPod


class NodeTenant(Protocol):
    """A simulated revision, as seen by the nodes that it shares with others."""

    name: str
    pods: PodSet
    limit_s: float

    @property
    def next_s(self) -> float:
        """The time of the next event or decision; infinite after the last one."""
        ...

    def run_until(self, limit_s: float) -> None:
        """Simulate all events up to a time."""
        ...

    def start_container(self, pod: SimulatedPod, at_s: float) -> None:
        """Start the pod's container on its node."""
        ...


class NodeRoom(Protocol):
    """The nodes, as seen by simulated revisions. ``tenant`` is the revision that is being simulated."""

    tenant: NodeTenant | None

    @property
    def next_s(self) -> float:
        """The next time at which an event of the nodes affects a revision; infinite if there is none."""
        ...

    def place(self, tenant: NodeTenant, pod: SimulatedPod, now_s: float) -> bool:
        """Place the pod now, or queue it; return whether it was placed."""
        ...

    def release(self, tenant: NodeTenant, pod: SimulatedPod, at_s: float) -> None:
        """Remove a pod from its node at ``at_s``, or from the queue immediately."""
        ...

    def decided(self, tenant: NodeTenant, outcome: ScalerOutcome, policy: RevisionPolicy) -> None:
        """Process a decision of a revision."""
        ...

    def step(self) -> Sequence[NodeTenant]:
        """Run the event due at ``next_s``; return the affected revisions."""
        ...


class SharedNodes:
    """Capacity for ``pods_max`` pods of all revisions together."""

    def __init__(self, pods_max: int) -> None:
        self._free_count = pods_max
        self._leaving_s: list[float] = []
        self._waiting: deque[tuple[NodeTenant, SimulatedPod]] = deque()
        self.tenant: NodeTenant | None = None

    @property
    def next_s(self) -> float:
        """The time at which the next queued pod gets a place; infinite without such a pod."""
        self._drop_ended()
        if not self._waiting:
            return math.inf
        assert not self._free_count, self
        return self._leaving_s[0] if self._leaving_s else math.inf

    def place(self, tenant: NodeTenant, pod: SimulatedPod, now_s: float) -> bool:
        """Place the pod now, or queue it; return whether it was placed."""
        self._drop_ended()
        while self._leaving_s and self._leaving_s[0] <= now_s and not self._waiting:
            heapq.heappop(self._leaving_s)
            self._free_count += 1
        if self._waiting or not self._free_count:
            self._waiting.append((tenant, pod))
            tenant.limit_s = min(tenant.limit_s, self.next_s)
            return False
        self._free_count -= 1
        pod.is_placed = True
        return True

    def release(self, tenant: NodeTenant, pod: SimulatedPod, at_s: float) -> None:
        """Free the place of a pod at ``at_s``. A pod that is still queued has no place."""
        del tenant
        if not pod.is_placed:
            return
        heapq.heappush(self._leaving_s, at_s)
        if self._waiting and self.tenant is not None:
            self.tenant.limit_s = min(self.tenant.limit_s, at_s)

    def decided(self, tenant: NodeTenant, outcome: ScalerOutcome, policy: RevisionPolicy) -> None:
        """Do nothing: the number of these nodes does not change."""

    def step(self) -> list[NodeTenant]:
        """Assign the next free place to the longest waiting pod; return its revision."""
        at_s = heapq.heappop(self._leaving_s)
        tenant, pod = self._waiting.popleft()
        pod.is_placed = True
        tenant.start_container(pod, at_s)
        return [tenant]

    def _drop_ended(self) -> None:
        """Drop queued pods that were removed meanwhile."""
        while self._waiting and self._waiting[0][1].is_ending:
            self._waiting.popleft()


def run_together(tenants: Sequence[NodeTenant], nodes: NodeRoom) -> None:
    """Simulate revisions on shared nodes in the order of time, until the end."""
    place_of = {id(tenant): place for place, tenant in enumerate(tenants)}
    due = [(tenant.next_s, place) for place, tenant in enumerate(tenants)]
    heapq.heapify(due)
    while True:
        at_s, place = due[0] if due else (math.inf, 0)
        if nodes.next_s <= at_s and math.isfinite(nodes.next_s):
            for changed in nodes.step():
                heapq.heappush(due, (changed.next_s, place_of[id(changed)]))
            continue
        if not due:
            return
        heapq.heappop(due)
        tenant = tenants[place]
        # A place on a node changes the next step, which then has a separate entry.
        if tenant.next_s != at_s or math.isinf(at_s):
            continue
        nodes.tenant = tenant
        tenant.run_until(min(due[0][0] if due else math.inf, nodes.next_s))
        heapq.heappush(due, (tenant.next_s, place))


class SimulatedPlacing:
    """Nodes with their free capacity; all pods have the same requests."""

    def __init__(self, policy: str, *, cpu_m: int, memory_bytes: int) -> None:
        """``cpu_m`` and ``memory_bytes`` are the requests of each pod."""
        self._demand = PodDemand(
            nonzero_cpu_m=cpu_m,
            nonzero_memory_bytes=memory_bytes,
            request_cpu_m=cpu_m,
            request_memory_bytes=memory_bytes,
            limit_cpu_m=cpu_m,
            limit_memory_bytes=memory_bytes,
        )
        self._asked = np.array([[cpu_m], [memory_bytes]])
        self._book = NodeBook()
        self._scorer = Scorer(PlacementSettings(provider=NODE_POLICIES[policy]))
        self._closed: set[str] = set()
        self._turn = 0

    def put_node(self, name: str, *, cpu_m: int, memory_bytes: int) -> None:
        """Add a node."""
        facts = NodeFacts(name=name, allocatable_cpu_m=cpu_m, allocatable_memory_bytes=memory_bytes, pod_count_max=None)
        self._book.set_node(facts)

    def drop_node(self, name: str) -> None:
        """Drop a removed node."""
        self._book.drop_node(name)
        self._closed.discard(name)

    def set_taint(self, name: str, *, is_tainted: bool) -> None:
        """Taint a node, so that it accepts no further pods, or remove the taint."""
        (self._closed.add if is_tainted else self._closed.discard)(name)

    def place(self, pod: str, *, now_s: float) -> str | None:
        """Put a pod on the node with the best score; return the node's name, or None if no node has capacity."""
        table = self._book.table()
        if not table.node_count:
            return None
        names = list(table.index_by_name)
        room = (table.allocatable[:2] - table.request[:2] >= self._asked).all(axis=0)
        feasible = room & np.array([name not in self._closed for name in names], dtype=bool)
        if not feasible.any():
            return None
        self._turn += 1
        total = self._scorer.score(table, self._demand, now_s=now_s).total
        column = pick(total, feasible=feasible, turn=self._turn)
        assert isinstance(column, int), "a node is feasible"
        self._book.set_pod(PlacedPod(key=("", pod), node=names[column], demand=self._demand))
        return names[column]

    def remove(self, pod: str) -> None:
        """Remove a pod from its node."""
        self._book.drop_pod(("", pod))


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of simulated nodes: ``count`` at the start, at most ``count_max`` later.

    ``node`` is the capacity of a node, ``pod`` the request of each pod. A requested node is ready after ``boot_s``
    seconds. The node group decides every ``scan_interval_s`` seconds. ``policy`` names a set of node scores.
    """

    count: int
    count_max: int
    node: Amount
    pod: Amount
    boot_s: float
    scan_interval_s: float
    policy: str
    group: NodeGroupSettings
