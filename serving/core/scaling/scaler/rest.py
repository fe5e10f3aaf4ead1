"""Finds the next decision period in which a revision's decision can change.

Input: the last outcome, the state of the sources and the shadow, and the decision period. Output: times on the grid of
periods. A revision without requests rests, at scale 0 and with pods, until its windows or an announced time can change
the decision (``silence``). A change in the cluster causes an immediate decision, a load one in the next period.
"""

import math

from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.scaler.scaler import Scaler
from serving.core.scaling.scaler.silence import change_by_clock_s, is_steady

DECISION_PAUSE_S = 0.05
"""Shortest time between two decisions about a revision, in seconds; changes in between are handled together."""

REST_MAX_S = 30.0
"""Longest rest in seconds: saves of learnt state and samples for charts are late by at most this time."""

# Tolerated rounding of sums of floating-point times, as a share of a period.
_SLACK = 1e-9


class Periods:
    """A grid of decision times. Periods are counted from ``made_s``, the time of the last decision."""

    __slots__ = ("made_s", "period_s")

    def __init__(self, period_s: float) -> None:
        self.made_s = 0.0
        self.period_s = period_s

    def at(self, at_s: float) -> float:
        """The first decision time at or after ``at_s``, and after the last decision."""
        periods = max(1, math.ceil((at_s - self.made_s) / self.period_s - _SLACK))
        return self.made_s + periods * self.period_s

    def until(self, at_s: float, *, is_first: bool = False) -> float:
        """The last decision time at or before ``at_s``, but never before the last decision.

        With ``is_first``, something may change at exactly ``at_s``, so the result is before it.
        """
        periods = (at_s - self.made_s) / self.period_s
        whole = math.ceil(periods - _SLACK) - 1 if is_first else math.floor(periods + _SLACK)
        return self.made_s + max(0, whole) * self.period_s

    def before(self, at_s: float) -> float:
        """The last decision time before ``at_s``; ``at_s`` if there is none."""
        last_s = at_s if at_s == math.inf else self.until(at_s, is_first=True)
        return last_s if last_s > self.made_s else at_s


def rest_in_s(outcome: ScalerOutcome, scaler: Scaler, period_s: float) -> float | None:
    """Seconds for which periodic decisions cannot change without a request; None if the next one may already change.

    The autoscaler skips these decisions. Example: with a period of 2 s and an announced change in 7 s, the result is 6.
    """
    if (
        not is_steady(outcome, scale=outcome.view.present_scale)
        or not scaler.is_idle
        # A user policy may request pods at any time.
        or not scaler.policy.skips_periods
    ):
        return None
    periods = Periods(period_s)
    periods.made_s = at_s = outcome.at_s
    shadow_s = math.inf if scaler.shadow is None else scaler.shadow.due_s
    last_s = min(periods.before(min(change_by_clock_s(outcome), shadow_s)), periods.at(at_s + REST_MAX_S))
    count = math.floor((last_s - at_s) / period_s + _SLACK)
    if count < 1:
        return None
    rest_s = scaler.change_in_silence_s(outcome, [at_s + number * period_s for number in range(1, count + 1)]) - at_s
    return rest_s if rest_s > period_s else None
