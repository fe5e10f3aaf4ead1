"""The score BalancedResourceAllocation."""

import pytest

from serving.core.settings.placement import ORIGINAL, PlacementSettings
from serving.nodes.placement.scores.arrays import Resource
from serving.nodes.placement.scores.balanced import BalancedResourceAllocation, BalancedResult
from serving.nodes.placement.scores.nodes import ScoredNode
from serving.nodes.placement.scores.pod import PodDemand
from tests.unit.nodes.placement.scores.builders import GIB, MEMORY_BYTES, demand, new_placing, node

DEFAULTS = PlacementSettings()
WITH_QUIRKS = PlacementSettings(quirks=ORIGINAL)

IDLE_CROWD = PodDemand(nonzero_cpu_m=4500, nonzero_memory_bytes=MEMORY_BYTES // 2)


def balance(pod: PodDemand, on: ScoredNode, settings: PlacementSettings = DEFAULTS) -> BalancedResult:
    return BalancedResourceAllocation(settings).evaluate(new_placing(pod, on))


def demand_of(cpu_m: int, memory_bytes: int) -> PodDemand:
    return PodDemand(
        nonzero_cpu_m=cpu_m, nonzero_memory_bytes=memory_bytes, request_cpu_m=cpu_m, request_memory_bytes=memory_bytes
    )


def test_uneven_ratios_lower_the_score() -> None:
    response = balance(demand_of(1000, GIB), node(memory_bytes=8 * GIB))
    assert (int(response.score[0]), response.explain(0).cpu_ratio, response.explain(0).memory_ratio) == (8, 0.25, 0.125)


@pytest.mark.parametrize(
    ("cpu", "memory", "score"),
    # In floating point |0.6 - 0.8| * 10 is a hair above 2, |0.5 - 0.7| * 10 is not: 7 and 8 for the same difference.
    [(0, 0, 10), (6, 8, 7), (5, 7, 8), (9, 0, 1), (10, 10, 0), (10, 0, 0)],
)
def test_score_is_truncated_after_floating_point_difference(cpu: int, memory: int, score: int) -> None:
    response = balance(demand_of(cpu, memory), node(cpu_m=10, memory_bytes=10))
    assert int(response.score[0]) == score


def test_explanation_names_full_resource() -> None:
    assert balance(demand_of(1000, MEMORY_BYTES), node()).explain(0).full == (Resource.MEMORY,)


def test_resource_without_capacity_counts_as_full() -> None:
    response = balance(demand_of(0, 0), node(memory_bytes=0))
    assert (int(response.score[0]), response.explain(0).memory_ratio) == (0, 1.0)


def test_assumed_requests_do_not_make_node_full() -> None:
    response = balance(PodDemand(), node(pods=IDLE_CROWD))
    assert (int(response.score[0]), response.explain(0).cpu_ratio, response.explain(0).full) == (5, 1.0, ())


def test_original_counts_assumed_requests_as_full() -> None:
    response = balance(PodDemand(), node(pods=IDLE_CROWD), WITH_QUIRKS)
    assert (int(response.score[0]), response.explain(0).cpu_ratio, response.explain(0).full) == (
        0,
        1.125,
        (Resource.CPU,),
    )


def test_actual_requests_make_node_full() -> None:
    assert int(balance(demand(100, request_m=4000), node()).score[0]) == 0
