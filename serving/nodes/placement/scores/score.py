"""The registry of node scores. A new score is one file with a class, and one line here.

A node score compares a pod with all nodes and returns a whole number per node, from 0 to its ``score_max``, higher is
better; it can explain the score of one node. Scores are independent of each other; ``provider`` sums them.
"""

from typing import ClassVar, Protocol

import msgspec

from serving.core.settings.placement import PlacementSettings
from serving.nodes.placement.scores.arrays import IntArray
from serving.nodes.placement.scores.balanced import BalancedResourceAllocation
from serving.nodes.placement.scores.fit import LeastRequested, MostRequested
from serving.nodes.placement.scores.load_variation import LoadVariationRiskBalancing
from serving.nodes.placement.scores.low_risk import LowRiskOverCommitment
from serving.nodes.placement.scores.nodes import Placing


class ScoreResult(Protocol):
    """Scores of all nodes, each with its explanation."""

    @property
    def score(self) -> IntArray:
        """One score per node, from 0 to ``score_max``."""
        ...

    def explain(self, index: int) -> msgspec.Struct:
        """Explain the score of the node in column ``index``."""
        ...


class NodeScore(Protocol):
    """One way to compare nodes. It may cache its results for the last version of the nodes."""

    name: ClassVar[str]
    score_max: ClassVar[int]

    def __init__(self, settings: PlacementSettings) -> None:
        """Raises ``SettingsError`` if the score cannot be computed, for example because a library is missing."""
        ...

    def evaluate(self, placing: Placing) -> ScoreResult:
        """Score all nodes for one pod."""
        ...


_ALL: tuple[type[NodeScore], ...] = (
    LeastRequested,
    MostRequested,
    BalancedResourceAllocation,
    LowRiskOverCommitment,
    LoadVariationRiskBalancing,
)

NODE_SCORES: dict[str, type[NodeScore]] = {score.name: score for score in _ALL}
