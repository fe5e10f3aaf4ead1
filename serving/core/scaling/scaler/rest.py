"""Finds the next decision period in which a revision's decision can change.

Input: the last outcome, the state of the sources and the shadow, and the decision period. Output: times on the grid of
periods. A revision rests at scale 0 once its windows are empty. Then only new load, a change in the cluster or an
announced time can change the decision. The first two cause an immediate decision.
"""

import math

from serving.core.model.nodata import NoData
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.kpa.zero import GatePhase
from serving.core.scaling.scaler.scaler import Scaler
from serving.core.settings.autoscaler import CLASSIC_CLASS

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
        """The last decision time at or before ``at_s`` (before, if ``is_first``); never before the last decision."""
        periods = (at_s - self.made_s) / self.period_s
        whole = math.ceil(periods - _SLACK) - 1 if is_first else math.floor(periods + _SLACK)
        return self.made_s + max(0, whole) * self.period_s

    def before(self, at_s: float) -> float:
        """The last decision time before ``at_s``; ``at_s`` if there is none."""
        last_s = at_s if at_s == math.inf else self.until(at_s, is_first=True)
        return last_s if last_s > self.made_s else at_s


def rest_in_s(outcome: ScalerOutcome, scaler: Scaler, period_s: float) -> float | None:
    """Seconds to the last period before the decision can change; None if the next period may change it.

    Example: with a period of 2 s and an announced change in 7 s, the result is 6.
    """
    facts, spec, inputs = outcome.view, outcome.inputs.spec, outcome.inputs
    is_still = (
        facts.present_scale == facts.ready_count == 0
        and not facts.is_starting
        and outcome.phase is GatePhase.INACTIVE
        and outcome.apply_count is None
        and outcome.path is facts.path
        and isinstance(outcome.merged, NoData)
        and isinstance(outcome.decided.detail, NoData)
        and inputs.allowance is None
        and scaler.is_silent
        # A user policy may request pods at any time.
        and scaler.policy.skips_periods
    )
    # The classic algorithm expires points, a latency goal counts seconds, and further metrics have separate windows.
    if not is_still or spec.class_name == CLASSIC_CLASS or spec.slo is not None or spec.further_metrics:
        return None
    recheck_s = math.inf if outcome.recheck_in_s is None else outcome.at_s + outcome.recheck_in_s
    shadow_s = math.inf if scaler.shadow is None else scaler.shadow.due_s
    periods = Periods(period_s)
    periods.made_s = outcome.at_s
    last_s = min(periods.before(min(recheck_s, shadow_s)), periods.at(outcome.at_s + REST_MAX_S))
    return last_s - outcome.at_s if last_s >= periods.at(outcome.at_s) else None
