"""The adaptive policy's advice for one decision, with the figures behind it, and the budgets that bound it."""

import math

import msgspec
import numpy as np

from serving.model.nodata import NoData
from serving.scaling.adaptive.gaps import BIN_STARTS_S, Array, GapHistory, KeepWindow
from serving.scaling.adaptive.regret import RegretReason
from serving.scaling.adaptive.room import Room
from serving.scaling.kpa.merge import Proposal

FORECAST = "forecast"
KEEP_ALIVE = "keep-alive"
PRE_WARMING = "pre-warming"
"""Names of the deciders that start pods ahead of requests."""

# Ahead of what time a request is expected at all, in seconds, where no pod is kept.
_OUTLOOK_S = 60.0
# Most pod-seconds saved for later, per pod that Knative wants.
_CREDIT_MAX_S = 600.0
# Each pod beyond what Knative wants needs a credit for so many seconds.
_EXTRA_POD_S = 20.0
# A longer time between two decisions counts as this one.
_STEP_MAX_S = 60.0
_MINUTE_S = 60.0


class KeepReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reason to keep, start or release the last pod. Ages are seconds since the last request ended."""

    age_s: float

    until_s: float | None
    """Age up to which a pod is kept; None if none is kept at this age."""

    ahead_s: float
    """The horizon of the figures: until ``until_s``, or a minute if no pod is kept."""

    is_ahead: bool
    """Whether the pod is started ahead of a periodic request, rather than kept since the last one."""

    probability: float
    """Probability that the next request comes within ``ahead_s``."""

    gaps_lasted: float
    """Past gaps that lasted at least as long as this one; older ones count for less."""

    gaps_ended: float
    """Those of them that ended within ``ahead_s``."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals that replace the algorithm's, with inputs for the gate and the next decision's time."""

    proposals: tuple[Proposal, ...] | None = None
    """None: the algorithm's proposal remains unchanged."""

    active_min_s: float | None = None
    """Shortest time that a revision stays active before zero; None: the stable window."""

    recheck_in_s: float | None = None
    """Time for which the advice stays the same without requests; None: for good."""

    keep: KeepReason | None = None
    """The reason to keep the last pod; None where requests in flight decide, or no earlier ones are known."""

    regret: RegretReason | None = None
    """None where the learnt keep-alive decides, or nothing is known of its cost."""

    room: Room | None = None
    """Pods for the expected load; None where the algorithm's own count stands."""

    def proposed(self, algorithm: Proposal) -> tuple[Proposal, ...]:
        """The proposals in place of the algorithm's; its own where nothing replaces it."""
        return (algorithm,) if self.proposals is None else self.proposals


NEUTRAL = Advice()
"""Advice that leaves Knative's behaviour unchanged."""


def proposals_of(algorithm: Proposal, window: KeepWindow | None) -> tuple[Proposal, ...]:
    """The proposals without requests in flight, when the algorithm's count is only the tail of its window."""
    if window is not None:
        decider = PRE_WARMING if window.from_s else KEEP_ALIVE
        return (algorithm, Proposal(decider=decider, desired=1, reason="a request is expected"))
    if isinstance(algorithm.desired, NoData):
        return (algorithm,)
    return (Proposal(decider=KEEP_ALIVE, desired=0, reason="no request is expected"),)


def reason_of(hazard: Array, gaps: GapHistory, age_s: float, *, window: KeepWindow | None) -> KeepReason:
    """The figures behind a window at an age of the gap, for people."""
    until_s = age_s + _OUTLOOK_S if window is None else window.to_s
    expected = np.concatenate(([0.0], np.cumsum(hazard[:-1] * np.diff(BIN_STARTS_S))))
    before, by = np.interp((age_s, until_s), BIN_STARTS_S, expected)
    lasted, ended = gaps.ended_between(age_s, until_s)
    return KeepReason(
        age_s=age_s,
        until_s=None if window is None else until_s,
        ahead_s=until_s - age_s,
        is_ahead=window is not None and window.from_s > 0,
        probability=1.0 - math.exp(before - by),
        gaps_lasted=lasted,
        gaps_ended=ended,
    )


class PodCredit:
    """Bounds the pods by Knative's count, plus those that earlier savings pay for.

    So the pod-seconds of the policy stay below Knative's, whatever its forecast asks for.
    """

    __slots__ = ("_at_s", "_credit_s", "_saved_count")

    def __init__(self) -> None:
        self._at_s = self._credit_s = 0.0
        self._saved_count = 0

    def bound(self, count: int, knative_count: int, now_s: float) -> int:
        """Limit ``count`` to the allowed pods. After a minute of 4 pods where Knative wants 5: up to 3 more than Knative for a while."""
        passed_s = min(_STEP_MAX_S, max(0.0, now_s - self._at_s))
        self._at_s = now_s
        self._credit_s = min(_CREDIT_MAX_S * max(1, knative_count), self._credit_s + passed_s * self._saved_count)
        if count > knative_count:
            count = min(count, knative_count + max(0, math.floor(self._credit_s / _EXTRA_POD_S)))
        self._saved_count = knative_count - count
        return count


class PreWarmBudget:
    """Limits starts ahead of requests to ``per_minute``, over all revisions that share this budget."""

    __slots__ = ("_at_s", "_per_minute", "_permits")

    def __init__(self, per_minute: int) -> None:
        assert per_minute >= 1, per_minute
        self._per_minute = per_minute
        self._permits = float(per_minute)
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Count one more start if it is allowed now; return whether it is. A clock set back adds nothing."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._permits = min(self._per_minute, self._permits + passed_s * self._per_minute / _MINUTE_S)
        if self._permits < 1.0:
            return False
        self._permits -= 1.0
        return True
