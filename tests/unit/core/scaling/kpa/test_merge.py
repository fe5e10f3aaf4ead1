from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.merge import MergeDecision, Proposal, ScaleBound, merge
from serving.core.scaling.spec import ScalingSpec
from tests.unit.core.scaling.kpa_builders import DEFAULTS, spec_with

SILENCE = NoData(missing="no stat in the stable window")


def proposals(**desired: int | NoData) -> list[Proposal]:
    return [Proposal(decider=name, desired=count, reason="load") for name, count in desired.items()]


def merged(
    *, present_scale: int = 1, spec: ScalingSpec = DEFAULTS, is_initialized: bool = True, **desired: int | NoData
) -> MergeDecision:
    decision = merge(proposals(**desired), present_scale=present_scale, spec=spec, is_initialized=is_initialized)
    assert isinstance(decision, MergeDecision)
    return decision


def test_the_largest_proposal_wins() -> None:
    decision = merged(kpa=3, cpu=5, memory=4)
    assert (decision.desired_count, decision.decided_by, decision.bounds.limited_by) == (5, "cpu", None)


def test_of_equal_proposals_the_first_decided() -> None:
    assert merged(kpa=3, cpu=3).decided_by == "kpa"


def test_bounds_come_last() -> None:
    # docs/calculations.md: load wants 3, cpu 5, at most 4.
    decision = merged(kpa=3, cpu=5, spec=spec_with(max_scale=4))
    assert (decision.desired_count, decision.bounds.limited_by) == (4, ScaleBound.MAX_SCALE)


def test_the_initial_scale_holds_until_it_was_reached() -> None:
    assert merged(kpa=0, spec=spec_with(initial_scale=3), is_initialized=False).desired_count == 3
    assert merged(kpa=0, spec=spec_with(initial_scale=3)).desired_count == 0


def test_without_any_data_there_is_no_answer() -> None:
    nothing = NoData(missing="no proposal of any decider")
    for decider_proposals in (proposals(), proposals(kpa=SILENCE, cpu=SILENCE)):
        assert merge(decider_proposals, present_scale=5, spec=DEFAULTS, is_initialized=True) == nothing


def test_a_silent_decider_keeps_the_present_scale() -> None:
    # docs/calculations.md: load wants 3, cpu is silent, 10 are there.
    decision = merged(kpa=3, cpu=SILENCE, present_scale=10)
    assert (decision.desired_count, decision.decided_by, decision.silent) == (10, None, ("cpu",))


def test_a_silent_decider_does_not_stop_the_way_up() -> None:
    decision = merged(kpa=3, cpu=SILENCE, present_scale=2)
    assert (decision.desired_count, decision.decided_by, decision.silent) == (3, "kpa", ("cpu",))


def test_a_silent_decider_asks_for_nothing_at_zero() -> None:
    assert merged(kpa=0, cpu=SILENCE, present_scale=0).desired_count == 0


def test_what_silence_keeps_is_still_bounded() -> None:
    decision = merged(kpa=3, cpu=SILENCE, present_scale=10, spec=spec_with(max_scale=6))
    assert (decision.desired_count, decision.bounds.limited_by) == (6, ScaleBound.MAX_SCALE)


def test_the_response_carries_all_proposals_and_the_present_scale() -> None:
    decision = merged(kpa=3, cpu=SILENCE, present_scale=2)
    assert decision.proposals == tuple(proposals(kpa=3, cpu=SILENCE))
    assert decision.present_scale == 2
