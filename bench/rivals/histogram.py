"""The hybrid histogram policy: a histogram of the minutes between calls says when a pod goes and when it comes back.

Source: Shahrad et al., "Serverless in the Wild", USENIX ATC 2020, section 4. The pod goes after a call and is back at
the 5th percentile of the gaps, less 10 %; it stays to the 99th, and 10 % more. Gaps of less than a minute keep it. Gaps
that are not representative (a coefficient of variation of the bins of 2 or less) or mostly longer than the range of 4
hours keep it for a fixed time. Left out: ARIMA for gaps beyond the range, of which a day has few.
The paper saves 15.6 % of memory against a keep-alive of ten minutes; docs/benchmarks.md compares with Knative's of one.
"""

import statistics
from collections import Counter

from bench.rivals.base import GapRival
from serving.core.scaling.adaptive.gaps import KeepWindow

_MINUTE_S = 60.0
_RANGE_MINUTES = 240
_HEAD = 0.05
_MARGIN = 0.1
_VARIATION_MIN = 2.0
_OUT_OF_RANGE_MAX = 0.5


class HybridHistogram(GapRival):
    """One revision.

    ``tail`` is the percentile up to which a pod stays, ``standard_s`` the keep-alive without a pattern.
    """

    def __init__(self, *arguments: object, tail: float = 0.99, standard_s: float = 14_400.0, **more: object) -> None:
        super().__init__(*arguments, **more)
        self._tail, self._standard_s = tail, standard_s
        self._bins: Counter[int] = Counter()
        self._out_of_range = 0

    def learn(self, gap_s: float) -> None:
        """Count a gap."""
        minutes = int(gap_s / _MINUTE_S)
        if minutes < _RANGE_MINUTES:
            self._bins[minutes] += 1
        else:
            self._out_of_range += 1

    def windows(self) -> list[KeepWindow]:
        """One window, from the head to the tail of the histogram."""
        count = self._bins.total()
        counts = [self._bins[minute] for minute in range(_RANGE_MINUTES)]
        is_out = self._out_of_range > _OUT_OF_RANGE_MAX * (count + self._out_of_range)
        if is_out or statistics.pstdev(counts) <= _VARIATION_MIN * statistics.fmean(counts):
            return [KeepWindow(0.0, self._standard_s)]
        head = self._percentile(_HEAD, count) * (1 - _MARGIN)
        tail = (self._percentile(self._tail, count) + 1) * (1 + _MARGIN)
        return [KeepWindow(head * _MINUTE_S, tail * _MINUTE_S)]

    def _percentile(self, share: float, count: int) -> int:
        """The bin of a percentile."""
        seen = 0
        for minute in sorted(self._bins):
            seen += self._bins[minute]
            if seen >= share * count:
                return minute
        return _RANGE_MINUTES
