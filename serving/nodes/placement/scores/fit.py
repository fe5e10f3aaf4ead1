"""LeastRequested and MostRequested: score the free or the used part of a node with the pod, from 0 to 10.

Input: a pod and all nodes; output: a score for each node, and its explanation. LeastRequested spreads pods,
MostRequested packs them. The score does not decide whether a pod fits, but never favours a node that is too small.

Source: kubernetes/kubernetes 1.7, plugin/pkg/scheduler/algorithm/priorities/{least,most}_requested.go.
"""

import enum
from typing import ClassVar

import msgspec
import numpy as np

from serving.core.settings.placement import PlacementQuirks, PlacementSettings
from serving.nodes.placement.scores.arrays import BoolArray, IntArray
from serving.nodes.placement.scores.nodes import Placing

# Above this, ten times an amount no longer fits into int64 (about 820 PiB).
_TENFOLD_MAX = (2**63 - 1) // 10


class AmountRule(enum.StrEnum):
    """The rule that scored one resource."""

    SHARE = "share"
    """The free or used part, in tenths, rounded down."""

    NO_CAPACITY = "no_capacity"
    """Nothing is allocatable: 0."""

    OVERFULL = "overfull"
    """More is requested than is allocatable: 0."""

    FILLED_BY_ASSUMPTION = "filled_by_assumption"
    """Assumed amounts of containers without requests would overfill the node; it counts as exactly full."""


class ResourceFit(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of one node, and its score from 0 to 10.

    ``total`` are the requests on the node including the pending pod's, in millicores or bytes. ``rule`` says how the
    score was found.
    """

    total: int
    allocatable: int
    score: int
    rule: AmountRule


class FitWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Explains a score: (cpu.score + memory.score) / 2, truncated."""

    cpu: ResourceFit
    memory: ResourceFit


class FitResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Scores of all nodes, and the arrays from which they were computed: a row per resource, a column per node.

    ``total`` are the requests including the pending pod's. ``overfull``: they exceed the allocatable amount.
    ``clipped``: only the amounts assumed for containers without requests exceed it; the node then counts as exactly
    full.
    """

    score: IntArray
    total: IntArray
    allocatable: IntArray
    resource_score: IntArray
    overfull: BoolArray
    clipped: BoolArray

    def explain(self, index: int) -> FitWhy:
        """Explain the score of the node in column ``index``."""
        return FitWhy(cpu=self._resource(0, index), memory=self._resource(1, index))

    def _resource(self, row: int, index: int) -> ResourceFit:
        at = (row, index)
        if self.allocatable[at] == 0:
            rule = AmountRule.NO_CAPACITY
        elif self.overfull[at]:
            rule = AmountRule.OVERFULL
        else:
            rule = AmountRule.FILLED_BY_ASSUMPTION if self.clipped[at] else AmountRule.SHARE
        return ResourceFit(
            total=int(self.total[at]),
            allocatable=int(self.allocatable[at]),
            score=int(self.resource_score[at]),
            rule=rule,
        )


class LeastRequested:
    """(unused tenths of cpu + unused tenths of memory) / 2, truncated.

    250 m of 1000 m and 5 of 10 GiB taken: (7 + 5) / 2 = 6.
    """

    name: ClassVar[str] = "LeastRequested"
    score_max: ClassVar[int] = 10

    def __init__(self, settings: PlacementSettings) -> None:
        """Ignores the settings, none of which change this score."""

    def evaluate(self, placing: Placing) -> FitResult:
        """Score all nodes."""
        allocatable = placing.table.allocatable
        overfull = placing.nonzero > allocatable
        return _result(
            total=placing.nonzero,
            allocatable=allocatable,
            tenths=unused_tenths(placing.nonzero, allocatable),
            overfull=overfull,
            clipped=np.zeros_like(overfull),
        )


class MostRequested:
    """(used tenths of cpu + used tenths of memory) / 2, truncated.

    250 m of 1000 m and 5 of 10 GiB taken: (2 + 5) / 2 = 3.
    """

    name: ClassVar[str] = "MostRequested"
    score_max: ClassVar[int] = 10

    def __init__(self, settings: PlacementSettings) -> None:
        self._quirks = settings.quirks

    def evaluate(self, placing: Placing) -> FitResult:
        """Score all nodes."""
        allocatable = placing.table.allocatable
        total, binding = counted_requests(placing, self._quirks)
        overfull = binding > allocatable
        counted = np.where(overfull, binding, total)
        return _result(
            total=counted,
            allocatable=allocatable,
            tenths=used_tenths(counted, allocatable),
            overfull=overfull,
            clipped=total < placing.nonzero,
        )


def counted_requests(placing: Placing, quirks: PlacementQuirks) -> tuple[IntArray, IntArray]:
    """The requests on each node, including the pod's: one array for the score, one for the capacity check.

    The score assumes 100 m and 200 MiB for containers without requests; its sum is cut to the allocatable amount. The
    check uses the declared requests. With the quirk ``assumed_requests_fill_nodes``, as in Kubernetes 1.7, both use
    the sum with assumed requests, uncut.
    """
    if quirks.assumed_requests_fill_nodes:
        return placing.nonzero, placing.nonzero
    return np.minimum(placing.nonzero, placing.table.allocatable), placing.request


def unused_tenths(total: IntArray, allocatable: IntArray) -> IntArray:
    """Free tenths of each resource, rounded down: 1 of 3 used leaves 6.

    0 for a resource that is overfull or has no capacity.
    """
    return _tenths(np.maximum(allocatable - total, 0), allocatable)


def used_tenths(total: IntArray, allocatable: IntArray) -> IntArray:
    """Used tenths of each resource, rounded down: 1 of 3 used is 3.

    0 for a resource that is overfull or has no capacity.
    """
    return _tenths(np.where(total > allocatable, 0, total), allocatable)


def _tenths(part: IntArray, whole: IntArray) -> IntArray:
    """``part * 10 // whole``, exact for all 0 <= part <= whole; 0 of 0 is 0."""
    divisor = np.maximum(whole, 1)
    if divisor.max(initial=1) > _TENFOLD_MAX:
        # Python's integers are unbounded but slow, which is acceptable because no node is that large.
        exact: IntArray = (part.astype(object) * 10 // divisor.astype(object)).astype(np.int64)
        return exact
    return part * 10 // divisor


def _result(
    *, total: IntArray, allocatable: IntArray, tenths: IntArray, overfull: BoolArray, clipped: BoolArray
) -> FitResult:
    cpu, memory = tenths
    return FitResult(
        score=(cpu + memory) // 2,
        total=total,
        allocatable=allocatable,
        resource_score=tenths,
        overfull=overfull,
        clipped=clipped,
    )
