"""Sorts functions into kinds by the minutes between their calls, each with a rule of its own, after SPES.

Source: Lee et al., "SPES: Towards Optimizing Performance-Resource Trade-Off for Serverless Functions", ICDE 2024,
section 4. The kinds: regular gaps, some lengths that cover nearly all gaps, dense calls, and lengths that came more
than once. Left out: kinds that need calls of other functions, and a training of days ahead; kinds follow from the last
gaps here.
The paper has 56.4 % less idle memory and 49.8 % lower cold-start rates (75th percentile of functions) than the best earlier
policy; in docs/benchmarks.md the rules learn from four hours instead of twelve days, and Knative's policy is the base.
"""

from collections import Counter, deque

import numpy as np

from bench.rivals.base import GapRival
from serving.core.scaling.adaptive.gaps import KeepWindow

_MINUTE_S = 60.0
_KEPT = 100
_LENGTHS = 5
_COVERED = 0.9
_DENSE_MINUTES = 2.0


class PatternRules(GapRival):
    """One revision.

    A pod is ready ``around_minutes`` before and after an expected call; it goes after ``give_up_minutes``.
    """

    def __init__(
        self, *arguments: object, around_minutes: float = 2.0, give_up_minutes: float = 1.0, **more: object
    ) -> None:
        super().__init__(*arguments, **more)
        self._around_s, self._give_up_s = around_minutes * _MINUTE_S, give_up_minutes * _MINUTE_S
        self._minutes: deque[float] = deque(maxlen=_KEPT)

    def learn(self, gap_s: float) -> None:
        """Keep a gap, in minutes."""
        self._minutes.append(gap_s / _MINUTE_S)

    def windows(self) -> list[KeepWindow]:
        """From the end of the last request for a while, and around each expected call."""
        after = KeepWindow(0.0, self._give_up_s)
        low, middle, dense, high = np.percentile(self._minutes, (5, 50, 90, 95)).tolist()
        if dense <= _DENSE_MINUTES:
            return [KeepWindow(0.0, max(self._give_up_s, _DENSE_MINUTES * _MINUTE_S))]
        if high - low <= 1.0:
            return [after, self._around(middle)]
        lengths = Counter(round(gap) for gap in self._minutes)
        common = lengths.most_common(_LENGTHS)
        if sum(count for _, count in common) < _COVERED * len(self._minutes):
            common = [(length, count) for length, count in lengths.items() if count > 1]
        return [after, *(self._around(length) for length, _ in common)]

    def _around(self, minutes: float) -> KeepWindow:
        return KeepWindow(max(0.0, minutes * _MINUTE_S - self._around_s), minutes * _MINUTE_S + self._around_s)
