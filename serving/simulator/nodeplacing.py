"""Which simulated node a pod goes to: the product's own node scores over the nodes that take pods and have room.

Input: nodes that come, are tainted and go, and pods of one size; output: the name of a node, or None. The scores are those of
placement, by the word that ``serving up --node-policy`` takes.
"""

import msgspec
import numpy as np

from serving.nodegroup.records import Amount
from serving.placement.book import NodeBook
from serving.placement.facts import NodeFacts, PlacedPod
from serving.placement.scores.pod import PodDemand
from serving.placement.scores.provider import Scorer, pick
from serving.settings.nodegroup import NodeGroupSettings
from serving.settings.placement import NODE_POLICIES, PlacementSettings


class SimulatedPlacing:
    """Nodes with their room for pods that all request the same."""

    def __init__(self, policy: str, *, cpu_m: int, memory_bytes: int) -> None:
        """What each pod requests."""
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

    def __repr__(self) -> str:
        """One line."""
        return f"SimulatedPlacing({self._book!r})"

    def put_node(self, name: str, *, cpu_m: int, memory_bytes: int) -> None:
        """A node that takes pods from now on."""
        facts = NodeFacts(name=name, allocatable_cpu_m=cpu_m, allocatable_memory_bytes=memory_bytes, pod_count_max=None)
        self._book.take_node(facts)

    def drop_node(self, name: str) -> None:
        """A node that is gone."""
        self._book.drop_node(name)
        self._closed.discard(name)

    def set_taint(self, name: str, *, is_tainted: bool) -> None:
        """A tainted node takes no further pods."""
        (self._closed.add if is_tainted else self._closed.discard)(name)

    def place(self, pod: str, *, now_s: float) -> str | None:
        """Put a pod on the best node; None if no node has room."""
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
        self._book.take_pod(PlacedPod(key=("", pod), node=names[column], demand=self._demand))
        return names[column]

    def leave(self, pod: str) -> None:
        """A pod is gone from its node."""
        self._book.drop_pod(("", pod))


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes are like. Amounts are of each node and of each pod; ``policy`` names a set of node scores."""

    count: int
    count_max: int
    node: Amount
    pod: Amount
    boot_s: float
    scan_interval_s: float
    policy: str
    group: NodeGroupSettings
