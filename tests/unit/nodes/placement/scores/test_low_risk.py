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
from tests.unit.nodes.placement.scores.builders import MEMORY_BYTES, demand, held, load, node

OURS = PlacementSettings()
BURSTABLE = demand(500, limit_m=2000)
BEST_EFFORT = demand(100, request_m=0)
BUSY = node("busy", demand(1000, limit_m=5000), usage=load(50, 10))


def score(pod: PodDemand, on: ScoredNode, quirks: PlacementQuirks | None = None, *, now_s: float = 0.0) -> int:
    settings = PlacementSettings(quirks=quirks or PlacementQuirks())
    return int(LowRiskOverCommitment(settings).evaluate(held(pod, on, now_s=now_s)).score[0])


def test_the_riskier_resource_decides() -> None:
    cpu, memory = (Usage(mean_percent=mean, deviation_percent=10) for mean in (50, 40))
    usage = NodeUsage(at_s=0.0, cpu=cpu, memory=memory)
    on = node("a", demand(1500, limit_m=6000), usage=usage, cpu_m=2000, memory_bytes=MEMORY_BYTES // 2)
    response = LowRiskOverCommitment(OURS).evaluate(held(BURSTABLE, on))
    why = response.explain(0)
    assert (round(why.cpu.risk, 3), why.worst, why.forced_zero) == (0.578, Resource.CPU, None)
    assert (why.cpu.request, why.cpu.request_minus_pod, why.cpu.limit, why.cpu.limit_minus_pod) == (
        2000,
        1500,
        8000,
        6000,
    )
    assert int(response.score[0]) == 42


def test_requests_go_no_further_than_what_is_allocatable() -> None:
    why = LowRiskOverCommitment(OURS).evaluate(held(demand(3000), node(pods=demand(5000)))).explain(0)
    assert (why.cpu.request, why.cpu.request_minus_pod, why.cpu.limit_risk) == (4000, 4000, 1.0)


def test_each_resource_has_its_own_weight() -> None:
    settings = PlacementSettings(cpu_risk_limit_weight=1.0, memory_risk_limit_weight=0.0)
    why = LowRiskOverCommitment(settings).evaluate(held(BURSTABLE, BUSY)).explain(0)
    assert (why.cpu.risk, why.memory.risk) == (why.cpu.limit_risk, why.memory.load_risk)


def test_an_explanation_shows_the_distribution() -> None:
    why = LowRiskOverCommitment(PlacementSettings(smoothing_window_size=1)).evaluate(held(BURSTABLE, BUSY)).explain(0)
    assert (why.cpu.mean_ratio, why.cpu.deviation_ratio) == (0.5, 0.1)
    assert [why.cpu.alpha, why.cpu.beta] == pytest.approx([12, 12])
    assert why.cpu.load_rule is LoadRule.TAIL


def test_an_explanation_holds_no_infinity() -> None:
    settings = PlacementSettings(quirks=ORIGINAL)
    why = LowRiskOverCommitment(settings).evaluate(held(BURSTABLE, node(usage=load(50, 1e-15)))).explain(0)
    assert (why.cpu.alpha, why.cpu.beta) == (None, None)
    assert b"null" in msgspec.json.encode(why)


def test_a_best_effort_pod_is_scored_by_the_nodes_risk() -> None:
    quiet, hot = node(usage=load(2, 1)), node(usage=load(95, 1))
    assert (score(BEST_EFFORT, quiet), score(BEST_EFFORT, hot)) == (99, 53)


def test_in_the_original_a_best_effort_pod_scores_0_everywhere() -> None:
    response = LowRiskOverCommitment(PlacementSettings(quirks=ORIGINAL)).evaluate(held(BEST_EFFORT, BUSY))
    assert (int(response.score[0]), response.explain(0).forced_zero) == (0, ForcedZero.BEST_EFFORT_POD)


def test_a_node_without_metrics_is_scored_by_requests_and_limits() -> None:
    on = node(pods=demand(1000, limit_m=4000))
    response = LowRiskOverCommitment(OURS).evaluate(held(BURSTABLE, on))
    why = response.explain(0)
    assert (why.cpu.load_rule, why.cpu.mean_ratio, why.cpu.deviation_ratio) == (LoadRule.UNMEASURED, None, None)
    assert why.cpu.risk == pytest.approx(0.5 * 2000 / 4500)
    assert int(response.score[0]) == 78


def test_in_the_original_a_node_without_metrics_scores_0() -> None:
    response = LowRiskOverCommitment(PlacementSettings(quirks=ORIGINAL)).evaluate(held(BURSTABLE, node()))
    assert (int(response.score[0]), response.explain(0).forced_zero) == (0, ForcedZero.NODE_WITHOUT_METRICS)


def test_a_node_whose_entry_lacks_a_resource_is_not_without_metrics() -> None:
    nothing = NoData(missing="mean")
    assert score(BURSTABLE, node(usage=NodeUsage(at_s=0.0, cpu=nothing, memory=nothing)), ORIGINAL) == 100


def test_old_metrics_count_as_missing() -> None:
    at_bound, beyond = OURS.metrics_age_max_s, OURS.metrics_age_max_s + 1
    response = LowRiskOverCommitment(OURS).evaluate(held(BURSTABLE, BUSY, now_s=beyond))
    assert (response.explain(0).cpu.load_rule, response.explain(0).cpu.load_risk) == (LoadRule.STALE, 0.0)
    assert score(BURSTABLE, BUSY, now_s=at_bound) < score(BURSTABLE, BUSY, now_s=beyond)


def test_in_the_original_metrics_never_grow_old() -> None:
    assert score(BURSTABLE, BUSY, ORIGINAL, now_s=1e6) == score(BURSTABLE, BUSY, ORIGINAL)


def test_metrics_from_the_future_are_fresh() -> None:
    assert score(BURSTABLE, BUSY, now_s=-100.0) == score(BURSTABLE, BUSY)


def test_what_a_version_of_the_nodes_gave_is_kept() -> None:
    scorer = LowRiskOverCommitment(OURS)
    table = node_table([BUSY, node()], version=1)
    first = scorer.evaluate(place(table, BURSTABLE, now_s=0.0))
    assert scorer.evaluate(place(table, BEST_EFFORT, now_s=0.0)).load is first.load


@pytest.mark.parametrize("steps", [1, 2])
def test_changed_nodes_are_renewed(steps: int) -> None:
    scorer = LowRiskOverCommitment(OURS)
    table = node_table([BUSY, node()], version=1)
    scorer.evaluate(place(table, BURSTABLE, now_s=0.0))
    hot = node("busy", demand(1000, limit_m=5000), usage=load(90, 10))
    for step in range(steps):
        table = table.with_nodes([hot], version=2 + step)
    again = LowRiskOverCommitment(OURS).evaluate(place(node_table([hot, node()], version=9), BURSTABLE, now_s=0.0))
    assert scorer.evaluate(place(table, BURSTABLE, now_s=0.0)).score.tolist() == again.score.tolist()


def test_a_new_table_is_computed_again() -> None:
    scorer = LowRiskOverCommitment(OURS)
    scorer.evaluate(held(BURSTABLE, node()))
    result = scorer.evaluate(place(node_table([BUSY], version=2), BURSTABLE, now_s=0.0))
    assert int(result.score[0]) == score(BURSTABLE, BUSY)


def test_scipy_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(SettingsError, match="needs scipy"):
        LowRiskOverCommitment(OURS)
