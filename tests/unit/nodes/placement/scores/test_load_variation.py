"""The score LoadVariationRiskBalancing."""

import numpy as np
import pytest

from serving.core.model.nodata import NoData
from serving.core.settings.placement import ORIGINAL, PlacementSettings
from serving.nodes.placement.scores.load_variation import (
    LoadVariationResult,
    LoadVariationRiskBalancing,
    variation_score,
)
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import ScoredNode
from serving.nodes.placement.scores.pod import PodDemand
from tests.unit.nodes.placement.scores.builders import demand, load, new_placing, node

DEFAULTS = PlacementSettings()


def respond(
    on: ScoredNode, pod: PodDemand, settings: PlacementSettings = DEFAULTS, *, now_s: float = 0.0
) -> LoadVariationResult:
    return LoadVariationRiskBalancing(settings).evaluate(new_placing(pod, on, now_s=now_s))


def test_mean_and_deviation_lower_the_score() -> None:
    assert int(respond(node(usage=load(40, 12)), PodDemand()).score[0]) == 74


def test_pod_request_is_added_to_mean() -> None:
    result = respond(node(usage=load(55)), demand(1000))
    why = result.explain(0)
    assert why.cpu is not None
    assert (int(result.score[0]), why.cpu.mean_ratio, why.cpu.deviation_ratio, why.cpu.score) == (60, 0.8, 0.0, 60.0)


@pytest.mark.parametrize(
    ("margin", "sensitivity", "score"), [(1.0, 1.0, 96.5), (3.0, 2.0, 60.313730334031135), (0.0, 1.0, 100.0)]
)
def test_margin_and_sensitivity_scale_the_deviation(margin: float, sensitivity: float, score: float) -> None:
    array = variation_score(np.array([0.0]), np.array([0.07]), np.array([4000]), margin=margin, sensitivity=sensitivity)
    assert array[0] == pytest.approx(score)


def test_node_without_capacity_scores_0() -> None:
    assert int(respond(node(usage=load(0), cpu_m=0, memory_bytes=0), PodDemand()).score[0]) == 0


def test_score_is_that_of_the_worse_resource() -> None:
    usage = NodeUsage(
        at_s=0.0,
        cpu=Usage(mean_percent=20, deviation_percent=0),
        memory=Usage(mean_percent=60, deviation_percent=0),
    )
    assert int(respond(node(usage=usage), PodDemand()).score[0]) == 70


def test_score_uses_the_only_measured_resource() -> None:
    usage = NodeUsage(at_s=0.0, cpu=Usage(mean_percent=20, deviation_percent=0), memory=NoData(missing="mean"))
    result = respond(node(usage=usage), PodDemand())
    assert (int(result.score[0]), result.explain(0).memory) == (90, None)


def test_node_without_metrics_scores_0() -> None:
    result = respond(node(), PodDemand())
    assert (int(result.score[0]), result.explain(0).cpu) == (0, None)


def test_stale_metrics_count_as_missing() -> None:
    assert int(respond(node(usage=load(40)), PodDemand(), now_s=301.0).score[0]) == 0


def test_original_metrics_never_become_stale() -> None:
    result = respond(node(usage=load(40)), PodDemand(), PlacementSettings(quirks=ORIGINAL), now_s=301.0)
    assert int(result.score[0]) == 80


def test_usage_is_clamped_to_0_and_1_before_scoring() -> None:
    below = respond(node(usage=load(-5)), demand(1000)).explain(0)
    above = respond(node(usage=load(130)), demand(1000)).explain(0)
    assert below.cpu is not None
    assert above.cpu is not None
    assert (below.cpu.mean_ratio, below.cpu.score, above.cpu.mean_ratio) == (0.25, 87.5, 1.0)
