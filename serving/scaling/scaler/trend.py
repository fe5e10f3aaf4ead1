"""The trend of a load over a window: a straight line through its samples, as far as it is certain.

Input: the load at some times; output: the load that is expected at a time ahead, or None where no climb is certain. The slope is that of
ordinary least squares, less three standard errors, so that noise around a constant is no climb. Pure.
"""

import math
from collections import deque

# Samples of a window: more make the line hardly better.
_SAMPLES = 30
# Fewer samples than these say little about their own noise.
_SAMPLES_MIN = 5
# Standard errors that a slope loses before it counts.
_SIGNIFICANCE = 3.0
# Part of a sample's distance by which it may come early.
_EARLY = 0.1


class LoadTrend:
    """The last ``window_s`` seconds of a load."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES + 1)

    def __repr__(self) -> str:
        return f"LoadTrend({len(self._samples)} samples)"

    def record(self, load: float, *, at_s: float, window_s: float) -> None:
        """The load at a time. Samples that come closer than a thirtieth of the window are left out."""
        samples = self._samples
        if samples and at_s - samples[-1][0] < window_s / _SAMPLES * (1.0 - _EARLY):
            return
        samples.append((at_s, load))
        while samples[0][0] < at_s - window_s:
            samples.popleft()

    def expected(self, *, ahead_s: float) -> float | None:
        """The load ``ahead_s`` seconds after the last sample; None unless the load climbs for sure.

        0, 2, 4, 6, 8 at 0, 1, 2, 3, 4 s are a climb of 2 a second without noise: 10 s ahead 28.
        """
        count = len(self._samples)
        if count < _SAMPLES_MIN:
            return None
        mean_s = sum(at_s for at_s, _ in self._samples) / count
        mean = sum(load for _, load in self._samples) / count
        spread = sum((at_s - mean_s) ** 2 for at_s, _ in self._samples)
        slope = sum((at_s - mean_s) * (load - mean) for at_s, load in self._samples) / spread
        rest = sum((load - mean - slope * (at_s - mean_s)) ** 2 for at_s, load in self._samples)
        error = math.sqrt(rest / (count - 2) / spread)
        certain = slope - _SIGNIFICANCE * error
        if certain <= 0:
            return None
        return mean + certain * (self._samples[-1][0] - mean_s + ahead_s)
