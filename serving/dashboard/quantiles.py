"""Quantiles of a histogram whose buckets widen: a smooth curve through its counts, over the logarithm of their bounds.

Prometheus interpolates linearly within a bucket, which assumes that observations spread evenly. Latencies thin out towards the
slow end, so p95 and p99 come out too high: by a fifth to a half where a bucket is 2.5 times its lower bound. This curve takes
its slope at each bound from the buckets on both sides, and so follows the side to which observations lean. It is monotone, so
a quantile stays within its bucket.

Source of the slopes: F. N. Fritsch and J. Butland, A method for constructing local monotone piecewise cubic interpolants, 1984.
"""

import math
from collections.abc import Sequence

# Halvings of a bucket: 1/4096 of it is far below what a histogram knows.
_STEPS = 12


def quantile(counts: Sequence[tuple[float, float]], ratio: float) -> float | None:
    """The value below which ``ratio`` of all observations lie; None without observations.

    ``counts`` are cumulative, by upper bound, in order; bounds are above 0 and the last one may be infinite. A quantile beyond
    the last finite bound is that bound.
    """
    total = counts[-1][1] if counts else 0.0
    finite = [one for one in counts if math.isfinite(one[0])]
    if total <= 0 or not finite:
        return None
    # log(0) does not exist: the first bucket starts at half of its bound.
    bounds = [math.log(finite[0][0] / 2), *(math.log(bound) for bound, _ in finite)]
    passed = [0.0, *(count for _, count in finite)]
    place = next((place for place, count in enumerate(passed) if count >= ratio * total and place), None)
    if place is None:
        return finite[-1][0]
    return math.exp(_solved(bounds, passed, place - 1, wanted=ratio * total))


def _solved(bounds: Sequence[float], passed: Sequence[float], place: int, *, wanted: float) -> float:
    """The point between bound ``place`` and the next where the curve reaches ``wanted``."""
    width, rise = bounds[place + 1] - bounds[place], passed[place + 1] - passed[place]
    begins, ends = (_slope(bounds, passed, one) * width for one in (place, place + 1))
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        at = (low + high) / 2
        # The cubic with these two slopes that goes from 0 to ``rise`` as ``at`` goes from 0 to 1.
        risen = at * (begins + at * (3 * rise - 2 * begins - ends + at * (begins + ends - 2 * rise)))
        low, high = (at, high) if passed[place] + risen < wanted else (low, at)
    return bounds[place] + width * (low + high) / 2


def _slope(bounds: Sequence[float], passed: Sequence[float], place: int) -> float:
    """The slope at a bound from the buckets on both sides; 0 at both ends and beside an empty bucket."""
    if not 0 < place < len(bounds) - 1:
        return 0.0
    before, after = bounds[place] - bounds[place - 1], bounds[place + 1] - bounds[place]
    came, comes = (passed[place] - passed[place - 1]) / before, (passed[place + 1] - passed[place]) / after
    if came <= 0 or comes <= 0:
        return 0.0
    # The weighted harmonic mean stays near the smaller slope, which keeps the curve monotone.
    return 3 * (before + after) / ((2 * after + before) / came + (after + 2 * before) / comes)
