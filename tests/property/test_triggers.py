"""Invariants of triggers: bounds, busy pods, cooldowns, no data, order, and points against a naive recount."""

from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.scaling.policies.apply import bounded_down_amount, bounded_up_amount, change_of
from serving.core.scaling.policies.evaluate import VerdictKind
from serving.core.scaling.policies.points import (
    ScaleWay,
    UsagePoint,
    counted_points,
    examined_points,
    point_window,
    recorded,
)
from serving.core.scaling.policies.scalingpolicy import Direction, ScalingPolicySpec, Trigger, check_scaling_policy
from serving.core.scaling.policies.tick import TickDecision, TriggerRule, TriggerState, changed, decide, rebased
from serving.core.scaling.policies.triggertypes import REGISTRY, ContainerUse, ObservedPods, OccupancyPolicy
from serving.core.settings.triggers import TriggerQuirks, TriggerSettings

SETTINGS = TriggerSettings()
FORCED = {TriggerRule.LIMIT, TriggerRule.BELOW_MIN, TriggerRule.ABOVE_MAX}
PERIOD_S = 10

counts = st.integers(0, 60)
percents = st.integers(1, 100)
amounts = st.none() | st.integers(0, 3000)
containers = st.builds(
    lambda used, requested: ContainerUse(used=Resources(cpu_m=used), requested=Resources(cpu_m=requested)),
    amounts,
    amounts,
)
observations = st.builds(
    ObservedPods,
    creating_count=counts,
    idle_count=counts,
    occupied_count=counts,
    pending_count=st.integers(0, 1),
    failing_count=st.integers(0, 1),
    pods=st.lists(st.lists(containers, max_size=2).map(tuple), max_size=3).map(tuple),
)

ticks = st.lists(st.tuples(st.sampled_from([1, 4, 5, 10, 10, 10, 35]), observations), min_size=1, max_size=12)


def triggers(way: ScaleWay) -> st.SearchStrategy[Trigger]:
    return st.builds(
        Trigger,
        type=st.sampled_from(["occupancy", "cpu", "fixed-step"]),
        usage_percent=st.integers(51, 100) if way is ScaleWay.UP else st.integers(1, 50),
        threshold_percent=percents,
        time_s=st.integers(1, 200),
        limit_percent=st.integers(100, 200) if way is ScaleWay.UP else st.none(),
        delta=st.integers(1, 9) if way is ScaleWay.UP else st.integers(-9, -1),
    )


def directions(way: ScaleWay) -> st.SearchStrategy[Direction]:
    return st.builds(
        Direction, triggers=st.lists(triggers(way), max_size=3).map(tuple), cooldown_s=st.sampled_from([0, 20, 60])
    )


def bounded(low: int, more: int | None) -> tuple[int, int]:
    return low, 0 if more is None else low + more


specs = st.builds(
    lambda bounds, up, down: ScalingPolicySpec(min_count=bounds[0], max_count=bounds[1], up=up, down=down),
    st.builds(bounded, st.integers(0, 30), st.none() | st.integers(1, 80)),
    directions(ScaleWay.UP),
    directions(ScaleWay.DOWN),
)


def replay(spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]) -> list[tuple[TriggerState, TickDecision]]:
    """State before and decision of each step; every change succeeds."""
    state, now_s, seen = TriggerState(), 0.0, []
    for after_s, observed in steps:
        now_s += after_s
        following, decision = decide(state, observed, spec, settings=SETTINGS, now_s=now_s)
        seen.append((state, decision))
        state = changed(following, at_s=now_s) if decision.change.delta else following
    return seen


@given(specs)
def test_generated_scaling_policies_are_valid(spec: ScalingPolicySpec) -> None:
    assert check_scaling_policy(spec, known_types=REGISTRY) == ()


@given(specs, ticks)
def test_change_ends_within_or_closer_to_min_and_max(
    spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]
) -> None:
    high = spec.max_count or 10**9
    for _, decision in replay(spec, steps):
        before, after = decision.observed_count, decision.observed_count + decision.change.delta
        assert min(before, spec.min_count) <= after <= max(before, high)
        assert after > before or before >= spec.min_count
        assert after <= before or before < high


@given(specs, ticks)
def test_only_idle_pods_are_removed_and_one_pod_remains(
    spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]
) -> None:
    for (_, decision), (_, observed) in zip(replay(spec, steps), steps, strict=True):
        assert -decision.change.delta <= min(observed.idle_count, SETTINGS.max_scale_down_amount)
        assert decision.change.delta <= SETTINGS.max_scale_up_amount
        assert decision.change.delta >= 0 or observed.available_count + decision.change.delta >= 1


@given(specs, ticks)
def test_only_limits_min_and_max_cause_changes_within_the_cooldown(
    spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]
) -> None:
    now_s = 0.0
    for (state, decision), (after_s, _) in zip(replay(spec, steps), steps, strict=True):
        now_s += after_s
        if decision.change.delta and decision.rule not in FORCED:
            cooldown_s = (spec.up if decision.change.delta > 0 else spec.down).cooldown_s
            assert state.last_change_at_s is None or now_s - state.last_change_at_s > cooldown_s


@given(specs, ticks)
def test_a_trigger_without_data_never_acts(spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]) -> None:
    for _, decision in replay(spec, steps):
        if decision.acting is not None:
            assert not isinstance(decision.acting.observed_usage_ratio, NoData)
            assert decision.acting.verdict in (VerdictKind.LIMIT, VerdictKind.POINTS)
        if decision.rule is TriggerRule.NO_DATA:
            assert isinstance(decision.desired_count, NoData)
            assert decision.change.delta == 0


@given(specs, st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_no_change_is_wanted_without_pods_and_min(spec: ScalingPolicySpec, gaps_s: list[int]) -> None:
    spec = msgspec.structs.replace(spec, min_count=0)
    for _, decision in replay(spec, [(gap_s, ObservedPods()) for gap_s in gaps_s]):
        # Without triggers there is no missing data, and no pods are wanted.
        assert decision.rule is TriggerRule.NO_DATA or (decision.usages == {} and decision.desired_count == 0)


@given(specs, ticks)
def test_desired_count_equals_the_count_after_the_change(
    spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]
) -> None:
    for _, decision in replay(spec, steps):
        if not isinstance(decision.desired_count, NoData):
            size = decision.observed_count + decision.change.delta
            assert decision.desired_count in (size, spec.min_count)
            assert decision.desired_count == size or decision.change.delta == 0


@given(specs, ticks)
def test_reported_clamps_lead_from_the_wanted_to_the_actual_change(
    spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]
) -> None:
    for _, decision in replay(spec, steps):
        amount = abs(decision.change.wanted_delta)
        for applied in decision.change.clamps:
            assert applied.amount_before == amount != applied.amount_after
            amount = applied.amount_after
        assert amount == abs(decision.change.delta)


@given(specs, ticks)
def test_usage_points_are_ordered_and_bounded(spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]]) -> None:
    longest_s = max((trigger.time_s for trigger in (*spec.up.triggers, *spec.down.triggers)), default=0)
    for state, _ in replay(spec, steps):
        for usage_points in state.points.values():
            assert len(usage_points) <= max(1, longest_s // PERIOD_S)
            times = [point.at_s for point in usage_points]
            assert times == sorted(times, reverse=True)


@given(specs, ticks, st.integers(0, 5), st.integers(-10_000, 10_000))
def test_restart_on_another_clock_changes_no_decision(
    spec: ScalingPolicySpec, steps: list[tuple[int, ObservedPods]], at: int, by_s: int
) -> None:
    state, now_s = TriggerState(), 0.0
    for step, (after_s, observed) in enumerate(steps):
        now_s += after_s
        expected = decide(state, observed, spec, settings=SETTINGS, now_s=now_s)
        if step == at:
            written = msgspec.json.encode(state)
            restored = rebased(msgspec.json.decode(written, type=TriggerState), by_s=by_s)
            following, decision = decide(restored, observed, spec, settings=SETTINGS, now_s=now_s + by_s)
            assert (rebased(following, by_s=-by_s), decision) == expected
        state = expected[0]


@given(
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=15),
    st.tuples(st.integers(51, 95), st.integers(1, 50), percents, st.booleans()),
)
def test_more_occupied_pods_never_lower_the_change(
    available: int, history: list[tuple[int, int]], limits: tuple[int, int, int, bool]
) -> None:
    up_percent, down_percent, threshold, is_cooling = limits
    spec = ScalingPolicySpec(
        up=Direction(
            triggers=(Trigger(usage_percent=up_percent, threshold_percent=threshold, time_s=50, limit_percent=95),)
        ),
        down=Direction(triggers=(Trigger(usage_percent=down_percent, threshold_percent=threshold, time_s=50),)),
    )
    usage_points = tuple(
        UsagePoint(at_s=-10.0 * (index + 1), usage_ratio=usage / 100) for index, (usage, _) in enumerate(history)
    )
    state = TriggerState(points={"occupancy": usage_points}, last_change_at_s=0.0 if is_cooling else None)
    wishes = []
    for occupied in range(available + 1):
        observed = ObservedPods(occupied_count=occupied, idle_count=available - occupied)
        _, decision = decide(state, observed, spec, settings=SETTINGS, now_s=0.0)
        wishes.append(decision.change.delta)
    assert wishes == sorted(wishes)


@given(counts, counts, percents)
def test_occupancy_delta_is_exact_to_half_a_pod(occupied: int, idle: int, usage: int) -> None:
    observed = ObservedPods(occupied_count=occupied, idle_count=idle)
    delta = OccupancyPolicy().delta(Trigger(usage_percent=usage), observed, TriggerQuirks())
    assert isinstance(delta, int)
    assert abs(observed.available_count + delta - Fraction(100 * occupied, usage)) <= Fraction(1, 2)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 500), percents)
def test_cpu_delta_is_exact_to_half_a_percent(used: int, requested: int, available: int, usage: int) -> None:
    container = ContainerUse(used=Resources(cpu_m=used), requested=Resources(cpu_m=requested))
    observed = ObservedPods(occupied_count=available, pods=((container,),))
    delta = REGISTRY["cpu"].delta(Trigger(usage_percent=usage), observed, TriggerQuirks())
    assert isinstance(delta, int)
    exact = Fraction(100 * used, requested * usage) * available
    assert exact - Fraction(available, 200) <= available + delta < exact + Fraction(available, 200) + 1


@given(counts, counts, st.integers(0, 100), st.integers(0, 30), st.integers(0, 80))
def test_bounded_amounts_are_monotonic(amount: int, more: int, current: int, low: int, above: int) -> None:
    bounds = {"current_count": current, "min_count": low, "max_count": low + above}
    for bound in (bounded_up_amount, bounded_down_amount):
        assert bound(amount, **bounds) <= bound(amount + more, **bounds)


@given(observations, st.integers(-100, 100), specs)
def test_bounds_never_reverse_a_change(observed: ObservedPods, delta: int, spec: ScalingPolicySpec) -> None:
    assert change_of(delta, observed=observed, spec=spec, settings=SETTINGS).delta * delta >= 0


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), max_size=40),
    st.integers(PERIOD_S, 200),
    percents,
    percents,
    st.sampled_from(ScaleWay),
)
def test_counted_points_equal_a_naive_recount(
    steps: list[tuple[int, int]], time_s: int, usage: int, threshold: int, way: ScaleWay
) -> None:
    trigger = Trigger(usage_percent=usage, threshold_percent=threshold, time_s=time_s)
    points: dict[str, tuple[UsagePoint, ...]] = {}
    accepted: list[tuple[int, float]] = []
    now_s = 0
    for after_s, percent in steps:
        now_s += after_s
        points = recorded(points, {"occupancy": percent / 100}, {"occupancy": time_s}, now_s=now_s, settings=SETTINGS)
        if not accepted or now_s - accepted[-1][0] >= PERIOD_S / 2:
            accepted.append((now_s, percent / 100))
        recent = [value for at_s, value in accepted if now_s - at_s < time_s][-(time_s // PERIOD_S) :]
        beyond = [value for value in recent if (value > usage / 100 if way is ScaleWay.UP else value < usage / 100)]
        window = point_window(trigger, SETTINGS)
        counted = counted_points(examined_points(points["occupancy"], window, now_s), way, usage / 100)
        assert counted == len(beyond)
        assert (counted >= window.needed_count) == (len(beyond) * 100 >= threshold * (time_s // PERIOD_S))
