"""Evaluates the triggers of one direction in order, up to the first that acts.

Input: the triggers, and their shared situation (pods, usages, points, time of the last change). Output: the change, and
a verdict of every evaluated trigger, which explains why nothing happened. A trigger acts

1. (up only) immediately when the usage meets its limit, without points and despite the cooldown;
2. when enough points are beyond its target, its amount has the right sign, and the cooldown has ended.

If a trigger only waits for the cooldown, the next one is evaluated. The direction then does not count as in sync: a
waiting trigger for up still prevents scaling down. Source: topfreegames/maestro v9 (dbbfd74),
watcher.checkMetricsTrigger.
"""

import enum
from collections.abc import Mapping

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.points import Points, ScaleWay, counted_points, examined_points, point_window
from serving.core.scaling.policies.scalingpolicy import Direction, Trigger, limit_percent_of
from serving.core.scaling.policies.triggertypes import ObservedPods, TriggerPolicy, bound_ratio
from serving.core.settings.triggers import TriggerQuirks, TriggerSettings


class VerdictKind(enum.StrEnum):
    """The result of evaluating one trigger.

    The trigger acts at its limit, or with enough points after the cooldown; all other results are why it does not act.
    """

    LIMIT = "limit"
    """The trigger acts: the usage reaches its limit."""

    POINTS = "points"
    """The trigger acts: it has enough points, and the cooldown is over."""

    COOLDOWN = "cooldown"
    """The trigger would act, but its cooldown is not over."""

    WRONG_SIGN = "wrong-sign"
    """The limit or the points suffice, but the amount is 0 or has the wrong sign."""

    TOO_FEW_POINTS = "too-few-points"
    """Too few points lie beyond the target."""

    NO_DATA = "no-data"
    """No usage or amount is known."""


_ACTS = frozenset({VerdictKind.LIMIT, VerdictKind.POINTS})
_OUT_OF_SYNC = _ACTS | {VerdictKind.COOLDOWN}


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs shared by all triggers of one evaluation. ``last_change_at_s`` is None before the first change."""

    observed: ObservedPods
    usages: Mapping[str, float | NoData]
    points: Mapping[str, Points]
    last_change_at_s: float | None
    now_s: float
    settings: TriggerSettings
    policies: Mapping[str, TriggerPolicy]


class TriggerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one trigger, with its inputs. ``index`` is its position in the list of triggers.

    ``examined_count`` points (usages at earlier evaluations) were compared with the target: ``counted_count`` are
    beyond it, and at least ``needed_count`` must be. ``limit_ratio`` is the usage from which an up trigger acts without
    points; None for down triggers. ``delta`` is None if the amount was not computed. ``cooldown_left_s`` is the
    remaining cooldown of the trigger's direction.
    """

    way: ScaleWay
    index: int
    type: str
    verdict: VerdictKind
    observed_usage_ratio: float | NoData
    target_usage_ratio: float
    limit_ratio: float | None
    examined_count: int
    counted_count: int
    needed_count: int
    delta: int | NoData | None
    cooldown_left_s: float


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one direction. If no trigger acts, ``acting`` is None and ``delta`` is 0.

    ``in_sync``: no trigger wants a change, not even after its cooldown.
    """

    verdicts: tuple[TriggerVerdict, ...]
    acting: TriggerVerdict | None
    delta: int
    in_sync: bool


def triggers_in_force(direction: Direction, way: ScaleWay, quirks: TriggerQuirks) -> tuple[Trigger, ...]:
    """The triggers of a direction; if the list is empty, the old-style trigger with the direction's fixed amount.

    With a quirk of the scaler maestro, the old-style trigger computes its amount from the occupancy.
    """
    if direction.triggers or direction.trigger is None:
        return direction.triggers
    if quirks.old_trigger_becomes_room:
        return (msgspec.structs.replace(direction.trigger, type="occupancy"),)
    delta = direction.delta if way is ScaleWay.UP else -direction.delta
    return (msgspec.structs.replace(direction.trigger, type="fixed-step", delta=delta),)


def evaluate(triggers: tuple[Trigger, ...], way: ScaleWay, situation: Situation, *, cooldown_s: float) -> Evaluation:
    """Evaluate the triggers in order until one acts."""
    verdicts: list[TriggerVerdict] = []
    for index, trigger in enumerate(triggers):
        verdict = _evaluate_one(trigger, way, situation, index=index, cooldown_s=cooldown_s)
        verdicts.append(verdict)
        if verdict.verdict in _ACTS:
            # Under the quirk a limit acts with any amount, including 0.
            delta = verdict.delta if isinstance(verdict.delta, int) else 0
            return Evaluation(verdicts=tuple(verdicts), acting=verdict, delta=delta, in_sync=False)
    in_sync = not any(verdict.verdict in _OUT_OF_SYNC for verdict in verdicts)
    return Evaluation(verdicts=tuple(verdicts), acting=None, delta=0, in_sync=in_sync)


def _evaluate_one(
    trigger: Trigger, way: ScaleWay, situation: Situation, *, index: int, cooldown_s: float
) -> TriggerVerdict:
    quirks = situation.settings.quirks
    usage = situation.usages[trigger.type]
    target_ratio = bound_ratio(trigger.usage_percent, quirks)
    limit_ratio = bound_ratio(limit_percent_of(trigger), quirks) if way is ScaleWay.UP else None
    window = point_window(trigger, situation.settings)
    points = examined_points(situation.points[trigger.type], window, situation.now_s)
    counted_count = counted_points(points, way, target_ratio)
    waited_s = None if situation.last_change_at_s is None else situation.now_s - situation.last_change_at_s
    # A strict comparison, as in maestro: at exactly one cooldown after a change triggers still wait.
    is_cooling = waited_s is not None and waited_s <= cooldown_s
    verdict, delta = _judge(
        trigger,
        way,
        situation,
        meets_limit=limit_ratio is not None and not isinstance(usage, NoData) and usage >= limit_ratio,
        has_points=counted_count >= window.needed_count,
        is_cooling=is_cooling,
    )
    return TriggerVerdict(
        way=way,
        index=index,
        type=trigger.type,
        verdict=verdict,
        observed_usage_ratio=usage,
        target_usage_ratio=target_ratio,
        limit_ratio=limit_ratio,
        examined_count=len(points),
        counted_count=counted_count,
        needed_count=window.needed_count,
        delta=delta,
        cooldown_left_s=0.0 if waited_s is None else max(0.0, cooldown_s - waited_s),
    )


def _judge(
    trigger: Trigger, way: ScaleWay, situation: Situation, *, meets_limit: bool, has_points: bool, is_cooling: bool
) -> tuple[VerdictKind, int | NoData | None]:
    """Judge one trigger; return its verdict, and the amount if it was computed."""
    if isinstance(situation.usages[trigger.type], NoData):
        return VerdictKind.NO_DATA, None
    if not meets_limit and not has_points:
        return VerdictKind.TOO_FEW_POINTS, None
    quirks = situation.settings.quirks
    delta = situation.policies[trigger.type].delta(trigger, situation.observed, quirks)
    if meets_limit and (quirks.limit_takes_any_delta or _points_to(delta, way)):
        return VerdictKind.LIMIT, delta
    if isinstance(delta, NoData):
        return VerdictKind.NO_DATA, delta
    if not _points_to(delta, way):
        return VerdictKind.WRONG_SIGN, delta
    return (VerdictKind.COOLDOWN if is_cooling else VerdictKind.POINTS), delta


def _points_to(delta: int | NoData, way: ScaleWay) -> bool:
    if isinstance(delta, NoData):
        return False
    return delta > 0 if way is ScaleWay.UP else delta < 0
