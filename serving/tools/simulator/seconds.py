"""Holds seconds of load of one simulated revision until its decider's windows take them.

They are given to the decider with the next decision, which may be some periods later; seconds without load are made up where
ready pods report their silence.
"""

import math
from collections import deque

from serving.core.model.loadmetric import CONCURRENCY
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.windows import RevisionWindows
from serving.core.scaling.spec import ScalingSpec

LOAD_MIN = 1e-4
"""Load of a second that windows round to zero, with a margin."""

LoadedSecond = tuple[int, float, int]
"""Number of the second, mean requests in flight, arrivals."""


class LoadedSeconds:
    """Seconds with load. ``pending`` holds those not yet given to the decider, oldest first."""

    def __init__(self, spec: ScalingSpec) -> None:
        self._stable = math.ceil(spec.stable_window_s)
        self._panic = math.ceil(spec.panic_window_s)
        self.pending: deque[LoadedSecond] = deque(maxlen=self._stable + 2)
        self._metric = spec.load_metric
        self._has_further = bool(spec.further_metrics)
        self._loaded_number = self._loaded_before = self._hot_number = self._taken_number = -1

    @property
    def was_ever_hot(self) -> bool:
        """Whether any second since the reset of the windows had more than a small load."""
        return self._hot_number >= 0

    def record(self, second: LoadedSecond, *, is_hot: bool) -> None:
        """Record an elapsed second with its reported load; ``is_hot`` if that load was not negligible."""
        self.pending.append(second)
        if second[1] > LOAD_MIN:
            self._loaded_before, self._loaded_number = self._loaded_number, second[0]
        if is_hot:
            self._hot_number = second[0]

    def poke(self, number: int, windows: RevisionWindows) -> None:
        """Record a load of 1 at once."""
        self._loaded_number = max(self._loaded_number, number)
        windows.record_load(number, self._amount((number, 1.0, 1)))

    def reset(self) -> None:
        """Reset with the windows: earlier seconds do not count."""
        self.pending.clear()
        self._hot_number = -1

    def is_cool(self, at_s: float) -> bool:
        """Whether no second in the stable window had more than a small load."""
        return self._hot_number < 0 or at_s > self._hot_number + 2 + self._stable

    def window_end(self, now_s: float) -> float:
        """The time at which the last load leaves the stable window. Its second is in the bucket of the next one.

        A second whose report came early is not in the window before the next one begins.
        """
        number = self._loaded_number if self._loaded_number < math.floor(now_s) else self._loaded_before
        return number + 1 + self._stable

    def give(self, windows: RevisionWindows, now_s: float, *, has_reports: bool) -> None:
        """Pass completed seconds to the decider. Ready pods also report zero load (``has_reports``)."""
        over, pending = math.floor(now_s) - 1, self.pending
        while pending and pending[0][0] <= over:
            second = pending.popleft()
            if has_reports:
                self._give_silence(windows, second[0])
            self._give_load(windows, second)
            self._taken_number = second[0]
        if has_reports and self._taken_number < over:
            self._give_silence(windows, over)
            self._give_load(windows, (over, 0.0, 0))
            self._taken_number = over

    def _give_load(self, windows: RevisionWindows, second: LoadedSecond) -> None:
        number, concurrency, arrivals = second
        if self._has_further:
            windows.record(number, Stat(concurrency=concurrency, request_count=float(arrivals)))
        else:
            windows.record_load(number, self._amount(second))

    def _give_silence(self, windows: RevisionWindows, until: int) -> None:
        """Pass seconds without load to the decider, up to a number. Two suffice for both windows."""
        first = self._taken_number + 1
        if first >= until:
            return
        for number in (max(first, until - self._stable + 1), max(first, until - self._panic + 1)):
            if self._taken_number < number < until:
                self._give_load(windows, (number, 0.0, 0))
                self._taken_number = number

    def _amount(self, second: LoadedSecond) -> float:
        """The load in the unit of the metric. Simulated apps have no gauges, whose load is 0."""
        if self._metric is CONCURRENCY:
            return second[1]
        return self._metric.amount(Stat(concurrency=second[1], request_count=float(second[2])))
