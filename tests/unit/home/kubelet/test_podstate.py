import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import IllegalTransition
from serving.home.kubelet.podstate import TRANSITIONS, PodEvent, PodState, advance, observation

PREPARED = [PodEvent.ADMITTED, PodEvent.PREPARED]


LIVES = st.lists(st.sampled_from(list(PodEvent)), max_size=20)


def possible(events: list[PodEvent]) -> list[tuple[PodState, PodEvent, PodState]]:
    """The transitions that the table allows, as (state, event, state); other events are skipped."""
    transitions, state = [], PodState.PLANNED
    for event in events:
        with contextlib.suppress(IllegalTransition):
            following = advance(state, event)
            transitions.append((state, event, following))
            state = following
    return transitions


def states(*events: PodEvent) -> list[PodState]:
    """The successive states after these events."""
    seen = [PodState.PLANNED]
    for event in events:
        seen.append(advance(seen[-1], event))
    return seen


def test_start_passes_all_states_in_order() -> None:
    start = [*PREPARED, PodEvent.APP_STARTED, PodEvent.PROXY_STARTED, PodEvent.PROBED, PodEvent.READY]
    assert states(*start, PodEvent.STOPPED, PodEvent.FREED) == list(PodState)


def test_queue_proxy_may_start_before_the_app() -> None:
    start = [*PREPARED, PodEvent.PROXY_STARTED, PodEvent.PROBED, PodEvent.APP_STARTED, PodEvent.APP_STARTED]
    assert states(*start, PodEvent.READY)[-1] is PodState.READY


def test_pod_is_ready_again_after_app_restart() -> None:
    ready = [*PREPARED, PodEvent.APP_STARTED, PodEvent.PROXY_STARTED, PodEvent.READY]
    again = [PodEvent.PROBED, PodEvent.UNREADY, PodEvent.PROBED, PodEvent.READY]
    assert states(*ready, *again)[-4:] == [PodState.PROBED, PodState.PROXY_STARTED, PodState.PROBED, PodState.READY]


@pytest.mark.parametrize("event", [PodEvent.UNREADY, PodEvent.PROBED, PodEvent.READY])
@pytest.mark.parametrize(
    "state",
    [PodState.ADMITTED, PodState.NETWORK, PodState.APP_STARTED, PodState.TERMINATING, PodState.REMOVED],
)
def test_probe_reports_outside_the_start_do_not_change_the_state(state: PodState, event: PodEvent) -> None:
    assert advance(state, event) is state


@pytest.mark.parametrize("state", PodState)
def test_pod_can_be_freed_in_any_state_and_stopped_once(state: PodState) -> None:
    assert advance(state, PodEvent.FREED) is PodState.REMOVED
    stoppable = state not in {PodState.PLANNED, PodState.TERMINATING, PodState.REMOVED}
    assert (state in TRANSITIONS[PodEvent.STOPPED]) is stoppable


@pytest.mark.parametrize("event", [PodEvent.UNREADY, PodEvent.PROBED, PodEvent.READY, PodEvent.FREED])
def test_reports_and_removal_are_allowed_in_every_state_after_planned(event: PodEvent) -> None:
    assert set(TRANSITIONS[event]) >= set(PodState) - {PodState.PLANNED}


@given(LIVES)
def test_terminating_pod_can_only_be_removed(events: list[PodEvent]) -> None:
    for state, _, following in possible(events):
        if state in {PodState.TERMINATING, PodState.REMOVED}:
            assert following in {state, PodState.REMOVED}


@given(LIVES)
def test_pod_is_ready_only_between_ready_and_next_other_report(events: list[PodEvent]) -> None:
    has_started = is_ready = False
    for _, event, following in possible(events):
        if event in {PodEvent.STOPPED, PodEvent.FREED}:
            has_started = is_ready = False
        elif event is PodEvent.PROXY_STARTED:
            has_started = True
        elif event in {PodEvent.UNREADY, PodEvent.PROBED, PodEvent.READY}:
            is_ready = has_started and event is PodEvent.READY
        assert (following is PodState.READY) is is_ready


@given(LIVES)
def test_started_pod_never_returns_to_a_state_before_proxy_started(events: list[PodEvent]) -> None:
    order = list(PodState)
    for state, _, following in possible(events):
        assert order.index(following) >= min(order.index(state), order.index(PodState.PROXY_STARTED))


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (PodState.PLANNED, PodEvent.PREPARED),
        (PodState.ADMITTED, PodEvent.APP_STARTED),
        (PodState.READY, PodEvent.PROXY_STARTED),
        (PodState.REMOVED, PodEvent.ADMITTED),
    ],
)
def test_undefined_transition_raises_an_error(state: PodState, event: PodEvent) -> None:
    with pytest.raises(IllegalTransition, match=f"pod: {event} in phase {state}"):
        advance(state, event)


@pytest.mark.parametrize(
    ("is_reached", "is_fit", "event"),
    [
        (False, True, PodEvent.UNREADY),
        (True, False, PodEvent.PROBED),
        (True, True, PodEvent.READY),
    ],
)
def test_observation_is_mapped_to_an_event(is_reached: bool, is_fit: bool, event: PodEvent) -> None:
    assert observation(is_reached=is_reached, is_fit=is_fit) is event
