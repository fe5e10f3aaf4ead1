"""Models the memory of a pod by its requests in flight, and computes how many fit below its limit.

Input: measurements of pods, each with the requests in flight at that time. Output: the requests in flight at which a pod
reaches its limit. It is a line, by least squares over measurements of which old ones count for less: what the pod holds
without requests, and what each request adds.
"""

import math

# Least measurements of a line, and least standard deviation of the requests in flight in them.
_WEIGHT_MIN, _SPREAD_MIN = 4.0, 0.4
# Least share of the variance of the memory that the requests explain.
_EXPLAINED_MIN = 0.3
# Share of the limit that is used at most: what is measured is seconds old, and an allocator keeps some of what was freed.
_USED_RATIO = 0.9
# A request at once is served whatever it takes.
_FITTING_MIN = 1.0
# Deviations from the line for which there is room. Part of them are requests that come and go within the second of a report, for
# which the learner leaves room too.
_DEVIATIONS = 1.0


class MemoryLine:
    """The measurements of one revision."""

    __slots__ = ("_both", "_loads", "_mean_bytes", "_mean_load", "_squares", "_weight")

    def __init__(self) -> None:
        self._weight = self._mean_load = self._mean_bytes = 0.0
        # Sums of squared and multiplied deviations from the means.
        self._loads = self._both = self._squares = 0.0

    def take(self, concurrency: float, used_bytes: float) -> None:
        """Add one measurement of a pod."""
        weight = self._weight = self._weight + 1.0
        load_off, bytes_off = concurrency - self._mean_load, used_bytes - self._mean_bytes
        mean_load = self._mean_load = self._mean_load + load_off / weight
        mean_bytes = self._mean_bytes = self._mean_bytes + bytes_off / weight
        self._loads += load_off * (concurrency - mean_load)
        self._both += load_off * (used_bytes - mean_bytes)
        self._squares += bytes_off * (used_bytes - mean_bytes)

    def fade(self, ratio: float) -> None:
        """Reduce the weight of everything measured so far."""
        self._weight *= ratio
        self._loads *= ratio
        self._both *= ratio
        self._squares *= ratio

    def in_flight_max(self, limit_bytes: float) -> float | None:
        """Requests in flight that fit; None without enough measurements, or if requests add nothing.

        Above 90 % of the limit the answer is at most what was in flight. A pod of 24 MB, to which each request adds
        12 MB, and a limit of 160 MB: (0.9 x 160 - 24) / 12 = 10.
        """
        weight, mean_load, mean_bytes = self._weight, self._mean_load, self._mean_bytes
        loads, both, squares = self._loads, self._both, self._squares
        if weight < _WEIGHT_MIN:
            return None
        room = _USED_RATIO * limit_bytes
        present = mean_load if mean_bytes > room else None
        if loads < weight * _SPREAD_MIN**2 or both <= 0 or both * both < _EXPLAINED_MIN * loads * squares:
            return present
        each = both / loads
        base = mean_bytes - each * mean_load
        deviation = math.sqrt(max(0.0, squares - each * both) / weight)
        fitting = max(_FITTING_MIN, (room - base - _DEVIATIONS * deviation) / each)
        return fitting if present is None else min(fitting, present)
