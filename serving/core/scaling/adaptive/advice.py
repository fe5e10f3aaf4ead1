"""The adaptive policy's proposals for an idle revision, their reasons, and the budget of pre-warmed starts."""

import math
from collections.abc import Sequence

from serving.core.model.nodata import NoData
from serving.core.scaling.adaptive.gaps import GapHistory, KeepWindow, arrivals_until
from serving.core.scaling.decision.policy import KEEP_ALIVE, PRE_WARMING, KeepReason
from serving.core.scaling.kpa.merge import Proposal

# The horizon of the probability of a request while no pod is kept, in seconds.
_OUTLOOK_S = 60.0
_MINUTE_S = 60.0


def proposals_of(algorithm: Proposal, window: KeepWindow | None) -> tuple[Proposal, ...]:
    """The proposals for an idle revision: at least one pod within a keep window, and no pods outside of it.

    Outside of the window the algorithm's count only reflects past load, so it is replaced, unless it is ``NoData``.
    """
    if window is not None:
        decider = PRE_WARMING if window.from_s else KEEP_ALIVE
        return (algorithm, Proposal(decider=decider, desired=1, reason="a request is expected"))
    if isinstance(algorithm.desired, NoData):
        return (algorithm,)
    return (Proposal(decider=KEEP_ALIVE, desired=0, reason="no request is expected"),)


def reason_of(hazard: Sequence[float], gaps: GapHistory, age_s: float, *, window: KeepWindow | None) -> KeepReason:
    """Explain why an idle pod is kept in ``window`` (None: not kept), ``age_s`` seconds after the last request."""
    until_s = age_s + _OUTLOOK_S if window is None else window.to_s
    lasted, ended = gaps.ended_between(age_s, until_s)
    return KeepReason(
        age_s=age_s,
        until_s=None if window is None else until_s,
        ahead_s=until_s - age_s,
        is_ahead=window is not None and window.from_s > 0,
        probability=1.0 - math.exp(arrivals_until(hazard, age_s) - arrivals_until(hazard, until_s)),
        gaps_lasted=lasted,
        gaps_ended=ended,
    )


class PreWarmBudget:
    """Limits pre-warming to ``per_minute`` starts, over all revisions that share this budget."""

    __slots__ = ("_at_s", "_per_minute", "_permits")

    def __init__(self, per_minute: int) -> None:
        assert per_minute >= 1, per_minute
        self._per_minute = per_minute
        self._permits = float(per_minute)
        self._at_s: float | None = None

    def spend(self, now_s: float) -> bool:
        """Count a start if the budget allows it, and return whether it does. A clock set back adds no budget."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._permits = min(self._per_minute, self._permits + passed_s * self._per_minute / _MINUTE_S)
        if self._permits < 1.0:
            return False
        self._permits -= 1.0
        return True
