"""Conditions for flipping a revision to Active and for poking the autoscaler."""

import pytest

from serving.activator.queueing.wake import (
    Poke,
    PokeReason,
    RevisionLoad,
    WakeDecision,
    WakeInput,
    WakeState,
    calm,
    reported,
    wake,
)
from serving.core.model.knative import ServingState
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.meter import Report

SETTINGS = ActivatorSettings()
ACTIVE, RESERVE = ServingState.ACTIVE, ServingState.RESERVE


def facts(
    waiting: int = 0,
    *,
    running: int = 0,
    state: ServingState | None = ACTIVE,
    desired: int = 0,
    has_rejected: bool = False,
) -> WakeInput:
    """Input for a target of 7 requests per pod; all requests in flight arrived since the last report."""
    return WakeInput(
        level=waiting + running,
        waiting_count=waiting,
        arrived_count=waiting + running,
        serving_state=state,
        desired_count=desired,
        target_concurrency=7.0,
        has_rejected=has_rejected,
    )


def step(state: WakeState, seen: WakeInput, now_s: float) -> tuple[WakeState, WakeDecision]:
    return wake(state, seen, SETTINGS, now_s=now_s)


def after(seen: WakeInput, now_s: float = 0.0) -> WakeState:
    return step(WakeState(), seen, now_s)[0]


def reason(decision: WakeDecision) -> PokeReason | None:
    return None if decision.poke is None else decision.poke.reason


def report(concurrency: float, count: int) -> Report:
    return Report(
        period_s=1.0,
        concurrency=concurrency,
        proxied_concurrency=0.0,
        request_count=count,
        proxied_request_count=0,
        unmatched_leaves=0,
    )


def poked(count: int, *, windowed: float = 0.0) -> RevisionLoad:
    return RevisionLoad(
        concurrency=count, request_count=count, window_concurrency=windowed, window_request_count=windowed
    )


def test_first_queued_request_is_reported_immediately() -> None:
    _, decision = step(WakeState(), facts(1), 5.0)
    assert decision.poke == Poke(load=poked(1), reason=PokeReason.FIRST)


def test_an_empty_queue_reports_nothing() -> None:
    _, decision = step(WakeState(), facts(), 5.0)
    assert decision == WakeDecision(poke=None, flip=False, next_wake_s=None, quiet_level=0)


def test_load_within_the_desired_capacity_is_not_reported() -> None:
    _, decision = step(WakeState(), facts(running=14, desired=2), 5.0)
    assert (decision.poke, decision.quiet_level) == (None, 14)


def test_load_above_the_desired_capacity_is_reported() -> None:
    _, decision = step(WakeState(), facts(running=15, desired=2), 5.0)
    assert reason(decision) is PokeReason.EXCEEDED


def test_load_above_the_desired_capacity_is_reported_once() -> None:
    seen = facts(running=15, desired=2)
    _, decision = step(after(seen), seen, 1.0)
    assert (decision.poke, decision.quiet_level) == (None, 15)


@pytest.mark.parametrize(("waiting", "poke_reason"), [(10, None), (19, None), (20, PokeReason.DOUBLED)])
def test_doubled_queue_is_reported(waiting: int, poke_reason: PokeReason | None) -> None:
    _, decision = step(after(facts(10, desired=9)), facts(waiting, desired=9), 1.0)
    assert reason(decision) is poke_reason


def test_poke_reports_only_new_requests() -> None:
    _, decision = step(after(facts(10)), facts(25), 1.0)
    assert decision.poke is not None
    assert decision.poke.load == poked(15)


def test_poke_within_the_minimum_interval_is_delayed() -> None:
    state, decision = step(after(facts(1)), facts(25), 0.02)
    assert (decision.poke, decision.next_wake_s) == (None, 0.05)
    _, decision = step(state, facts(25), 0.05)
    assert decision.poke is not None
    assert decision.poke.load.concurrency == 24


def test_request_queued_after_an_empty_queue_is_reported_as_first() -> None:
    state, _ = step(after(facts(10)), facts(running=10, desired=9), 1.0)
    _, decision = step(state, facts(1, running=10, desired=9), 2.0)
    assert reason(decision) is PokeReason.FIRST


def test_calm_resets_the_known_queue_length() -> None:
    assert calm(after(facts(10, state=RESERVE))).known_waiting_count == 0


def test_rejections_of_a_failed_revision_are_reported_once_per_period() -> None:
    seen = facts(has_rejected=True)
    state, decision = step(WakeState(), seen, 0.0)
    # A rejected request is in no report, so the poke adds it to the windows.
    assert decision.poke == Poke(load=poked(1, windowed=1.0), reason=PokeReason.FIRST)
    state, decision = step(state, seen, 0.5)
    assert decision.poke is None
    state, _ = reported(state, report(0.0, 0), level=0, waiting_count=0, period_s=1.0)
    _, decision = step(state, seen, 1.1)
    assert reason(decision) is PokeReason.FIRST


def test_report_excludes_load_reported_by_pokes() -> None:
    state = after(facts(10))
    state, load = reported(state, report(12.5, 15), level=15, waiting_count=15, period_s=1.0)
    assert (load.concurrency, load.request_count) == (2.5, 5)
    # Windows get the mean of the whole period.
    assert (load.window_concurrency, load.window_request_count) == (12.5, 15)
    assert (state.known_level, state.known_waiting_count, state.poked_count) == (15, 15, 0)


def test_report_is_never_negative() -> None:
    _, load = reported(after(facts(100)), report(90.0, 100), level=100, waiting_count=100, period_s=1.0)
    assert (load.concurrency, load.request_count) == (0.0, 0)
    assert load.window_concurrency == 90.0


def test_counts_are_reported_per_second() -> None:
    _, load = reported(WakeState(), report(1.0, 10), level=1, waiting_count=0, period_s=2.0)
    assert (load.concurrency, load.request_count, load.window_request_count) == (1.0, 5.0, 5.0)


def test_a_revision_in_reserve_is_flipped_at_the_first_request() -> None:
    _, decision = step(WakeState(), facts(1, state=RESERVE), 0.0)
    assert (decision.flip, decision.next_wake_s) == (True, 0.1)


@pytest.mark.parametrize("state", [ACTIVE, ServingState.RETIRED, None])
def test_a_revision_that_is_not_in_reserve_is_not_flipped(state: ServingState | None) -> None:
    _, decision = step(WakeState(), facts(1, state=state), 0.0)
    assert not decision.flip


def test_reserve_revision_without_requests_is_not_flipped() -> None:
    _, decision = step(WakeState(), facts(state=RESERVE), 0.0)
    assert not decision.flip


def test_pauses_between_flips_double_up_to_5_s() -> None:
    state, now_s, pauses_s = WakeState(), 0.0, []
    for _ in range(8):
        state, decision = step(state, facts(1, state=RESERVE), now_s)
        assert decision.flip
        assert decision.next_wake_s is not None
        pauses_s.append(round(decision.next_wake_s - now_s, 3))
        now_s = decision.next_wake_s
    assert pauses_s == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_flip_is_not_repeated_within_its_pause() -> None:
    _, decision = step(after(facts(1, state=RESERVE)), facts(1, state=RESERVE), 0.09)
    assert (decision.flip, decision.next_wake_s) == (False, 0.1)


def test_flip_pause_is_reset_when_the_revision_becomes_active() -> None:
    state, _ = step(after(facts(1, state=RESERVE)), facts(1), 0.01)
    _, decision = step(state, facts(1, state=RESERVE), 0.02)
    assert decision.flip


def test_full_revision_reports_concurrency_and_not_each_queued_request() -> None:
    # Three clients, two slots: a request ends every 0.1 s, and the next one queues 10 ms later.
    state = reported(WakeState(), report(3.0, 30), level=3, waiting_count=1, period_s=1.0)[0]
    poked = 0.0
    for number in range(10):
        at_s = number * 0.1
        state, _ = step(state, facts(0, running=2, desired=2), at_s)
        state, decision = step(state, facts(1, running=2, desired=2), at_s + 0.01)
        poked += 0.0 if decision.poke is None else decision.poke.load.concurrency
    _, load = reported(state, report(2.9, 10), level=3, waiting_count=1, period_s=1.0)
    assert poked + load.concurrency == 2.9
