"""Room and scores of virtual nodes: where a pod goes among the nodes that take it.

Input: nodes, pods and what nodes use, as they come; output: the best node for a pod, or why none has room. Uses the node scores of
placement with the policy of the settings. Imported only where there are virtual nodes: one machine without them needs no numpy
here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from serving.home.controllers.scheduling import refusal, unschedulable_message
from serving.model.objects import Object, name_of
from serving.placement.book import NodeBook
from serving.placement.facts import PlacedPod, demand_of, node_of, pod_of
from serving.placement.scores.pod import PodDemand
from serving.placement.scores.provider import Scorer, pick
from serving.settings.placement import NODE_POLICIES, PlacementSettings

_RESERVED = "reserved for a pod that is being created"


class NodePlacing:
    """Nodes with their room. Raises ``SettingsError`` for a policy whose library is missing."""

    def __init__(self, policy: str) -> None:
        self.book = NodeBook()
        self._nodes: dict[str, Object] = {}
        self._scorer = Scorer(PlacementSettings(provider=NODE_POLICIES[policy]))
        self._turn = 0

    def __repr__(self) -> str:
        return f"NodePlacing({self.book!r})"

    def take_node(self, node: Object) -> None:
        """A node that is new or has changed."""
        self._nodes[name_of(node)] = node
        self.book.take_node(node_of(node))

    def drop_node(self, name: str) -> None:
        """A node that is gone."""
        self._nodes.pop(name, None)
        self.book.drop_node(name)

    def take_pod(self, key: tuple[str, str], pod: Object | None) -> None:
        """A pod that is new or has changed; None if it is gone."""
        placed = None if pod is None else pod_of(pod)
        if placed is None:
            self.book.drop_pod(key)
        else:
            self.book.take_pod(placed)

    def reserve(self, token: str, node: str, pod: Mapping[str, Any]) -> None:
        """Keep a pod's room on a node until its object is there."""
        self.book.take_pod(PlacedPod(key=(_RESERVED, token), node=node, demand=demand_of(pod)))

    def release(self, token: str) -> None:
        """Give reserved room back."""
        self.book.drop_pod((_RESERVED, token))

    def choose(self, pod: Mapping[str, Any], *, now_s: float) -> tuple[str, str]:
        """The best node and ""; or "" and why no node takes the pod."""
        table, demand = self.book.table(), demand_of(pod)
        reasons = {name: self._refusal(name, node, pod=pod, demand=demand) for name, node in self._nodes.items()}
        feasible = np.array([reasons.get(name, "gone") == "" for name in table.index_by_name], dtype=bool)
        if not feasible.any():
            return "", unschedulable_message(reasons.values())
        self._turn += 1
        column = pick(self._scorer.score(table, demand, now_s=now_s).total, feasible=feasible, turn=self._turn)
        assert isinstance(column, int), "a node is feasible"
        return list(table.index_by_name)[column], ""

    def _refusal(self, name: str, node: Object, *, pod: Mapping[str, Any], demand: PodDemand) -> str:
        why = refusal(node, pod)
        if why:
            return why
        table, facts = self.book.table(), self.book.node(name)
        column = table.index_by_name[name]
        for row, (resource, asked) in enumerate(
            (("cpu", demand.request_cpu_m), ("memory", demand.request_memory_bytes))
        ):
            if asked > max(0, int(table.allocatable[row, column] - table.request[row, column])):
                return f"Insufficient {resource}"
        if facts is not None and facts.pod_count_max is not None and self.book.pod_count(name) >= facts.pod_count_max:
            return "Too many pods"
        return ""
