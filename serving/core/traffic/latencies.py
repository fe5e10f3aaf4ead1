"""Counts durations in buckets that grow by 4 %: quantiles are at most 2 % off.

The buckets are those of DDSketch (Masson, Rim and Lee, VLDB 2019): bucket ``i`` holds durations above ``1.04^(i-1)`` s
up to ``1.04^i`` s. Counts of several pods, or of several spans of time, are merged by adding them.
"""

import math
from collections.abc import Mapping

FINE_DURATIONS = "serving_request_duration_buckets"
"""The metric family of these counts on an activator's metrics page."""

FINE_TYPE = "text/plain; version=0.0.4; durations=fine"
"""Accept header that requests only ``FINE_DURATIONS`` and waiting requests. Prometheus gets the other metrics."""

_GROWTH = 1.04
_BUCKETS_PER_E = 1 / math.log(_GROWTH)
# At most 700 buckets: shorter durations count as a microsecond, longer ones as eleven days.
_SHORTEST_S = 1e-6
_LONGEST_S = 1e6


def bucket_of(duration_s: float) -> int:
    """The index of a duration's bucket; buckets grow by 4 %."""
    return math.ceil(math.log(min(max(duration_s, _SHORTEST_S), _LONGEST_S)) * _BUCKETS_PER_E)


def quantile_s(counts: Mapping[int, float], ratio: float) -> float | None:
    """The quantile ``ratio`` of all durations, in seconds; None without durations.

    ``counts`` are by bucket. The result is the geometric middle of its bucket, within 2 % of the true duration.
    """
    wanted = ratio * sum(counts.values())
    passed = 0.0
    for bucket in sorted(counts):
        passed += counts[bucket]
        if counts[bucket] > 0 and passed >= wanted:
            return float(2 * _GROWTH**bucket / (_GROWTH + 1))
    return None
