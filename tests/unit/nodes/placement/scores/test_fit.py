"""LeastRequested and MostRequested."""

import numpy as np
import pytest

from serving.core.settings.placement import ORIGINAL, PlacementSettings
from serving.nodes.placement.scores.fit import (
    AmountRule,
    FitResult,
    LeastRequested,
    MostRequested,
    unused_tenths,
    used_tenths,
)
from serving.nodes.placement.scores.nodes import ScoredNode
from serving.nodes.placement.scores.pod import PodDemand
from tests.unit.nodes.placement.scores.builders import BYTES_PER_M, GIB, MEMORY_BYTES, demand, new_placing, node

DEFAULTS = PlacementSettings()
WITH_QUIRKS = PlacementSettings(quirks=ORIGINAL)

IDLE_CROWD = demand(4500, request_m=0)


def least(pod: PodDemand, on: ScoredNode) -> FitResult:
    return LeastRequested(DEFAULTS).evaluate(new_placing(pod, on))


def most(pod: PodDemand, on: ScoredNode, settings: PlacementSettings = DEFAULTS) -> FitResult:
    return MostRequested(settings).evaluate(new_placing(pod, on))


@pytest.mark.parametrize(
    ("total", "allocatable", "unused", "used"),
    [
        (0, 4000, 10, 0),
        (1, 3, 6, 3),
        (999, 1000, 0, 9),
        (1000, 1000, 0, 10),
        (1001, 1000, 0, 0),
        (0, 0, 0, 0),
        (5, 0, 0, 0),
    ],
)
def test_tenths_are_truncated_and_0_if_overfull(total: int, allocatable: int, unused: int, used: int) -> None:
    amounts = np.array([total]), np.array([allocatable])
    assert (int(unused_tenths(*amounts)[0]), int(used_tenths(*amounts)[0])) == (unused, used)


def test_tenths_are_exact_if_ten_times_the_amount_overflows() -> None:
    allocatable = 2**62 - 1
    total = allocatable * 7 // 10 + 1
    amounts = np.array([total, 1]), np.array([allocatable, 3])
    assert used_tenths(*amounts).tolist() == [7, 3]
    assert unused_tenths(*amounts).tolist() == [2, 6]


def test_score_averages_truncated_scores_of_both_resources() -> None:
    pod = PodDemand(nonzero_cpu_m=250, nonzero_memory_bytes=5 * GIB, request_cpu_m=250, request_memory_bytes=5 * GIB)
    on = node(cpu_m=1000, memory_bytes=10 * GIB)
    assert (int(least(pod, on).score[0]), int(most(pod, on).score[0])) == (6, 3)


def test_requests_of_running_pods_lower_the_score() -> None:
    assert int(least(demand(1000), node(pods=demand(1000))).score[0]) == 5


def test_explanation_has_both_resources() -> None:
    why = least(demand(1000), node()).explain(0)
    assert (why.cpu.total, why.cpu.allocatable, why.cpu.score, why.cpu.rule) == (1000, 4000, 7, AmountRule.SHARE)
    assert (why.memory.total, why.memory.allocatable, why.memory.score) == (1000 * BYTES_PER_M, MEMORY_BYTES, 7)


def test_explanation_reports_missing_capacity() -> None:
    why = most(demand(0), node(memory_bytes=0)).explain(0)
    assert (why.memory.score, why.memory.rule) == (0, AmountRule.NO_CAPACITY)


def test_most_requested_scores_0_if_pod_does_not_fit() -> None:
    response = most(demand(1), node(pods=demand(4000)))
    assert int(response.score[0]) == 0
    assert response.explain(0).cpu.rule is AmountRule.OVERFULL
    assert response.explain(0).cpu.total == 4001


def test_request_above_container_sum_overfills_node() -> None:
    assert int(most(demand(100, request_m=4001), node()).score[0]) == 0


def test_assumed_requests_fill_but_do_not_overfill_node() -> None:
    response = most(demand(100, request_m=0), node(pods=IDLE_CROWD))
    assert int(response.score[0]) == 10
    assert response.explain(0).cpu.rule is AmountRule.FILLED_BY_ASSUMPTION


def test_original_overfills_node_by_assumed_requests() -> None:
    response = most(demand(100, request_m=0), node(pods=IDLE_CROWD), WITH_QUIRKS)
    assert int(response.score[0]) == 0
    assert response.explain(0).cpu.rule is AmountRule.OVERFULL


def test_original_score_drops_from_10_to_0_at_capacity() -> None:
    nearly, over = demand(4000, request_m=0), demand(4001, request_m=0)
    scores = [int(most(PodDemand(), node(pods=pods), WITH_QUIRKS).score[0]) for pods in (nearly, over)]
    assert scores == [10, 0]


def test_empty_node_table_has_no_scores() -> None:
    assert LeastRequested(DEFAULTS).evaluate(new_placing(demand(1))).score.tolist() == []
