"""Adapts the number of parallel reconciles to the number that the API server serves without slowing down.

Input: the duration of each call, or its refusal by the server. Output: ``limit``. The limit starts low. While it is
fully used, it grows by one per call, so that it doubles with each round trip. After the first congestion it grows by
one per round trip. Congestion is a refused call, or a call that takes three times as long as the fast ones; then the
limit falls. With 200 ms per call, 8 workers make 40 writes per second, and 64 make 320. The module uses no clock.
"""

# Weights of a call in the mean duration, and in the baseline, which rises after the server or network has changed.
_SMOOTHING = 0.1
_BASELINE_DRIFT = 0.002
# Ratio to the fast calls above which calls are queued in the server.
_CONGESTED_RATIO = 3.0
# Below this duration, in seconds, the event loop's noise exceeds the server's.
_NOISE_S = 0.005
_DECREASE_RATIO = 0.75
_DECREASE_PAUSE_S = 1.0
# Below this used share of the limit, a higher limit has no effect.
_USED_RATIO = 0.8


class ConcurrencyLimit:
    """The limit of parallel reconciles, between ``low`` and ``high``."""

    __slots__ = ("_baseline_s", "_decreased_s", "_high", "_is_doubling", "_limit", "_low", "_mean_s")

    def __init__(self, *, low: int, high: int) -> None:
        assert 1 <= low <= high
        self._low = low
        self._high = high
        self._limit = float(low)
        self._is_doubling = True
        self._baseline_s: float | None = None
        self._mean_s = 0.0
        self._decreased_s = float("-inf")

    @property
    def limit(self) -> int:
        """Resources that may be reconciled in parallel."""
        return int(self._limit)

    def record_call(self, duration_s: float, *, active_count: int, now_s: float) -> None:
        """Record the duration of a call, and how many resources were reconciled during it."""
        duration_s = max(duration_s, _NOISE_S)
        if self._baseline_s is None:
            self._baseline_s = self._mean_s = duration_s
        self._baseline_s = min(duration_s, self._baseline_s + _BASELINE_DRIFT * (duration_s - self._baseline_s))
        self._mean_s += _SMOOTHING * (duration_s - self._mean_s)
        if self._mean_s > _CONGESTED_RATIO * self._baseline_s:
            self._decrease(now_s)
        elif active_count >= _USED_RATIO * self._limit:
            self._limit = min(self._high, self._limit + (1.0 if self._is_doubling else 1.0 / self._limit))

    def record_refusal(self, *, now_s: float) -> None:
        """Record that the server refused a call for overload, or timed out."""
        self._decrease(now_s)

    def _decrease(self, now_s: float) -> None:
        self._is_doubling = False
        # Running calls were made under the old limit, and do not reflect the new one.
        if now_s - self._decreased_s >= _DECREASE_PAUSE_S:
            self._decreased_s = now_s
            self._limit = max(self._low, self._limit * _DECREASE_RATIO)
