"""The risk of limits and of load."""

import numpy as np
import pytest

from serving.core.settings.placement import ORIGINAL, PlacementQuirks
from serving.nodes.placement.scores.risk import (
    LOAD_RULES,
    Commitment,
    LoadRule,
    MeasuredLoad,
    limit_risk,
    load_risk,
    smoothed_deviation,
    total_risk,
)

CAPACITY_M = 4000


def committed(request_m: int, limit_m: int, capacity_m: int = CAPACITY_M) -> Commitment:
    return Commitment(
        request=np.array([[request_m]]), limit=np.array([[limit_m]]), allocatable=np.array([[capacity_m]])
    )


def load(mean: float, deviation: float, *, measured: bool = True) -> MeasuredLoad:
    return MeasuredLoad(mean=np.array([[mean]]), deviation=np.array([[deviation]]), measured=np.array([[measured]]))


def decided(
    mean: float, deviation: float, request_m: int, limit_m: int, quirks: PlacementQuirks | None = None
) -> tuple[float, LoadRule]:
    risk = load_risk(load(mean, deviation), committed(request_m, limit_m), quirks or PlacementQuirks())
    return round(float(risk.risk[0, 0]), 4), LOAD_RULES[int(risk.rule[0, 0])]


def test_limit_risk_is_unavailable_share_of_limits_above_requests() -> None:
    assert limit_risk(committed(1500, 6000))[0, 0] == 2000 / 4500


@pytest.mark.parametrize(
    ("request_m", "limit_m", "capacity_m", "risk"),
    [(0, 4000, 4000, 0.0), (4000, 8000, 4000, 1.0), (0, 2000, 0, 1.0), (0, 0, 0, 0.0), (5000, 5000, 4000, 1.0)],
)
def test_limit_risk_at_boundaries(request_m: int, limit_m: int, capacity_m: int, risk: float) -> None:
    assert limit_risk(committed(request_m, limit_m, capacity_m))[0, 0] == risk


@pytest.mark.parametrize(
    ("mean", "deviation", "window_size", "smoothed"),
    [(0.5, 0.1, 5, 0.2236), (0.5, 0.1, 1, 0.1), (0.5, 0.9, 5, 0.4975), (0.0, 0.1, 5, 0.0), (1.0, 0.1, 5, 0.0)],
)
def test_deviation_is_unsmoothed_up_to_distribution_maximum(
    mean: float, deviation: float, window_size: int, smoothed: float
) -> None:
    array = smoothed_deviation(np.array([mean]), np.array([deviation]), window_size)
    assert array[0] == pytest.approx(smoothed, abs=5e-5)


def test_negative_smoothing_window_gives_full_risk() -> None:
    deviation = smoothed_deviation(np.array([0.3]), np.array([0.05]), -1)
    assert decided(0.3, float(deviation[0]), 500, 5000) == (1.0, LoadRule.TAIL)


def test_load_risk_is_probability_that_load_exceeds_requests() -> None:
    assert decided(0.2, 0.1, 1000, 5000) == (0.2811, LoadRule.TAIL)


def test_limits_below_capacity_truncate_the_distribution() -> None:
    assert decided(0.6, 0.15, 2400, 2800) == (0.3353, LoadRule.TAIL_BELOW_LIMITS)


def test_limits_at_capacity_do_not_truncate_the_distribution() -> None:
    assert decided(0.6, 0.15, 2400, 4000) == (0.5177, LoadRule.TAIL)


def test_load_risk_equals_worked_example_of_docs() -> None:
    assert decided(0.3, 0.1118, 500, 3000) == (0.9582, LoadRule.TAIL_BELOW_LIMITS)


def test_guaranteed_pods_have_no_load_risk() -> None:
    assert decided(0.3, 0.1118, 1500, 1500) == (0.0, LoadRule.TAIL_BELOW_LIMITS)


def test_load_of_pods_without_limits_is_a_risk() -> None:
    assert decided(0.95, 0.05, 0, 0) == (0.95, LoadRule.ABOVE_LIMITS)


def test_nearly_idle_node_without_limits_has_low_risk() -> None:
    assert decided(0.02, 0.01, 0, 0) == (0.02, LoadRule.ABOVE_LIMITS)


def test_load_above_limits_of_guaranteed_pods_is_a_risk() -> None:
    assert decided(0.9, 0.05, 1500, 1500) == (0.525, LoadRule.ABOVE_LIMITS)


def test_original_gives_no_risk_to_hot_node_without_limits() -> None:
    assert decided(0.95, 0.05, 0, 0, ORIGINAL) == (0.0, LoadRule.NO_LIMITS)


def test_original_gives_no_risk_to_hot_guaranteed_node() -> None:
    assert decided(0.9, 0.05, 1500, 1500, ORIGINAL) == (0.0, LoadRule.TAIL_BELOW_LIMITS)


def test_idle_node_has_no_load_risk() -> None:
    assert decided(0.0, 0.1, 500, 3000) == (0.0, LoadRule.IDLE)


@pytest.mark.parametrize(("request_m", "risk"), [(1000, 1.0), (1200, 0.0)])
def test_load_without_deviation_is_a_step_function(request_m: int, risk: float) -> None:
    assert decided(0.3, 0.0, request_m, 5000) == (risk, LoadRule.CERTAIN)


def test_deviation_within_float_noise_is_a_step_function() -> None:
    assert decided(0.3, 1e-17, 3600, 5000) == (0.0, LoadRule.CERTAIN)


def test_original_gives_full_risk_to_deviation_within_float_noise() -> None:
    assert decided(0.3, 1e-17, 3600, 5000, ORIGINAL) == (1.0, LoadRule.TAIL)


def test_moments_without_distribution_have_full_risk() -> None:
    assert decided(0.5, 0.5, 1000, 5000) == (1.0, LoadRule.NO_DISTRIBUTION)


def test_unmeasured_load_has_no_risk() -> None:
    risk = load_risk(load(0.0, 0.0, measured=False), committed(500, 3000), PlacementQuirks())
    assert (float(risk.risk[0, 0]), LOAD_RULES[int(risk.rule[0, 0])]) == (0.0, LoadRule.UNMEASURED)


def test_node_without_capacity_has_no_load_risk() -> None:
    risk = load_risk(load(0.0, 0.0), committed(0, 2000, 0), PlacementQuirks())
    assert float(risk.risk[0, 0]) == 0.0


def test_with_columns_replaces_columns_in_a_copy() -> None:
    alike = Commitment(
        request=np.full((1, 3), 500), limit=np.full((1, 3), 5000), allocatable=np.full((1, 3), CAPACITY_M)
    )
    mean, none = np.full((1, 3), 0.9), np.zeros((1, 3))
    three = load_risk(MeasuredLoad(mean=mean, deviation=none, measured=mean > 0), alike, PlacementQuirks())
    risk = load_risk(load(0.0, 0.0), committed(500, 5000), PlacementQuirks())
    changed = three.with_columns(np.array([1]), risk)
    assert changed.mean.tolist() == [[0.9, 0.0, 0.9]]
    assert [LOAD_RULES[rule] for rule in changed.rule[0]] == [LoadRule.CERTAIN, LoadRule.IDLE, LoadRule.CERTAIN]
    assert three.mean.tolist() == [[0.9, 0.9, 0.9]]


@pytest.mark.parametrize(("weight", "total"), [(0.5, 0.45), (1.0, 0.4), (0.0, 0.5), (9.0, 0.0), (-9.0, 1.0)])
def test_total_risk_is_weighted_and_clamped_to_0_and_1(weight: float, total: float) -> None:
    array = total_risk(np.array([0.4]), np.array([0.5]), np.array([weight]))
    assert array[0] == pytest.approx(total)
