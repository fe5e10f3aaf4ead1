"""The risk that a node's pods need more than the node has, from limits and from load, by resource.

Input: what pods may ask for, what nodes have, and the load, as arrays; output: risks from 0 to 1, with the rule that
decided. Arithmetic only; which nodes and pods these are is known in ``low_risk``.

Source: kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran/lowriskovercommitment; the idea and its words (excess,
allowed, overuse) are those of its proposal, KEP 357.
"""

import enum
import math

import msgspec
import numpy as np

from serving.placement.scores.arrays import BoolArray, FloatArray, IntArray, share
from serving.placement.scores.beta import below, probability_below
from serving.settings.placement import PlacementQuirks

# How much of the largest variance that a beta distribution can have is used; at all of it there is no distribution.
_VARIANCE_SHARE_MAX = 0.99


class LoadRule(enum.StrEnum):
    """The rule behind the load risk of one resource."""

    TAIL = "tail"
    """The chance that load exceeds the requests."""

    TAIL_BELOW_LIMITS = "tail_below_limits"
    """The same, given that limits below the capacity bound the load."""

    ABOVE_LIMITS = "above_limits"
    """The mean load exceeds the sum of limits by more than the chance: the difference."""

    NO_LIMITS = "no_limits"
    """Nothing on the node has a limit, which the original takes as no risk."""

    CERTAIN = "certain"
    """Without a deviation the load is its mean: 1 if above what is requested, else 0."""

    IDLE = "idle"
    """The mean is 0, and so is the risk."""

    NO_DISTRIBUTION = "no_distribution"
    """No beta distribution has this mean and deviation: 1."""

    UNMEASURED = "unmeasured"
    """There is no mean: 0, so that requests and limits decide alone."""

    STALE = "stale"
    """The measurement is too old to count: 0, so that requests and limits decide alone."""


LOAD_RULES = tuple(LoadRule)


class Commitment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Capacity of nodes, with requests and limits of their pods. Requests are capped at the allocatable amount."""

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
        """A copy with some columns of another table."""
        copies = {name: getattr(self, name).copy() for name in self.__struct_fields__}
        for name, copy in copies.items():
            copy[:, at] = getattr(columns, name)
        return LoadRisk(**copies)


def limit_risk(committed: Commitment) -> FloatArray:
    """The share of use beyond requests that has no capacity behind it.

    (limit - allocatable) / (limit - request), or 0 if all limits fit. Requests of 1500 m, limits of 6000 m on 4000 m:
    2000 / 4500 = 0.444. With requests at most the allocatable amount it is within 0..1.
    """
    over = committed.limit > committed.allocatable
    missing = committed.limit - committed.allocatable
    excess = committed.limit - committed.request
    # Only figures that no node can have (requests equal to limits above capacity) leave no excess: the highest risk.
    risk = np.where(over, 1.0, 0.0)
    np.divide(missing, excess, out=risk, where=over & (excess != 0))
    return risk


def smoothed_deviation(mean: FloatArray, deviation: FloatArray, window_size: int) -> FloatArray:
    """The deviation before the source averaged over ``window_size`` samples, within the range of a beta distribution.

    deviation * sqrt(window_size), at most sqrt(0.99 * mean * (1 - mean)). 0.1 over 5 samples at mean 0.5: 0.2236.
    """
    # Settings refuse sizes below 1; the original computes with them, and the square root of -1 is not a number.
    factor = math.sqrt(window_size) if window_size >= 0 else math.nan
    bound = np.sqrt(_VARIANCE_SHARE_MAX * mean * (1.0 - mean))
    return np.minimum(deviation * factor, bound)


def load_risk(load: MeasuredLoad, committed: Commitment, quirks: PlacementQuirks) -> LoadRisk:
    """The chance that load exceeds the requests; ``committed`` is without the pending pod.

    With t = request / allocatable and L = limit / allocatable: the risk is 1 - F(t), and 1 - F(t) / F(L) if limits keep
    load below L < 1. Mean 0.3, deviation 0.1118, t 0.125, L 0.75: 0.958. Limits do not bound a load whose mean is
    already above them, so the risk is at least mean - L: a mean of 0.95 without any limit is a risk of 0.95.
    """
    mean, request, limit, allocatable = load.mean, committed.request, committed.limit, committed.allocatable
    threshold = np.clip(share(request, allocatable, of_nothing=0.0), 0.0, 1.0)
    limit_share = share(limit, allocatable, of_nothing=0.0)
    asked = probability_below(
        mean, load.deviation, threshold, small_deviations_get_lost=quirks.small_deviations_get_lost
    )
    bounded = (limit < allocatable) & (request <= limit)
    unlimited = bounded & (limit_share == 0.0)
    within_limits = below(asked.fit, np.where(bounded, limit_share, 0.0))
    conditioned = within_limits > 0.0
    probability = asked.probability.copy()
    probability[conditioned] = np.clip(probability[conditioned] / within_limits[conditioned], 0.0, 1.0)
    probability[unlimited] = 1.0
    tail = 1.0 - probability
    floor = np.zeros_like(mean) if quirks.limits_outrank_load else mean - limit_share
    rules = (
        (~load.measured, LoadRule.UNMEASURED),
        (floor > tail, LoadRule.ABOVE_LIMITS),
        (mean == 0.0, LoadRule.IDLE),
        (unlimited, LoadRule.NO_LIMITS),
        (asked.certain, LoadRule.CERTAIN),
        (~asked.fit.matched, LoadRule.NO_DISTRIBUTION),
        (conditioned, LoadRule.TAIL_BELOW_LIMITS),
    )
    return LoadRisk(
        risk=np.where(load.measured, np.maximum(tail, floor), 0.0),
        rule=np.select([where for where, _ in rules], [LOAD_RULES.index(rule) for _, rule in rules], default=0),
        mean=mean,
        deviation=load.deviation,
        alpha=asked.fit.alpha,
        beta=asked.fit.beta,
        fitted=asked.fit.matched,
    )


def total_risk(limit_risk: FloatArray, load_risk: FloatArray, limit_weight: FloatArray) -> FloatArray:
    """Both risks weighted, from 0 to 1: w * limit risk + (1 - w) * load risk; 0.5 * 0.4 + 0.5 * 0.5 = 0.45."""
    return np.clip(limit_weight * limit_risk + (1.0 - limit_weight) * load_risk, 0.0, 1.0)
