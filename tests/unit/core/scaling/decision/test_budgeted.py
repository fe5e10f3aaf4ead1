"""Decisions limited by a budget."""

import math

import msgspec
import pytest

from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.budget import Allowance, AllowanceReason, BudgetDemand
from serving.core.scaling.decision.budgeted import allowance_reason, demand_of, shortage_of, within
from serving.core.scaling.decision.policy import KEEP_ALIVE
from serving.core.scaling.decision.records import Decided, DecisionCause, DecisionInputs, InFlight, ScalerOutcome
from serving.core.scaling.decision.step import conclude
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState, decide
from serving.core.scaling.kpa.merge import Proposal, ScaleBound, merge
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GatePhase, GateState
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import SAFE
from tests.unit.core.scaling.kpa_builders import spec_with

NOW_S = 1000.0
SPEC = spec_with(target_value=7.0, total_value=10.0)
NOTHING = NoData(missing="a stat")


def decided(stable: float | NoData, panic: float = 0.0, *, ready: int = 3, spec: ScalingSpec = SPEC) -> Decided:
    observed = stable if isinstance(stable, NoData) else Observation(stable=stable, panic=panic)
    _, detail = decide(KpaState(), observed=observed, ready_count=ready, spec=spec, now_s=NOW_S)
    desired = detail if isinstance(detail, NoData) else detail.desired_count
    return Decided(proposal=Proposal(decider="kpa", desired=desired, reason="stable"), detail=detail)


def view(present: int, **more: object) -> ScalerView:
    value = {"present_scale": present, "ready_count": present, "serving_state": ServingState.ACTIVE} | more
    return msgspec.convert(value, ScalerView)


def demand_with(
    algorithm: Decided, *others: Proposal, present: int = 3, in_flight: float = 0.0, spec: ScalingSpec = SPEC
) -> BudgetDemand:
    merged = merge((algorithm.proposal, *others), present_scale=present, spec=spec, is_initialized=True)
    load_in_flight = InFlight(present=Stat(concurrency=in_flight), is_waiting=False)
    return demand_of(merged, algorithm, view(present), in_flight=load_in_flight, spec=spec, is_initialized=True)


def test_demand_load_is_larger_of_windows_and_in_flight() -> None:
    budget_demand = demand_with(decided(14.0, 7.0))
    assert budget_demand == BudgetDemand(wanted=2, present=3, ready=3, load=2.0, has_load=True)
    assert demand_with(decided(14.0, 35.0)).load == 5.0
    assert demand_with(decided(14.0, 0.0), in_flight=28.0).load == 4.0
    assert not demand_with(decided(14.0, 0.0)).has_load
    assert demand_with(decided(14.0, 0.0), in_flight=1.0).has_load


def test_trigger_pods_count_as_load_and_retained_pods_do_not() -> None:
    cpu = Proposal(decider="trigger cpu", desired=5, reason="hot")
    assert (demand_with(decided(7.0), cpu).wanted, demand_with(decided(7.0), cpu).load) == (5, 5.0)
    content = msgspec.structs.replace(cpu, is_content=True)
    assert demand_with(decided(7.0), content).load == 1.0
    proposal = Proposal(decider=KEEP_ALIVE, desired=1, reason="a request is expected")
    assert demand_with(decided(0.7), proposal).load == pytest.approx(0.1)


def test_classic_pods_count_as_load() -> None:
    detail = NoData(missing="a point")
    classic = Decided(proposal=Proposal(decider="classic", desired=4, reason="stable"), detail=detail)
    assert (demand_with(classic).wanted, demand_with(classic).load) == (4, 4.0)


def test_floor_is_min_scale_up_to_max_scale() -> None:
    bounded = spec_with(target_value=7.0, min_scale=4, max_scale=3)
    assert demand_with(decided(0.0, spec=bounded), spec=bounded).floor == 3


def test_missing_data_wants_present_pods_or_min_scale() -> None:
    assert demand_with(decided(NOTHING)).wanted == 3
    least = spec_with(target_value=7.0, min_scale=5)
    budget_demand = demand_with(decided(NOTHING, spec=least), spec=least)
    assert (budget_demand.wanted, budget_demand.floor, budget_demand.has_load) == (5, 5, False)


def allowance(count: int, reason: AllowanceReason = AllowanceReason.SHARE, *, price: float = 2.5) -> Allowance:
    return Allowance(count=count, wanted=6, reason=reason, budget="10 pods of shop", all_wanted=14, price=price)


def test_allowance_limits_merged_count() -> None:
    merged = merge((decided(40.0).proposal,), present_scale=3, spec=SPEC, is_initialized=True)
    assert not isinstance(merged, NoData)
    result = within(merged, allowance(4))
    assert not isinstance(result, NoData)
    assert (result.desired_count, result.bounds.limited_by) == (4, ScaleBound.BUDGET)
    assert within(merged, allowance(6)) is merged
    assert within(NOTHING, allowance(0)) is NOTHING


def test_allowance_reason_has_price_if_finite() -> None:
    assert allowance_reason(allowance(2)) == (
        "all under it want 14, and with one more pod the most loaded would have 2.5 times its target"
    )
    assert allowance_reason(allowance(2, price=math.inf)) == "all under it want 14"
    assert allowance_reason(allowance(2, AllowanceReason.ENDING)) == "pods of others are still ending"


@pytest.mark.parametrize("reason", AllowanceReason)
def test_only_permanent_limits_are_shortages(reason: AllowanceReason) -> None:
    is_short = reason in {AllowanceReason.FLOORS, AllowanceReason.TOO_LARGE}
    assert bool(shortage_of(allowance(0, reason))) == is_short
    assert shortage_of(None) == ""


def concluded(
    limit: Allowance | None, *, present: int, stable: float | NoData = 40.0, in_flight: float = 0.0, **spec: object
) -> ScalerOutcome:
    numbers = spec_with(**({"target_value": 7.0, "total_value": 10.0} | spec))
    inputs = DecisionInputs(
        at_s=NOW_S,
        cause=DecisionCause.PERIOD,
        view=view(present, proved_at_s=NOW_S - 0.1),
        in_flight=InFlight(present=Stat(concurrency=in_flight), is_waiting=False),
        proposals=(),
        spec=numbers,
        quirks=SAFE,
        kpa=KpaState(),
        gate=GateState(
            since_s=NOW_S - 900.0, phase=GatePhase.INACTIVE if not present else GatePhase.ACTIVE, is_initialized=True
        ),
    )
    return conclude(inputs, decided(stable, ready=present, spec=numbers), lambda _: limit)[1]


def test_disabled_scale_to_zero_does_not_exceed_allowance() -> None:
    outcome = concluded(allowance(0), present=0, enable_scale_to_zero=False)
    assert outcome.gate.wanted == 1
    assert outcome.apply_count is None


def test_min_scale_without_data_does_not_exceed_allowance() -> None:
    outcome = concluded(allowance(2), present=2, stable=NOTHING, min_scale=4)
    assert outcome.apply_count is None
    assert concluded(None, present=2, stable=40.0, min_scale=4).apply_count == 6


def test_allowance_of_zero_removes_pod_but_revision_stays_active_for_requests() -> None:
    outcome = concluded(allowance(0), present=1, in_flight=3.0)
    assert outcome.gate.wanted == 0
    assert not outcome.to_reserve
    waiting = concluded(allowance(0, AllowanceReason.TURN), present=0, in_flight=3.0)
    assert waiting.apply_count is None
    assert waiting.gate.wanted == 0


def test_conclusion_is_reproducible_from_recorded_inputs() -> None:
    outcome = concluded(allowance(4), present=3)
    assert outcome.apply_count == 4
    again = conclude(outcome.inputs, outcome.decided)[1]
    assert (again.apply_count, again.merged) == (4, outcome.merged)
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=ScalerOutcome) == outcome
