"""The probability of a load below a threshold, for beta-distributed loads of known mean and deviation.

Input: arrays of means, deviations and thresholds, all as shares of a node; output: probabilities, with the fitted
distributions. What the load is of is not known here. Only this module needs scipy, and only when it is called.

Source: kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran/lowriskovercommitment/beta.go; the incomplete beta
function is scipy's, which agrees with the original's (Cephes) to about 1e-12.
"""

from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np

from serving.model.errors import Problem, SettingsError
from serving.placement.scores.arrays import BoolArray, FloatArray

# Smaller deviations (64 bytes of 64 GiB) are noise of floating-point sums, not something that was measured.
DEVIATION_MIN = 1e-9
_SMALLEST = 5e-324


class BetaFit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Beta distributions with given means and deviations. Where ``matched`` is false there is none."""

    alpha: FloatArray
    beta: FloatArray
    matched: BoolArray


class Probability(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """P(load <= threshold). ``certain`` marks a deviation of 0, where the mean alone decides."""

    probability: FloatArray
    certain: BoolArray
    fit: BetaFit


def require_scipy() -> Callable[[FloatArray, FloatArray, FloatArray], FloatArray]:
    """The regularised incomplete beta function of scipy.

    Raises:
        SettingsError: scipy is not installed; the text says how to install it.
    """
    try:
        from scipy.special import betainc  # noqa: PLC0415 - scipy is an extra, and a fifth of a second to import
    except ImportError as error:
        problem = Problem(
            where="LowRiskOverCommitment",
            what="needs scipy, which is not installed",
            expected="pip install 'serving[placement]'",
        )
        raise SettingsError([problem]) from error
    return cast("Callable[[FloatArray, FloatArray, FloatArray], FloatArray]", betainc)


def fit_beta(mean: FloatArray, deviation: FloatArray, *, by_difference: bool = False) -> BetaFit:
    """The beta distributions that have these means and deviations.

    With variance v: k = mean * (1 - mean) / v - 1, alpha = mean * k, beta = (1 - mean) * k. There is none for a mean
    outside 0..1 or a variance of mean * (1 - mean) or more. Mean 0.5, deviation 0.1: k = 0.25 / 0.01 - 1 = 24, alpha
    and beta are 12.

    ``by_difference`` takes the variance, as the original does, as second moment less squared mean, which rounds to 0
    for small deviations; then alpha and beta are infinite.
    """
    squared_mean = mean * mean
    squared_deviation = deviation * deviation
    variance = (squared_deviation + squared_mean) - squared_mean if by_difference else squared_deviation
    variance_max = mean * (1.0 - mean)
    refused = (mean < 0.0) | (mean > 1.0) | (variance < 0.0) | (variance >= variance_max)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        k = np.maximum(variance_max / variance - 1.0, _SMALLEST)
        return BetaFit(alpha=mean * k, beta=(1.0 - mean) * k, matched=~refused)


def incomplete_beta(alpha: FloatArray, beta: FloatArray, x: FloatArray) -> FloatArray:
    """Regularised incomplete beta function I_x(alpha, beta): I_0.25(2, 3) = 0.26171875.

    Not a number outside its domain: alpha or beta not above 0, x outside 0..1. Internal; callers see probabilities.
    """
    betainc = require_scipy()
    inside = (alpha > 0.0) & (beta > 0.0) & (x >= 0.0) & (x <= 1.0)
    values = np.full(x.shape, np.nan)
    values[inside] = betainc(alpha[inside], beta[inside], x[inside])
    return values


def below(fit: BetaFit, threshold: FloatArray) -> FloatArray:
    """P(load <= threshold) of fitted distributions; 0 where it cannot be computed."""
    asked = fit.matched & (threshold > 0.0) & (threshold < 1.0)
    values = incomplete_beta(fit.alpha[asked], fit.beta[asked], threshold[asked])
    probabilities = np.where(fit.matched & (threshold >= 1.0), 1.0, 0.0)
    probabilities[asked] = np.where((values >= 0.0) & (values <= 1.0), values, 0.0)
    return probabilities


def probability_below(
    mean: FloatArray, deviation: FloatArray, threshold: FloatArray, *, small_deviations_get_lost: bool = False
) -> Probability:
    """P(load <= threshold) from mean and deviation of the load.

    A mean of 0 gives 1. Without a deviation the load is the mean: 1 up to the threshold, else 0. Otherwise it is that
    of the fitted beta distribution. Mean 0.2, deviation 0.1, threshold 0.25: alpha 3, beta 12, probability 0.719.

    ``small_deviations_get_lost`` is the quirk of that name: only a deviation of exactly 0 counts as none.
    """
    certain = deviation == 0.0 if small_deviations_get_lost else deviation < DEVIATION_MIN
    fit = fit_beta(mean, deviation, by_difference=small_deviations_get_lost)
    fit = msgspec.structs.replace(fit, matched=fit.matched & ~certain & (mean != 0.0))
    probability = np.where(certain, mean <= threshold, below(fit, threshold))
    return Probability(probability=np.where(mean == 0.0, 1.0, probability), certain=certain, fit=fit)
