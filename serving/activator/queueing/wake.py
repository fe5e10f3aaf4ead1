"""Decides when to wake a revision: to set it Active (flip), and to report to the autoscaler immediately (poke).

A fold over the requests of one revision. The activator reports to the autoscaler each second. It sends a poke, an
immediate report, for three reasons: the first request waits, twice as many requests wait as last reported, or more
requests are in flight than the desired pods can take. Pokes are at least 50 ms apart; an earlier one is delayed. A
revision in reserve is flipped while requests wait for it, with a growing pause between tries.

A poke reports the requests since the last report, and the next report omits these. Each request counts once, as in
knative/serving 98e5ef90 pkg/activator/handler/concurrency_reporter.go. Windows average reports but not pokes, because a
poke is the number in flight at one moment and not the mean of a second.
"""

import enum
from collections.abc import Mapping

import msgspec

from serving.core.model.knative import ServingState
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.backoff import backoff_s
from serving.core.traffic.meter import Report


class PokeReason(enum.StrEnum):
    """The rule that caused a poke.

    FIRST: a request waits, and none did at the last report. DOUBLED: the number of waiting requests has at least
    doubled since. EXCEEDED: more requests are in flight than reported, and than the desired pods can serve.
    """

    FIRST = "first"
    DOUBLED = "doubled"
    EXCEEDED = "exceeded"


class RevisionLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one revision in a reporting period: mean concurrency, and requests per second.

    The load excludes what pokes have already reported. ``window_concurrency`` and ``window_request_count`` include it,
    for the autoscaler's averages over windows; None if they equal the load. ``pod_loads`` are the requests in each pod
    of a ScaledWorkload, by name. ``pod_heats`` are the prompt bytes that each pod did not have to process again, by
    name, because its prompt cache had them.
    """

    concurrency: float
    request_count: float
    window_concurrency: float | None = None
    window_request_count: float | None = None
    pod_loads: Mapping[str, float] = {}
    pod_heats: Mapping[str, float] = {}

    def with_concurrency_of(self, other: "RevisionLoad") -> "RevisionLoad":
        """This load plus the concurrency of ``other``. Request counts are not added: this load already has them."""
        own, added = self.window_concurrency, other.window_concurrency
        return msgspec.structs.replace(
            self,
            concurrency=self.concurrency + other.concurrency,
            window_concurrency=(self.concurrency if own is None else own)
            + (other.concurrency if added is None else added),
        )


class Poke(msgspec.Struct, frozen=True, kw_only=True):
    """An immediate report to the autoscaler: the load, and the rule that caused the poke."""

    load: RevisionLoad
    reason: PokeReason


class WakeInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a wake decision for one revision.

    ``level`` requests run or wait; ``waiting_count`` of them wait for a pod. ``arrived_count`` requests arrived since
    the last report. ``desired_count`` pods are desired, each for ``target_concurrency`` concurrent requests.
    ``has_rejected``: a request was just answered without a pod, because pods fail or because its client gets a
    placeholder response. A load of 1 is then reported once per reporting period, so that a new pod is tried.
    """

    level: int
    waiting_count: int
    arrived_count: int
    serving_state: ServingState | None
    desired_count: int
    target_concurrency: float
    has_rejected: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether a request has no pod."""
        return self.waiting_count > 0 or self.has_rejected


class WakeState(msgspec.Struct, frozen=True, kw_only=True):
    """The load that the autoscaler already has, and the state of flips. A flip sets the revision Active.

    ``known_level`` and ``known_waiting_count`` were reported last. ``poked_concurrency`` and ``poked_count`` were
    reported by pokes since then. ``poked_at_s`` is the time of the last poke, and ``flip_due_s`` that of the next flip;
    both may be None. ``flip_count`` is the number of flips since requests began to wait for a pod.
    """

    known_level: int = 0
    known_waiting_count: int = 0
    poked_concurrency: float = 0.0
    poked_count: int = 0
    poked_at_s: float | None = None
    flip_due_s: float | None = None
    flip_count: int = 0


class WakeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The wake that is due: a poke of the autoscaler, a ``flip`` of the revision to Active, both, or neither.

    ``next_wake_s`` is the time of the next check; None: check again only after a change. While no request waits and at
    most ``quiet_level`` requests are in flight, no wake can be due.
    """

    poke: Poke | None
    flip: bool
    next_wake_s: float | None
    quiet_level: int


def wake(
    state: WakeState, facts: WakeInput, settings: ActivatorSettings, *, now_s: float
) -> tuple[WakeState, WakeDecision]:
    """Decide whether a poke or a flip is due now, and when to check again."""
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
    """The state after the queue became empty: nothing waits, and no flip is due."""
    return msgspec.structs.replace(state, known_waiting_count=0, flip_due_s=None, flip_count=0)


def forgotten(state: WakeState) -> WakeState:
    """The state for a new autoscaler process: everything is reported again."""
    return WakeState(flip_due_s=state.flip_due_s, flip_count=state.flip_count)


def reported(
    state: WakeState, report: Report, *, level: int, waiting_count: int, period_s: float
) -> tuple[WakeState, RevisionLoad]:
    """The load of a reporting period, minus the load already reported by pokes, and the next state.

    Example: a poke reported a concurrency of 100, and the mean of the period is 90. The reported concurrency is 0, and
    ``window_concurrency`` is 90. Request counts are divided by ``period_s``.
    """
    load = RevisionLoad(
        concurrency=max(0.0, report.concurrency - state.poked_concurrency),
        request_count=max(0, report.request_count - state.poked_count) / period_s,
        window_concurrency=report.concurrency,
        window_request_count=report.request_count / period_s,
    )
    return (
        msgspec.structs.replace(
            state, known_level=level, known_waiting_count=waiting_count, poked_concurrency=0.0, poked_count=0
        ),
        load,
    )


def _poke(
    state: WakeState, facts: WakeInput, settings: ActivatorSettings, *, now_s: float
) -> tuple[WakeState, Poke | None, float | None]:
    """The new state, the poke (if any), and the due time of a later poke."""
    reason = _reason(state, facts)
    if reason is None:
        return state, None, None
    if state.poked_at_s is not None and now_s < (due_s := state.poked_at_s + settings.poke_pause_min_s):
        return state, None, due_s
    # At least 1 for a rejected request, which is not in flight. A waiting request that replaces another adds nothing:
    # in a full revision each ended request makes another one the first to wait.
    least = int(facts.has_rejected)
    concurrency = max(least, facts.level - state.known_level)
    count = max(least, facts.arrived_count - state.poked_count)
    poked = msgspec.structs.replace(
        state,
        known_level=facts.level,
        known_waiting_count=facts.waiting_count,
        poked_concurrency=state.poked_concurrency + concurrency,
        poked_count=state.poked_count + count,
        poked_at_s=now_s,
    )
    load = RevisionLoad(
        concurrency=concurrency,
        request_count=count,
        # Ten simultaneous requests of 0.5 s have a mean of 5 in a second, which windows get with the report. Only a request that is
        # not in flight, and therefore in no report, counts here.
        window_concurrency=float(least),
        window_request_count=float(least),
    )
    return poked, Poke(load=load, reason=reason), None


def _reason(state: WakeState, facts: WakeInput) -> PokeReason | None:
    if facts.waiting_count and not state.known_waiting_count:
        return PokeReason.FIRST
    if facts.has_rejected and not state.poked_count:
        return PokeReason.FIRST
    if facts.waiting_count and facts.waiting_count >= 2 * state.known_waiting_count:
        return PokeReason.DOUBLED
    # Two desired pods for 7 requests each are enough for 14 in flight; the 15th requests more, once.
    if facts.level > max(state.known_level, facts.desired_count * facts.target_concurrency):
        return PokeReason.EXCEEDED
    return None


def _flip(state: WakeState, facts: WakeInput, settings: ActivatorSettings, *, now_s: float) -> tuple[WakeState, bool]:
    if facts.serving_state is not ServingState.RESERVE or not facts.is_wanted:
        if state.flip_due_s is None:
            return state, False
        return msgspec.structs.replace(state, flip_due_s=None, flip_count=0), False
    if state.flip_due_s is not None and now_s < state.flip_due_s:
        return state, False
    # 0.1 s, 0.2 s, 0.4 s ... 5 s: an API server that is down must not receive a write per request.
    pause_s = backoff_s(state.flip_count + 1, first_s=settings.flip_pause_first_s, max_s=settings.flip_pause_max_s)
    return msgspec.structs.replace(state, flip_due_s=now_s + pause_s, flip_count=state.flip_count + 1), True
