"""Beta distributions from mean and deviation."""

import sys

import numpy as np
import pytest

from serving.core.model.errors import SettingsError
from serving.nodes.placement.scores.arrays import FloatArray
from serving.nodes.placement.scores.risk import below, fit_beta, incomplete_beta, probability_below, require_scipy


def one(value: float) -> FloatArray:
    return np.array([value])


def probability(mean: float, deviation: float, threshold: float, *, lost: bool = False) -> float:
    request_count = probability_below(one(mean), one(deviation), one(threshold), small_deviations_get_lost=lost)
    return float(request_count.probability[0])


def test_the_incomplete_beta_function() -> None:
    values = incomplete_beta(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([0.5, 0.25]))
    assert values.tolist() == pytest.approx([0.5, 0.26171875], rel=1e-12)


@pytest.mark.parametrize(("a", "b", "x"), [(0.0, 1.0, 0.5), (1.0, 0.0, 0.5), (1.0, 1.0, -0.1), (1.0, 1.0, 1.1)])
def test_outside_its_domain_it_is_not_a_number(a: float, b: float, x: float) -> None:
    assert np.isnan(incomplete_beta(one(a), one(b), one(x)))[0]


def test_a_fit_has_the_mean_and_deviation_asked_for() -> None:
    fit = fit_beta(one(0.5), one(0.1))
    assert [*fit.alpha, *fit.beta] == pytest.approx([12.0, 12.0])


@pytest.mark.parametrize(("mean", "deviation"), [(-0.1, 0.1), (1.1, 0.1), (0.5, 0.5), (1.0, 0.1), (1.0, 0.0)])
def test_some_moments_fit_no_distribution(mean: float, deviation: float) -> None:
    assert not fit_beta(one(mean), one(deviation)).matched[0]


def test_a_variance_by_difference_rounds_to_nothing() -> None:
    assert np.isinf(fit_beta(one(0.5), one(1e-9), by_difference=True).alpha)[0]


def test_a_squared_deviation_does_not() -> None:
    assert fit_beta(one(0.5), one(1e-9)).alpha[0] == pytest.approx(1.25e17)


def test_below_0_there_is_nothing_and_up_to_1_all() -> None:
    fit = fit_beta(np.array([0.5, 0.5, 0.5]), np.array([0.1, 0.1, 0.1]))
    assert below(fit, np.array([0.0, 0.5, 1.0])).tolist() == pytest.approx([0.0, 0.5, 1.0])


def test_without_a_distribution_nothing_is_below() -> None:
    assert below(fit_beta(one(0.5), one(0.5)), one(1.0)).tolist() == [0.0]


def test_what_cannot_be_computed_is_0() -> None:
    assert below(fit_beta(one(0.5), one(0.0), by_difference=True), one(0.9)).tolist() == [0.0]


def test_the_probability_of_a_fitted_distribution() -> None:
    assert probability(0.2, 0.1, 0.25) == pytest.approx(0.7188723757863045)


def test_no_load_is_below_any_threshold() -> None:
    assert probability(0.0, 0.2, 0.0) == 1.0


@pytest.mark.parametrize(("threshold", "expected"), [(0.2, 0.0), (0.3, 1.0), (0.4, 1.0)])
def test_without_deviation_the_mean_decides(threshold: float, expected: float) -> None:
    assert probability(0.3, 0.0, threshold) == expected


def test_a_deviation_of_noise_counts_as_none() -> None:
    assert (probability(0.3, 1e-17, 0.9), probability(0.95, 1e-17, 0.9)) == (1.0, 0.0)


def test_in_the_original_a_deviation_of_noise_is_full_risk() -> None:
    assert probability(0.3, 1e-17, 0.9, lost=True) == 0.0


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(SettingsError, match=r"needs scipy.*pip install 'serving\[placement\]'"):
        require_scipy()
