"""The way to zero of a revision whose pods may be the endpoints of its public Service."""

import msgspec

from serving.core.model.knative import TrafficPath
from serving.core.scaling.decision.records import DecisionCause, ScalerOutcome
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.zero import GateAction, GatePhase
from serving.core.scaling.scaler.scaler import StatSource
from tests.unit.core.scaling.kpa_builders import DEFAULTS
from tests.unit.core.scaling.scaler_builders import World, facts_of, revision_with, stat_of

SPEC = msgspec.structs.replace(DEFAULTS, target_burst_capacity=0.0)
WINDOW_S = int(SPEC.stable_window_s)


class PublicWorld(World):
    """A world whose slices follow writes on request."""

    def __init__(self) -> None:
        served = msgspec.structs.replace(facts_of(1), has_public=True, path=TrafficPath.SERVE)
        super().__init__(revision_with(SPEC), served)

    def change(self, **facts: object) -> ScalerView:
        self.facts = msgspec.structs.replace(self.facts, **facts)
        return self.facts

    def step(self) -> ScalerOutcome:
        return self.scaler.tick(self.facts, DecisionCause.PERIOD, self.now_s)

    def idle(self) -> ScalerOutcome:
        """After a whole window without load."""
        for _ in range(WINDOW_S + 10):
            self.now_s += 1.0
            self.record(stat_of(0.0, by="pod-0"), StatSource.POD)
            self.step()
        return self.step()


def test_a_busy_revision_with_room_for_a_burst_is_served_by_its_pods() -> None:
    world = PublicWorld()
    world.change(path=TrafficPath.PROXY, proxy_since_s=0.0)
    for second in range(4):
        world.now_s += 1.0
        world.poke(float(second + 1))
    assert world.step().path is TrafficPath.SERVE


def test_before_zero_the_activators_are_wanted_and_nothing_is_proved_while_pods_stand_in_the_slice() -> None:
    world = PublicWorld()
    outcome = world.idle()
    assert (outcome.path, outcome.phase) == (TrafficPath.PROXY, GatePhase.INACTIVE)
    assert (outcome.gate.action, outcome.to_prove, outcome.apply_count) == (GateAction.PROBE, False, None)


def test_a_proof_from_before_the_flip_is_none() -> None:
    world = PublicWorld()
    world.idle()
    world.change(proved_at_s=world.now_s)
    assert world.step().phase is GatePhase.INACTIVE
    world.change(proxy_since_s=world.now_s + 0.1)
    assert world.step().phase is GatePhase.INACTIVE
    world.now_s += 0.2
    outcome = world.step()
    assert (outcome.phase, outcome.to_prove) == (GatePhase.INACTIVE, True)


def test_with_the_slice_back_and_the_proof_after_it_the_scale_goes_to_zero() -> None:
    world = PublicWorld()
    world.idle()
    world.change(proxy_since_s=world.now_s)
    world.now_s += 0.1
    world.change(proved_at_s=world.now_s, path=TrafficPath.PROXY)
    assert world.step().phase is GatePhase.PROVED
    world.now_s += SPEC.scale_to_zero_grace_s
    world.change(proved_at_s=world.now_s)
    assert world.step().apply_count == 0


def test_a_flip_back_to_the_pods_undoes_the_proof() -> None:
    world = PublicWorld()
    world.idle()
    world.change(proxy_since_s=world.now_s, proved_at_s=world.now_s)
    assert world.step().phase is GatePhase.PROVED
    world.change(proxy_since_s=None)
    assert world.step().phase is GatePhase.INACTIVE


def test_without_a_public_service_what_was_written_last_stays() -> None:
    world = PublicWorld()
    world.change(has_public=False)
    assert world.idle().path is TrafficPath.SERVE
