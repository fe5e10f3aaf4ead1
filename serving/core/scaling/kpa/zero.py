"""Decides when the last pod may be removed, and sets the Active condition of a revision.

Input: the merged count, the present scale, ready pods, the time since which the activators are the endpoints, the last
proof that an activator answers for the service, and the time. Output: the next state, and one action with its reason:
apply a count, hold, or prove the hand-off; and when to check again. A count above 0 passes. A count of 0 passes in
three steps: the revision was active for a stable window; it is marked inactive, which puts the activators in the path;
a probe proves the hand-off, and the grace period passes. The module sends no probe and patches nothing. Follows
knative/serving 98e5ef90, pkg/reconciler/autoscaling/kpa, except for ``KpaQuirks``.
"""

import enum

import msgspec

from serving.core.model.errors import IllegalTransition
from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.merge import bounded, ready_count_min
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import SAFE, KpaQuirks

# Time between two attempts to prove the hand-off, in seconds. Source: Knative's prober.
PROBE_PERIOD_S = 1.0
# Greatest age of a valid proof, in seconds: the shell probes and decides immediately, and activators may end.
PROOF_VALID_S = 2.0
# Extra time of pods beyond their deadline, in seconds, so that their own failure is reported first. Source: Knative.
_ACTIVATION_BUFFER_S = 30.0
# Time to the next check after marking inactive, if no change of the path triggers one, in seconds. Source: Knative.
_INACTIVE_RECHECK_S = 3.0
# Shortest time to the next check, in seconds: a remainder of 0 before a strict comparison must not cause a busy loop.
_RECHECK_MIN_S = 1.0
# Number of transitions kept for error messages.
_STORY_MAX = 32

_UNDECIDED = NoData(missing="no decision")


class GatePhase(enum.StrEnum):
    """The phase of a revision between its first pod and scale 0.

    activating: fewer pods are ready than must be. active: enough pods are ready. inactive: no pods are wanted, and
    activators replace the pods as endpoints. proved: a probe has shown that activators get the requests, so the last
    pod may be removed. The condition Active is False while inactive or proved.
    """

    ACTIVATING = "activating"
    ACTIVE = "active"
    INACTIVE = "inactive"
    PROVED = "proved"


class Event(enum.StrEnum):
    """An event that may change the phase of the gate to zero.

    queued: pods are wanted, but too few are ready. ready: enough are ready. idle: no pods are wanted. timed out: the
    first pods were not ready in time. The hand-off is proved while a recent probe has shown that activators get the
    requests, otherwise in doubt.
    """

    QUEUED = "queued"
    READY = "ready"
    IDLE = "idle"
    TIMED_OUT = "timed out"
    HAND_OFF_PROVED = "hand-off proved"
    HAND_OFF_IN_DOUBT = "hand-off in doubt"


TRANSITIONS: dict[tuple[GatePhase, Event], GatePhase] = {
    (GatePhase.ACTIVATING, Event.QUEUED): GatePhase.ACTIVATING,
    (GatePhase.ACTIVATING, Event.READY): GatePhase.ACTIVE,
    (GatePhase.ACTIVATING, Event.IDLE): GatePhase.INACTIVE,
    (GatePhase.ACTIVATING, Event.TIMED_OUT): GatePhase.INACTIVE,
    (GatePhase.ACTIVE, Event.QUEUED): GatePhase.ACTIVATING,
    (GatePhase.ACTIVE, Event.READY): GatePhase.ACTIVE,
    (GatePhase.ACTIVE, Event.IDLE): GatePhase.INACTIVE,
    (GatePhase.INACTIVE, Event.QUEUED): GatePhase.ACTIVATING,
    (GatePhase.INACTIVE, Event.READY): GatePhase.ACTIVE,
    (GatePhase.INACTIVE, Event.IDLE): GatePhase.INACTIVE,
    (GatePhase.INACTIVE, Event.HAND_OFF_PROVED): GatePhase.PROVED,
    (GatePhase.INACTIVE, Event.HAND_OFF_IN_DOUBT): GatePhase.INACTIVE,
    (GatePhase.PROVED, Event.QUEUED): GatePhase.ACTIVATING,
    (GatePhase.PROVED, Event.READY): GatePhase.ACTIVE,
    (GatePhase.PROVED, Event.IDLE): GatePhase.PROVED,
    (GatePhase.PROVED, Event.HAND_OFF_PROVED): GatePhase.PROVED,
    (GatePhase.PROVED, Event.HAND_OFF_IN_DOUBT): GatePhase.INACTIVE,
}

# Missing pairs are impossible: only an activation times out, and a hand-off never runs while pods are
# wanted.


class InactiveReason(enum.StrEnum):
    """Reason of the condition Active while it is not True, as Knative writes it.

    Queued: pods are wanted, but too few are ready. TimedOut: the first pods were not ready in time.
    """

    QUEUED = "Queued"
    NO_TRAFFIC = "NoTraffic"
    TIMED_OUT = "TimedOut"


_REASONS = {
    Event.QUEUED: InactiveReason.QUEUED,
    Event.IDLE: InactiveReason.NO_TRAFFIC,
    Event.TIMED_OUT: InactiveReason.TIMED_OUT,
}
_NOT_ACTIVE = (GatePhase.INACTIVE, GatePhase.PROVED)
# The status of the condition Active by phase.
_ACTIVE_STATUS = {
    GatePhase.ACTIVATING: "Unknown",
    GatePhase.ACTIVE: "True",
    GatePhase.INACTIVE: "False",
    GatePhase.PROVED: "False",
}


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the gate to zero between observations. After a restart it is read from the condition Active.

    ``since_s`` is the time since which this condition has its status; ``reason`` is why it is not True.
    ``is_initialized``: the revision's first pods were ready once. ``story`` are the last changes of phase, oldest
    first.
    """

    since_s: float
    phase: GatePhase = GatePhase.ACTIVATING

    reason: InactiveReason | None = InactiveReason.QUEUED
    is_initialized: bool = False
    story: tuple[str, ...] = ()

    @property
    def is_inactive(self) -> bool:
        """Whether the condition Active is False."""
        return self.phase in _NOT_ACTIVE


class GateInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the gate to zero, for one revision at one time.

    ``desired`` is the merged count within its bounds; ``NoData`` if no decider has data. ``present_scale`` None means
    1. Without a Service (``has_service``), the revision counts as uninitialised. ``is_recorded``: the status records
    that the first pods were ready; otherwise a revision without pods would count as failed. ``proxy_since_s`` is since
    when only activators are endpoints; None while pods are. ``proved_at_s`` is when an activator last answered a probe
    of the Service. ``is_failed``: the condition Ready is False. ``active_min_s`` is how long the revision stays active
    before zero; None uses the stable window.
    """

    desired: int | NoData
    present_scale: int | None
    ready_count: int
    has_service: bool = True
    is_recorded: bool = True
    proxy_since_s: float | None = None
    proved_at_s: float | None = None
    is_failed: bool = False
    active_min_s: float | None = None


class GateAction(enum.StrEnum):
    """What the autoscaler does next: set the scale, nothing, or probe whether activators are in the path."""

    APPLY = "apply"
    HOLD = "hold"
    PROBE = "probe"


class GateReason(enum.StrEnum):
    """The rule behind a decision of the gate to zero."""

    NO_DECISION = "no decision yet"
    PODS_WANTED = "pods wanted"
    ZERO_DISABLED = "scale to zero is disabled"
    ACTIVATION_PENDING = "first pods are not ready yet"
    ACTIVATION_FAILED = "first pods did not become ready in time"
    REVISION_FAILED = "the revision failed, and no route names it"
    ACTIVE_TOO_SHORT = "active for less than the stable window"
    NOT_RECORDED = "first pods are not recorded as ready yet"
    MARKED_INACTIVE = "marked inactive"
    ALREADY_ZERO = "already at zero"
    HAND_OFF_IN_DOUBT = "the activator is not proved to be in the path"
    POD_RETENTION = "the last pod is retained"
    GRACE = "the activator is in the path for less than the grace period"
    INACTIVE_LONG_ENOUGH = "inactive for the grace period and the retention"
    PROXIED_LONG_ENOUGH = "the activator is in the path for the grace period"


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the gate to zero: the action and its reason.

    ``wanted`` is the count that the revision approaches. It determines the traffic path and the condition Active
    immediately, but the scale only with the action to apply. After ``recheck_in_s`` seconds the clock alone may change
    the decision; None if only another event can.
    """

    action: GateAction
    reason: GateReason

    wanted: int | NoData
    recheck_in_s: float | None = None

    def is_like(self, other: "GateDecision") -> bool:
        """Whether another decision differs only in the time to the next check."""
        return (self.action, self.reason, self.wanted) == (other.action, other.reason, other.wanted)


def advance(state: GateState, event: Event, *, now_s: float) -> GateState:
    """The state after an event. Raises ``IllegalTransition`` if the phase does not allow the event."""
    phase = TRANSITIONS.get((state.phase, event))
    if phase is None:
        raise IllegalTransition(subject="scale-to-zero gate", phase=state.phase, event=event, story=state.story)
    reason = None if event is Event.READY else _REASONS.get(event, state.reason)
    if phase is state.phase:
        return state if reason is state.reason else msgspec.structs.replace(state, reason=reason)
    is_same_status = _ACTIVE_STATUS[phase] == _ACTIVE_STATUS[state.phase]
    return msgspec.structs.replace(
        state,
        phase=phase,
        since_s=state.since_s if is_same_status else now_s,
        reason=reason,
        story=(*state.story, f"{now_s:.3f} s: {event} -> {phase}")[-_STORY_MAX:],
    )


def step(
    state: GateState, facts: GateInputs, *, spec: ScalingSpec, now_s: float, quirks: KpaQuirks = SAFE
) -> tuple[GateState, GateDecision]:
    """Process one observation: check the proof, decide, then set the condition Active.

    Returns the next state and the decision.
    """
    if state.is_inactive:
        state = advance(state, _proof(state, facts, now_s=now_s), now_s=now_s)
    decision = _decide(state, facts, spec=spec, now_s=now_s, quirks=quirks)
    count_min = ready_count_min(spec, is_initialized=state.is_initialized)
    event = _activity(state, decision.wanted, ready_count=facts.ready_count, count_min=count_min)
    state = advance(state, event, now_s=now_s)
    if not state.is_initialized and facts.has_service and facts.ready_count >= count_min:
        state = msgspec.structs.replace(state, is_initialized=True)
    return state, decision


def clock_conditions(
    state: GateState, *, facts: GateInputs, spec: ScalingSpec, now_s: float
) -> tuple[Event | None, GateReason]:
    """What the clock decides for a revision with one pod and no demand: the proof of the hand-off, and the rule.

    Inputs that differ only in times and have equal results give the same decision, except for ``recheck_in_s``.
    """
    if state.phase is GatePhase.ACTIVE:
        return None, _while_active(state, facts, spec=spec, now_s=now_s).reason
    if state.phase is GatePhase.ACTIVATING:
        return None, _while_activating(state, facts, spec=spec, now_s=now_s, quirks=SAFE).reason
    return _proof(state, facts, now_s=now_s), _while_inactive(state, facts, spec=spec, now_s=now_s).reason


def _proof(state: GateState, facts: GateInputs, *, now_s: float) -> Event:
    """The event for the hand-off to activators: proved by a recent proof from this phase, otherwise in doubt."""
    proved_at_s = facts.proved_at_s
    if proved_at_s is not None and proved_at_s >= state.since_s and now_s - proved_at_s <= PROOF_VALID_S:
        return Event.HAND_OFF_PROVED
    return Event.HAND_OFF_IN_DOUBT


def _decide(state: GateState, facts: GateInputs, *, spec: ScalingSpec, now_s: float, quirks: KpaQuirks) -> GateDecision:
    desired = facts.desired
    if isinstance(desired, NoData):
        # The minimum applies without data: it may have been raised at zero, and the start of first pods may time out.
        desired = bounded(0, spec=spec, is_initialized=state.is_initialized).count
        if state.phase is not GatePhase.ACTIVATING and desired <= _scale_of(facts):
            return GateDecision(action=GateAction.HOLD, reason=GateReason.NO_DECISION, wanted=_UNDECIDED)
    if desired > 0:
        return _apply(desired, GateReason.PODS_WANTED, facts)
    if not spec.enable_scale_to_zero:
        return _apply(1, GateReason.ZERO_DISABLED, facts)
    return _toward_zero(state, facts, spec=spec, now_s=now_s, quirks=quirks)


def _toward_zero(
    state: GateState, facts: GateInputs, *, spec: ScalingSpec, now_s: float, quirks: KpaQuirks
) -> GateDecision:
    if state.phase is GatePhase.ACTIVATING:
        return _while_activating(state, facts, spec=spec, now_s=now_s, quirks=quirks)
    if state.phase is GatePhase.ACTIVE:
        return _while_active(state, facts, spec=spec, now_s=now_s)
    if facts.present_scale == 0:
        return _delay_zero(GateReason.ALREADY_ZERO)
    decision = _while_inactive(state, facts, spec=spec, now_s=now_s)
    is_proof_needed = spec.target_burst_capacity >= 0 or not quirks.zero_without_proof
    # A proof is valid for a short time only, so it is taken once nothing else holds the last pod.
    if decision.action is GateAction.HOLD or not is_proof_needed or state.phase is GatePhase.PROVED:
        return decision
    return GateDecision(
        action=GateAction.PROBE, reason=GateReason.HAND_OFF_IN_DOUBT, wanted=0, recheck_in_s=PROBE_PERIOD_S
    )


def _while_activating(
    state: GateState, facts: GateInputs, *, spec: ScalingSpec, now_s: float, quirks: KpaQuirks
) -> GateDecision:
    """Keep the scale until the first pods are 30 s past the progress deadline; then scale to 0.

    A failed revision without a route scales to 0 immediately, because its pods would only restart.
    """
    has_failed = facts.is_failed and not spec.reachable and not quirks.failure_keeps_its_deadline
    rest_s = spec.progress_deadline_s + _ACTIVATION_BUFFER_S - (now_s - state.since_s)
    if rest_s >= 0 and not has_failed:
        return GateDecision(
            action=GateAction.HOLD,
            reason=GateReason.ACTIVATION_PENDING,
            wanted=_UNDECIDED,
            recheck_in_s=max(rest_s, _RECHECK_MIN_S),
        )
    reason = GateReason.REVISION_FAILED if has_failed else GateReason.ACTIVATION_FAILED
    if facts.ready_count and not quirks.zero_without_proof:
        # Some pods are ready, though too few; they may have requests, so they count as active pods.
        return _delay_zero(reason, recheck_in_s=PROBE_PERIOD_S)
    return _apply(0, reason, facts)


def _while_active(state: GateState, facts: GateInputs, *, spec: ScalingSpec, now_s: float) -> GateDecision:
    """Keep 1 pod until the end of the stable window; then become inactive, which makes activators the endpoints."""
    active_min_s = spec.stable_window_s if facts.active_min_s is None else facts.active_min_s
    rest_s = active_min_s - (now_s - state.since_s)
    if rest_s > 0:
        return _apply(1, GateReason.ACTIVE_TOO_SHORT, facts, recheck_in_s=rest_s)
    if not facts.is_recorded:
        return _apply(1, GateReason.NOT_RECORDED, facts, recheck_in_s=PROBE_PERIOD_S)
    is_in_path = facts.proxy_since_s is not None
    return _delay_zero(GateReason.MARKED_INACTIVE, recheck_in_s=_INACTIVE_RECHECK_S if is_in_path else None)


def _while_inactive(state: GateState, facts: GateInputs, *, spec: ScalingSpec, now_s: float) -> GateDecision:
    """Scale to 0 after the grace period and the retention.

    Without a retention, the grace period begins when the activators become the endpoints.
    """
    inactive_s = now_s - state.since_s
    grace_s = spec.scale_to_zero_grace_s
    retention_s = spec.scale_to_zero_pod_retention_s if spec.reachable else 0.0
    rest_s = max(grace_s, retention_s) - inactive_s
    if rest_s <= 0:
        return _apply(0, GateReason.INACTIVE_LONG_ENOUGH, facts)
    if inactive_s < retention_s:
        return _delay_zero(GateReason.POD_RETENTION, recheck_in_s=retention_s - inactive_s)
    proxied_s = 0.0 if facts.proxy_since_s is None else now_s - facts.proxy_since_s
    if proxied_s >= grace_s:
        return _apply(0, GateReason.PROXIED_LONG_ENOUGH, facts)
    return _delay_zero(GateReason.GRACE, recheck_in_s=min(rest_s, grace_s - proxied_s))


def _apply(count: int, reason: GateReason, facts: GateInputs, *, recheck_in_s: float | None = None) -> GateDecision:
    """Set the scale to ``count``, or keep it if it is equal."""
    action = GateAction.HOLD if count == _scale_of(facts) else GateAction.APPLY
    return GateDecision(action=action, reason=reason, wanted=count, recheck_in_s=recheck_in_s)


def _scale_of(facts: GateInputs) -> int:
    return 1 if facts.present_scale is None else facts.present_scale


def _delay_zero(reason: GateReason, *, recheck_in_s: float | None = None) -> GateDecision:
    """Keep the present scale for now, although the gate approaches 0."""
    return GateDecision(action=GateAction.HOLD, reason=reason, wanted=0, recheck_in_s=recheck_in_s)


def _activity(state: GateState, wanted: int | NoData, *, ready_count: int, count_min: int) -> Event:
    """The event for the condition Active, by wanted and ready pods.

    Without a decision an inactive revision stays inactive.
    """
    if wanted == 0 or count_min == 0:
        return Event.TIMED_OUT if state.phase is GatePhase.ACTIVATING and count_min > 0 else Event.IDLE
    if isinstance(wanted, NoData) and state.is_inactive:
        return Event.IDLE
    return Event.READY if ready_count >= count_min else Event.QUEUED
