"""Invariants of the adaptive policy for any calls, clocks and settings."""

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.stat import Stat
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapHistory, GapPrior, KeepBounds, keep_windows
from serving.core.scaling.adaptive.policy import AdaptivePolicy, adaptive_policy
from serving.core.scaling.decision.policy import PolicyView, SecondOfLoad
from serving.core.scaling.kpa.merge import MergeDecision, Proposal, merge
from serving.core.scaling.scaler.registry import BUILT_IN
from serving.core.settings.autoscaler import POLICIES, AutoscalerSettings
from tests.unit.core.scaling.kpa_builders import spec_with

SPEC = spec_with(policy="adaptive", container_concurrency=10, total_value=10.0, target_value=7.0, max_scale=20)
SETTINGS = AutoscalerSettings()
CEILING_S = SETTINGS.adaptive.keep_alive_max_s

GAPS = st.lists(st.floats(1, 50_000), min_size=1, max_size=60)
WORTHS = st.floats(1, 1e6)
LOADS = st.lists(st.floats(0, 500), max_size=150)

SHADOW_STEPS = st.lists(
    st.tuples(st.floats(-100, 500), st.floats(0, 1e4), st.integers(0, 100), st.integers(0, 50)), max_size=60
)


def policy_with(worth_s: float) -> AdaptivePolicy:
    return adaptive_policy(msgspec.structs.replace(SPEC, cold_start_worth_s=worth_s), SETTINGS)


def called(policy: AdaptivePolicy, gaps_s: list[float]) -> int:
    """Observe one request after each gap; return the second after the last one."""
    second = 0
    policy.observe(SecondOfLoad(second, 0.1, 1.0))
    for gap_s in gaps_s:
        second += 1 + int(gap_s)
        policy.observe(SecondOfLoad(second, 0.1, 1.0))
    return second + 1


def merged(policy: AdaptivePolicy, algorithm: int, *, in_flight: float, scale: int, now_s: float) -> int:
    """The count after merging and bounds."""
    proposal = Proposal(decider="kpa", desired=algorithm, reason="")
    advice = policy.propose(
        PolicyView(
            now_s=now_s, algorithm=proposal, in_flight=in_flight, present_scale=scale, ready_count=scale, spec=SPEC
        )
    )
    proposals = (proposal,) if advice.proposals is None else advice.proposals
    response = merge(proposals, present_scale=scale, spec=SPEC, is_initialized=True)
    assert isinstance(response, MergeDecision)
    return response.desired_count


@settings(deadline=None)
@given(
    loads=LOADS, worth_s=WORTHS, in_flight=st.floats(0, 1e6), scale=st.integers(0, 20), algorithm=st.integers(0, 1000)
)
def test_merged_count_never_exceeds_max_scale(
    loads: list[float], worth_s: float, in_flight: float, scale: int, algorithm: int
) -> None:
    policy = policy_with(worth_s)
    for second, load in enumerate(loads):
        policy.observe(SecondOfLoad(second, load, load))

    assert merged(policy, algorithm, in_flight=in_flight, scale=scale, now_s=float(len(loads))) <= SPEC.max_scale


@settings(deadline=None)
@given(gaps_s=GAPS, worth_s=WORTHS)
def test_keep_window_of_the_last_pod_is_bounded(gaps_s: list[float], worth_s: float) -> None:
    history = GapHistory()
    for gap_s in gaps_s:
        history.record(gap_s)
    bounds = KeepBounds(worth_s=worth_s, min_s=6.0, max_s=CEILING_S, bridge_s=45.0, start_s=2.0, pre_warms=False)
    windows = list(keep_windows([(0, history.hazard(GapPrior(SHIPPED_PRIOR)))], bounds))

    assert len(windows) == 1
    assert windows[0].from_s == 0.0
    assert 6.0 <= windows[0].to_s <= CEILING_S


@settings(deadline=None)
@given(gaps_s=GAPS, worth_s=WORTHS)
def test_keep_windows_are_ordered_and_disjoint(gaps_s: list[float], worth_s: float) -> None:
    history = GapHistory()
    for gap_s in gaps_s:
        history.record(gap_s)
    bounds = KeepBounds(worth_s=worth_s, min_s=6.0, max_s=CEILING_S, bridge_s=45.0, start_s=2.0, pre_warms=True)
    windows = list(keep_windows([(0, history.hazard(GapPrior(SHIPPED_PRIOR)))], bounds))

    ends = [at_s for window in windows for at_s in (window.from_s, window.to_s)]
    assert ends == sorted(ends)


@settings(deadline=None)
@given(gaps_s=GAPS, loads=LOADS, worth_s=WORTHS, in_flight=st.floats(0.01, 1e4), algorithm=st.integers(1, 20))
def test_load_in_flight_always_retains_a_pod(
    gaps_s: list[float], loads: list[float], worth_s: float, in_flight: float, algorithm: int
) -> None:
    policy = policy_with(worth_s)
    begin = called(policy, gaps_s)
    for second, load in enumerate(loads):
        policy.observe(SecondOfLoad(begin + second, load, load))
    now_s = float(begin + len(loads))

    assert merged(policy, algorithm, in_flight=in_flight, scale=1, now_s=now_s) >= 1
    # Without a ready pod, the requests in flight get enough pods, within the bounds.
    wanted = merged(policy, algorithm, in_flight=in_flight, scale=0, now_s=now_s)
    assert wanted >= min(algorithm, in_flight / 10.0, SPEC.max_scale)


@settings(deadline=None)
@given(gaps_s=GAPS, jumps_s=st.lists(st.floats(-1e6, 1e6), max_size=20), worth_s=WORTHS)
def test_clock_jumps_leave_the_count_within_bounds(gaps_s: list[float], jumps_s: list[float], worth_s: float) -> None:
    policy = policy_with(worth_s)
    now_s = float(called(policy, gaps_s))
    for jump_s in jumps_s:
        now_s += jump_s
        policy.observe(SecondOfLoad(int(now_s), 1.0, 1.0))
        for in_flight in (0.0, 3.0):
            assert 0 <= merged(policy, 1, in_flight=in_flight, scale=1, now_s=now_s) <= SPEC.max_scale


@settings(deadline=None)
@given(gaps_s=GAPS)
def test_saved_policy_state_survives_a_restart(gaps_s: list[float]) -> None:
    before, after = policy_with(120.0), policy_with(120.0)
    called(before, gaps_s)
    learnt = before.due_save(0.0)
    assert learnt is not None
    after.load(learnt)
    called(after, [1.0])
    again = after.due_save(0.0)
    assert again is not None
    first, second = (msgspec.json.decode(text, type=dict[str, float]) for text in (learnt, again))

    # A gap of 1 s costs the same under both policies.
    regret = [{name: count for name, count in state.items() if not name.isdecimal()} for state in (first, second)]
    assert regret[0] == regret[1]
    # One more gap of 1 s decays the other counts by 1.4 %.
    assert first.keys() | {"1"} == second.keys() | {"1"}
    assert all(abs(first[name] / 2 ** (1 / 50) - second[name]) <= 0.002 for name in second.keys() - {"1", *regret[1]})


@settings(deadline=None)
@given(now_s=st.floats(0, 1e6), in_flight=st.floats(0, 100), algorithm=st.integers(0, 20), scale=st.integers(0, 20))
def test_revision_without_history_gets_the_algorithm_count(
    now_s: float, in_flight: float, algorithm: int, scale: int
) -> None:
    assert merged(policy_with(120.0), algorithm, in_flight=in_flight, scale=scale, now_s=now_s) == algorithm


@settings(deadline=None)
@given(steps=SHADOW_STEPS, start_s=st.floats(0, 600), running=st.sampled_from(POLICIES))
def test_shadow_scale_is_bounded_and_its_costs_never_decrease(
    steps: list[tuple[float, float, int, int]], start_s: float, running: str
) -> None:
    spec = msgspec.structs.replace(SPEC, policy=running)
    shadow, now_s = BUILT_IN.shadow_of(spec, SETTINGS, present_scale=0, wall_offset_s=1e9, now_s=1e4), 1e4
    assert shadow is not None
    before = shadow.costs(now_s)
    for step_s, load, requests, scale in steps:
        # A clock may jump back.
        now_s = max(0.0, now_s + step_s)
        shadow.arrive(float(requests), now_s)
        shadow.record(int(now_s), Stat(concurrency=load, request_count=requests))
        inside = Stat(concurrency=load)
        shadow.decide(
            (), in_flight=inside, present_scale=scale, ready_count=min(scale, 3), start_s=start_s, now_s=now_s
        )
        costs = shadow.costs(now_s)
        assert 0 <= shadow.scale <= SPEC.max_scale
        assert costs.adaptive_pod_seconds >= before.adaptive_pod_seconds
        assert costs.knative_pod_seconds >= before.knative_pod_seconds
        assert costs.knative_cold_requests - before.knative_cold_requests in (0, requests)
        before = costs


@settings(deadline=None)
@given(
    gaps_s=GAPS,
    worth_s=WORTHS,
    min_s=st.sampled_from([0.5, 6.0, 8.0, 60.0]),
    pre_warms=st.booleans(),
    dormant_after_s=st.sampled_from([10.0, math.inf]),
)
def test_keep_windows_by_group_equal_those_of_the_complete_hazard(
    gaps_s: list[float], worth_s: float, min_s: float, *, pre_warms: bool, dormant_after_s: float
) -> None:
    history, prior = GapHistory(), GapPrior(SHIPPED_PRIOR)
    for gap_s in gaps_s:
        history.record(gap_s)
    bounds = KeepBounds(
        worth_s=worth_s,
        min_s=min_s,
        max_s=CEILING_S,
        bridge_s=45.0,
        start_s=2.0,
        pre_warms=pre_warms,
        dormant_after_s=dormant_after_s,
        dormant_cost=0.2,
    )

    by_group = history.hazard_by_group(prior, rate_min=bounds.rate_min, from_s=min_s)
    assert list(keep_windows(by_group, bounds)) == list(keep_windows([(0, history.hazard(prior))], bounds))
