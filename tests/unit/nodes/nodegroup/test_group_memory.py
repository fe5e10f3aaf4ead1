"""The scale lock and the scale-up breaker of a group."""

import itertools

import msgspec
import pytest

from serving.core.model.errors import IllegalTransition
from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.group_memory import (
    TRANSITIONS,
    BreakerEvent,
    BreakerPhase,
    BreakerState,
    ScaleLock,
    allowance,
    growth_requested,
    lock_in_force,
    observe,
)
from tests.unit.nodes.nodegroup.builders import settings

LOCK = ScaleLock(requested_count=6, locked_at_s=1000.0)

BREAKER = settings(scale_up_retry_s=600.0, scale_up_retry_max_s=1500.0)
FORBIDDEN = {
    (BreakerPhase.CLOSED, BreakerEvent.RETRY_DUE),
    (BreakerPhase.OPEN, BreakerEvent.TRIPPED),
    (BreakerPhase.HALF_OPEN, BreakerEvent.RETRY_DUE),
}


def test_absent_lock_is_not_in_force() -> None:
    assert lock_in_force(None, cool_down_s=120.0, now_s=0.0) is None


def test_lock_is_in_force_until_cool_down_ends() -> None:
    assert lock_in_force(LOCK, cool_down_s=120.0, now_s=1119.0) is LOCK
    assert lock_in_force(LOCK, cool_down_s=120.0, now_s=1120.0) is None


def observed(
    state: BreakerState, node_count: int, now_s: float, *, failed: bool = False, by: NodeGroupSettings = BREAKER
) -> BreakerState:
    return observe(state, node_count=node_count, increase_failed=failed, settings=by, now_s=now_s)


def requested(state: BreakerState, node_count: int, now_s: float, *, by: NodeGroupSettings = BREAKER) -> BreakerState:
    return growth_requested(state, node_count=node_count, settings=by, now_s=now_s)


def after_failures(count: int, *, by: NodeGroupSettings = BREAKER) -> BreakerState:
    """The state after scale-ups at 0, 120, 240 ... s without a new node in a group of 10."""
    state = BreakerState()
    for number in range(count):
        state = observed(requested(state, 10, number * 120.0, by=by), 10, (number + 1) * 120.0, by=by)
    return state


def test_every_breaker_transition_is_defined_or_forbidden() -> None:
    pairs = set(itertools.product(BreakerPhase, BreakerEvent))
    assert set(TRANSITIONS) | FORBIDDEN == pairs
    assert not set(TRANSITIONS) & FORBIDDEN


def test_breaker_opens_at_failure_threshold() -> None:
    assert after_failures(2).phase is BreakerPhase.CLOSED
    assert after_failures(3) == BreakerState(
        phase=BreakerPhase.OPEN, failure_count=3, node_count_low=10, retry_at_s=360.0 + 600.0
    )


def test_closed_breaker_allows_any_growth_and_open_breaker_none() -> None:
    assert allowance(BreakerState()) is None
    assert allowance(after_failures(3)) == 0


def test_scale_up_without_node_fails_at_window_end() -> None:
    state = requested(BreakerState(), 10, 0.0)
    assert observed(state, 10, 119.0) == state
    assert observed(state, 10, 120.0).failure_count == 1


def test_failure_window_may_exceed_cool_down() -> None:
    slow = settings(scale_up_failure_window_s=900.0)
    state = requested(BreakerState(), 10, 0.0)
    assert observed(state, 10, 899.0, by=slow).failure_count == 0
    assert observed(state, 10, 900.0, by=slow).failure_count == 1


def test_second_scale_up_does_not_extend_failure_window() -> None:
    state = requested(requested(BreakerState(), 10, 0.0), 10, 60.0)
    assert observed(state, 10, 120.0).failure_count == 1


def test_new_node_resets_failure_count() -> None:
    state = requested(after_failures(2), 10, 240.0)
    assert observed(state, 11, 300.0) == BreakerState()


def test_node_after_window_resets_failure_count() -> None:
    assert observed(after_failures(2), 11, 250.0) == BreakerState()


def test_deleted_nodes_do_not_hide_new_ones() -> None:
    state = observed(requested(BreakerState(), 10, 0.0), 7, 30.0)
    assert observed(state, 8, 60.0) == BreakerState()


def test_failed_increase_counts_as_failure_immediately() -> None:
    state = requested(BreakerState(), 10, 0.0)
    assert observed(state, 10, 1.0, failed=True).failure_count == 1


def test_new_node_closes_open_breaker() -> None:
    assert observed(after_failures(3), 11, 400.0) == BreakerState()


def test_breaker_half_opens_after_retry_delay_and_allows_one_node() -> None:
    opened = after_failures(3)
    assert observed(opened, 10, 959.0).phase is BreakerPhase.OPEN
    trial = observed(opened, 10, 960.0)
    assert (trial.phase, allowance(trial)) == (BreakerPhase.HALF_OPEN, 1)
    assert allowance(requested(trial, 10, 960.0)) == 0


def test_unused_trial_does_not_expire() -> None:
    trial = observed(after_failures(3), 10, 960.0)
    assert observed(trial, 10, 5000.0) == trial


def test_successful_trial_closes_breaker() -> None:
    trial = requested(observed(after_failures(3), 10, 960.0), 10, 960.0)
    assert observed(trial, 11, 1000.0) == BreakerState()


def test_failed_trial_doubles_retry_delay_up_to_maximum() -> None:
    state = after_failures(3)
    waits = []
    for _ in range(3):
        started_s = state.retry_at_s
        state = requested(observed(state, 10, started_s), 10, started_s)
        state = observed(state, 10, started_s + 120.0)
        waits.append(state.retry_at_s - started_s - 120.0)
    assert waits == [1200.0, 1500.0, 1500.0]
    assert state.phase is BreakerPhase.OPEN


def test_threshold_of_0_disables_breaker() -> None:
    off = settings(scale_up_failure_threshold=0)
    assert after_failures(9, by=off) == BreakerState()
    assert observed(after_failures(3), 10, 400.0, by=off) == BreakerState()


def test_impossible_breaker_state_raises_illegal_transition() -> None:
    impossible = msgspec.structs.replace(after_failures(3), asked_at_s=0.0)
    with pytest.raises(IllegalTransition, match="scale-up breaker: tripped in phase open"):
        observed(impossible, 10, 500.0)
