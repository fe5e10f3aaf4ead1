"""One pod over 5,000 nodes with all four node scores: nodes that just changed, the same nodes, one node changed."""

import random

from bench.naive.scores import balanced, least_requested, low_risk, most_requested, naive_node, naive_pod
from bench.parts.timing import Comparison
from serving.core.settings.placement import ORIGINAL, PlacementSettings
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import NodeTable, ScoredNode, node_table
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.provider import Scorer, Scores

NODE_COUNT = 5000
WEIGHTS = "LeastRequested=1, MostRequested=1, BalancedResourceAllocation=1, LowRiskOverCommitment=1"
SETTINGS = PlacementSettings(score_weights=WEIGHTS)
POD = PodDemand(
    nonzero_cpu_m=500,
    nonzero_memory_bytes=2**30,
    request_cpu_m=500,
    request_memory_bytes=2**30,
    limit_cpu_m=2000,
    limit_memory_bytes=2**32,
)


def _demand(dice: random.Random, allocatable: tuple[int, int]) -> PodDemand:
    cpu_m, memory_bytes = (int(amount * dice.uniform(0.1, 0.9)) for amount in allocatable)
    limit_cpu_m, limit_memory_bytes = (int(amount * dice.uniform(1, 2)) for amount in (cpu_m, memory_bytes))
    return PodDemand(
        nonzero_cpu_m=cpu_m,
        nonzero_memory_bytes=memory_bytes,
        request_cpu_m=cpu_m,
        request_memory_bytes=memory_bytes,
        limit_cpu_m=limit_cpu_m,
        limit_memory_bytes=limit_memory_bytes,
    )


def _node(index: int, dice: random.Random) -> ScoredNode:
    allocatable = (1000 * dice.choice((4, 8, 16, 64)), 2**30 * dice.choice((8, 32, 64, 256)))
    usage = [Usage(mean_percent=dice.uniform(1, 95), deviation_percent=dice.uniform(0.5, 20)) for _ in range(2)]
    return ScoredNode(
        name=f"node-{index}",
        allocatable_cpu_m=allocatable[0],
        allocatable_memory_bytes=allocatable[1],
        demand=_demand(dice, allocatable),
        usage=NodeUsage(at_s=0.0, cpu=usage[0], memory=usage[1]),
    )


class _Ours:
    """Scores by the product."""

    def __init__(self, nodes: list[ScoredNode], settings: PlacementSettings) -> None:
        self.nodes = nodes
        self.scorer = Scorer(settings)
        self.table = node_table(nodes, version=0)

    def build(self) -> NodeTable:
        """Make a table from records."""
        return node_table(self.nodes, version=self.table.version + 1)

    def same_nodes(self) -> Scores:
        """Only the pod is new."""
        return self.scorer.score(self.table, POD, now_s=1.0)

    def all_changed(self) -> Scores:
        """Nothing that was kept holds any more."""
        self.scorer = Scorer(SETTINGS)
        return self.same_nodes()

    def one_changed(self) -> Scores:
        """A pod was bound to one node since the last call."""
        self.table = self.table.with_nodes([self.nodes[7]], version=self.table.version + 1)
        return self.same_nodes()


def rows() -> list[Comparison]:
    """All four scores over 5,000 nodes against the peer; then what only we do."""
    dice = random.Random(7)
    nodes = [_node(index, dice) for index in range(NODE_COUNT)]
    simple, pod = [naive_node(node) for node in nodes], naive_pod(POD)

    def naive_scores() -> list[float]:
        return [
            least_requested(node, pod)
            + most_requested(node, pod)
            + balanced(node, pod)
            + low_risk(node, pod, window_size=5, limit_weight=0.5) * 0.1
            for node in simple
        ]

    original = Scorer(PlacementSettings(score_weights=WEIGHTS, quirks=ORIGINAL))
    assert original.score(node_table(nodes, version=0), POD, now_s=1.0).total.tolist() == naive_scores()
    changed, same, one = (_Ours(nodes, SETTINGS) for _ in range(3))
    name = f"scores: one pod over {NODE_COUNT} nodes, 4 scores"
    return [
        Comparison(name=f"{name}, all nodes changed", ours=changed.all_changed, peer=naive_scores, us_max=10_000),
        Comparison(name=f"{name}, same nodes", ours=same.same_nodes, peer=naive_scores, us_max=2_000),
        Comparison(name=f"{name}, one node changed", ours=one.one_changed),
        Comparison(name=f"scores: a table of {NODE_COUNT} nodes from records", ours=same.build),
    ]
