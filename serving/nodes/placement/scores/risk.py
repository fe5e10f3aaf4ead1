"""The risk that a node's pods need more than the node has, from limits and from beta-distributed load, by resource.

Input: the limits of pods, the capacity of nodes, and the load, as arrays. Output: risks from 0 to 1, with the deciding
rule. Only the distribution needs scipy, which is imported on first use.

Source: kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran/lowriskovercommitment; the idea and its words (excess,
allowed, overuse) are those of its proposal, KEP 357.
"""

import enum
import math
from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.placement import PlacementQuirks
from serving.nodes.placement.scores.arrays import BoolArray, FloatArray, IntArray, share

# Smaller deviations (64 bytes of 64 GiB) are noise of floating-point sums.
DEVIATION_MIN = 1e-9
_SMALLEST = 5e-324

# Used share of a beta distribution's largest variance, at which no distribution exists.
_VARIANCE_SHARE_MAX = 0.99


class BetaFit(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Beta distributions with given means and deviations. Where ``matched`` is false, there is no such distribution."""

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
        SettingsError: when scipy is not installed; the text says how to install it.
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

    With variance v: k = mean * (1 - mean) / v - 1, alpha = mean * k, beta = (1 - mean) * k. No distribution exists for
    a mean outside 0..1, or a variance of mean * (1 - mean) or more. Example: mean 0.5 and deviation 0.1 give k = 0.25 /
    0.01 - 1 = 24; alpha and beta are 12.

    ``by_difference`` computes the variance as second moment minus squared mean, as scheduler-plugins does. It rounds to
    0 for small deviations; alpha and beta are then infinite.
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

    Not a number if alpha or beta is not above 0, or x is outside 0..1.
    """
    betainc = require_scipy()
    inside = (alpha > 0.0) & (beta > 0.0) & (x >= 0.0) & (x <= 1.0)
    values = np.full(x.shape, np.nan)
    values[inside] = betainc(alpha[inside], beta[inside], x[inside])
    return values


def below(fit: BetaFit, threshold: FloatArray) -> FloatArray:
    """P(load <= threshold) of fitted distributions; 0 where it cannot be computed."""
    computed = fit.matched & (threshold > 0.0) & (threshold < 1.0)
    values = incomplete_beta(fit.alpha[computed], fit.beta[computed], threshold[computed])
    probabilities = np.where(fit.matched & (threshold >= 1.0), 1.0, 0.0)
    probabilities[computed] = np.where((values >= 0.0) & (values <= 1.0), values, 0.0)
    return probabilities


def probability_below(
    mean: FloatArray, deviation: FloatArray, threshold: FloatArray, *, small_deviations_get_lost: bool = False
) -> Probability:
    """P(load <= threshold) from mean and deviation of the load.

    A mean of 0 gives 1. With a deviation of 0 the load equals the mean: the result is 1 for a mean up to the threshold,
    else 0. Otherwise the fitted beta distribution gives the result. Example: mean 0.2, deviation 0.1 and threshold 0.25
    give alpha 3, beta 12 and probability 0.719.

    A deviation below 1e-9 is rounding noise and counts as 0. With ``small_deviations_get_lost``, a quirk of
    scheduler-plugins, it does not: the fit fails, and the result is 0.
    """
    certain = deviation == 0.0 if small_deviations_get_lost else deviation < DEVIATION_MIN
    fit = fit_beta(mean, deviation, by_difference=small_deviations_get_lost)
    fit = msgspec.structs.replace(fit, matched=fit.matched & ~certain & (mean != 0.0))
    probability = np.where(certain, mean <= threshold, below(fit, threshold))
    return Probability(probability=np.where(mean == 0.0, 1.0, probability), certain=certain, fit=fit)


class LoadRule(enum.StrEnum):
    """The rule behind the load risk of one resource."""

    TAIL = "tail"
    """The probability that load exceeds the requests."""

    TAIL_BELOW_LIMITS = "tail_below_limits"
    """The probability of load above the requests, if limits below the capacity bound the load."""

    ABOVE_LIMITS = "above_limits"
    """The mean load minus the sum of limits, if larger than that probability."""

    NO_LIMITS = "no_limits"
    """Nothing on the node has a limit, which Trimaran counts as no risk."""

    CERTAIN = "certain"
    """Without a deviation the load equals its mean: 1 if above the requests, else 0."""

    IDLE = "idle"
    """The mean is 0, and so is the risk."""

    NO_DISTRIBUTION = "no_distribution"
    """No beta distribution has this mean and deviation: 1."""

    UNMEASURED = "unmeasured"
    """The mean is missing: 0, so that only requests and limits decide."""

    STALE = "stale"
    """The measurement is too old: 0, so that only requests and limits decide."""


LOAD_RULES = tuple(LoadRule)


class Commitment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Capacity of nodes, and requests and limits of their pods. Requests are capped at the allocatable amount."""

    request: IntArray
    limit: IntArray
    allocatable: IntArray


class MeasuredLoad(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Mean and deviation of the load as shares of the allocatable amount; both 0 where not ``measured``."""

    mean: FloatArray
    deviation: FloatArray
    measured: BoolArray


class LoadRisk(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Risks from load. ``rule`` holds indexes into ``LOAD_RULES``; ``deviation`` is after smoothing and bounding.

    ``fitted`` marks the columns with a distribution; elsewhere ``alpha`` and ``beta`` are undefined.
    """

    risk: FloatArray
    rule: IntArray
    mean: FloatArray
    deviation: FloatArray
    alpha: FloatArray
    beta: FloatArray
    fitted: BoolArray

    def with_columns(self, at: IntArray, columns: "LoadRisk") -> "LoadRisk":
        """A copy with some columns replaced by the columns of another result."""
        copies = {name: getattr(self, name).copy() for name in self.__struct_fields__}
        for name, copy in copies.items():
            copy[:, at] = getattr(columns, name)
        return LoadRisk(**copies)


def limit_risk(committed: Commitment) -> FloatArray:
    """Of the usage between requests and limits, the share for which the node has no capacity.

    The share is (limit - allocatable) / (limit - request), or 0 if all limits fit. Example: requests of 1500 m and
    limits of 6000 m on 4000 m give 2000 / 4500 = 0.444. The share is within 0..1, because requests are at most the
    allocatable amount.
    """
    over = committed.limit > committed.allocatable
    missing = committed.limit - committed.allocatable
    excess = committed.limit - committed.request
    # Only impossible figures (requests equal to limits above capacity) have no excess: the highest risk.
    risk = np.where(over, 1.0, 0.0)
    np.divide(missing, excess, out=risk, where=over & (excess != 0))
    return risk


def smoothed_deviation(mean: FloatArray, deviation: FloatArray, window_size: int) -> FloatArray:
    """The deviation of single samples, computed from that of averages over ``window_size`` samples.

    The result is deviation * sqrt(window_size), at most sqrt(0.99 * mean * (1 - mean)), the range of a beta
    distribution. Example: 0.1 over 5 samples at mean 0.5 gives 0.2236.
    """
    # Settings reject sizes below 1; Trimaran computes with them, and the square root of -1 is not a number.
    factor = math.sqrt(window_size) if window_size >= 0 else math.nan
    bound = np.sqrt(_VARIANCE_SHARE_MAX * mean * (1.0 - mean))
    return np.minimum(deviation * factor, bound)


def load_risk(load: MeasuredLoad, committed: Commitment, quirks: PlacementQuirks) -> LoadRisk:
    """The probability that load exceeds the requests; ``committed`` excludes the pending pod.

    F is the distribution function of the load, t = request / allocatable, and L = limit / allocatable. The risk is
    1 - F(t), or 1 - F(t) / F(L) if L < 1, because limits then bound the load. Example: mean 0.3, deviation 0.1118, t
    0.125 and L 0.75 give 0.958. A mean above the limits shows that they do not bound the load; the risk is then at
    least mean - L. Example: a mean of 0.95 without any limit is a risk of 0.95.
    """
    mean, request, limit, allocatable = load.mean, committed.request, committed.limit, committed.allocatable
    threshold = np.clip(share(request, allocatable, of_nothing=0.0), 0.0, 1.0)
    limit_share = share(limit, allocatable, of_nothing=0.0)
    below_threshold = probability_below(
        mean, load.deviation, threshold, small_deviations_get_lost=quirks.small_deviations_get_lost
    )
    bounded = (limit < allocatable) & (request <= limit)
    unlimited = bounded & (limit_share == 0.0)
    within_limits = below(below_threshold.fit, np.where(bounded, limit_share, 0.0))
    conditioned = within_limits > 0.0
    probability = below_threshold.probability.copy()
    probability[conditioned] = np.clip(probability[conditioned] / within_limits[conditioned], 0.0, 1.0)
    probability[unlimited] = 1.0
    tail = 1.0 - probability
    floor = np.zeros_like(mean) if quirks.limits_outrank_load else mean - limit_share
    rules = (
        (~load.measured, LoadRule.UNMEASURED),
        (floor > tail, LoadRule.ABOVE_LIMITS),
        (mean == 0.0, LoadRule.IDLE),
        (unlimited, LoadRule.NO_LIMITS),
        (below_threshold.certain, LoadRule.CERTAIN),
        (~below_threshold.fit.matched, LoadRule.NO_DISTRIBUTION),
        (conditioned, LoadRule.TAIL_BELOW_LIMITS),
    )
    return LoadRisk(
        risk=np.where(load.measured, np.maximum(tail, floor), 0.0),
        rule=np.select([where for where, _ in rules], [LOAD_RULES.index(rule) for _, rule in rules], default=0),
        mean=mean,
        deviation=load.deviation,
        alpha=below_threshold.fit.alpha,
        beta=below_threshold.fit.beta,
        fitted=below_threshold.fit.matched,
    )


def total_risk(limit_risk: FloatArray, load_risk: FloatArray, limit_weight: FloatArray) -> FloatArray:
    """The weighted sum of both risks: w * limit risk + (1 - w) * load risk, as in 0.5 * 0.4 + 0.5 * 0.5 = 0.45."""
    return np.clip(limit_weight * limit_risk + (1.0 - limit_weight) * load_risk, 0.0, 1.0)
