"""Combines several node scores to one number per node, by the selected scores and their weights.

Input: settings, then one table of nodes and one pod at a time. Output: ``Scores``, from which ``pick`` selects the
node. Kubernetes' providers also have scores for spreading, affinity and taints; those are not supported.

Source: kubernetes/kubernetes 1.7, plugin/pkg/scheduler/algorithmprovider/defaults and core/generic_scheduler.go.
"""

import msgspec
import numpy as np

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.nodata import NoData
from serving.core.settings.placement import (
    CLUSTER_AUTOSCALER_PROVIDER,
    DEFAULT_PROVIDER,
    LOW_RISK_PROVIDER,
    PlacementSettings,
    read_weights,
)
from serving.nodes.placement.scores.arrays import BoolArray, FloatArray, IntArray, rounded
from serving.nodes.placement.scores.nodes import NodeTable, place
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.score import NODE_SCORES, NodeScore, ScoreResult

PROVIDERS: dict[str, dict[str, int]] = {
    DEFAULT_PROVIDER: {"LeastRequested": 1, "BalancedResourceAllocation": 1},
    CLUSTER_AUTOSCALER_PROVIDER: {"MostRequested": 1, "BalancedResourceAllocation": 1},
    LOW_RISK_PROVIDER: {"LowRiskOverCommitment": 1},
}
"""Weights by provider. The first two are Kubernetes', without scores unrelated to resources."""

# Totals use the scale of Kubernetes 1.7 and its extenders; scores from 0 to 100 count in tenths.
_SCALE = 10


class ScorePart(msgspec.Struct, frozen=True, kw_only=True):
    """One score of one node, from 0 to ``score_max``, with its weight and explanation."""

    name: str
    weight: int
    score: int
    score_max: int
    why: msgspec.Struct


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explains a node's total: the sum over ``parts`` of weight * score * 10 / score_max.

    ``better_count`` is the number of nodes with a higher total. ``version`` is the version of the nodes.
    """

    node: str
    version: int
    total: float
    better_count: int
    parts: tuple[ScorePart, ...]


class WeightedResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One score of all nodes, and its weight."""

    name: str
    weight: int
    score_max: int
    result: ScoreResult


class Scores(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Totals of all nodes for one pod, with their parts."""

    table: NodeTable
    total: FloatArray
    parts: tuple[WeightedResult, ...]

    def extender_score(self) -> IntArray:
        """Totals in the form of a scheduler extender: whole numbers from 0 to 10."""
        return rounded(self.total / sum(part.weight for part in self.parts))

    def explain(self, node: str) -> NodeExplanation:
        """Explain the total of one node. Raises ``KeyError`` for an unknown node."""
        index = self.table.index_by_name[node]
        return NodeExplanation(
            node=node,
            version=self.table.version,
            total=float(self.total[index]),
            better_count=int((self.total > self.total[index]).sum()),
            parts=tuple(
                ScorePart(
                    name=part.name,
                    weight=part.weight,
                    score=int(part.result.score[index]),
                    score_max=part.score_max,
                    why=part.result.explain(index),
                )
                for part in self.parts
            ),
        )


class Scorer:
    """Scores nodes by the settings. It caches results for the last version of the nodes."""

    def __init__(self, settings: PlacementSettings) -> None:
        """Raises ``SettingsError`` for an unknown score, or for a score whose library is missing."""
        weights = read_weights(settings.score_weights) or PROVIDERS[settings.provider]
        unknown = [name for name in weights if name not in NODE_SCORES]
        if unknown:
            expected = "one of " + ", ".join(NODE_SCORES)
            raise SettingsError(
                [Problem(where="score-weights", what=f"no node score {name}", expected=expected) for name in unknown]
            )
        self._scores: list[tuple[NodeScore, int]] = [
            (NODE_SCORES[name](settings), weight) for name, weight in weights.items()
        ]

    def score(self, table: NodeTable, pod: PodDemand, *, now_s: float) -> Scores:
        """Score all nodes for one pod."""
        placing = place(table, pod, now_s=now_s)
        parts = tuple(
            WeightedResult(name=score.name, weight=weight, score_max=score.score_max, result=score.evaluate(placing))
            for score, weight in self._scores
        )
        total = np.zeros(table.node_count)
        for part in parts:
            total += part.weight * part.result.score * (_SCALE / part.score_max)
        return Scores(table=table, total=total, parts=parts)


def pick(total: FloatArray, *, feasible: BoolArray, turn: int) -> int | NoData:
    """The column of the feasible node with the highest total; NoData if no node is feasible.

    Of equal nodes the ``turn``-th is selected, modulo their number. A caller that increments ``turn`` per pod selects
    equal nodes evenly.
    """
    columns = np.flatnonzero(feasible)
    if not columns.size:
        return NoData(missing="node that the pod fits on")
    best = columns[total[columns] == total[columns].max()]
    return int(best[turn % best.size])
