"""The scale lock expires."""

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


def test_no_lock_holds_nothing() -> None:
    assert lock_in_force(None, cool_down_s=120.0, now_s=0.0) is None


def test_a_lock_holds_for_the_cool_down_and_not_at_its_end() -> None:
    assert lock_in_force(LOCK, cool_down_s=120.0, now_s=1119.0) is LOCK
    assert lock_in_force(LOCK, cool_down_s=120.0, now_s=1120.0) is None


def seen(
    state: BreakerState, node_count: int, now_s: float, *, failed: bool = False, by: NodeGroupSettings = BREAKER
) -> BreakerState:
    return observe(state, node_count=node_count, increase_failed=failed, settings=by, now_s=now_s)


def asked(state: BreakerState, node_count: int, now_s: float, *, by: NodeGroupSettings = BREAKER) -> BreakerState:
    return growth_requested(state, node_count=node_count, settings=by, now_s=now_s)


def after_failures(count: int, *, by: NodeGroupSettings = BREAKER) -> BreakerState:
    """The state after scale-ups at 0, 120, 240 ... s without a new node in a group of 10."""
    state = BreakerState()
    for number in range(count):
        state = seen(asked(state, 10, number * 120.0, by=by), 10, (number + 1) * 120.0, by=by)
    return state


def test_every_pair_is_in_the_table_or_forbidden() -> None:
    pairs = set(itertools.product(BreakerPhase, BreakerEvent))
    assert set(TRANSITIONS) | FORBIDDEN == pairs
    assert not set(TRANSITIONS) & FORBIDDEN


def test_it_opens_exactly_at_the_threshold() -> None:
    assert after_failures(2).phase is BreakerPhase.CLOSED
    assert after_failures(3) == BreakerState(
        phase=BreakerPhase.OPEN, failure_count=3, node_count_low=10, retry_at_s=360.0 + 600.0
    )


def test_closed_allows_any_number_and_open_none() -> None:
    assert allowance(BreakerState()) is None
    assert allowance(after_failures(3)) == 0


def test_a_scale_up_has_until_the_end_of_the_window() -> None:
    state = asked(BreakerState(), 10, 0.0)
    assert seen(state, 10, 119.0) == state
    assert seen(state, 10, 120.0).failure_count == 1


def test_the_window_may_be_longer_than_the_cool_down() -> None:
    slow = settings(scale_up_failure_window_s=900.0)
    state = asked(BreakerState(), 10, 0.0)
    assert seen(state, 10, 899.0, by=slow).failure_count == 0
    assert seen(state, 10, 900.0, by=slow).failure_count == 1


def test_a_second_scale_up_within_the_window_does_not_move_its_start() -> None:
    state = asked(asked(BreakerState(), 10, 0.0), 10, 60.0)
    assert seen(state, 10, 120.0).failure_count == 1


def test_one_new_node_is_growth_and_resets_the_count() -> None:
    state = asked(after_failures(2), 10, 240.0)
    assert seen(state, 11, 300.0) == BreakerState()


def test_a_node_that_comes_after_its_window_resets_the_count_too() -> None:
    assert seen(after_failures(2), 11, 250.0) == BreakerState()


def test_deleted_nodes_do_not_hide_new_ones() -> None:
    state = seen(asked(BreakerState(), 10, 0.0), 7, 30.0)
    assert seen(state, 8, 60.0) == BreakerState()


def test_a_refusal_by_the_cloud_is_a_failure_immediately() -> None:
    state = asked(BreakerState(), 10, 0.0)
    assert seen(state, 10, 1.0, failed=True).failure_count == 1


def test_growth_closes_an_open_breaker() -> None:
    assert seen(after_failures(3), 11, 400.0) == BreakerState()


def test_after_a_wait_one_node_is_let_through() -> None:
    opened = after_failures(3)
    assert seen(opened, 10, 959.0).phase is BreakerPhase.OPEN
    trial = seen(opened, 10, 960.0)
    assert (trial.phase, allowance(trial)) == (BreakerPhase.HALF_OPEN, 1)
    assert allowance(asked(trial, 10, 960.0)) == 0


def test_a_trial_that_is_not_needed_yet_stays_open_to_use() -> None:
    trial = seen(after_failures(3), 10, 960.0)
    assert seen(trial, 10, 5000.0) == trial


def test_a_trial_that_brings_a_node_closes_it() -> None:
    trial = asked(seen(after_failures(3), 10, 960.0), 10, 960.0)
    assert seen(trial, 11, 1000.0) == BreakerState()


def test_a_trial_that_fails_doubles_the_wait_up_to_the_maximum() -> None:
    state = after_failures(3)
    waits = []
    for _ in range(3):
        started_s = state.retry_at_s
        state = asked(seen(state, 10, started_s), 10, started_s)
        state = seen(state, 10, started_s + 120.0)
        waits.append(state.retry_at_s - started_s - 120.0)
    assert waits == [1200.0, 1500.0, 1500.0]
    assert state.phase is BreakerPhase.OPEN


def test_a_threshold_of_0_switches_it_off() -> None:
    off = settings(scale_up_failure_threshold=0)
    assert after_failures(9, by=off) == BreakerState()
    assert seen(after_failures(3), 10, 400.0, by=off) == BreakerState()


def test_an_impossible_state_is_our_bug() -> None:
    impossible = msgspec.structs.replace(after_failures(3), asked_at_s=0.0)
    with pytest.raises(IllegalTransition, match="scale-up breaker: tripped in phase open"):
        seen(impossible, 10, 500.0)
