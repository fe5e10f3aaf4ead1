import msgspec
import pytest

from serving.autoscaler.main import measured, rule_of
from serving.core.model.nodata import NoData
from serving.core.scaling.classic.classic import ClassicDecision, ClassicMode
from serving.core.scaling.decision.records import Decided, DecisionCause, ScalerOutcome
from serving.core.scaling.kpa.merge import MergeDecision, Proposal, ScaleBound
from serving.core.scaling.scaler.scaler import Scaler
from tests.unit.core.scaling.kpa_builders import DEFAULTS
from tests.unit.core.scaling.scaler_builders import SETTINGS, World, facts_of, revision_with

REVISION = revision_with()
SILENCE = NoData(missing="nothing was told")


@pytest.fixture
def outcome() -> ScalerOutcome:
    """A decision about two pods under load."""
    world = World(REVISION, facts_of(2))
    world.live(8, load=100.0)
    return world.outcomes[-1]


def merged_with(outcome: ScalerOutcome, **changes: object) -> ScalerOutcome:
    assert isinstance(outcome.merged, MergeDecision)
    return msgspec.structs.replace(outcome, merged=msgspec.structs.replace(outcome.merged, **changes))


def test_metrics_of_a_decision_include_counts_loads_and_rule(outcome: ScalerOutcome) -> None:
    revision_numbers = measured(REVISION, outcome)
    assert (revision_numbers.namespace, revision_numbers.revision) == REVISION.key
    assert revision_numbers.requested_count == revision_numbers.ready_count == 2
    assert revision_numbers.stable_load == pytest.approx(100.0)
    assert revision_numbers.target_load == DEFAULTS.target_value
    assert revision_numbers.metric == "concurrency"
    assert revision_numbers.rule == rule_of(outcome)


def test_metrics_distinguish_requests_per_second() -> None:
    revision = revision_with(msgspec.structs.replace(DEFAULTS, metric="rps"))
    world = World(revision, facts_of(1))
    world.live(4, load=5.0)
    assert measured(revision, world.outcomes[-1]).metric == "rps"


def test_metrics_of_the_classic_decider_use_its_own_target(outcome: ScalerOutcome) -> None:
    detail = ClassicDecision(
        desired_count=1,
        mode=ClassicMode.PANIC,
        limited_by=None,
        target_concurrency=1.0,
        idle_s=0.0,
        observed_stable_concurrency=0.5,
    )
    decided = Decided(proposal=Proposal(decider="classic", desired=1, reason=""), detail=detail)
    revision_numbers = measured(
        REVISION, merged_with(msgspec.structs.replace(outcome, decided=decided), decided_by="classic")
    )
    assert (
        revision_numbers.is_panic,
        revision_numbers.target_load,
        revision_numbers.stable_load,
        revision_numbers.panic_load,
    ) == (True, 1.0, 0.5, None)
    assert revision_numbers.rule == "panic"


def test_metrics_without_data_have_no_desired_count() -> None:
    scaler = Scaler(REVISION, facts_of(2), SETTINGS, is_restart=True, now_s=0.0)
    outcome = scaler.tick(facts_of(2), DecisionCause.PERIOD, 0.0)
    revision_numbers = measured(REVISION, msgspec.structs.replace(outcome, merged=SILENCE))
    assert (revision_numbers.desired_count, revision_numbers.is_panic, revision_numbers.rule) == (
        None,
        False,
        "no-data",
    )
    assert revision_numbers.target_load is None


def test_rule_is_the_last_one_that_set_the_scale(outcome: ScalerOutcome) -> None:
    assert isinstance(outcome.merged, MergeDecision)
    bounds = msgspec.structs.replace(outcome.merged.bounds, limited_by=ScaleBound.MAX_SCALE)
    assert rule_of(merged_with(outcome, bounds=bounds)) == "max-scale"
    assert rule_of(merged_with(outcome, decided_by=None)) == "silence"
    assert rule_of(merged_with(outcome, decided_by="activator")) == "wake"
    assert rule_of(merged_with(outcome, decided_by="policy cpu")) == "policy"


def test_rule_is_the_limit_of_the_algorithm() -> None:
    world = World(REVISION, facts_of(2), is_restart=True)
    world.live(2, load=0.0)
    assert rule_of(world.outcomes[-1]) == "panic-hold"


def test_rule_during_scale_to_zero_is_gate_to_zero() -> None:
    world = World(REVISION, facts_of(1))
    world.live(4, load=1.0)
    world.live(70, load=0.0)
    assert "gate-to-zero" in {rule_of(scaler_outcome) for scaler_outcome in world.outcomes}
