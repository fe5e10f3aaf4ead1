"""A resting revision gets the same decisions as one that is decided in each period."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.knative import ServingState, TrafficPath
from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.policy import adaptive_policy
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.scaler.rest import rest_in_s
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AdaptiveSettings, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import revision_with

SETTINGS = AutoscalerSettings(adaptive=AdaptiveSettings(pre_warming=True))
PERIOD_S = SETTINGS.decision_period_s
BEGIN_S = 1000.0

# Periods without load, then a load for some seconds, in an activator or in pods.
VISITS = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 4), st.floats(0.1, 30), st.booleans()), min_size=1, max_size=8
)


class World:
    """A revision whose scale follows the decisions immediately and whose pods report."""

    def __init__(self, policy: str, *, skips: bool) -> None:
        spec = spec_with(
            policy=policy, container_concurrency=10, total_value=10.0, target_value=7.0, stable_window_s=10.0
        )
        revision = revision_with(spec)
        self.scale, self.skips, self.rested_until_s = 0, skips, BEGIN_S
        self.state = ServingState.RESERVE
        new_policy = adaptive_policy(spec, SETTINGS)
        self.scaler = Scaler(revision, self.facts(), SETTINGS, is_restart=True, now_s=BEGIN_S, policy=new_policy)
        self.scaler.shadow = BUILT_IN.shadow_of(spec, SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=BEGIN_S)
        self.decided_count = 0
        self.latest: ScalerOutcome | None = None

    def facts(self) -> ScalerView:
        return ScalerView(
            present_scale=self.scale, ready_count=self.scale, serving_state=self.state, path=TrafficPath.PROXY
        )

    def report(self, load: float, now_s: float, *, is_activator: bool) -> None:
        if is_activator:
            self.state = ServingState.ACTIVE
            stat = Stat(pod="activator", at_s=now_s, concurrency=load, request_count=load)
            urgent = self.scaler.record(stat, StatSource.ACTIVATOR)
        elif self.scale:
            stat = Stat(pod="pod", at_s=now_s, concurrency=load, request_count=load)
            urgent = self.scaler.record(stat, StatSource.POD)
        else:
            return
        if load:
            self.rested_until_s = now_s
        if urgent:
            self.decide(now_s, DecisionCause.LOAD)

    def tick(self, now_s: float) -> None:
        """Decide at the end of a period, unless the revision rests."""
        if self.skips and now_s < self.rested_until_s:
            return
        self.decide(now_s, DecisionCause.PERIOD)

    def decide(self, now_s: float, cause: DecisionCause) -> None:
        self.decided_count += 1
        outcome = self.scaler.tick(self.facts(), cause, now_s)
        if outcome.to_prove:
            outcome = self.scaler.tick(msgspec.structs.replace(self.facts(), proved_at_s=now_s), cause, now_s)
        if outcome.apply_count is not None:
            gone = range(outcome.apply_count, self.scale)
            self.scale = outcome.apply_count
            if gone and not self.scale:
                self.scaler.forget_pod("pod", now_s)
        if outcome.to_reserve:
            self.state = ServingState.RESERVE
        self.latest = outcome
        rest_s = rest_in_s(outcome, self.scaler, PERIOD_S)
        self.rested_until_s = now_s if rest_s is None else now_s + rest_s - 1e-6

    def seen(self) -> tuple[object, ...]:
        """The results of the latest decision."""
        assert self.latest is not None
        assert self.scaler.shadow is not None
        return (self.scale, self.state, self.latest.phase, self.latest.path, self.scaler.shadow.scale)


@settings(deadline=None, max_examples=60)
@given(visits=VISITS, policy=st.sampled_from([KNATIVE_POLICY, ADAPTIVE_POLICY]))
def test_rest_changes_no_decision(visits: list[tuple[int, int, float, bool]], policy: str) -> None:
    full, resting = (World(policy, skips=skips) for skips in (False, True))
    number = 0
    for quiet, busy, load, is_activator in visits:
        for second in range(round(quiet * PERIOD_S) + busy):
            is_busy = second >= round(quiet * PERIOD_S)
            now_s = BEGIN_S + number
            for world in (full, resting):
                if is_busy and (is_activator or not world.scale):
                    world.report(load, now_s + 0.3, is_activator=True)
                world.report(load if is_busy else 0.0, now_s + 0.4, is_activator=False)
            number += 1
            if number % PERIOD_S == 0:
                full.tick(BEGIN_S + number)
                resting.tick(BEGIN_S + number)
                assert resting.seen() == full.seen()
    assert resting.decided_count <= full.decided_count
    for world in (full, resting):
        assert world.scaler.shadow is not None
    costs = [world.scaler.shadow.costs(BEGIN_S + number) for world in (full, resting) if world.scaler.shadow]
    # The sums are in single precision and have different steps.
    assert msgspec.structs.astuple(costs[0]) == pytest.approx(msgspec.structs.astuple(costs[1]), rel=1e-4)


def test_revision_rests_while_its_pod_is_idle_and_at_zero() -> None:
    full, resting = worlds = [World(KNATIVE_POLICY, skips=skips) for skips in (False, True)]
    for number in range(600):
        for world in worlds:
            if number == 5:
                world.report(1.0, BEGIN_S + number, is_activator=True)
            world.report(0.0, BEGIN_S + number + 0.4, is_activator=False)
            if number % 2 == 0:
                world.tick(BEGIN_S + number)
    assert (full.scale, resting.scale) == (0, 0)
    assert full.decided_count > 300
    assert resting.decided_count < 40
