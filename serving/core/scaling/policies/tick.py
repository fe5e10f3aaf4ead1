"""One evaluation of a policy: from an observation to a change of the number of pods, with its reason.

``decide`` is a fold: it takes a state, and returns the next state with the decision. The order is min and max, then
limits, then points and cooldowns; up before down. The decision is a proposal. Its ``desired_count`` is merged with the
counts of request metrics, and the larger one wins. A policy whose triggers do not act proposes the present size. A
policy without data returns NoData.

The caller evaluates once per ``period_s``, applies the change, and confirms it with ``changed``. The module uses no
pods and no clock. Source: topfreegames/maestro v9 (dbbfd74), watcher.checkState.
"""

import enum
from collections.abc import Mapping

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.apply import ScaleChange, change_of
from serving.core.scaling.policies.evaluate import (
    Evaluation,
    Situation,
    TriggerVerdict,
    VerdictKind,
    evaluate,
    triggers_in_force,
)
from serving.core.scaling.policies.points import Points, ScaleWay, recorded, stored_times
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec, Trigger
from serving.core.scaling.policies.triggertypes import REGISTRY, ObservedPods, TriggerPolicy
from serving.core.settings.triggers import TriggerSettings


class TriggerPhase(enum.StrEnum):
    """The phase of a scale change, as in the game-room scaler maestro.

    subdimensioned: an up trigger wants more pods. overdimensioned: a down trigger wants fewer. in-sync: neither. The
    caller sets creating and terminating, while the revision is created or deleted; triggers then wait.
    """

    CREATING = "creating"
    IN_SYNC = "in-sync"
    SUBDIMENSIONED = "subdimensioned"
    OVERDIMENSIONED = "overdimensioned"
    TERMINATING = "terminating"


class TriggerRule(enum.StrEnum):
    """The rule that decided whether pods are added or removed."""

    PAUSED = "paused"
    """No decision while a revision is being created or deleted."""

    BELOW_MIN = "below-min"
    ABOVE_MAX = "above-max"
    LIMIT = "limit"
    POINTS = "points"

    COOLDOWN = "cooldown"
    """A trigger would act, but its cooldown is not over."""

    IN_SYNC = "in-sync"
    """No trigger would act."""

    NO_DATA = "no-data"
    """The usage is unknown."""


_RULE_OF_VERDICT = {VerdictKind.LIMIT: TriggerRule.LIMIT, VerdictKind.POINTS: TriggerRule.POINTS}


class TriggerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state between evaluations, as plain data for encoding.

    ``phase_changed_at_s`` and ``last_change_at_s`` are None before the first such change. Points are newest first.
    """

    phase: TriggerPhase = TriggerPhase.IN_SYNC
    phase_changed_at_s: float | None = None
    last_change_at_s: float | None = None
    points: dict[str, Points] = msgspec.field(default_factory=dict)


class TickDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The change to make, and every rule that affected it.

    ``rule`` decided on ``change``, the pods to add or remove with each effective bound. ``desired_count`` is the
    policy's wanted size after this change; NoData without a proposal. ``verdicts`` are those of all evaluated triggers:
    up, then down. ``acting`` is the acting trigger, None if there is none. ``usages`` are by trigger type.
    ``observed_count`` counts existing pods and pods being created. ``in_sync``: no trigger wants another size.
    ``phase_changed``: the phase or the time of its change differs from the stored state.
    """

    rule: TriggerRule
    change: ScaleChange
    desired_count: int | NoData
    verdicts: tuple[TriggerVerdict, ...]
    acting: TriggerVerdict | None
    usages: dict[str, float | NoData]
    observed_count: int
    in_sync: bool
    phase_changed: bool


class _TriggerChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The rule and amount chosen, before bounds and state."""

    rule: TriggerRule
    delta: int = 0
    verdicts: tuple[TriggerVerdict, ...] = ()
    acting: TriggerVerdict | None = None
    in_sync: bool = True
    phase: TriggerPhase | None = None
    """The next phase; None keeps the present one."""


def decide(
    state: TriggerState,
    observed: ObservedPods,
    spec: ScalingPolicySpec,
    *,
    settings: TriggerSettings,
    now_s: float,
    policies: Mapping[str, TriggerPolicy] = REGISTRY,
) -> tuple[TriggerState, TickDecision]:
    """Evaluate a policy at ``now_s``. ``spec`` must be valid (``check_scaling_policy``).

    The returned state includes the new points, but not the decided change, which ``changed`` adds once it is made.
    """
    up = triggers_in_force(spec.up, ScaleWay.UP, settings.quirks)
    down = triggers_in_force(spec.down, ScaleWay.DOWN, settings.quirks)
    times = stored_times(up, down, settings)
    usages = {kind: _usage(kind, observed, settings, policies=policies) for kind in times}
    points = recorded(state.points, usages, times, now_s=now_s, settings=settings)
    situation = Situation(
        observed=observed,
        usages=usages,
        points=points,
        last_change_at_s=state.last_change_at_s,
        now_s=now_s,
        settings=settings,
        policies=policies,
    )
    choice = _choose(state.phase, spec, situation, up=up, down=down)
    change = change_of(choice.delta, observed=observed, spec=spec, settings=settings)
    # A limit that is reached again counts as a new phase change, so that the state has the last time.
    phase_changed = choice.phase is not None and (choice.phase is not state.phase or choice.rule is TriggerRule.LIMIT)
    state = TriggerState(
        phase=choice.phase or state.phase,
        phase_changed_at_s=now_s if phase_changed else state.phase_changed_at_s,
        last_change_at_s=state.last_change_at_s,
        points=points,
    )
    decision = TickDecision(
        rule=choice.rule,
        change=change,
        desired_count=_desired_count(choice.rule, change, observed, spec=spec, has_down=bool(down), usages=usages),
        verdicts=choice.verdicts,
        acting=choice.acting,
        usages=usages,
        observed_count=observed.available_count,
        in_sync=choice.in_sync,
        phase_changed=phase_changed,
    )
    return state, decision


def changed(state: TriggerState, *, at_s: float) -> TriggerState:
    """The state after a change was made: in sync, with the cooldowns of both directions started.

    ``at_s`` is the ``now_s`` of the decision (as in the scaler maestro), not the time when the last pod existed.
    """
    return msgspec.structs.replace(state, phase=TriggerPhase.IN_SYNC, phase_changed_at_s=at_s, last_change_at_s=at_s)


def rebased(state: TriggerState, *, by_s: float) -> TriggerState:
    """Convert a state's times from the clock of an earlier process to a clock that is ``by_s`` ahead.

    Monotonic clocks of two processes differ. Example: the state was saved at 500 on the old clock, and is read 4 s
    later at 20 on the new one: by_s = 20 - 4 - 500 = -484.
    """
    return TriggerState(
        phase=state.phase,
        phase_changed_at_s=None if state.phase_changed_at_s is None else state.phase_changed_at_s + by_s,
        last_change_at_s=None if state.last_change_at_s is None else state.last_change_at_s + by_s,
        points={
            kind: tuple(msgspec.structs.replace(point, at_s=point.at_s + by_s) for point in points)
            for kind, points in state.points.items()
        },
    )


def _usage(
    kind: str, observed: ObservedPods, settings: TriggerSettings, *, policies: Mapping[str, TriggerPolicy]
) -> float | NoData:
    policy = policies.get(kind)
    if policy is None:
        return NoData(missing=f"a policy of type {kind}")
    return policy.usage_ratio(observed, settings.quirks)


def _choose(
    phase: TriggerPhase,
    spec: ScalingPolicySpec,
    situation: Situation,
    *,
    up: tuple[Trigger, ...],
    down: tuple[Trigger, ...],
) -> _TriggerChoice:
    available_count = situation.observed.available_count
    if phase in (TriggerPhase.CREATING, TriggerPhase.TERMINATING):
        return _TriggerChoice(rule=TriggerRule.PAUSED)
    if available_count < spec.min_count:
        return _TriggerChoice(rule=TriggerRule.BELOW_MIN, delta=spec.min_count - available_count)
    if 0 < spec.max_count < available_count:
        return _TriggerChoice(rule=TriggerRule.ABOVE_MAX, delta=spec.max_count - available_count)
    grown = Evaluation(verdicts=(), acting=None, delta=0, in_sync=True)
    if spec.max_count == 0 or available_count < spec.max_count:
        grown = evaluate(up, ScaleWay.UP, situation, cooldown_s=spec.up.cooldown_s)
    if not grown.in_sync:
        return _from_evaluation(grown, grown.verdicts, TriggerPhase.SUBDIMENSIONED)
    least_count = spec.min_count if situation.settings.quirks.down_may_reach_zero else max(1, spec.min_count)
    if available_count > least_count:
        shrunk = evaluate(down, ScaleWay.DOWN, situation, cooldown_s=spec.down.cooldown_s)
        verdicts = (*grown.verdicts, *shrunk.verdicts)
        if not shrunk.in_sync:
            return _from_evaluation(shrunk, verdicts, TriggerPhase.OVERDIMENSIONED)
    else:
        verdicts = grown.verdicts
    known = [not isinstance(usage, NoData) for usage in situation.usages.values()]
    # A policy without triggers needs no data.
    rule = TriggerRule.IN_SYNC if any(known) or not known else TriggerRule.NO_DATA
    return _TriggerChoice(rule=rule, verdicts=verdicts, phase=TriggerPhase.IN_SYNC)


def _from_evaluation(
    evaluation: Evaluation, verdicts: tuple[TriggerVerdict, ...], phase: TriggerPhase
) -> _TriggerChoice:
    acting = evaluation.acting
    return _TriggerChoice(
        rule=TriggerRule.COOLDOWN if acting is None else _RULE_OF_VERDICT[acting.verdict],
        delta=evaluation.delta,
        verdicts=verdicts,
        acting=acting,
        in_sync=False,
        phase=phase,
    )


def _desired_count(
    rule: TriggerRule,
    change: ScaleChange,
    observed: ObservedPods,
    *,
    spec: ScalingPolicySpec,
    has_down: bool,
    usages: Mapping[str, float | NoData],
) -> int | NoData:
    """The count that a policy proposes; of all proposals, the largest is used.

    A policy whose triggers do not act proposes the present size. A policy without down triggers proposes only the pods
    that it requests now, because otherwise pods could never be removed. A policy that may scale to 0 does not keep the
    last idle pod: the request metrics and the gate to zero decide on this pod.
    """
    if rule is TriggerRule.PAUSED:
        return NoData(missing="a revision that is running")
    if rule is TriggerRule.NO_DATA:
        return NoData(missing="a usage that any trigger watches")
    if rule is TriggerRule.IN_SYNC and not has_down:
        # A trigger without data may need pods that the other triggers do not request.
        unknown = [kind for kind, usage in usages.items() if isinstance(usage, NoData)]
        return NoData(missing=f"a usage of type {unknown[0]}") if unknown else spec.min_count
    count = observed.available_count + change.delta
    is_last_and_idle = count == observed.available_count == 1 and not observed.occupied_count
    wants_no_more = rule is TriggerRule.IN_SYNC or (rule is TriggerRule.POINTS and change.wanted_delta < 0)
    return 0 if is_last_and_idle and wants_no_more and spec.min_count == 0 else count
