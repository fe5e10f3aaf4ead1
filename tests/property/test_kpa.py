"""Invariants of the present decision, the merger and the gate to zero, for any input."""

from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.decide import KpaState, ScaleDecision, ScalerMode, decide, starting_state
from serving.core.scaling.kpa.merge import MergeDecision, Proposal, ScaleBound, merge
from serving.core.scaling.kpa.window import MetricWindows, Observation
from serving.core.scaling.kpa.zero import PROOF_VALID_S, GateAction, GateInputs, GatePhase, GateReason, GateState, step
from serving.core.scaling.spec import ScalingSpec, WindowKind
from tests.property.naive.kpa import NaiveKpa
from tests.unit.core.scaling.kpa_builders import DEFAULTS, spec_with, stat_of

NOTHING = NoData(missing="no stat in the stable window")
LOADS = st.integers(0, 16 * 400).map(lambda sixteenths: sixteenths / 16)
READY = st.integers(0, 50)
SPECS = st.builds(
    spec_with,
    target_value=st.sampled_from([0.5, 1.0, 7.0, 70.0]),
    total_value=st.sampled_from([1.0, 10.0, 100.0]),
    target_burst_capacity=st.sampled_from([-1.0, 0.0, 5.0, 211.0]),
    panic_threshold_ratio=st.sampled_from([1.1, 2.0, 4.0]),
    max_scale_up_rate=st.sampled_from([1.01, 1.1, 2.0, 1000.0]),
    max_scale_down_rate=st.sampled_from([1.1, 2.0, 10.0]),
    stable_window_s=st.sampled_from([6.0, 20.0, 60.0]),
    panic_window_s=st.sampled_from([1.0, 2.0, 6.0]),
    scale_down_delay_s=st.sampled_from([0.0, 3.0, 30.0]),
    activation_scale=st.sampled_from([1, 2, 4]),
    reachable=st.booleans(),
)
# Seconds since the last step, loads of both windows, ready pods.
STEPS = st.lists(st.tuples(st.integers(0, 40), LOADS, LOADS, READY), min_size=1, max_size=30)
STATES = st.builds(
    KpaState,
    panic_since_s=st.none() | st.integers(-100, 0).map(float),
    panic_count_max=st.integers(0, 60),
    start_hold_count=st.integers(0, 60),
    watched_since_s=st.none() | st.integers(-100, 0).map(float),
)

DESIRED = st.one_of(st.integers(0, 30), st.just(NOTHING))
PROPOSALS = st.lists(st.builds(Proposal, decider=st.text("abc", max_size=2), desired=DESIRED, reason=st.just("load")))
BOUNDED_SPECS = st.builds(
    spec_with,
    min_scale=st.integers(0, 5),
    initial_scale=st.integers(0, 5),
    max_scale=st.sampled_from([0, 5, 20]),
    reachable=st.booleans(),
)
GATE_SPECS = st.builds(
    spec_with,
    stable_window_s=st.sampled_from([6.0, 60.0]),
    progress_deadline_s=st.sampled_from([5.0, 600.0]),
    scale_to_zero_grace_s=st.sampled_from([1.0, 30.0]),
    scale_to_zero_pod_retention_s=st.sampled_from([0.0, 45.0]),
    initial_scale=st.integers(0, 3),
    target_burst_capacity=st.sampled_from([-1.0, 0.0, 211.0]),
    reachable=st.booleans(),
)
# Seconds since the last step, merged count, ready pods, is on the proxy path, activator responds.
READS = st.lists(
    st.tuples(
        st.sampled_from([0, 0.5, 1, 2, 10, 31, 61, 700]),
        st.one_of(st.just(0), st.just(0), st.just(0), DESIRED),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


def decision_of(state: KpaState, observed: Observation, ready_count: int, spec: ScalingSpec) -> ScaleDecision:
    _, decision = decide(state, observed=observed, ready_count=ready_count, spec=spec, now_s=0.0)
    assert isinstance(decision, ScaleDecision)
    return decision


@given(spec=SPECS, start_ready=READY, steps=STEPS)
def test_decision_equals_the_naive_transcription_except_start_hold(
    spec: ScalingSpec, start_ready: int, steps: list[tuple[int, float, float, int]]
) -> None:
    state = starting_state(ready_count=start_ready, present_scale=0, spec=spec, now_s=0.0)
    naive = NaiveKpa(spec, ready_count=start_ready, now_s=0.0)
    now_s = 0.0
    for step_s, stable, panic, ready in steps:
        now_s += step_s
        observed = Observation(stable=stable, panic=panic)
        state, decision = decide(state, observed=observed, ready_count=ready, spec=spec, now_s=now_s)
        assert isinstance(decision, ScaleDecision)
        expected = naive.scale(stable=stable, panic=panic, ready=ready, now_s=now_s)
        assert (decision.delayed_count, decision.excess_burst_capacity) == expected
        assert (state.panic_since_s, state.panic_count_max) == (naive.panic_at, naive.panic_max)
        assert decision.desired_count == max(decision.delayed_count, decision.start_hold_count)


@given(loads=st.lists(st.none() | LOADS, min_size=1, max_size=100), ready=READY)
def test_windows_and_decision_equal_the_naive_transcription(loads: list[float | None], ready: int) -> None:
    collection = MetricWindows(stable_window_s=60, panic_window_s=6, kind=WindowKind.LINEAR)
    state = starting_state(ready_count=1, present_scale=0, spec=DEFAULTS, now_s=0.0)
    naive = NaiveKpa(DEFAULTS, ready_count=1, now_s=0.0)
    for second, load in enumerate(loads):
        if load is not None:
            collection.record(stat_of(load), float(second))
            naive.record(concurrency=load, request_count=0.0, now_s=second)
        observed = collection.query(second)
        state, decision = decide(state, observed=observed, ready_count=ready, spec=DEFAULTS, now_s=second)
        expected = naive.scale_on_windows(ready=ready, now_s=second)
        if isinstance(decision, NoData):
            assert expected is None
        else:
            assert (decision.delayed_count, decision.excess_burst_capacity) == expected


@given(state=STATES, spec=SPECS, stable=LOADS, panic=LOADS, more=LOADS, ready=READY)
def test_more_load_never_lowers_the_desired_count(
    *, state: KpaState, spec: ScalingSpec, stable: float, panic: float, more: float, ready: int
) -> None:
    less_loaded = decision_of(state, Observation(stable=stable, panic=panic), ready, spec)
    for grown in (Observation(stable=stable + more, panic=panic), Observation(stable=stable, panic=panic + more)):
        assert decision_of(state, grown, ready, spec).desired_count >= less_loaded.desired_count


@given(spec=SPECS, load=LOADS, ready=READY)
def test_desired_count_can_always_grow_by_one(spec: ScalingSpec, load: float, ready: int) -> None:
    decision = decision_of(KpaState(), Observation(stable=load, panic=load), ready, spec)
    assert decision.desired_count >= min(decision.desired_stable_count, ready + 1)


@given(state=STATES, spec=SPECS, stable=LOADS, panic=LOADS, ready=READY)
def test_desired_count_is_within_the_rates_except_holds(
    *, state: KpaState, spec: ScalingSpec, stable: float, panic: float, ready: int
) -> None:
    decision = decision_of(state, Observation(stable=stable, panic=panic), ready, spec)
    holds = max(state.start_hold_count, state.panic_count_max, spec.activation_scale)
    assert decision.rate_count_min <= decision.desired_count <= max(decision.rate_count_max, holds)


@given(spec=SPECS, start_ready=READY, steps=STEPS)
def test_panic_never_lowers_the_undelayed_count(
    spec: ScalingSpec, start_ready: int, steps: list[tuple[int, float, float, int]]
) -> None:
    # The delay and the start hold may end meanwhile; they are not part of the panic mode.
    state = starting_state(ready_count=start_ready, present_scale=0, spec=spec, now_s=0.0)
    now_s, previous = 0.0, None
    for step_s, stable, panic, ready in steps:
        now_s += step_s
        observed = Observation(stable=stable, panic=panic)
        state, decision = decide(state, observed=observed, ready_count=ready, spec=spec, now_s=now_s)
        assert isinstance(decision, ScaleDecision)
        if previous and previous.mode is decision.mode is ScalerMode.PANIC:
            assert decision.undelayed_count >= previous.undelayed_count
        previous = decision


@given(state=STATES, spec=SPECS, load=LOADS, ready=READY)
def test_state_is_unchanged_without_data(*, state: KpaState, spec: ScalingSpec, load: float, ready: int) -> None:
    observed = Observation(stable=load, panic=load)
    for known in ({"observed": NOTHING, "ready_count": ready}, {"observed": observed, "ready_count": NOTHING}):
        assert decide(state, **known, spec=spec, now_s=1e6) == (state, NOTHING)


@given(present_scale=READY, ready=READY, steps=STEPS)
def test_restarted_decision_is_at_least_the_present_scale_for_a_window(
    *, present_scale: int, ready: int, steps: list[tuple[int, float, float, int]]
) -> None:
    state = starting_state(ready_count=ready, present_scale=present_scale, spec=DEFAULTS, now_s=0.0)
    now_s = 0.0
    for step_s, stable, panic, ready_now in steps:
        now_s += step_s
        observed = Observation(stable=stable, panic=panic)
        state, decision = decide(state, observed=observed, ready_count=ready_now, spec=DEFAULTS, now_s=now_s)
        assert isinstance(decision, ScaleDecision)
        assert now_s >= DEFAULTS.stable_window_s or decision.desired_count >= present_scale


@given(proposals=PROPOSALS, present_scale=READY, spec=BOUNDED_SPECS, is_initialized=st.booleans())
def test_merged_count_is_at_least_every_proposal_up_to_max_scale(
    *, proposals: list[Proposal], present_scale: int, spec: ScalingSpec, is_initialized: bool
) -> None:
    decision = merge(proposals, present_scale=present_scale, spec=spec, is_initialized=is_initialized)
    counts = [proposal.desired for proposal in proposals if not isinstance(proposal.desired, NoData)]
    if isinstance(decision, NoData):
        assert not counts
        return
    assert decision.desired_count >= max(counts) or decision.bounds.limited_by is ScaleBound.MAX_SCALE
    assert decision.desired_count <= (spec.max_scale or decision.desired_count)
    assert decision.desired_count >= (min(spec.min_scale, spec.max_scale or spec.min_scale) if spec.reachable else 0)


@given(proposals=PROPOSALS, present_scale=READY, spec=BOUNDED_SPECS)
def test_additional_decider_never_lowers_the_merged_count(
    proposals: list[Proposal], present_scale: int, spec: ScalingSpec
) -> None:
    for desired in (NOTHING, 3):
        more = [*proposals, Proposal(decider="more", desired=desired, reason="load")]
        before = merge(proposals, present_scale=present_scale, spec=spec, is_initialized=True)
        after = merge(more, present_scale=present_scale, spec=spec, is_initialized=True)
        if isinstance(before, MergeDecision):
            assert isinstance(after, MergeDecision)
            assert after.desired_count >= before.desired_count


@given(spec=GATE_SPECS, looks=READS)
def test_scale_to_zero_needs_a_proof_and_its_grace_times(
    spec: ScalingSpec, looks: list[tuple[float, int | NoData, int, bool, bool]]
) -> None:
    state, now_s, present_scale = GateState(since_s=0.0), 0.0, 1
    proxy_since_s: float | None = None
    proved_at_s: float | None = None
    for step_s, desired, ready_count, is_proxied, responses in looks:
        now_s += step_s
        proxy_since_s = (now_s if proxy_since_s is None else proxy_since_s) if is_proxied else None
        proved_at_s = now_s if responses else proved_at_s
        before = state
        facts = GateInputs(
            desired=desired,
            present_scale=present_scale,
            ready_count=ready_count,
            proxy_since_s=proxy_since_s,
            proved_at_s=proved_at_s,
        )
        state, decision = step(state, facts, spec=spec, now_s=now_s)
        assert decision.recheck_in_s is None or decision.recheck_in_s > 0
        if decision.action is not GateAction.APPLY:
            continue
        assert not isinstance(decision.wanted, NoData)
        assert decision.wanted != present_scale
        present_scale = decision.wanted
        if present_scale > 0:
            continue
        lasted_s = now_s - before.since_s
        if decision.reason is GateReason.ACTIVATION_FAILED:
            assert before.phase is GatePhase.ACTIVATING
            assert ready_count == 0
            assert lasted_s > spec.progress_deadline_s + 30
            continue
        assert before.is_inactive
        assert proved_at_s is not None
        assert before.since_s <= proved_at_s
        assert now_s - proved_at_s <= PROOF_VALID_S
        proxied_s = 0.0 if proxy_since_s is None else now_s - proxy_since_s
        assert max(lasted_s, proxied_s) >= spec.scale_to_zero_grace_s
        assert lasted_s >= (spec.scale_to_zero_pod_retention_s if spec.reachable else 0.0)


@given(spec=GATE_SPECS, ready_count=st.integers(1, 3))
def test_idle_revision_reaches_zero_within_its_grace_times(spec: ScalingSpec, ready_count: int) -> None:
    state, now_s, present_scale = GateState(since_s=0.0, is_initialized=True), 0.0, ready_count
    wait_s = max(spec.scale_to_zero_grace_s, spec.scale_to_zero_pod_retention_s)
    proved_at_s: float | None = None
    while present_scale:
        facts = GateInputs(
            desired=0,
            present_scale=present_scale,
            ready_count=present_scale,
            proved_at_s=proved_at_s,
            proxy_since_s=0.0,
        )
        state, decision = step(state, facts, spec=spec, now_s=now_s)
        if decision.action is GateAction.PROBE:
            proved_at_s = now_s + 0.01
        if decision.action is GateAction.APPLY and not isinstance(decision.wanted, NoData):
            present_scale = decision.wanted
        now_s += decision.recheck_in_s or 0.02
        assert now_s <= spec.progress_deadline_s + 30 + spec.stable_window_s + wait_s + 10
