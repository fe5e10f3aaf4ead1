"""The registry of node scores."""

from serving.nodes.placement.scores.score import NODE_SCORES


def test_scores_are_registered_by_their_names() -> None:
    assert {name: score.name for name, score in NODE_SCORES.items()} == {name: name for name in NODE_SCORES}


def test_registry_lists_all_scores_in_order() -> None:
    assert list(NODE_SCORES) == [
        "LeastRequested",
        "MostRequested",
        "BalancedResourceAllocation",
        "LowRiskOverCommitment",
        "LoadVariationRiskBalancing",
    ]
