"""One decision step: its parts in order, and the state afterwards."""

import msgspec

from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.budget import Allowance, AllowanceReason
from serving.core.scaling.decision.policy import Advice, PolicyView, RevisionPolicy
from serving.core.scaling.decision.records import Decided, DecisionCause, InFlight
from serving.core.scaling.decision.step import RevisionState, StepInputs, spec_of_metric, step
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState
from serving.core.scaling.kpa.merge import MergeDecision, Proposal
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GatePhase, GateState
from serving.core.scaling.spec import MeasuredMetric
from serving.core.settings.autoscaler import SAFE
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.core.scaling.scaler_builders import WaitingPolicy, facts_of

SPEC = spec_with(target_value=7.0, total_value=10.0)
NOW_S = 1000.0
GATE = GateState(since_s=0.0, phase=GatePhase.ACTIVE, is_initialized=True)
STATE = RevisionState(kpa=KpaState(), gate=GATE)
CPU = Proposal(decider="cpu", desired=4, reason="hot")


class Wanting(RevisionPolicy):
    """A policy that wants a number of pods, and records its view."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.view: PolicyView | None = None

    def propose(self, view: PolicyView) -> Advice:
        self.view = view
        return Advice(proposals=(Proposal(decider="mine", desired=self.count, reason="because"),))


def inputs_with(load: float | None = 14.0, *, in_flight: float = 0.0, **changes: object) -> StepInputs:
    observed = NoData(missing="no stat") if load is None else Observation(stable=load, panic=load)
    inputs = StepInputs(
        at_s=NOW_S,
        cause=DecisionCause.PERIOD,
        view=facts_of(2),
        in_flight=InFlight(present=Stat(concurrency=in_flight), is_waiting=False),
        observed=observed,
        spec=SPEC,
        quirks=SAFE,
    )
    return msgspec.structs.replace(inputs, **changes)


def count_of(state: RevisionState, inputs: StepInputs, policy: RevisionPolicy | None = None) -> int:
    merged = step(state, inputs, policy or RevisionPolicy())[1].merged
    assert isinstance(merged, MergeDecision)
    return merged.desired_count


def test_step_returns_decision_and_new_state() -> None:
    state, outcome = step(STATE, inputs_with(), RevisionPolicy())
    assert (outcome.decided.desired_count, state.latest_count) == (2, 2)
    assert state.kpa is not None
    assert state.kpa.watched_since_s == NOW_S
    assert outcome.inputs.kpa == STATE.kpa


def test_policy_replaces_algorithm_before_triggers_and_bounds() -> None:
    policy = Wanting(3)
    assert count_of(STATE, inputs_with(), policy) == 3
    assert count_of(STATE, inputs_with(proposals=(CPU,)), policy) == 4
    assert count_of(STATE, inputs_with(spec=msgspec.structs.replace(SPEC, max_scale=2)), policy) == 2
    assert step(STATE, inputs_with(), policy)[0].latest_count == 3


def test_policy_receives_in_flight_only_if_known() -> None:
    policy = Wanting(1)
    step(STATE, inputs_with(in_flight=5.0), policy)
    assert policy.view is not None
    assert policy.view.in_flight == 5.0
    step(STATE, inputs_with(in_flight=5.0, knows_in_flight=False), policy)
    assert policy.view.in_flight is None


def test_missing_data_wants_no_pods_unless_requests_are_in_flight() -> None:
    state, outcome = step(STATE, inputs_with(None), RevisionPolicy())
    assert (state.latest_count, outcome.merged) == (None, NoData(missing="no proposal of any decider"))
    assert count_of(STATE, inputs_with(None, in_flight=21.0)) == 3


def test_waiting_requests_count_at_once_under_waiting_policy() -> None:
    waiting = InFlight(present=Stat(concurrency=70.0), is_waiting=True)
    view = ScalerView(present_scale=0, ready_count=0, serving_state=ServingState.ACTIVE)
    inputs = inputs_with(1.0, in_flight=0.0, view=view)
    inputs = msgspec.structs.replace(inputs, in_flight=waiting)
    state, outcome = step(STATE, inputs, WaitingPolicy())
    assert (outcome.apply_count, state.resets_windows) == (10, True)
    assert not step(STATE, inputs, RevisionPolicy())[0].resets_windows


def test_each_further_metric_has_state_and_proposal() -> None:
    spec = msgspec.structs.replace(
        SPEC, further_metrics=(MeasuredMetric(metric="rps", target_value=10.0, total_value=10.0),)
    )
    state = msgspec.structs.replace(STATE, further=(KpaState(),))
    inputs = inputs_with(spec=spec, further=(Observation(stable=45.0, panic=45.0),))
    after, outcome = step(state, inputs, RevisionPolicy())
    assert count_of(state, inputs) == 5
    assert after.latest_count == 5
    assert after.further[0].watched_since_s == NOW_S
    assert outcome.inputs.proposals[0].reason == "45 in all, target 10 each"
    assert spec_of_metric(spec, 0).metric == "rps"
    silent = inputs_with(spec=spec, further=(NoData(missing="no rps"),))
    assert step(state, silent, RevisionPolicy())[1].inputs.proposals[0].desired == NoData(missing="no rps")


def test_delay_includes_initial_scale_until_first_pods_are_ready() -> None:
    spec = msgspec.structs.replace(SPEC, initial_scale=3, scale_down_delay_s=120.0)
    state = msgspec.structs.replace(STATE, gate=GateState(since_s=NOW_S))
    state, _ = step(state, inputs_with(0.0, spec=spec, view=facts_of(3)), RevisionPolicy())
    assert state.gate.is_initialized
    after = inputs_with(0.0, spec=spec, view=facts_of(3), at_s=NOW_S + 2.0)
    assert count_of(state, after) == 3
    assert count_of(state, msgspec.structs.replace(after, at_s=NOW_S + 120.0)) == 1


def test_failed_unreachable_revision_scales_to_zero_at_once() -> None:
    spec = msgspec.structs.replace(SPEC, reachable=False)
    state = msgspec.structs.replace(STATE, gate=GateState(since_s=NOW_S))
    view = msgspec.structs.replace(facts_of(1, ready=0), is_failed=True)
    assert step(state, inputs_with(0.0, spec=spec, view=view), RevisionPolicy())[1].apply_count == 0


def test_loading_pods_are_retained_up_to_present_scale() -> None:
    idle = inputs_with(0.0, loading_count=2, view=facts_of(5, ready=2))
    (proposal,) = step(STATE, idle, RevisionPolicy())[1].inputs.proposals
    assert (proposal.desired, proposal.reason) == (4, "2 pods load")
    (proposal,) = step(STATE, inputs_with(0.0, loading_count=1, view=facts_of(1)), RevisionPolicy())[1].inputs.proposals
    assert (proposal.desired, proposal.reason) == (1, "1 pod loads")
    assert step(STATE, inputs_with(0.0, loading_count=1, view=facts_of(0)), RevisionPolicy())[1].inputs.proposals == ()


def test_classic_proposal_replaces_algorithm() -> None:
    classic = Decided(
        proposal=Proposal(decider="classic", desired=6, reason="x"), detail=NoData(missing="not read here")
    )
    state, outcome = step(RevisionState(kpa=None, gate=GATE), inputs_with(classic=classic), RevisionPolicy())
    assert (state.kpa, outcome.decided.proposal.decider, state.latest_count) == (None, "classic", 6)


def test_budget_limits_merged_count() -> None:
    def limit(_: object) -> Allowance:
        return Allowance(count=1, wanted=2, reason=AllowanceReason.SHARE, budget="10 pods", all_wanted=20, price=1.0)

    outcome = step(STATE, inputs_with(), RevisionPolicy(), limit=limit)[1]
    assert isinstance(outcome.merged, MergeDecision)
    assert outcome.merged.desired_count == 1
