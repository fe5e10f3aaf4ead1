"""Policies: outcomes are independent of the event order, and saved state is restored unchanged."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.scaling.policies.attachment import Triggered
from serving.core.scaling.policies.index import Policies, state_of, stored_state
from serving.core.scaling.policies.points import UsagePoint
from serving.core.scaling.policies.tick import TriggerPhase, TriggerState, rebased
from serving.core.scaling.policies.triggertypes import ObservedPods
from serving.core.settings.triggers import TriggerSettings
from tests.unit.core.scaling.policies.builders import policy as spec_of
from tests.unit.core.scaling.policies.builders import trigger
from tests.unit.core.scaling.policy_builders import policy, revision

TIMES = st.floats(0, 2e9)
POINTS = st.lists(st.builds(UsagePoint, at_s=TIMES, usage_ratio=st.floats(0, 10)), max_size=5).map(tuple)
STATES = st.builds(
    TriggerState,
    phase=st.sampled_from(TriggerPhase),
    phase_changed_at_s=st.none() | TIMES,
    last_change_at_s=st.none() | TIMES,
    points=st.dictionaries(st.sampled_from(["occupancy", "cpu", "mem"]), POINTS),
)
NAMED = st.sampled_from(
    [("Service", "hello"), ("Configuration", "hello"), ("Revision", "hello-00001"), ("Service", "x")]
)
PODS = st.builds(
    ObservedPods, creating_count=st.integers(0, 3), idle_count=st.integers(0, 30), occupied_count=st.integers(0, 30)
)


@given(STATES)
def test_trigger_state_round_trips_to_the_millisecond(state: TriggerState) -> None:
    back = state_of(stored_state(revision(), state))
    assert (back.phase, back.points.keys()) == (state.phase, state.points.keys())
    for kind, points in state.points.items():
        for before, after in zip(points, back.points[kind], strict=True):
            assert abs(before.at_s - after.at_s) < 0.001
            assert abs(before.usage_ratio - after.usage_ratio) <= 0.0001
    for time_s, back_s in (
        (state.phase_changed_at_s, back.phase_changed_at_s),
        (state.last_change_at_s, back.last_change_at_s),
    ):
        assert back_s == (None if time_s is None else pytest.approx(time_s, rel=0, abs=0.001))


@given(STATES, st.floats(-1e9, 1e9))
def test_trigger_state_rebased_twice_is_unchanged(state: TriggerState, by_s: float) -> None:
    back = rebased(rebased(state, by_s=by_s), by_s=-by_s)
    for kind, points in state.points.items():
        for before, after in zip(points, back.points[kind], strict=True):
            assert abs(before.at_s - after.at_s) < 0.001


@given(st.lists(st.tuples(NAMED, st.integers(1, 9)), max_size=6), st.randoms())
def test_policy_holder_is_independent_of_the_event_order(
    drawn: list[tuple[tuple[str, str], int]], dice: random.Random
) -> None:
    scaling_policy_views = [
        policy(f"p{number}", kind=kind, target=target, created=f"2026-01-0{day}T00:00:00Z")
        for number, ((kind, target), day) in enumerate(drawn)
    ]
    first, other = Policies(), Policies()
    for scaling_policy_view in scaling_policy_views:
        first.put(scaling_policy_view)
    mixed = [*scaling_policy_views, *scaling_policy_views]
    dice.shuffle(mixed)
    for scaling_policy_view in mixed:
        other.put(scaling_policy_view)
    assert first.holder(revision()) == other.holder(revision())
    for scaling_policy_view in scaling_policy_views:
        other.drop(scaling_policy_view.key)
    assert (len(other), other.holder(revision())) == (0, None)


@given(st.lists(st.tuples(PODS, st.floats(0, 30)), min_size=1, max_size=20))
def test_proposal_is_that_of_the_last_evaluation(
    steps: list[tuple[ObservedPods, float]],
) -> None:
    spec = spec_of(up=(trigger(70, time_s=10),), down=(trigger(30, time_s=10),))
    triggered, now_s = Triggered("p", spec, TriggerSettings(), state=TriggerState(), now_s=0.0), 0.0
    before = steps[0][0].available_count
    for observed, wait_s in steps:
        now_s += wait_s
        if triggered.is_due(now_s):
            triggered.evaluate("r", observed, now_s)
            assert triggered.due_s > now_s - TriggerSettings().period_s
        (proposal,) = triggered.proposals(now_s)
        assert triggered.last is not None
        assert proposal.desired == triggered.last.decision.desired_count
        if triggered.state.last_change_at_s is not None:
            assert any(step.available_count != before for step, _ in steps)
