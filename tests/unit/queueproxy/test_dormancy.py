"""The phases of a dormant app, and the time when it may become dormant."""

import itertools
import math

import pytest

from serving.core.model.errors import IllegalTransition
from serving.queueproxy.dormancy import (
    TRANSITIONS,
    Activity,
    AppEvent,
    DormancyState,
    Phase,
    after_event,
    sleep_due_s,
    with_awake_until,
)

IDLE = Activity()
RUNNING = DormancyState(idle_since_s=100.0)


def walked(*events: AppEvent, state: DormancyState = RUNNING, now_s: float = 200.0) -> DormancyState:
    for event in events:
        state = after_event(state, event, now_s)
    return state


def test_app_is_frozen_and_thawed() -> None:
    dormant = walked(AppEvent.IDLE, AppEvent.FROZEN)
    assert dormant.phase is Phase.DORMANT
    awake = walked(AppEvent.DEMAND, AppEvent.THAWED, state=dormant, now_s=500.0)
    assert (awake.phase, awake.idle_since_s) == (Phase.RUNNING, 500.0)


def test_demand_during_freeze_starts_thawing() -> None:
    assert walked(AppEvent.IDLE, AppEvent.DEMAND).phase is Phase.THAWING


def test_thawing_app_accepts_further_demands() -> None:
    assert walked(AppEvent.IDLE, AppEvent.FROZEN, AppEvent.DEMAND, AppEvent.DEMAND).phase is Phase.THAWING


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, AppEvent)))
def test_every_phase_and_event_transitions_or_is_illegal(phase: Phase, event: AppEvent) -> None:
    state = DormancyState(idle_since_s=0.0, phase=phase)
    if (phase, event) in TRANSITIONS:
        assert after_event(state, event, 1.0).phase is TRANSITIONS[phase, event]
    else:
        with pytest.raises(IllegalTransition, match="dormancy of a pod"):
            after_event(state, event, 1.0)


def test_sleep_is_due_after_idle_time() -> None:
    assert sleep_due_s(RUNNING, IDLE, after_s=10.0) == 110.0


def test_awake_until_delays_sleep() -> None:
    assert sleep_due_s(with_awake_until(RUNNING, 130.0), IDLE, after_s=10.0) == 130.0


def test_earlier_awake_until_does_not_shorten_later_one() -> None:
    assert with_awake_until(with_awake_until(RUNNING, 130.0), 120.0).awake_until_s == 130.0


@pytest.mark.parametrize(
    "activity",
    [Activity(request_count=1), Activity(probe_count=1), Activity(is_ready=False), Activity(is_draining=True)],
    ids=["request", "probe", "unready", "draining"],
)
def test_sleep_is_never_due_with_activity(activity: Activity) -> None:
    assert sleep_due_s(RUNNING, activity, after_s=10.0) == math.inf


@pytest.mark.parametrize("phase", [Phase.FREEZING, Phase.DORMANT, Phase.THAWING])
def test_sleep_is_never_due_outside_running_phase(phase: Phase) -> None:
    assert sleep_due_s(DormancyState(idle_since_s=0.0, phase=phase), IDLE, after_s=10.0) == math.inf


def test_refused_freezes_are_retried_with_growing_pauses() -> None:
    state, pauses = RUNNING, []
    for number in range(8):
        now_s = 1000.0 * number + 1000.0
        state = walked(AppEvent.IDLE, AppEvent.REFUSED, AppEvent.THAWED, state=state, now_s=now_s)
        pauses.append(state.awake_until_s - now_s)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]
    assert walked(AppEvent.IDLE, AppEvent.FROZEN, state=state).refused_count == 0


def test_backward_clock_step_does_not_advance_sleep() -> None:
    state = after_event(RUNNING, AppEvent.DEMAND, now_s=50.0)
    assert state.idle_since_s == 100.0
