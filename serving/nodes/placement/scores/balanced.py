"""BalancedResourceAllocation: scores the balance of cpu and memory on a node with the pod, from 0 to 10.

Input: a pod and all nodes; output: a score for each node, and its explanation. An evenly full node has the same score
as an empty one, so this score should be combined with LeastRequested or MostRequested.

Source: kubernetes/kubernetes 1.7, plugin/pkg/scheduler/algorithm/priorities/balanced_resource_allocation.go; the order
of the floating-point operations is Kubernetes': shares of 0.6 and 0.8 give 7.999... and so 7, 0.5 and 0.7 give 8.
"""

from typing import ClassVar

import msgspec
import numpy as np

from serving.core.settings.placement import PlacementSettings
from serving.nodes.placement.scores.arrays import BoolArray, FloatArray, IntArray, Resource, share
from serving.nodes.placement.scores.fit import counted_requests
from serving.nodes.placement.scores.nodes import Placing


class BalancedWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Explains a score: 10 - 10 * |cpu_ratio - memory_ratio|, truncated, or 0 if one resource is ``full``.

    The ratios are the requests (including the pod's) divided by allocatable amounts; 1 where nothing is allocatable.
    """

    cpu_ratio: float
    memory_ratio: float
    full: tuple[Resource, ...]


class BalancedResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Scores of all nodes, and the arrays from which they were computed: a row per resource, a column per node.

    ``ratio`` are the requests divided by the allocatable amounts. ``full`` marks the resources that give the score 0.
    """

    score: IntArray
    ratio: FloatArray
    full: BoolArray

    def explain(self, index: int) -> BalancedWhy:
        """Explain the score of the node in column ``index``."""
        return BalancedWhy(
            cpu_ratio=float(self.ratio[0, index]),
            memory_ratio=float(self.ratio[1, index]),
            full=tuple(resource for resource, full in zip(Resource, self.full[:, index], strict=True) if full),
        )


class BalancedResourceAllocation:
    """10 - 10 * |cpu share - memory share|, rounded down; 0 if one resource is full.

    1000 m of 4000 m and 1 of 8 GiB: 10 - |0.25 - 0.125| * 10 = 8.75, so 8.
    """

    name: ClassVar[str] = "BalancedResourceAllocation"
    score_max: ClassVar[int] = 10

    def __init__(self, settings: PlacementSettings) -> None:
        self._quirks = settings.quirks

    def evaluate(self, placing: Placing) -> BalancedResult:
        """Score all nodes."""
        allocatable = placing.table.allocatable
        total, binding = counted_requests(placing, self._quirks)
        ratio = share(total, allocatable, of_nothing=1.0)
        full = share(binding, allocatable, of_nothing=1.0) >= 1.0
        cpu, memory = ratio
        evenness = 10.0 - np.abs(cpu - memory) * 10.0
        # astype truncates towards 0, as int() in Kubernetes does. A full node's value may be far below 0; it is not
        # used.
        score = np.where(full.any(axis=0), 0.0, evenness).astype(np.int64)
        return BalancedResult(score=score, ratio=ratio, full=full)
