"""LoadVariationRiskBalancing: scores a low and steady load of a node with the pod, from 0 to 100.

Input: a pod and all nodes; output: a score for each node, and its explanation. Limits have no effect. A node without
measurements scores 0. The age of metrics is treated as in LowRiskOverCommitment.

Source: kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran/loadvariationriskbalancing.
"""

from typing import ClassVar

import msgspec
import numpy as np

from serving.core.settings.placement import PlacementSettings
from serving.nodes.placement.scores.arrays import BoolArray, FloatArray, IntArray, rounded
from serving.nodes.placement.scores.metrics import clamped_usage_ratio
from serving.nodes.placement.scores.nodes import Placing


class ResourceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of one node: mean load including the pod's request and deviation, both as shares, and the score."""

    mean_ratio: float
    deviation_ratio: float
    score: float


class LoadVariationWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Explains a score: the lower score of both resources, rounded.

    A resource without a fresh measurement is None. If both are None, the score is 0.
    """

    cpu: ResourceLoad | None
    memory: ResourceLoad | None


class LoadVariationResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Scores of all nodes, and the arrays from which they were computed: a row per resource, a column per node.

    ``mean`` and ``deviation`` of the load are shares of the allocatable amount. ``usable`` marks fresh measurements.
    """

    score: IntArray
    resource_score: FloatArray
    mean: FloatArray
    deviation: FloatArray
    usable: BoolArray

    def explain(self, index: int) -> LoadVariationWhy:
        """Explain the score of the node in column ``index``."""
        return LoadVariationWhy(cpu=self._resource(0, index), memory=self._resource(1, index))

    def _resource(self, row: int, index: int) -> ResourceLoad | None:
        at = (row, index)
        if not self.usable[at]:
            return None
        return ResourceLoad(
            mean_ratio=float(self.mean[at]),
            deviation_ratio=float(self.deviation[at]),
            score=float(self.resource_score[at]),
        )


class LoadVariationRiskBalancing:
    """100 * (1 - (mean + deviation) / 2) of the worse resource, rounded half up.

    Example: mean 0.4 (including the pod) and deviation 0.12 give 100 * (1 - 0.26) = 74.
    """

    name: ClassVar[str] = "LoadVariationRiskBalancing"
    score_max: ClassVar[int] = 100

    def __init__(self, settings: PlacementSettings) -> None:
        self._settings = settings

    def evaluate(self, placing: Placing) -> LoadVariationResult:
        """Score all nodes."""
        table, settings = placing.table, self._settings
        mean = clamped_usage_ratio(table.mean_percent, table.allocatable, added=placing.pod_request)
        deviation = clamped_usage_ratio(table.deviation_percent, table.allocatable)
        resource_score = variation_score(
            mean,
            deviation,
            table.allocatable,
            margin=settings.load_variation_margin,
            sensitivity=settings.load_variation_sensitivity,
        )
        fresh = settings.quirks.metrics_never_expire | (placing.now_s - table.usage_at_s <= settings.metrics_age_max_s)
        usable = table.measured & fresh
        worst = np.where(usable, resource_score, np.inf).min(axis=0)
        return LoadVariationResult(
            score=rounded(np.where(usable.any(axis=0), worst, 0.0)),
            resource_score=resource_score,
            mean=mean,
            deviation=deviation,
            usable=usable,
        )


def variation_score(
    mean: FloatArray, deviation: FloatArray, allocatable: IntArray, *, margin: float, sensitivity: float
) -> FloatArray:
    """100 * (1 - (mean + d) / 2) with d = margin * deviation ** (1 / sensitivity), from 0 to 1; not rounded.

    0 where nothing is allocatable. Mean 0, deviation 0.07, margin 3, sensitivity 2: d = 3 * 0.2646 = 0.794, score 60.3.
    """
    spread = np.clip(margin * deviation ** (1.0 / sensitivity), 0.0, 1.0)
    return np.where(allocatable > 0, (1.0 - (mean + spread) / 2.0) * 100.0, 0.0)
