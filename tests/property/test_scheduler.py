"""Invariants of node scores for any nodes and pod."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.settings.placement import ORIGINAL, PlacementQuirks, PlacementSettings
from serving.nodes.placement.scores.balanced import BalancedResourceAllocation
from serving.nodes.placement.scores.fit import LeastRequested, MostRequested
from serving.nodes.placement.scores.low_risk import LowRiskOverCommitment
from serving.nodes.placement.scores.metrics import NodeUsage, Usage
from serving.nodes.placement.scores.nodes import NodeTable, Placing, ScoredNode, node_table, place
from serving.nodes.placement.scores.pod import Container, PodContainers, PodDemand, pod_demand, total_demand
from serving.nodes.placement.scores.provider import Scorer
from serving.nodes.placement.scores.risk import DEVIATION_MIN, probability_below
from serving.nodes.placement.scores.score import NODE_SCORES

GIB = 2**30
SMOOTHING = 5

amounts = st.one_of(st.none(), st.integers(0, 9000))
percents = st.one_of(st.floats(0, 120), st.sampled_from([0.0, 1e-12, 50.0, 100.0]))
usages = st.one_of(st.just(NoData(missing="mean")), st.builds(Usage, mean_percent=percents, deviation_percent=percents))
resources = st.builds(
    lambda cpu_m, mib: Resources(cpu_m=cpu_m, memory_bytes=None if mib is None else mib * 2**20), amounts, amounts
)
containers = st.lists(st.builds(Container, request=resources, limit=resources), max_size=3).map(tuple)
demands = st.builds(
    PodContainers,
    containers=containers,
    init_containers=containers,
    overhead=st.one_of(st.just(Resources()), st.just(Resources(cpu_m=50, memory_bytes=2**26))),
).map(pod_demand)
nodes = st.builds(
    ScoredNode,
    name=st.just("node"),
    allocatable_cpu_m=st.one_of(st.just(0), st.integers(1, 64_000)),
    allocatable_memory_bytes=st.one_of(st.just(0), st.integers(1, 64 * GIB)),
    demand=st.lists(demands, max_size=4).map(total_demand),
    usage=st.one_of(
        st.just(NoData(missing="entry")),
        st.builds(NodeUsage, at_s=st.floats(0, 600), cpu=usages, memory=usages),
    ),
)
clusters = st.lists(nodes, min_size=1, max_size=6).map(
    lambda scored_nodes: [
        msgspec.structs.replace(scored_node, name=f"node-{index}") for index, scored_node in enumerate(scored_nodes)
    ]
)
quirks = st.builds(PlacementQuirks, **{name: st.booleans() for name in PlacementQuirks.__struct_fields__})
settings_in_range = st.builds(
    PlacementSettings,
    smoothing_window_size=st.integers(1, 100),
    cpu_risk_limit_weight=st.floats(0, 1),
    memory_risk_limit_weight=st.floats(0, 1),
    load_variation_margin=st.floats(0, 5),
    load_variation_sensitivity=st.floats(0.1, 5),
    quirks=quirks,
)


def placed(cluster: list[ScoredNode], pod: PodDemand) -> Placing:
    return place(node_table(cluster, version=1), pod, now_s=300.0)


@given(clusters, demands, settings_in_range)
def test_every_score_is_in_range_and_its_reason_is_json(
    cluster: list[ScoredNode], pod: PodDemand, settings: PlacementSettings
) -> None:
    placing = placed(cluster, pod)
    for kind in NODE_SCORES.values():
        response = kind(settings).evaluate(placing)
        assert response.score.dtype == np.int64
        assert ((response.score >= 0) & (response.score <= kind.score_max)).all()
        for index in range(len(cluster)):
            # JSON has neither infinity nor NaN: msgspec would write null and fail to read it back.
            why = response.explain(index)
            assert msgspec.json.decode(msgspec.json.encode(why), type=type(why)) == why


@given(clusters, demands, settings_in_range)
def test_overcommitment_risks_are_between_0_and_1(
    cluster: list[ScoredNode], pod: PodDemand, settings: PlacementSettings
) -> None:
    response = LowRiskOverCommitment(settings).evaluate(placed(cluster, pod))
    for risk in (response.limit_risk, response.load_risk, response.risk):
        assert ((risk >= 0) & (risk <= 1)).all()


@given(clusters, demands, settings_in_range)
def test_least_and_most_requested_scores_sum_to_at_most_10(
    cluster: list[ScoredNode], pod: PodDemand, settings: PlacementSettings
) -> None:
    placing = placed(cluster, pod)
    least, most = LeastRequested(settings).evaluate(placing), MostRequested(settings).evaluate(placing)
    assert (least.score + most.score <= 10).all()
    assert (least.resource_score + most.resource_score <= 10).all()


def more(pod: PodDemand, cpu_m: int, memory_bytes: int) -> PodDemand:
    """The same pod with larger requests, and limits that are not below them."""
    return PodDemand(
        nonzero_cpu_m=pod.nonzero_cpu_m + cpu_m,
        nonzero_memory_bytes=pod.nonzero_memory_bytes + memory_bytes,
        request_cpu_m=pod.request_cpu_m + cpu_m,
        request_memory_bytes=pod.request_memory_bytes + memory_bytes,
        limit_cpu_m=max(pod.limit_cpu_m, pod.request_cpu_m + cpu_m),
        limit_memory_bytes=max(pod.limit_memory_bytes, pod.request_memory_bytes + memory_bytes),
    )


@given(clusters, demands, st.integers(0, 9000), st.integers(0, 16 * GIB), settings_in_range)
def test_larger_requests_lower_least_and_raise_most_requested_scores(
    cluster: list[ScoredNode], pod: PodDemand, cpu_m: int, memory_bytes: int, settings: PlacementSettings
) -> None:
    small, large = placed(cluster, pod), placed(cluster, more(pod, cpu_m, memory_bytes))
    least, most = LeastRequested(settings), MostRequested(settings)
    assert (least.evaluate(large).score <= least.evaluate(small).score).all()
    fits = ~most.evaluate(large).overfull.any(axis=0)
    assert (most.evaluate(large).score >= most.evaluate(small).score)[fits].all()


@given(clusters, demands, st.integers(0, 9000), settings_in_range)
def test_higher_limits_never_lower_the_risk(
    cluster: list[ScoredNode], pod: PodDemand, extra: int, settings: PlacementSettings
) -> None:
    score = LowRiskOverCommitment(settings)
    higher = msgspec.structs.replace(pod, limit_cpu_m=pod.limit_cpu_m + extra)
    assert (score.evaluate(placed(cluster, higher)).risk >= score.evaluate(placed(cluster, pod)).risk).all()


@given(
    st.floats(0.01, 0.99),
    st.floats(DEVIATION_MIN, 0.5),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_probability_below_is_monotonic_in_the_threshold(mean: float, share: float, low: float, high: float) -> None:
    deviation = min(share, (0.99 * mean * (1 - mean)) ** 0.5)
    thresholds = np.array(sorted((low, high)))
    probability = probability_below(np.full(2, mean), np.full(2, deviation), thresholds)
    # The function is accurate to about twelve digits.
    assert probability.probability[0] <= probability.probability[1] + 1e-9


def explicit(demand: PodDemand) -> PodDemand:
    """The same demand with explicit requests."""
    return msgspec.structs.replace(
        demand, nonzero_cpu_m=demand.request_cpu_m, nonzero_memory_bytes=demand.request_memory_bytes
    )


@given(clusters, demands)
def test_quirks_do_not_affect_pods_with_explicit_requests(cluster: list[ScoredNode], pod: PodDemand) -> None:
    scored_nodes = [msgspec.structs.replace(node, demand=explicit(node.demand)) for node in cluster]
    placing = placed(scored_nodes, explicit(pod))
    ours, theirs = PlacementSettings(), PlacementSettings(quirks=ORIGINAL)
    for kind in (LeastRequested, MostRequested, BalancedResourceAllocation):
        assert kind(ours).evaluate(placing).score.tolist() == kind(theirs).evaluate(placing).score.tolist()


@given(clusters, st.lists(st.tuples(nodes, st.integers(0, 5), st.booleans()), max_size=6), demands, settings_in_range)
def test_cached_scores_equal_those_of_a_fresh_table(
    cluster: list[ScoredNode], changes: list[tuple[ScoredNode, int, bool]], pod: PodDemand, settings: PlacementSettings
) -> None:
    weights = ", ".join(f"{name}=1" for name in NODE_SCORES)
    settings = msgspec.structs.replace(settings, score_weights=weights)
    scorer, table = Scorer(settings), node_table(cluster, version=0)
    for version, (node, at, scored) in enumerate(changes, start=1):
        index = at % len(cluster)
        cluster[index] = msgspec.structs.replace(node, name=f"node-{index}")
        table = table.with_nodes([cluster[index]], version=version)
        if scored:
            scorer.score(table, pod, now_s=300.0)
    fresh = node_table(cluster, version=len(changes))
    assert same_arrays(table, fresh)
    again = Scorer(settings).score(fresh, pod, now_s=300.0)
    scores = scorer.score(table, pod, now_s=300.0)
    assert scores.total.tolist() == again.total.tolist()
    assert [scores.explain(node.name) for node in cluster] == [again.explain(node.name) for node in cluster]


def same_arrays(table: NodeTable, other: NodeTable) -> bool:
    names = [name for name in table.__struct_fields__ if name not in {"changed", "changed_from"}]
    return all(np.array_equal(getattr(table, name), getattr(other, name)) for name in names)


@given(clusters, demands, settings_in_range)
def test_node_score_is_independent_of_other_nodes(
    cluster: list[ScoredNode], pod: PodDemand, settings: PlacementSettings
) -> None:
    for kind in NODE_SCORES.values():
        among = kind(settings).evaluate(placed(cluster, pod)).score.tolist()
        assert among == [int(kind(settings).evaluate(placed([node], pod)).score[0]) for node in cluster]


@given(clusters, demands, settings_in_range)
def test_extender_score_is_between_0_and_10(
    cluster: list[ScoredNode], pod: PodDemand, settings: PlacementSettings
) -> None:
    weights = "LeastRequested=3, LowRiskOverCommitment=10000, LoadVariationRiskBalancing=1"
    scorer = Scorer(msgspec.structs.replace(settings, score_weights=weights))
    response = scorer.score(node_table(cluster, version=1), pod, now_s=300.0).extender_score()
    assert ((response >= 0) & (response <= 10)).all()
