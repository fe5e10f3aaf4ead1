"""How long requests and pod starts take: a constant, or a log-normal distribution by its median and 99th percentile.

Times come from a seed and the name of the function, so that each policy meets the same times.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping

import msgspec

# The 99th percentile of the standard normal distribution.
_Z_99 = 2.3263

Durations = Iterator[float]
"""Durations in seconds, without end."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Median and 99th percentile of a duration in seconds; equal ones mean a constant."""

    p50_s: float
    p99_s: float


class DurationModel(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of every function: ``default`` for those that ``by_function`` does not name."""

    default: Quantiles
    by_function: Mapping[str, Quantiles] = {}

    def of(self, function: str) -> Quantiles:
        """The distribution of one function."""
        return self.by_function.get(function, self.default)


def durations_of(quantiles: Quantiles, seed: str) -> Durations:
    """Durations with these quantiles. A constant needs no dice."""
    if quantiles.p99_s <= quantiles.p50_s:
        return itertools.repeat(quantiles.p50_s)
    draw = _lognormal(quantiles, random.Random(seed))  # noqa: S311 - a simulated world
    return iter(draw, None)


def _lognormal(quantiles: Quantiles, dice: random.Random) -> Callable[[], float]:
    """log(p99 / p50) is 2.3263 standard deviations: 1 s and 10 s give a deviation of 0.99."""
    median = math.log(quantiles.p50_s)
    deviation = (math.log(quantiles.p99_s) - median) / _Z_99
    return lambda: dice.lognormvariate(median, deviation)
