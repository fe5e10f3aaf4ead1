"""Knative's policy equals its algorithm alone, and a simulation with skipped periods equals a full one."""

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.knative import ServingState
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.decision.policy import NEUTRAL
from serving.core.scaling.decision.records import Decided, DecisionCause, DecisionInputs, InFlight
from serving.core.scaling.decision.step import RevisionState, StepInputs, conclude, step
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.kpa.decide import KpaState, decide
from serving.core.scaling.kpa.merge import Proposal
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.kpa.zero import GatePhase, GateState
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import (
    ADAPTIVE_POLICY,
    KNATIVE_POLICY,
    ORIGINAL,
    SAFE,
    AutoscalerSettings,
    KpaQuirks,
)
from tests.unit.core.scaling.kpa_builders import spec_with
from tests.unit.tools.simulator.test_revision_run import config, outcome, simulated

Moment = tuple[tuple[float, float] | None, int, int, float]

LOADS = st.none() | st.tuples(st.floats(0, 5000), st.floats(0, 5000))
MOMENTS = st.lists(st.tuples(LOADS, st.integers(0, 40), st.integers(0, 40), st.floats(0.05, 90)), max_size=30)
SPECS = st.builds(
    spec_with,
    target_value=st.floats(0.5, 200),
    min_scale=st.integers(0, 3),
    max_scale=st.sampled_from([0, 4, 100]),
    activation_scale=st.sampled_from([1, 2, 5]),
    scale_down_delay_s=st.sampled_from([0.0, 30.0]),
    target_burst_capacity=st.sampled_from([-1.0, 0.0, 211.0]),
)
WORKLOADS = st.one_of(
    st.lists(st.floats(0, 400), min_size=1, max_size=60),
    st.tuples(st.floats(10, 120), st.floats(0, 1)).map(
        lambda pair: [index * pair[0] + pair[1] for index in range(int(400 / pair[0]) + 1)]
    ),
    st.tuples(st.floats(0, 300), st.integers(2, 200)).map(
        lambda pair: [pair[0] + 0.05 * index for index in range(pair[1])]
    ),
)
OWN_ANNOTATIONS = st.sampled_from(
    [
        ScalingAnnotations(),
        ScalingAnnotations(target_source="learnt"),
        ScalingAnnotations(slo="p95<1s"),
        ScalingAnnotations(load="concurrency=5, rps=10"),
        ScalingAnnotations(overrides=(("min_scale", 1),)),
    ]
)


@settings(max_examples=100, deadline=None)
@given(moments=MOMENTS, spec=SPECS, quirks=st.sampled_from([SAFE, ORIGINAL]))
def test_knative_policy_decides_as_the_algorithm_alone(
    moments: list[Moment], spec: ScalingSpec, quirks: KpaQuirks
) -> None:
    policy = BUILT_IN.policy_of(spec, AutoscalerSettings())
    gate = GateState(since_s=0.0, phase=GatePhase.ACTIVE, is_initialized=True)
    state = RevisionState(kpa=KpaState(), gate=gate)
    now_s = 1000.0
    for load, scale, ready_count, pause_s in moments:
        now_s += pause_s
        observed = NoData(missing="no stat") if load is None else Observation(stable=load[0], panic=load[1])
        view = ScalerView(present_scale=scale, ready_count=ready_count, serving_state=ServingState.ACTIVE)
        inputs = StepInputs(
            at_s=now_s,
            cause=DecisionCause.PERIOD,
            view=view,
            in_flight=InFlight(present=Stat(), is_waiting=False),
            observed=observed,
            spec=spec,
            quirks=quirks,
        )
        assert state.kpa is not None
        kpa, detail = decide(
            state.kpa, observed=observed, ready_count=ready_count, spec=spec, now_s=now_s, quirks=quirks
        )
        if isinstance(detail, NoData):
            proposal = Proposal(decider="kpa", desired=detail, reason=detail.missing)
        else:
            reason = detail.limited_by or detail.mode
            proposal = Proposal(decider="kpa", desired=detail.desired_count, reason=reason)
        record = DecisionInputs(
            at_s=now_s,
            cause=DecisionCause.PERIOD,
            view=view,
            in_flight=inputs.in_flight,
            proposals=(),
            spec=spec,
            quirks=quirks,
            kpa=state.kpa,
            gate=state.gate,
        )
        expected = conclude(record, Decided(proposal=proposal, detail=detail))
        state, decision = step(state, inputs, policy)
        assert decision.inputs.advice is NEUTRAL
        assert (state.kpa, state.gate, decision) == (kpa, *expected)


@settings(max_examples=25, deadline=None)
@given(
    times_s=WORKLOADS,
    policy=st.sampled_from([KNATIVE_POLICY, ADAPTIVE_POLICY]),
    scaling=OWN_ANNOTATIONS,
    concurrency=st.sampled_from([0, 1, 4, 10]),
    start_s=st.sampled_from([0.5, 2.0, 7.0]),
    has_burst_switch=st.booleans(),
)
def test_skipped_simulator_periods_change_no_outcome(
    times_s: list[float],
    policy: str,
    scaling: ScalingAnnotations,
    concurrency: int,
    start_s: float,
    has_burst_switch: bool,
) -> None:
    run_config = msgspec.structs.replace(
        config(autoscaler=AutoscalerSettings(policy=policy), scaling=scaling, concurrency=concurrency, start_s=start_s),
        has_burst_switch=has_burst_switch,
        knee=math.inf,
    )
    full, short = (
        simulated(*times_s, run_config=msgspec.structs.replace(run_config, skips=skips), until_s=900.0)
        for skips in (False, True)
    )
    assert outcome(short) == outcome(full)
