"""Judges revisions during a rollout by their responses so far.

A condition is broken if at least three responses are bad, and their share is above the limit with a confidence of 95 %.
That is, the lower end of Wilson's interval (1927) is above the limit. Two errors in twenty responses do not break
"errors<1%".
"""

import enum
import math
from collections.abc import Iterator, Mapping

import msgspec

from serving.controller.routes.rollout import ALL_TRAFFIC_ASSIGNED, Assignment
from serving.controller.values.conditions import Condition
from serving.controller.values.writes import Note
from serving.core.model.knative import ROLLED_BACK_ANNOTATION, ConditionStatus
from serving.core.model.objects import Object, annotations_of
from serving.core.model.quantity import format_duration_s
from serving.core.model.rolloutcheck import ROLLED_BACK_REASON, BrokenCheck, RolloutCheck, read_broken
from serving.core.settings.annotations import read_rollout_check_of
from serving.core.traffic.latencies import bucket_of
from serving.core.traffic.responsecounts import ResponseCounts

COUNT_MIN = 20
"""Minimum number of responses in a step; with fewer, the step waits."""

BAD_MIN = 3
"""Fewest bad responses of a broken condition, because one may be an accident."""

# Quantile of the normal distribution: 95 % are below.
_Z = 1.6449
_PERCENT = 100.0


class RolloutVerdict(enum.StrEnum):
    """The verdict on a rollout: wait, continue, or roll back."""

    HOLD = "hold"
    GO = "go"
    BACK = "back"


class RolloutJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict about one revision, with its reason."""

    verdict: RolloutVerdict
    why: str


def judge(check: RolloutCheck, seen: ResponseCounts | None, *, may_wait: bool) -> RolloutJudgement:
    """Judge a revision by its responses. ``seen`` is None after an activator did not report its counts.

    ``may_wait``: a rollout step may still wait for enough responses.
    """
    if seen is None:
        return RolloutJudgement(verdict=RolloutVerdict.HOLD, why="an activator does not report its responses")
    broken = _broken(check, seen)
    if broken:
        return RolloutJudgement(verdict=RolloutVerdict.BACK, why=broken)
    if seen.count < COUNT_MIN and may_wait:
        why = f"{seen.count:.0f} of {COUNT_MIN} responses are there"
        return RolloutJudgement(verdict=RolloutVerdict.HOLD, why=why)
    return RolloutJudgement(verdict=RolloutVerdict.GO, why=f"{check.text} holds over {seen.count:.0f} responses")


def _broken(check: RolloutCheck, seen: ResponseCounts) -> str:
    if check.error_share is not None and _is_above(seen.error_count, seen.count, check.error_share):
        count_text = f"{seen.error_count:.0f} of {seen.count:.0f} responses were 5xx"
        return f"{count_text} ({_percent(seen.error_count / seen.count)}), above {_percent(check.error_share)}"
    for goal in check.latencies:
        # Only buckets that are entirely above the limit.
        limit = bucket_of(goal.limit_s)
        late = sum(count for bucket, count in seen.durations.items() if bucket > limit)
        if _is_above(late, seen.count, 1.0 - goal.share):
            took = f"{late:.0f} of {seen.count:.0f} responses took longer than {format_duration_s(goal.limit_s)}"
            return f"{took} ({_percent(late / seen.count)}), above the {_percent(1.0 - goal.share)} of {goal.name}"
    return ""


def _is_above(part: float, count: float, limit: float) -> bool:
    return part >= BAD_MIN and least_share(part, count) > limit


def least_share(part: float, count: float) -> float:
    """The lower end of Wilson's confidence interval for ``part`` of ``count``; 0 if ``count`` is 0."""
    if count <= 0:
        return 0.0
    share, square = part / count, _Z * _Z
    spread = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, (share + square / (2 * count) - spread) / (1 + square / count))


def _percent(share: float) -> str:
    return f"{share * _PERCENT:.3g} %"


class CheckedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking the rollouts of a route by the responses of its newest revisions.

    ``check`` are the conditions from the route's annotation, None without a check. ``broken`` are the newest revisions
    that broke the check. ``paused`` are the revisions whose rollout waits.
    """

    check: RolloutCheck | None = None
    broken: Mapping[str, BrokenCheck] = {}
    paused: frozenset[str] = frozenset()

    def condition(self) -> Condition | None:
        """The condition of a route with a rolled-back revision; None if no revision was rolled back."""
        message = next(map(_rollback_text, self.broken.items()), None)
        if message is None:
            return None
        return Condition(
            type=ALL_TRAFFIC_ASSIGNED, status=ConditionStatus.FALSE, reason=ROLLED_BACK_REASON, message=message
        )

    def notes(self, route: Object) -> Iterator[Note]:
        """An Event for each revision that is rolled back now."""
        before = read_broken(annotations_of(route).get(ROLLED_BACK_ANNOTATION, ""))
        for name, broken in self.broken.items():
            if name not in before:
                yield Note(about=route, reason=ROLLED_BACK_REASON, message=_rollback_text((name, broken)), warning=True)


def checked_rollout(route: Object, assignment: Assignment, judged: Mapping[str, RolloutJudgement]) -> CheckedRollout:
    """Apply judgements to a route's newest revisions.

    A revision that broke a check stays broken until the check changes.
    """
    check = read_rollout_check_of(annotations_of(route))
    if not isinstance(check, RolloutCheck):
        return CheckedRollout()
    newest = {target["revisionName"] for target in assignment.targets or () if target.get("latestRevision")}
    before = read_broken(annotations_of(route).get(ROLLED_BACK_ANNOTATION, ""))
    is_unknown = assignment.targets is None
    broken = {
        name: failure
        for name, failure in before.items()
        if is_unknown or (name in newest and failure.check == check.text)
    }
    verdicts = {name: judgement.verdict for name, judgement in judged.items()}
    for name in sorted(newest - broken.keys()):
        if verdicts.get(name) is RolloutVerdict.BACK:
            broken[name] = BrokenCheck(check=check.text, why=judged[name].why)
    paused = frozenset(name for name in newest if verdicts.get(name) is not RolloutVerdict.GO)
    return CheckedRollout(check=check, broken=broken, paused=paused)


def _rollback_text(entry: tuple[str, BrokenCheck]) -> str:
    name, broken = entry
    return f'Revision "{name}" is rolled back by {broken.check}: {broken.why}.'
