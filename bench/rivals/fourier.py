"""Forecasts calls a minute by a Fourier transform of the past, after IceBreaker.

Source: Roy et al., "IceBreaker: Warming Serverless Functions Better with Heterogeneity", ASPLOS 2022, section 4: a
trend and the strongest harmonics of the recent past are continued; a pod is ready in the minutes for which a call is
forecast. Left out: the choice between kinds of nodes. The forecast is made once for each gap, for the next hour.
The paper saves 45 % of the cost of keeping pods, in part by cheaper nodes; in docs/benchmarks.md all nodes cost the same.
"""

from collections import Counter

import numpy as np

from bench.rivals.base import GapRival
from serving.core.scaling.adaptive.gaps import KeepWindow

_MINUTE_S = 60.0
_PAST_MINUTES = 240
AHEAD_MINUTES = 60
_HARMONICS = 10

Calls = np.ndarray[tuple[int], np.dtype[np.float64]]
"""Calls in each of several minutes."""


class MinuteForecast(GapRival):
    """One revision with its calls in each of the last minutes."""

    def __init__(self, *arguments: object, **more: object) -> None:
        super().__init__(*arguments, **more)
        self._calls: Counter[int] = Counter()

    def count(self, second: int, request_count: float) -> None:
        """Count the calls of a minute."""
        self._calls[int(second / _MINUTE_S)] += int(request_count)

    def past(self) -> Calls:
        """The calls of each minute, up to the minute of the last call."""
        now = max(self._calls)
        first = max(min(self._calls), now - _PAST_MINUTES + 1)
        for minute in [minute for minute in self._calls if minute < first]:
            del self._calls[minute]
        return np.array([float(self._calls[minute]) for minute in range(first, now + 1)])

    def kept(self, is_ready: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[KeepWindow]:
        """The windows of a pod that is ready in these of the next minutes, in seconds since the last request ended."""
        begun_s = (max(self._calls) + 1) * _MINUTE_S - (self.idle_since_s or 0.0)
        edges_s = [
            (begun_s + _MINUTE_S * at, begun_s + _MINUTE_S * (at + 1)) for at in np.nonzero(is_ready)[0].tolist()
        ]
        return [KeepWindow(from_s, to_s) for from_s, to_s in edges_s]


class FourierForecast(MinuteForecast):
    """One revision. A pod is ready in each minute with a forecast of ``threshold`` calls at least."""

    def __init__(self, *arguments: object, threshold: float = 0.5, **more: object) -> None:
        super().__init__(*arguments, **more)
        self._threshold = threshold

    def windows(self) -> list[KeepWindow]:
        """The minutes of the next hour for which calls are forecast, from the end of the last request."""
        is_ready = continued(self.past(), AHEAD_MINUTES) >= self._threshold
        # A pod stays to the end of the minute with its last call, and for one more.
        is_ready[0] = True
        return [KeepWindow(0.0, max(0.0, self.kept(is_ready)[0].to_s)), *self.kept(is_ready)[1:]]


def continued(past: Calls, ahead: int) -> Calls:
    """The next values of a series: its linear trend and its strongest harmonics, continued."""
    count = len(past)
    at, later = np.arange(count), np.arange(count, count + ahead)
    slope, level = np.polyfit(at, past, 1) if count > 2 else (0.0, past.mean())
    spectrum = np.fft.rfft(past - (level + slope * at))
    result = level + slope * later
    for index in np.argsort(-np.abs(spectrum))[:_HARMONICS]:
        weight = (1.0 if index in (0, count / 2) else 2.0) * np.abs(spectrum[index]) / count
        result = result + weight * np.cos(2 * np.pi * index * later / count + np.angle(spectrum[index]))
    return np.asarray(result)
