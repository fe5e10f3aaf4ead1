"""Reads a revision's latency goal, such as "p95<300ms", and counts requests by latency.

``read_slo`` parses the annotation ``autoscaling.serving.dev/slo``. Queue-proxies count requests in bins relative to the
limit, and the autoscaler adds the bins of all pods. So a percentile is that of the whole revision, not a mean of
percentiles. A bin is 19 % wide. One edge is the limit itself, so that the number of late requests is exact.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterable, Sequence

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.quantity import parse_duration_s
from serving.core.model.stat import BINS_MAX

BINS_PER_DOUBLING = 4
"""Bins between a latency and its double."""

BINS_BELOW = 16
"""Bins up to the limit; the first one ends at a sixteenth of the limit."""

WAIT = "wait"
# The upper edge of the first bin, relative to the limit.
_LEAST_PART = 16
_FORM = re.compile(r"p([5-9][0-9](?:\.[0-9]{1,2})?)(-wait)?\s*<\s*([0-9].*)", re.ASCII)
SLO_FORM = _FORM.pattern
"""The form of a goal; the range of its time is checked separately."""
_LIMIT_MIN_S, _LIMIT_MAX_S = 0.001, 600.0
_PERCENT = 100.0
# Rounding error of sums of shares.
_SLACK = 1e-9
_EXPECTED = 'a percentile from p50 to p99.99 and a time from 1ms to 10m, as in "p95<300ms" for responses or "p99-wait<100ms" for waits'


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """A latency goal: a ``share`` of the requests takes at most ``limit_s`` seconds.

    If ``is_wait``, only the wait for a slot in a pod counts, not the whole response.
    """

    share: float
    limit_s: float
    is_wait: bool = False

    @property
    def name(self) -> str:
        """The name of the measure, such as "p95" or "p99-wait"."""
        return f"p{self.share * _PERCENT:.4g}{'-' + WAIT if self.is_wait else ''}"

    def allows(self, late_count: float, count: float) -> bool:
        """Whether ``late_count`` late requests of ``count`` meet the goal: a p95 goal allows 5 of 100, not 6."""
        return late_count <= (1.0 - self.share) * count + _SLACK


@functools.lru_cache(1024)
def read_slo(text: str) -> Slo:
    """Parse the goal in an annotation. Raises ``InvalidValue``."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(text=text, expected=_EXPECTED)
    try:
        limit_s = parse_duration_s(match[3])
    except InvalidValue as error:
        raise InvalidValue(text=text, expected=_EXPECTED) from error
    share = round(float(match[1]) / _PERCENT, 4)
    if not _LIMIT_MIN_S <= limit_s <= _LIMIT_MAX_S:
        raise InvalidValue(text=text, expected=_EXPECTED)
    return Slo(share=share, limit_s=limit_s, is_wait=bool(match[2]))


def bin_of(took_s: float, limit_s: float) -> int:
    """The index of a latency's bin: 0 to 16 for latencies up to the limit, from 17 on above it."""
    if took_s <= limit_s / _LEAST_PART:
        return 0
    if took_s == math.inf:
        return BINS_MAX - 1
    number = min(math.ceil(BINS_BELOW + BINS_PER_DOUBLING * math.log2(took_s / limit_s)), BINS_MAX - 1)
    # Logarithms have rounding errors, and a request exactly at the limit is on time.
    return min(number, BINS_BELOW) if took_s <= limit_s else max(number, BINS_BELOW + 1)


def late_sum(bins: Sequence[float]) -> float:
    """The number of requests that took longer than the limit."""
    return sum(bins[BINS_BELOW + 1 :])


def add_bins(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """The sum of two lists of counts; missing bins at the end are 0."""
    if not (first and second):
        return tuple(first or second)
    return tuple(map(sum, itertools.zip_longest(first, second, fillvalue=0.0)))


def quantile_s(bins: Sequence[float], slo: Slo) -> float:
    """The latency within which the goal's share of requests ended; 0 without requests.

    The latency is interpolated logarithmically in its bin. Example: of 100 requests, 90 are in the bin up to 252 ms and
    10 in the bin up to 300 ms. The 95th percentile is in the middle of the second bin: 275 ms.
    """
    rank, passed = slo.share * sum(bins), 0.0
    for number, count in enumerate(bins):
        if count and passed + count >= rank - _SLACK:
            into = (rank - passed) / count
            return slo.limit_s * math.exp2((number - BINS_BELOW - 1 + into) / BINS_PER_DOUBLING)
        passed += count
    return 0.0


class SloMeter:
    """Counts the requests of one source by latency, until ``drain``."""

    __slots__ = ("_bins", "slo")

    def __init__(self, slo: Slo) -> None:
        self.slo = slo
        self._bins: list[int] = []

    def record(self, took_s: float) -> None:
        """Count a request by its latency in seconds, infinite if it was rejected."""
        number = bin_of(took_s, self.slo.limit_s)
        bins = self._bins
        if number >= len(bins):
            bins.extend([0] * (number + 1 - len(bins)))
        bins[number] += 1

    def drain(self) -> tuple[int, ...]:
        """Return the counts since the last call, and reset them."""
        bins, self._bins = self._bins, []
        return tuple(bins)


def sum_bins(all_bins: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The sum of several bin counts."""
    return functools.reduce(add_bins, all_bins, ())
