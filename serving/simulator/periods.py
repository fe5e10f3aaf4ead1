"""The times at which decisions are due by period, counted from the last one that was made, also where some are skipped."""

import math

# Share of a period by which sums of floating-point times may be off.
_SLACK = 1e-9


class Periods:
    """A grid of times. ``made_s`` is the time of the last decision, from which the periods count."""

    __slots__ = ("made_s", "period_s")

    def __init__(self, period_s: float) -> None:
        self.made_s, self.period_s = 0.0, period_s

    def __repr__(self) -> str:
        """One line."""
        return f"Periods({self.period_s:g} s from {self.made_s:g} s)"

    def at(self, at_s: float) -> float:
        """The first period at or after a time, but after the last decision."""
        periods = max(1, math.ceil((at_s - self.made_s) / self.period_s - _SLACK))
        return self.made_s + periods * self.period_s

    def until(self, at_s: float, *, is_first: bool = False) -> float:
        """The last period up to a time, or with ``is_first`` before it; the last decision if there is none."""
        periods = (at_s - self.made_s) / self.period_s
        whole = math.ceil(periods - _SLACK) - 1 if is_first else math.floor(periods + _SLACK)
        return self.made_s + max(0, whole) * self.period_s

    def before(self, at_s: float) -> float:
        """The last period before a time, whose decision says that time to the last bit; the time if there is none."""
        if at_s == math.inf:
            return at_s
        periods = math.ceil((at_s - self.made_s) / self.period_s - _SLACK) - 1
        return self.made_s + periods * self.period_s if periods >= 1 else at_s
