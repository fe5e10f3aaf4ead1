"""Forecasts a revision's load for the time when a pod started now is ready.

Input: the mean number of requests in flight of each second. It keeps two exponential means, a fast and a slow one, and the
variance around the fast one. Their difference is the slope of the load: on a steady climb an exponential mean lags by its time
constant. Only the part of the slope above its own standard error counts, so that noise is not a trend. Requests in flight vary by
the square root of their mean at least, as those of Poisson arrivals do.
"""

import math

import msgspec

# Time constants of the two means, in seconds: Knative's stable and panic windows.
_SLOW_S = 60.0
_FAST_S = 6.0
_SLOW_KEPT = math.exp(-1.0 / _SLOW_S)
_FAST_KEPT = math.exp(-1.0 / _FAST_S)
# A second counts as a request of half a second: of independent seconds a mean of time constant F has the variance 1 / 2F.
_SECOND_S = 0.5
_LAG_S = _SLOW_S - _FAST_S
# Standard errors that a slope loses before it counts. With 1.5 noise still flaps.
_SIGNIFICANCE = 3.0


class LoadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in flight expected at a later time, and their variation."""

    mean: float
    deviation: float
    """Standard deviation of the load of a second."""

    recent: float
    """Mean of the last seconds."""

    slope: float
    """Significant change of the mean, in requests in flight a second."""


class LoadForecast:
    """The load of one revision, second by second."""

    __slots__ = ("_fast", "_first", "_second", "_slow", "_variance", "_weight")

    def __init__(self) -> None:
        self._fast = self._slow = self._variance = 0.0
        # Total weight of the seconds seen in the slow mean; less than 1 while they are few.
        self._weight = 0.0
        self._first: int | None = None
        self._second = 0

    def take(self, second: int, concurrency: float) -> None:
        """Add the mean load of a completed second. Skipped seconds had no load; earlier seconds are ignored."""
        if self._first is None:
            self._first = self._second = second
            self._fast = self._slow = concurrency
            self._weight = 1.0 - _SLOW_KEPT
            return
        if second <= self._second:
            return
        self._decay(second - self._second - 1)
        self._second = second
        off = concurrency - self._fast
        self._fast += (1.0 - _FAST_KEPT) * off
        self._weight = self._weight * _SLOW_KEPT + (1.0 - _SLOW_KEPT)
        share = (1.0 - _SLOW_KEPT) / self._weight
        self._slow += share * (concurrency - self._slow)
        self._variance += share * (off * off - self._variance)

    def seen_s(self, now_s: float) -> float:
        """Time since the first load, in seconds; 0 before it."""
        return 0.0 if self._first is None else max(0.0, now_s - self._first)

    def level(self, *, ahead_s: float, now_s: float, request_s: float = 0.0) -> LoadLevel:
        """The load in ``ahead_s`` seconds. On a long climb of 2 a second, the mean ahead of 10 s is 20 above now."""
        silent = 0 if self._first is None else max(0, math.floor(now_s) - self._second - 1)
        faded = _SLOW_KEPT**silent
        fast, slow, variance = self._fast * _FAST_KEPT**silent, self._slow * faded, self._variance * faded
        difference = fast - slow
        error = math.sqrt(
            max(variance, _poisson_variance(max(fast, slow), request_s)) * _difference_variance(request_s)
        )
        certain = max(0.0, abs(difference) - _SIGNIFICANCE * error)
        slope = math.copysign(certain, difference) / _LAG_S
        # A fall is followed, but not extrapolated.
        mean = max(0.0, slow + slope * (_SLOW_S + (ahead_s if slope > 0 else 0.0)))
        return LoadLevel(mean=mean, deviation=math.sqrt(max(variance, mean)), recent=fast, slope=slope)

    def highest(self, *, ahead_s: float) -> LoadLevel:
        """An upper bound of all figures of this level until new load."""
        slope = max(0.0, self._fast - self._slow) / _LAG_S
        mean = self._slow + slope * (_SLOW_S + ahead_s)
        return LoadLevel(mean=mean, deviation=math.sqrt(max(self._variance, mean)), recent=self._fast, slope=slope)

    def _decay(self, silent: int) -> None:
        self._fast *= _FAST_KEPT**silent
        self._slow *= _SLOW_KEPT**silent
        self._weight = 1.0 - (1.0 - self._weight) * _SLOW_KEPT**silent


def _poisson_variance(mean: float, request_s: float) -> float:
    """Variance of a second's mean load with Poisson arrivals: the mean, less the averaging within a second."""
    return mean * request_s / (request_s + _SECOND_S)


def _difference_variance(request_s: float) -> float:
    """Variance of the difference between both means, for a load of variance 1 whose requests take ``request_s``.

    The load of Poisson arrivals stays alike for the time of a request: its autocorrelation is exp(-t / T). An exponential
    mean of time constant F then has the variance T / (T + F), and two of them the covariance of both.
    """
    alike_s = request_s + _SECOND_S
    fast, slow = alike_s / (alike_s + _FAST_S), alike_s / (alike_s + _SLOW_S)
    return (fast - slow) * (_SLOW_S - _FAST_S) / (_SLOW_S + _FAST_S)
