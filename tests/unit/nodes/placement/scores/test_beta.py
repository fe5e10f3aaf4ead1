"""Beta distributions from mean and deviation."""

import sys

import numpy as np
import pytest

from serving.core.model.errors import SettingsError
from serving.nodes.placement.scores.arrays import FloatArray
from serving.nodes.placement.scores.risk import below, fit_beta, incomplete_beta, probability_below, require_scipy


def array_of(value: float) -> FloatArray:
    return np.array([value])


def probability(mean: float, deviation: float, threshold: float, *, lost: bool = False) -> float:
    request_count = probability_below(
        array_of(mean), array_of(deviation), array_of(threshold), small_deviations_get_lost=lost
    )
    return float(request_count.probability[0])


def test_incomplete_beta_equals_known_values() -> None:
    values = incomplete_beta(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([0.5, 0.25]))
    assert values.tolist() == pytest.approx([0.5, 0.26171875], rel=1e-12)


@pytest.mark.parametrize(("a", "b", "x"), [(0.0, 1.0, 0.5), (1.0, 0.0, 0.5), (1.0, 1.0, -0.1), (1.0, 1.0, 1.1)])
def test_incomplete_beta_is_nan_outside_its_domain(a: float, b: float, x: float) -> None:
    assert np.isnan(incomplete_beta(array_of(a), array_of(b), array_of(x)))[0]


def test_fit_beta_matches_mean_and_deviation() -> None:
    fit = fit_beta(array_of(0.5), array_of(0.1))
    assert [*fit.alpha, *fit.beta] == pytest.approx([12.0, 12.0])


@pytest.mark.parametrize(("mean", "deviation"), [(-0.1, 0.1), (1.1, 0.1), (0.5, 0.5), (1.0, 0.1), (1.0, 0.0)])
def test_fit_beta_reports_unmatched_moments(mean: float, deviation: float) -> None:
    assert not fit_beta(array_of(mean), array_of(deviation)).matched[0]


def test_tiny_variance_by_difference_rounds_to_zero() -> None:
    assert np.isinf(fit_beta(array_of(0.5), array_of(1e-9), by_difference=True).alpha)[0]


def test_tiny_deviation_squared_does_not_round_to_zero() -> None:
    assert fit_beta(array_of(0.5), array_of(1e-9)).alpha[0] == pytest.approx(1.25e17)


def test_probability_below_0_is_0_and_below_1_is_1() -> None:
    fit = fit_beta(np.array([0.5, 0.5, 0.5]), np.array([0.1, 0.1, 0.1]))
    assert below(fit, np.array([0.0, 0.5, 1.0])).tolist() == pytest.approx([0.0, 0.5, 1.0])


def test_probability_below_is_0_without_distribution() -> None:
    assert below(fit_beta(array_of(0.5), array_of(0.5)), array_of(1.0)).tolist() == [0.0]


def test_uncomputable_probability_is_0() -> None:
    assert below(fit_beta(array_of(0.5), array_of(0.0), by_difference=True), array_of(0.9)).tolist() == [0.0]


def test_probability_of_fitted_distribution_equals_known_value() -> None:
    assert probability(0.2, 0.1, 0.25) == pytest.approx(0.7188723757863045)


def test_zero_mean_is_below_any_threshold() -> None:
    assert probability(0.0, 0.2, 0.0) == 1.0


@pytest.mark.parametrize(("threshold", "expected"), [(0.2, 0.0), (0.3, 1.0), (0.4, 1.0)])
def test_zero_deviation_compares_mean_with_threshold(threshold: float, expected: float) -> None:
    assert probability(0.3, 0.0, threshold) == expected


def test_deviation_within_float_noise_counts_as_zero() -> None:
    assert (probability(0.3, 1e-17, 0.9), probability(0.95, 1e-17, 0.9)) == (1.0, 0.0)


def test_original_gives_probability_0_for_deviation_within_float_noise() -> None:
    assert probability(0.3, 1e-17, 0.9, lost=True) == 0.0


def test_missing_scipy_error_has_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(SettingsError, match=r"needs scipy.*pip install 'serving\[placement\]'"):
        require_scipy()
