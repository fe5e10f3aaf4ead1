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
from tests.unit.nodes.placement.scores.builders import BYTES_PER_M, GIB, MEMORY_BYTES, demand, held, node

OURS = PlacementSettings()
THEIRS = PlacementSettings(quirks=ORIGINAL)

IDLE_CROWD = demand(4500, request_m=0)


def least(pod: PodDemand, on: ScoredNode) -> FitResult:
    return LeastRequested(OURS).evaluate(held(pod, on))


def most(pod: PodDemand, on: ScoredNode, settings: PlacementSettings = OURS) -> FitResult:
    return MostRequested(settings).evaluate(held(pod, on))


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
def test_tenths_are_cut_off_and_0_where_overfull(total: int, allocatable: int, unused: int, used: int) -> None:
    amounts = np.array([total]), np.array([allocatable])
    assert (int(unused_tenths(*amounts)[0]), int(used_tenths(*amounts)[0])) == (unused, used)


def test_tenths_are_exact_where_ten_times_the_amount_overflows() -> None:
    allocatable = 2**62 - 1
    total = allocatable * 7 // 10 + 1
    amounts = np.array([total, 1]), np.array([allocatable, 3])
    assert used_tenths(*amounts).tolist() == [7, 3]
    assert unused_tenths(*amounts).tolist() == [2, 6]


def test_both_resources_are_averaged_after_each_was_cut_off() -> None:
    pod = PodDemand(nonzero_cpu_m=250, nonzero_memory_bytes=5 * GIB, request_cpu_m=250, request_memory_bytes=5 * GIB)
    on = node(cpu_m=1000, memory_bytes=10 * GIB)
    assert (int(least(pod, on).score[0]), int(most(pod, on).score[0])) == (6, 3)


def test_the_pods_already_there_count() -> None:
    assert int(least(demand(1000), node(pods=demand(1000))).score[0]) == 5


def test_an_explanation_has_both_resources() -> None:
    why = least(demand(1000), node()).explain(0)
    assert (why.cpu.total, why.cpu.allocatable, why.cpu.score, why.cpu.rule) == (1000, 4000, 7, AmountRule.SHARE)
    assert (why.memory.total, why.memory.allocatable, why.memory.score) == (1000 * BYTES_PER_M, MEMORY_BYTES, 7)


def test_a_node_without_capacity_says_so() -> None:
    why = most(demand(0), node(memory_bytes=0)).explain(0)
    assert (why.memory.score, why.memory.rule) == (0, AmountRule.NO_CAPACITY)


def test_a_pod_that_does_not_fit_is_not_drawn_to_a_node() -> None:
    response = most(demand(1), node(pods=demand(4000)))
    assert int(response.score[0]) == 0
    assert response.explain(0).cpu.rule is AmountRule.OVERFULL
    assert response.explain(0).cpu.total == 4001


def test_requests_that_only_init_containers_need_overfill_too() -> None:
    assert int(most(demand(100, request_m=4001), node()).score[0]) == 0


def test_assumed_requests_fill_a_node_at_most() -> None:
    response = most(demand(100, request_m=0), node(pods=IDLE_CROWD))
    assert int(response.score[0]) == 10
    assert response.explain(0).cpu.rule is AmountRule.FILLED_BY_ASSUMPTION


def test_in_the_original_assumed_requests_overfill_a_node() -> None:
    response = most(demand(100, request_m=0), node(pods=IDLE_CROWD), THEIRS)
    assert int(response.score[0]) == 0
    assert response.explain(0).cpu.rule is AmountRule.OVERFULL


def test_one_pod_more_tips_the_original_from_best_to_worst() -> None:
    nearly, over = demand(4000, request_m=0), demand(4001, request_m=0)
    scores = [int(most(PodDemand(), node(pods=pods), THEIRS).score[0]) for pods in (nearly, over)]
    assert scores == [10, 0]


def test_no_nodes_give_no_scores() -> None:
    assert LeastRequested(OURS).evaluate(held(demand(1))).score.tolist() == []
