"""When to wake a revision: to flip it from Reserve to Active, and to tell the autoscaler at once.

A fold over what one revision has inside. The autoscaler hears of it each second anyway; it is poked when that would be
too late: when the first request waits, when twice as many wait as it last heard of, and when more are inside than the
desired pods are for. At most one poke each 50 ms; one that comes too early is sent when its time has come. A revision in
reserve is flipped as long as somebody wants it, with a growing pause between tries.

A poke tells what is new since the autoscaler last heard, and the next report leaves that out: each request counts once,
as in knative/serving 98e5ef90 pkg/activator/handler/concurrency_reporter.go. It refuses to know how a flip or a poke
travels, and what time it is.
"""

import enum

import msgspec

from serving.model.knative import ServingState
from serving.settings.activator import ActivatorSettings
from serving.traffic.meter import Report

__all__ = ["Load", "Poke", "PokeReason", "WakeDecision", "WakeFacts", "WakeState", "calm", "reported", "wake"]


class PokeReason(enum.StrEnum):
    """Which rule asked for a poke."""

    FIRST = "first"
    DOUBLED = "doubled"
    EXCEEDED = "exceeded"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the autoscaler is told of one revision: requests at once, and requests that came."""

    concurrency: float
    request_count: float


class Poke(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the autoscaler now, and why."""

    load: Load
    reason: PokeReason


class WakeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A revision at a moment.

    ``level`` requests are inside, ``waiting_count`` of them without a pod; ``arrived_count`` came since the last report.
    ``serving_state`` is None while the revision is not known. ``desired_count`` pods are asked for, each good for
    ``target_concurrency`` requests at once. ``was_refused`` says that somebody was just sent away because its pods fail:
    it is tried again for that, with a load of 1, once in each period of reports.
    """

    level: int
    waiting_count: int
    arrived_count: int
    serving_state: ServingState | None
    desired_count: int
    target_concurrency: float
    was_refused: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether somebody is here who has no pod."""
        return self.waiting_count > 0 or self.was_refused


class WakeState(msgspec.Struct, frozen=True, kw_only=True):
    """What the autoscaler has been told.

    ``known_level`` and ``known_waiting_count`` are what it last heard of. ``poked_concurrency`` and ``poked_count`` were
    told ahead of the next report. ``poked_at_s`` and ``flip_due_s`` are None before the first poke and flip.
    """

    known_level: int = 0
    known_waiting_count: int = 0
    poked_concurrency: float = 0.0
    poked_count: int = 0
    poked_at_s: float | None = None
    flip_due_s: float | None = None
    flip_count: int = 0


class WakeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. ``next_wake_s`` is when to ask again without news; None: not before there are any.

    Nothing can be due at ``quiet_level`` requests inside or fewer while none waits: no need to ask.
    """

    poke: Poke | None
    flip: bool
    next_wake_s: float | None
    quiet_level: int


def wake(
    state: WakeState, facts: WakeFacts, settings: ActivatorSettings, *, now_s: float
) -> tuple[WakeState, WakeDecision]:
    """What is due now, and when to ask again."""
    if not facts.is_wanted:
        state = calm(state)
    state, poke, poke_due_s = _poke(state, facts, settings, now_s=now_s)
    state, flip = _flip(state, facts, settings, now_s=now_s)
    wakes_s = [poke_due_s]
    if facts.is_wanted and facts.serving_state is ServingState.RESERVE:
        wakes_s.append(state.flip_due_s)
    decision = WakeDecision(
        poke=poke,
        flip=flip,
        next_wake_s=min((at_s for at_s in wakes_s if at_s is not None), default=None),
        quiet_level=max(state.known_level, int(facts.desired_count * facts.target_concurrency)),
    )
    return state, decision


def calm(state: WakeState) -> WakeState:
    """Nobody waits any more: the next one that does is the first again."""
    return msgspec.structs.replace(state, known_waiting_count=0, flip_due_s=None, flip_count=0)


def reported(
    state: WakeState, report: Report, *, level: int, waiting_count: int, period_s: float
) -> tuple[WakeState, Load]:
    """What the report of a period tells, without what pokes have told already.

    A mean of 90 after a poke of 100 is told as 0, not as -10. Counts are per second of the period that is set.
    """
    load = Load(
        concurrency=max(0.0, report.concurrency - state.poked_concurrency),
        request_count=max(0, report.request_count - state.poked_count) / period_s,
    )
    return (
        msgspec.structs.replace(
            state, known_level=level, known_waiting_count=waiting_count, poked_concurrency=0.0, poked_count=0
        ),
        load,
    )


def _poke(
    state: WakeState, facts: WakeFacts, settings: ActivatorSettings, *, now_s: float
) -> tuple[WakeState, Poke | None, float | None]:
    """The new state, the poke, and when one is due that came too early."""
    reason = _reason(state, facts)
    if reason is None:
        return state, None, None
    if state.poked_at_s is not None and now_s < (due_s := state.poked_at_s + settings.poke_pause_min_s):
        return state, None, due_s
    # At least 1: those who were refused are not inside.
    concurrency = max(1, facts.level - state.known_level)
    count = max(1, facts.arrived_count - state.poked_count)
    told = msgspec.structs.replace(
        state,
        known_level=facts.level,
        known_waiting_count=facts.waiting_count,
        poked_concurrency=state.poked_concurrency + concurrency,
        poked_count=state.poked_count + count,
        poked_at_s=now_s,
    )
    return told, Poke(load=Load(concurrency=concurrency, request_count=count), reason=reason), None


def _reason(state: WakeState, facts: WakeFacts) -> PokeReason | None:
    if facts.waiting_count and not state.known_waiting_count:
        return PokeReason.FIRST
    if facts.was_refused and not state.poked_count:
        return PokeReason.FIRST
    if facts.waiting_count and facts.waiting_count >= 2 * state.known_waiting_count:
        return PokeReason.DOUBLED
    # With 2 pods wanted for 7 each, 14 inside are what they are for; 15 are more, once.
    if facts.level > max(state.known_level, facts.desired_count * facts.target_concurrency):
        return PokeReason.EXCEEDED
    return None


def _flip(state: WakeState, facts: WakeFacts, settings: ActivatorSettings, *, now_s: float) -> tuple[WakeState, bool]:
    if facts.serving_state is not ServingState.RESERVE or not facts.is_wanted:
        if state.flip_due_s is None:
            return state, False
        return msgspec.structs.replace(state, flip_due_s=None, flip_count=0), False
    if state.flip_due_s is not None and now_s < state.flip_due_s:
        return state, False
    # 0.1 s, 0.2 s, 0.4 s ... 5 s: a store that is down is not knocked at for each request.
    pause_s = min(settings.flip_pause_first_s * 2**state.flip_count, settings.flip_pause_max_s)
    return msgspec.structs.replace(state, flip_due_s=now_s + pause_s, flip_count=min(state.flip_count + 1, 32)), True
