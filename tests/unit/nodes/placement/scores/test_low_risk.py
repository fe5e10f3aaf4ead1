"""The score LowRiskOverCommitment."""

import sys

import msgspec
import pytest

from serving.core.model.errors import SettingsError
from serving.core.model.nodata import NoData
from serving.core.settings.placement import ORIGINAL, PlacementQuirks, PlacementSettings
from serving.nodes.placement.scores.arrays import Resource
from serving.nodes.placement.scores.low_risk import ForcedZero, LowRiskOverCommitment
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import ScoredNode, node_table, place
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.risk import LoadRule
from tests.unit.nodes.placement.scores.builders import MEMORY_BYTES, demand, load, new_placing, node

DEFAULTS = PlacementSettings()
BURSTABLE = demand(500, limit_m=2000)
BEST_EFFORT = demand(100, request_m=0)
BUSY = node("busy", demand(1000, limit_m=5000), usage=load(50, 10))


def score(pod: PodDemand, on: ScoredNode, quirks: PlacementQuirks | None = None, *, now_s: float = 0.0) -> int:
    settings = PlacementSettings(quirks=quirks or PlacementQuirks())
    return int(LowRiskOverCommitment(settings).evaluate(new_placing(pod, on, now_s=now_s)).score[0])


def test_score_is_that_of_the_riskier_resource() -> None:
    cpu, memory = (Usage(mean_percent=mean, deviation_percent=10) for mean in (50, 40))
    usage = NodeUsage(at_s=0.0, cpu=cpu, memory=memory)
    on = node("a", demand(1500, limit_m=6000), usage=usage, cpu_m=2000, memory_bytes=MEMORY_BYTES // 2)
    response = LowRiskOverCommitment(DEFAULTS).evaluate(new_placing(BURSTABLE, on))
    why = response.explain(0)
    assert (round(why.cpu.risk, 3), why.worst, why.forced_zero) == (0.578, Resource.CPU, None)
    assert (why.cpu.request, why.cpu.request_minus_pod, why.cpu.limit, why.cpu.limit_minus_pod) == (
        2000,
        1500,
        8000,
        6000,
    )
    assert int(response.score[0]) == 42


def test_requests_are_capped_at_allocatable() -> None:
    why = LowRiskOverCommitment(DEFAULTS).evaluate(new_placing(demand(3000), node(pods=demand(5000)))).explain(0)
    assert (why.cpu.request, why.cpu.request_minus_pod, why.cpu.limit_risk) == (4000, 4000, 1.0)


def test_each_resource_has_its_own_limit_risk_weight() -> None:
    settings = PlacementSettings(cpu_risk_limit_weight=1.0, memory_risk_limit_weight=0.0)
    why = LowRiskOverCommitment(settings).evaluate(new_placing(BURSTABLE, BUSY)).explain(0)
    assert (why.cpu.risk, why.memory.risk) == (why.cpu.limit_risk, why.memory.load_risk)


def test_explanation_has_beta_distribution() -> None:
    why = (
        LowRiskOverCommitment(PlacementSettings(smoothing_window_size=1))
        .evaluate(new_placing(BURSTABLE, BUSY))
        .explain(0)
    )
    assert (why.cpu.mean_ratio, why.cpu.deviation_ratio) == (0.5, 0.1)
    assert [why.cpu.alpha, why.cpu.beta] == pytest.approx([12, 12])
    assert why.cpu.load_rule is LoadRule.TAIL


def test_explanation_has_null_for_infinite_parameters() -> None:
    settings = PlacementSettings(quirks=ORIGINAL)
    why = LowRiskOverCommitment(settings).evaluate(new_placing(BURSTABLE, node(usage=load(50, 1e-15)))).explain(0)
    assert (why.cpu.alpha, why.cpu.beta) == (None, None)
    assert b"null" in msgspec.json.encode(why)


def test_best_effort_pod_is_scored_by_node_risk() -> None:
    quiet, hot = node(usage=load(2, 1)), node(usage=load(95, 1))
    assert (score(BEST_EFFORT, quiet), score(BEST_EFFORT, hot)) == (99, 53)


def test_original_scores_0_for_best_effort_pod() -> None:
    response = LowRiskOverCommitment(PlacementSettings(quirks=ORIGINAL)).evaluate(new_placing(BEST_EFFORT, BUSY))
    assert (int(response.score[0]), response.explain(0).forced_zero) == (0, ForcedZero.BEST_EFFORT_POD)


def test_node_without_metrics_is_scored_by_requests_and_limits() -> None:
    on = node(pods=demand(1000, limit_m=4000))
    response = LowRiskOverCommitment(DEFAULTS).evaluate(new_placing(BURSTABLE, on))
    why = response.explain(0)
    assert (why.cpu.load_rule, why.cpu.mean_ratio, why.cpu.deviation_ratio) == (LoadRule.UNMEASURED, None, None)
    assert why.cpu.risk == pytest.approx(0.5 * 2000 / 4500)
    assert int(response.score[0]) == 78


def test_original_scores_0_for_node_without_metrics() -> None:
    response = LowRiskOverCommitment(PlacementSettings(quirks=ORIGINAL)).evaluate(new_placing(BURSTABLE, node()))
    assert (int(response.score[0]), response.explain(0).forced_zero) == (0, ForcedZero.NODE_WITHOUT_METRICS)


def test_node_with_empty_metrics_entry_counts_as_measured() -> None:
    nothing = NoData(missing="mean")
    assert score(BURSTABLE, node(usage=NodeUsage(at_s=0.0, cpu=nothing, memory=nothing)), ORIGINAL) == 100


def test_stale_metrics_count_as_missing() -> None:
    at_bound, beyond = DEFAULTS.metrics_age_max_s, DEFAULTS.metrics_age_max_s + 1
    response = LowRiskOverCommitment(DEFAULTS).evaluate(new_placing(BURSTABLE, BUSY, now_s=beyond))
    assert (response.explain(0).cpu.load_rule, response.explain(0).cpu.load_risk) == (LoadRule.STALE, 0.0)
    assert score(BURSTABLE, BUSY, now_s=at_bound) < score(BURSTABLE, BUSY, now_s=beyond)


def test_original_metrics_never_become_stale() -> None:
    assert score(BURSTABLE, BUSY, ORIGINAL, now_s=1e6) == score(BURSTABLE, BUSY, ORIGINAL)


def test_metrics_from_the_future_are_fresh() -> None:
    assert score(BURSTABLE, BUSY, now_s=-100.0) == score(BURSTABLE, BUSY)


def test_load_risk_is_cached_per_table_version() -> None:
    scorer = LowRiskOverCommitment(DEFAULTS)
    table = node_table([BUSY, node()], version=1)
    first = scorer.evaluate(place(table, BURSTABLE, now_s=0.0))
    assert scorer.evaluate(place(table, BEST_EFFORT, now_s=0.0)).load is first.load


@pytest.mark.parametrize("steps", [1, 2])
def test_cached_risk_of_changed_nodes_is_recomputed(steps: int) -> None:
    scorer = LowRiskOverCommitment(DEFAULTS)
    table = node_table([BUSY, node()], version=1)
    scorer.evaluate(place(table, BURSTABLE, now_s=0.0))
    hot = node("busy", demand(1000, limit_m=5000), usage=load(90, 10))
    for step in range(steps):
        table = table.with_nodes([hot], version=2 + step)
    again = LowRiskOverCommitment(DEFAULTS).evaluate(place(node_table([hot, node()], version=9), BURSTABLE, now_s=0.0))
    assert scorer.evaluate(place(table, BURSTABLE, now_s=0.0)).score.tolist() == again.score.tolist()


def test_new_table_recomputes_all_risks() -> None:
    scorer = LowRiskOverCommitment(DEFAULTS)
    scorer.evaluate(new_placing(BURSTABLE, node()))
    result = scorer.evaluate(place(node_table([BUSY], version=2), BURSTABLE, now_s=0.0))
    assert int(result.score[0]) == score(BURSTABLE, BUSY)


def test_missing_scipy_is_reported_on_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(SettingsError, match="needs scipy"):
        LowRiskOverCommitment(DEFAULTS)
