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


def test_largest_proposal_decides() -> None:
    decision = merged(kpa=3, cpu=5, memory=4)
    assert (decision.desired_count, decision.decided_by, decision.bounds.limited_by) == (5, "cpu", None)


def test_first_of_equal_proposals_decides() -> None:
    assert merged(kpa=3, cpu=3).decided_by == "kpa"


def test_bounds_apply_after_merge() -> None:
    # docs/calculations.md: load wants 3, cpu 5, at most 4.
    decision = merged(kpa=3, cpu=5, spec=spec_with(max_scale=4))
    assert (decision.desired_count, decision.bounds.limited_by) == (4, ScaleBound.MAX_SCALE)


def test_initial_scale_is_minimum_until_initialized() -> None:
    assert merged(kpa=0, spec=spec_with(initial_scale=3), is_initialized=False).desired_count == 3
    assert merged(kpa=0, spec=spec_with(initial_scale=3)).desired_count == 0


def test_merge_without_data_returns_no_data() -> None:
    nothing = NoData(missing="no proposal of any decider")
    for decider_proposals in (proposals(), proposals(kpa=SILENCE, cpu=SILENCE)):
        assert merge(decider_proposals, present_scale=5, spec=DEFAULTS, is_initialized=True) == nothing


def test_silent_decider_retains_present_scale() -> None:
    # docs/calculations.md: load wants 3, cpu is silent, 10 are there.
    decision = merged(kpa=3, cpu=SILENCE, present_scale=10)
    assert (decision.desired_count, decision.decided_by, decision.silent) == (10, None, ("cpu",))


def test_silent_decider_does_not_prevent_scale_up() -> None:
    decision = merged(kpa=3, cpu=SILENCE, present_scale=2)
    assert (decision.desired_count, decision.decided_by, decision.silent) == (3, "kpa", ("cpu",))


def test_silent_decider_wants_no_pods_at_zero() -> None:
    assert merged(kpa=0, cpu=SILENCE, present_scale=0).desired_count == 0


def test_scale_retained_for_silent_decider_is_bounded() -> None:
    decision = merged(kpa=3, cpu=SILENCE, present_scale=10, spec=spec_with(max_scale=6))
    assert (decision.desired_count, decision.bounds.limited_by) == (6, ScaleBound.MAX_SCALE)


def test_decision_has_all_proposals_and_present_scale() -> None:
    decision = merged(kpa=3, cpu=SILENCE, present_scale=2)
    assert decision.proposals == tuple(proposals(kpa=3, cpu=SILENCE))
    assert decision.present_scale == 2
