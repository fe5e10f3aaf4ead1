import itertools

import msgspec
import pytest

from serving.core.model.errors import IllegalTransition
from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.zero import (
    PROBE_PERIOD_S,
    PROOF_VALID_S,
    TRANSITIONS,
    Event,
    GateAction,
    GateDecision,
    GateInputs,
    GatePhase,
    GateReason,
    GateState,
    InactiveReason,
    advance,
    clock_conditions,
    step,
)
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import ORIGINAL, SAFE, KpaQuirks
from tests.unit.core.scaling.kpa_builders import DEFAULTS, spec_with

UNDECIDED = NoData(missing="no decision")
# Only an activation can time out, and no hand-off runs while pods are wanted.
FORBIDDEN = {
    (GatePhase.ACTIVE, Event.TIMED_OUT),
    (GatePhase.INACTIVE, Event.TIMED_OUT),
    (GatePhase.PROVED, Event.TIMED_OUT),
    (GatePhase.ACTIVATING, Event.HAND_OFF_PROVED),
    (GatePhase.ACTIVATING, Event.HAND_OFF_IN_DOUBT),
    (GatePhase.ACTIVE, Event.HAND_OFF_PROVED),
    (GatePhase.ACTIVE, Event.HAND_OFF_IN_DOUBT),
}
UNREACHABLE = spec_with(reachable=False)


def state_of(phase: GatePhase, *, since_s: float = 0.0, is_initialized: bool = True) -> GateState:
    return GateState(phase=phase, since_s=since_s, is_initialized=is_initialized)


def stepped(
    state: GateState,
    *,
    desired: int | NoData = 0,
    present_scale: int | None = 1,
    ready_count: int = 1,
    proxy_since_s: float | None = None,
    proved_at_s: float | None = None,
    is_failed: bool = False,
    spec: ScalingSpec = DEFAULTS,
    now_s: float,
    quirks: KpaQuirks = SAFE,
) -> tuple[GateState, GateDecision]:
    facts = GateInputs(
        desired=desired,
        present_scale=present_scale,
        ready_count=ready_count,
        proxy_since_s=proxy_since_s,
        proved_at_s=proved_at_s,
        is_failed=is_failed,
    )
    return step(state, facts, spec=spec, now_s=now_s, quirks=quirks)


def summary_of(decision: GateDecision) -> tuple[GateAction, GateReason, int | NoData, float | None]:
    return decision.action, decision.reason, decision.wanted, decision.recheck_in_s


# --- the machine ---


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(GatePhase, Event)))
def test_every_phase_and_event_is_either_allowed_or_forbidden(phase: GatePhase, event: Event) -> None:
    assert ((phase, event) in TRANSITIONS) != ((phase, event) in FORBIDDEN)


@pytest.mark.parametrize(("phase", "event"), sorted(TRANSITIONS))
def test_allowed_transition_leads_to_phase_of_table(phase: GatePhase, event: Event) -> None:
    assert advance(state_of(phase), event, now_s=1.0).phase is TRANSITIONS[phase, event]


@pytest.mark.parametrize(("phase", "event"), sorted(FORBIDDEN))
def test_forbidden_transition_raises_with_earlier_changes(phase: GatePhase, event: Event) -> None:
    state = GateState(phase=phase, since_s=0.0, story=("1.000 s: ready -> active",))
    with pytest.raises(IllegalTransition, match=r"scale-to-zero gate.*ready -> active"):
        advance(state, event, now_s=2.0)


def test_gate_retains_last_32_changes() -> None:
    state = state_of(GatePhase.ACTIVE)
    for second in range(40):
        state = advance(state, Event.QUEUED if second % 2 else Event.IDLE, now_s=second)
    assert len(state.story) == 32
    assert state.story[-1] == "39.000 s: queued -> activating"


def test_hand_off_proof_does_not_restart_inactive_time() -> None:
    state = advance(state_of(GatePhase.INACTIVE, since_s=5.0), Event.HAND_OFF_PROVED, now_s=9.0)
    assert (state.phase, state.since_s) == (GatePhase.PROVED, 5.0)
    assert advance(state, Event.QUEUED, now_s=11.0).since_s == 11.0


@pytest.mark.parametrize(
    ("phase", "is_inactive"),
    [
        (GatePhase.ACTIVATING, False),
        (GatePhase.ACTIVE, False),
        (GatePhase.INACTIVE, True),
        (GatePhase.PROVED, True),
    ],
)
def test_inactive_and_proved_phases_are_inactive(*, phase: GatePhase, is_inactive: bool) -> None:
    assert state_of(phase).is_inactive is is_inactive


# --- counts above 0, and no count ---


def test_wanted_pods_are_applied_in_every_phase() -> None:
    for phase in GatePhase:
        state, decision = stepped(state_of(phase), desired=3, now_s=10.0)
        assert summary_of(decision) == (GateAction.APPLY, GateReason.PODS_WANTED, 3, None)
        assert state.phase is GatePhase.ACTIVE


def test_unchanged_scale_is_not_written() -> None:
    assert stepped(state_of(GatePhase.ACTIVE), desired=3, present_scale=3, now_s=1.0)[1].action is GateAction.HOLD


def test_unset_scale_counts_as_one() -> None:
    assert stepped(state_of(GatePhase.ACTIVE), desired=1, present_scale=None, now_s=1.0)[1].action is GateAction.HOLD
    assert stepped(state_of(GatePhase.ACTIVE), desired=2, present_scale=None, now_s=1.0)[1].action is GateAction.APPLY


@pytest.mark.parametrize("phase", [GatePhase.ACTIVE, GatePhase.INACTIVE])
def test_missing_decision_holds_scale_and_phase(phase: GatePhase) -> None:
    state, decision = stepped(state_of(phase), desired=UNDECIDED, now_s=1e6)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.NO_DECISION, UNDECIDED, None)
    assert state.phase is phase


def test_missing_decision_without_ready_pods_is_activating() -> None:
    assert (
        stepped(state_of(GatePhase.ACTIVE), desired=UNDECIDED, ready_count=0, now_s=1.0)[0].phase
        is GatePhase.ACTIVATING
    )


def test_missing_decision_applies_minimum_while_activating() -> None:
    state = state_of(GatePhase.ACTIVATING, is_initialized=False)
    _, decision = stepped(state, desired=UNDECIDED, ready_count=0, spec=spec_with(initial_scale=3), now_s=1.0)
    assert summary_of(decision) == (GateAction.APPLY, GateReason.PODS_WANTED, 3, None)


@pytest.mark.parametrize("phase", [GatePhase.ACTIVE, GatePhase.INACTIVE])
def test_missing_decision_applies_raised_min_scale(phase: GatePhase) -> None:
    spec = spec_with(min_scale=3)
    _, decision = stepped(state_of(phase), desired=UNDECIDED, ready_count=0, present_scale=0, spec=spec, now_s=1.0)
    assert summary_of(decision) == (GateAction.APPLY, GateReason.PODS_WANTED, 3, None)


def test_one_pod_remains_if_scale_to_zero_is_disabled() -> None:
    _, decision = stepped(
        state_of(GatePhase.ACTIVE), present_scale=4, spec=spec_with(enable_scale_to_zero=False), now_s=1e6
    )
    assert summary_of(decision) == (GateAction.APPLY, GateReason.ZERO_DISABLED, 1, None)


# --- while activating ---


def test_activation_deadline_is_progress_deadline_plus_30_s() -> None:
    state, decision = stepped(state_of(GatePhase.ACTIVATING), ready_count=0, now_s=10.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.ACTIVATION_PENDING, UNDECIDED, 620.0)
    assert (state.phase, state.reason) == (GatePhase.ACTIVATING, InactiveReason.QUEUED)


def test_activation_fails_after_but_not_at_its_deadline() -> None:
    pending = stepped(state_of(GatePhase.ACTIVATING), ready_count=0, now_s=630.0)[1]
    assert summary_of(pending) == (GateAction.HOLD, GateReason.ACTIVATION_PENDING, UNDECIDED, 1.0)
    state, failed = stepped(state_of(GatePhase.ACTIVATING), ready_count=0, now_s=630.5)
    assert summary_of(failed) == (GateAction.APPLY, GateReason.ACTIVATION_FAILED, 0, None)
    assert (state.phase, state.reason) == (GatePhase.INACTIVE, InactiveReason.TIMED_OUT)


def test_failed_activation_with_ready_pods_probes_hand_off_first() -> None:
    spec = spec_with(initial_scale=3, reachable=False)
    state = state_of(GatePhase.ACTIVATING, is_initialized=False)
    state, decision = stepped(state, present_scale=3, ready_count=2, spec=spec, now_s=700.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.ACTIVATION_FAILED, 0, 1.0)
    _, decision = stepped(state, present_scale=3, ready_count=2, proxy_since_s=0.0, spec=spec, now_s=701.0)
    assert decision.action is GateAction.PROBE


def test_original_removes_ready_pods_of_failed_activation_without_probe() -> None:
    spec = spec_with(initial_scale=3, reachable=False)
    state = state_of(GatePhase.ACTIVATING, is_initialized=False)
    decision = stepped(state, ready_count=2, spec=spec, now_s=700.0, quirks=ORIGINAL)[1]
    assert summary_of(decision) == (GateAction.APPLY, GateReason.ACTIVATION_FAILED, 0, None)


@pytest.mark.parametrize("desired", [0, UNDECIDED])
@pytest.mark.parametrize("is_initialized", [False, True])
def test_failed_unreachable_revision_scales_to_zero_at_once(desired: int | NoData, *, is_initialized: bool) -> None:
    state = state_of(GatePhase.ACTIVATING, is_initialized=is_initialized)
    state, decision = stepped(state, desired=desired, ready_count=0, is_failed=True, spec=UNREACHABLE, now_s=1.0)
    assert summary_of(decision) == (GateAction.APPLY, GateReason.REVISION_FAILED, 0, None)
    assert state.phase is GatePhase.INACTIVE


def test_formerly_ready_pods_of_failed_revision_get_no_new_deadline() -> None:
    state, _ = stepped(state_of(GatePhase.ACTIVE), ready_count=0, is_failed=True, spec=UNREACHABLE, now_s=1.0)
    assert state.phase is GatePhase.ACTIVATING
    _, decision = stepped(state, ready_count=0, is_failed=True, spec=UNREACHABLE, now_s=2.0)
    assert summary_of(decision) == (GateAction.APPLY, GateReason.REVISION_FAILED, 0, None)


@pytest.mark.parametrize(
    ("spec", "is_failed", "quirks"), [(DEFAULTS, True, SAFE), (UNREACHABLE, False, SAFE), (UNREACHABLE, True, ORIGINAL)]
)
def test_reachable_or_unfailed_or_original_revision_has_activation_deadline(
    spec: ScalingSpec, *, is_failed: bool, quirks: KpaQuirks
) -> None:
    state = state_of(GatePhase.ACTIVATING)
    _, decision = stepped(state, ready_count=0, is_failed=is_failed, spec=spec, quirks=quirks, now_s=1.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.ACTIVATION_PENDING, UNDECIDED, 629.0)


def test_failed_revision_with_ready_pods_proves_hand_off_first() -> None:
    spec = spec_with(initial_scale=3, reachable=False)
    state = state_of(GatePhase.ACTIVATING, is_initialized=False)
    _, decision = stepped(state, present_scale=3, ready_count=2, is_failed=True, spec=spec, now_s=1.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.REVISION_FAILED, 0, 1.0)


def test_failed_unreachable_revision_gets_pods_for_requests() -> None:
    state = state_of(GatePhase.ACTIVATING)
    _, decision = stepped(state, desired=1, ready_count=0, is_failed=True, spec=UNREACHABLE, now_s=1.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.PODS_WANTED, 1, None)


# --- while active ---


def test_active_revision_retains_one_pod_for_stable_window() -> None:
    state, decision = stepped(state_of(GatePhase.ACTIVE), present_scale=4, now_s=20.0)
    assert summary_of(decision) == (GateAction.APPLY, GateReason.ACTIVE_TOO_SHORT, 1, 40.0)
    assert state.phase is GatePhase.ACTIVE


def test_revision_is_marked_inactive_after_stable_window() -> None:
    state, decision = stepped(state_of(GatePhase.ACTIVE), now_s=60.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.MARKED_INACTIVE, 0, None)
    assert (state.phase, state.since_s, state.reason) == (GatePhase.INACTIVE, 60.0, InactiveReason.NO_TRAFFIC)


def test_revision_marked_inactive_behind_activator_is_rechecked_soon() -> None:
    assert stepped(state_of(GatePhase.ACTIVE), proxy_since_s=3.0, now_s=60.0)[1].recheck_in_s == 3.0


def test_too_few_ready_pods_return_to_activating() -> None:
    spec = spec_with(min_scale=2)
    assert (
        stepped(state_of(GatePhase.ACTIVE), desired=2, ready_count=1, spec=spec, now_s=5.0)[0].phase
        is GatePhase.ACTIVATING
    )


# --- while inactive ---


def test_scale_to_zero_requires_activator_probe() -> None:
    state, decision = stepped(state_of(GatePhase.INACTIVE), now_s=1000.0)
    assert summary_of(decision) == (GateAction.PROBE, GateReason.HAND_OFF_IN_DOUBT, 0, 1.0)
    assert state.phase is GatePhase.INACTIVE


@pytest.mark.parametrize("proved_at_s", [1000.0 - PROOF_VALID_S - 0.1, 99.0])
def test_expired_or_earlier_proof_does_not_count(proved_at_s: float) -> None:
    now_s = 1000.0 if proved_at_s > 100 else 100.5
    state = state_of(GatePhase.INACTIVE, since_s=100.0)
    decision = stepped(state, proved_at_s=proved_at_s, proxy_since_s=0.0, now_s=now_s)[1]
    assert decision.action is GateAction.PROBE


def test_no_probe_is_sent_during_grace_period() -> None:
    decision = stepped(state_of(GatePhase.INACTIVE), now_s=10.0)[1]
    assert summary_of(decision) == (GateAction.HOLD, GateReason.GRACE, 0, 20.0)


def test_expired_proof_returns_to_inactive_and_probes_again() -> None:
    state, _ = stepped(state_of(GatePhase.INACTIVE), proved_at_s=5.0, proxy_since_s=1.0, now_s=5.0)
    assert state.phase is GatePhase.PROVED
    state, decision = stepped(state, proved_at_s=5.0, proxy_since_s=1.0, now_s=31.0)
    assert (state.phase, decision.action) == (GatePhase.INACTIVE, GateAction.PROBE)


def test_scale_to_zero_waits_for_grace_period_behind_activator() -> None:
    # docs/calculations.md: inactive at 0 s, the activators are the endpoints from 2 s on.
    state = state_of(GatePhase.INACTIVE)
    waiting = stepped(state, proxy_since_s=2.0, proved_at_s=12.0, now_s=12.0)[1]
    assert summary_of(waiting) == (GateAction.HOLD, GateReason.GRACE, 0, 18.0)
    applied = stepped(state, proxy_since_s=2.0, proved_at_s=30.0, now_s=30.0)[1]
    assert summary_of(applied) == (GateAction.APPLY, GateReason.INACTIVE_LONG_ENOUGH, 0, None)


def test_earlier_proxy_time_shortens_grace_period() -> None:
    decision = stepped(state_of(GatePhase.INACTIVE, since_s=60.0), proxy_since_s=10.0, proved_at_s=61.0, now_s=61.0)[1]
    assert summary_of(decision) == (GateAction.APPLY, GateReason.PROXIED_LONG_ENOUGH, 0, None)


def test_grace_period_counts_inactive_time_if_proxy_time_is_unknown() -> None:
    decision = stepped(state_of(GatePhase.INACTIVE), proved_at_s=10.0, now_s=10.0)[1]
    assert summary_of(decision) == (GateAction.HOLD, GateReason.GRACE, 0, 20.0)


def test_pod_retention_retains_last_pod() -> None:
    # docs/calculations.md: retention 45 s: at 40 s 5 s are left, though the grace is over.
    spec = spec_with(scale_to_zero_pod_retention_s=45.0)
    waiting = stepped(state_of(GatePhase.INACTIVE), proxy_since_s=0.0, proved_at_s=40.0, spec=spec, now_s=40.0)[1]
    assert summary_of(waiting) == (GateAction.HOLD, GateReason.POD_RETENTION, 0, 5.0)
    applied = stepped(state_of(GatePhase.INACTIVE), proxy_since_s=0.0, proved_at_s=45.0, spec=spec, now_s=45.0)[1]
    assert applied.action is GateAction.APPLY


def test_grace_period_applies_after_pod_retention() -> None:
    spec = spec_with(scale_to_zero_pod_retention_s=10.0)
    decision = stepped(state_of(GatePhase.INACTIVE), proxy_since_s=5.0, proved_at_s=20.0, spec=spec, now_s=20.0)[1]
    assert summary_of(decision) == (GateAction.HOLD, GateReason.GRACE, 0, 10.0)


def test_unreachable_revision_ignores_pod_retention() -> None:
    spec = spec_with(scale_to_zero_pod_retention_s=3600.0, reachable=False)
    decision = stepped(state_of(GatePhase.INACTIVE), proxy_since_s=0.0, proved_at_s=30.0, spec=spec, now_s=30.0)[1]
    assert decision.action is GateAction.APPLY


def test_no_probe_is_sent_at_scale_zero() -> None:
    decision = stepped(state_of(GatePhase.INACTIVE), present_scale=0, ready_count=0, now_s=10.0)[1]
    assert summary_of(decision) == (GateAction.HOLD, GateReason.ALREADY_ZERO, 0, None)


def test_activator_permanently_in_path_is_probed() -> None:
    spec = spec_with(target_burst_capacity=-1)
    assert stepped(state_of(GatePhase.INACTIVE), spec=spec, now_s=30.0)[1].action is GateAction.PROBE


def test_original_does_not_probe_activator_permanently_in_path() -> None:
    spec = spec_with(target_burst_capacity=-1)
    decision = stepped(state_of(GatePhase.INACTIVE), spec=spec, now_s=30.0, quirks=ORIGINAL)[1]
    assert summary_of(decision) == (GateAction.APPLY, GateReason.INACTIVE_LONG_ENOUGH, 0, None)
    with_limit = stepped(state_of(GatePhase.INACTIVE), now_s=30.0, quirks=ORIGINAL)[1]
    assert with_limit.action is GateAction.PROBE


# --- the first pods ---


def test_revision_is_initialized_when_first_pods_are_ready() -> None:
    spec = spec_with(initial_scale=3)
    state = GateState(since_s=0.0)
    state, _ = stepped(state, desired=3, ready_count=2, spec=spec, now_s=1.0)
    assert not state.is_initialized
    state, _ = stepped(state, desired=3, ready_count=3, spec=spec, now_s=2.0)
    assert state.is_initialized
    assert (state.phase, state.reason) == (GatePhase.ACTIVE, None)
    state, _ = stepped(state, desired=1, ready_count=1, spec=spec, now_s=3.0)
    assert state.is_initialized


def test_last_pod_remains_until_status_records_readiness() -> None:
    active = state_of(GatePhase.ACTIVE)
    facts = GateInputs(desired=0, present_scale=1, ready_count=1, is_recorded=False)
    state, decision = step(active, facts, spec=DEFAULTS, now_s=1000.0)
    assert summary_of(decision) == (GateAction.HOLD, GateReason.NOT_RECORDED, 1, PROBE_PERIOD_S)
    recorded = msgspec.structs.replace(facts, is_recorded=True)
    _, decision = step(state, recorded, spec=DEFAULTS, now_s=1001.0)
    assert decision.reason is GateReason.MARKED_INACTIVE


def test_revision_without_service_is_not_initialized() -> None:
    facts = GateInputs(desired=1, present_scale=1, ready_count=1, has_service=False)
    assert not step(GateState(since_s=0.0), facts, spec=DEFAULTS, now_s=1.0)[0].is_initialized


def test_initial_scale_zero_is_inactive_and_initialized_at_start() -> None:
    spec = spec_with(initial_scale=0)
    state, _ = stepped(GateState(since_s=0.0), desired=UNDECIDED, present_scale=0, ready_count=0, spec=spec, now_s=0.0)
    assert (state.phase, state.reason, state.is_initialized) == (GatePhase.INACTIVE, InactiveReason.NO_TRAFFIC, True)


def test_changed_reason_does_not_restart_inactive_time() -> None:
    failed, _ = stepped(state_of(GatePhase.ACTIVATING), ready_count=0, now_s=700.0)
    idle, _ = stepped(failed, present_scale=0, ready_count=0, now_s=702.0)
    assert (idle.reason, idle.since_s) == (InactiveReason.NO_TRAFFIC, 700.0)


def test_equal_clock_conditions_give_equal_decisions() -> None:
    """Each state at many times: equal comparisons with the clock give equal decisions and phases."""
    spec = spec_with(scale_to_zero_pod_retention_s=45.0)
    counts: tuple[int | NoData, ...] = (0, 1, UNDECIDED)
    for phase, desired, proxy_since_s, proved_at_s in itertools.product(
        GatePhase, counts, (None, 0.0, 20.0), (None, -1.0, 29.0)
    ):
        seen: dict[
            tuple[Event | None, GateReason], tuple[GatePhase, InactiveReason | None, GateAction, GateReason]
        ] = {}
        for now_s in [*range(1, 90), 629.0, 630.0, 631.0]:
            state, decision = stepped(
                state_of(phase),
                desired=desired,
                proxy_since_s=proxy_since_s,
                proved_at_s=proved_at_s,
                spec=spec,
                now_s=now_s,
            )
            facts = GateInputs(
                desired=0, present_scale=1, ready_count=0, proved_at_s=proved_at_s, proxy_since_s=proxy_since_s
            )
            conditions = clock_conditions(state_of(phase), facts=facts, spec=spec, now_s=now_s)
            conclusion = (state.phase, state.reason, decision.action, decision.reason)
            assert seen.setdefault(conditions, conclusion) == conclusion, (phase, now_s)
        assert len(seen) > 1
