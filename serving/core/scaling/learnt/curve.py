"""Models of one pod: response time and knee by concurrency, and memory by requests in flight.

Input: seconds of pods, each with the mean concurrency and the requests that ended in it. Output: a ``Knee``. Seconds
are grouped in bins of concurrency, two bins per factor of 2; old seconds count less. The response times of the bins are
made monotone (isotonic regression, pool adjacent violators): more concurrent requests never take less time, so a
decrease is noise.

Source of the knee: operational analysis, "asymptotic bounds" (Denning and Buzen 1978; Lazowska et al., Quantitative
System Performance, 1984, chapter 5). With N requests in flight and the response time R of an idle pod, throughput is at
most N / R. It is also at most its maximum X. The two bounds cross at the knee N* = R x X. Example: 20 ms and 200
requests per second give 4 in flight. BBR limits a connection to the same product, of delay and bandwidth.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgspec

# Lower edges of the bins, in requests in flight; the first bin begins at 0, the last one at 724.
_EDGES = tuple(2.0 ** (half / 2) for half in range(20))
_BINS = len(_EDGES) + 1
# Rows of the state: seconds, in flight x seconds, ended requests, their response times in seconds.
_SECONDS, _IN_FLIGHT, _ENDED, _RESPONSE = (row * _BINS for row in range(4))
# Fewest seconds and requests of a usable bin.
_SECONDS_MIN, _ENDED_MIN = 3.0, 10.0

# Fewest measurements of a line, and least standard deviation of their requests in flight.
_WEIGHT_MIN, _SPREAD_MIN = 4.0, 0.4
# Least share of the memory variance explained by requests.
_EXPLAINED_MIN = 0.3
# Largest used share of the limit: measurements are seconds old, and an allocator keeps some freed memory.
_USED_RATIO = 0.9
# One request is always allowed.
_FITTING_MIN = 1.0
# Safety margin in deviations from the line. It partly covers requests shorter than a report, for
# which the learner adds a margin too.
_DEVIATIONS = 1.0


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the knee: the concurrency of one pod beyond which requests only wait longer.

    ``bottom`` and ``top`` are the lowest and the highest observed concurrency, ``response_s`` and ``top_response_s``
    the response times there, in seconds. ``throughput_max`` is the highest request rate of a pod, per second.
    """

    response_s: float
    throughput_max: float
    bottom: float
    top: float
    top_response_s: float

    @property
    def slowdown(self) -> float:
        """Response time at the highest concurrency divided by that at the lowest; 1 if nothing queues."""
        return self.top_response_s / self.response_s


class LatencyCurve:
    """Response times of one revision's pods, binned by concurrency."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums = array("f", bytes(4 * 4 * _BINS))

    def record(self, concurrency: float, ended_count: float, response_time_s: float) -> None:
        """Add one second of one pod; ``response_time_s`` is the mean of its ended requests."""
        sums, at = self._sums, bisect_right(_EDGES, concurrency)
        sums[at] += 1.0
        sums[_IN_FLIGHT + at] += concurrency
        sums[_ENDED + at] += ended_count
        sums[_RESPONSE + at] += ended_count * response_time_s

    def fade(self, ratio: float) -> None:
        """Multiply the weight of all observations by ``ratio``, so that later ones count more."""
        self._sums = array("f", [total * ratio for total in self._sums])

    def knee(self) -> Knee | None:
        """The current measurements; None while no bin has enough seconds and requests."""
        points = list(self._points())
        if not points:
            return None
        blocks = _monotone(points)
        return Knee(
            bottom=points[0][0],
            response_s=blocks[0][1],
            throughput_max=max(in_flight / response_s for in_flight, response_s in blocks),
            top=blocks[-1][0],
            top_response_s=blocks[-1][1],
        )

    def _points(self) -> Iterator[tuple[float, float, float]]:
        """Mean concurrency, mean response time and weight of each bin with enough seconds and requests."""
        sums = self._sums
        for at in range(_BINS):
            seconds, ended, response = sums[at], sums[_ENDED + at], sums[_RESPONSE + at]
            if seconds >= _SECONDS_MIN and ended >= _ENDED_MIN and response > 0:
                yield sums[_IN_FLIGHT + at] / seconds, response / ended, ended


def _monotone(points: Iterable[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Merge neighbours into their mean until response time rises with concurrency; return pairs of both.

    Each merged block has the largest concurrency of its bins. Source: Barlow et al., Statistical Inference under Order
    Restrictions, 1972.
    """
    blocks: list[tuple[float, float, float]] = []
    for point in points:
        in_flight, response_s, weight = point
        while blocks and blocks[-1][1] >= response_s:
            _, before_s, before = blocks.pop()
            response_s = (before_s * before + response_s * weight) / (before + weight)
            weight += before
        blocks.append((in_flight, response_s, weight))
    return [(in_flight, response_s) for in_flight, response_s, _ in blocks]


class MemoryLine:
    """A line through one revision's measurements of memory by requests in flight."""

    __slots__ = ("_both", "_loads", "_mean_bytes", "_mean_load", "_squares", "_weight")

    def __init__(self) -> None:
        self._weight = self._mean_load = self._mean_bytes = 0.0
        # Sums of squared and multiplied deviations from the means.
        self._loads = self._both = self._squares = 0.0

    def record(self, concurrency: float, used_bytes: float) -> None:
        """Add one measurement of a pod."""
        weight = self._weight = self._weight + 1.0
        load_off, bytes_off = concurrency - self._mean_load, used_bytes - self._mean_bytes
        mean_load = self._mean_load = self._mean_load + load_off / weight
        mean_bytes = self._mean_bytes = self._mean_bytes + bytes_off / weight
        self._loads += load_off * (concurrency - mean_load)
        self._both += load_off * (used_bytes - mean_bytes)
        self._squares += bytes_off * (used_bytes - mean_bytes)

    def fade(self, ratio: float) -> None:
        """Multiply the weight of all measurements by ``ratio``, so that later ones count more."""
        self._weight *= ratio
        self._loads *= ratio
        self._both *= ratio
        self._squares *= ratio

    def in_flight_max(self, limit_bytes: float) -> float | None:
        """Requests in flight that fit below the limit; None without enough measurements, or if requests need no memory.

        Above 90 % of the limit the result is at most the observed requests in flight. Example: a pod of 24 MB with 12
        MB per request and a limit of 160 MB: (0.9 x 160 - 24) / 12 = 10.
        """
        weight, mean_load, mean_bytes = self._weight, self._mean_load, self._mean_bytes
        loads, both, squares = self._loads, self._both, self._squares
        if weight < _WEIGHT_MIN:
            return None
        room = _USED_RATIO * limit_bytes
        present = mean_load if mean_bytes > room else None
        if loads < weight * _SPREAD_MIN**2 or both <= 0 or both * both < _EXPLAINED_MIN * loads * squares:
            return present
        load_bytes = both / loads
        base = mean_bytes - load_bytes * mean_load
        deviation = math.sqrt(max(0.0, squares - load_bytes * both) / weight)
        fitting = max(_FITTING_MIN, (room - base - _DEVIATIONS * deviation) / load_bytes)
        return fitting if present is None else min(fitting, present)
