"""Invariants of latency goal decisions, for any measurements."""

import math

from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.slo import Slo, late_sum, quantile_s, read_slo
from serving.core.model.stat import BINS_MAX
from serving.core.scaling.kpa.decide import ScaleDecision, decide, starting_state
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.slo import SloState, SloVerdict, SloView, step, with_slo_target
from serving.core.scaling.spec import ScalingSpec
from tests.unit.core.scaling.kpa_builders import spec_with

GOAL = st.sampled_from(["p50<1ms", "p95<300ms", "p99-wait<100ms", "p99.99<10m"]).map(read_slo)
BINS = st.lists(st.integers(0, 10**6), max_size=BINS_MAX).map(tuple)
FULL_BINS = st.lists(st.integers(1, 10**6), min_size=2, max_size=BINS_MAX).map(tuple)
TARGET = st.floats(0.5, 1000)
NOW_S = 10_000.0


def spec_of(slo: Slo, hard: int, most: int) -> ScalingSpec:
    own = float(hard or 100)
    numbers = {"total_value": own, "target_value": 0.7 * own, "target_concurrency": 0.7 * own}
    return spec_with(slo=slo, container_concurrency=hard, max_scale=most, **numbers)


SPEC = st.builds(spec_of, GOAL, st.integers(0, 200), st.integers(0, 20))


def view_of(bins: tuple[int, ...], pod_load: float, ready: int) -> SloView:
    return SloView(recent=bins, steady=bins, bins=bins, pod_load=pod_load, ready_count=ready, present_scale=ready)


@given(SPEC, st.none() | TARGET, st.builds(view_of, BINS, st.floats(0, 1e6), st.integers(0, 1000)))
def test_slo_target_is_bounded_and_late_revisions_never_scale_below_stable(
    spec: ScalingSpec, target: float | None, seen: SloView
) -> None:
    _, outcome = step(SloState(target=target), seen, spec=spec, now_s=NOW_S)
    most = max(spec.target_value, float(spec.container_concurrency or 1000))
    assert min(spec.target_value, 0.5) <= outcome.target <= most
    assert 0 <= outcome.more_count <= (spec.max_scale or outcome.more_count)
    if outcome.verdict in {SloVerdict.UNKNOWN, SloVerdict.HELD, SloVerdict.ROOM}:
        return
    load, ready = seen.pod_load * seen.ready_count, seen.ready_count
    counts = []
    for scaling_spec in (spec, with_slo_target(spec, outcome.target)):
        start = starting_state(ready_count=ready, present_scale=ready, spec=scaling_spec, now_s=NOW_S)
        observed = Observation(stable=load, panic=load)
        _, decision = decide(start, observed=observed, ready_count=ready, spec=scaling_spec, now_s=NOW_S)
        assert isinstance(decision, ScaleDecision)
        counts.append(decision.stable_count)
    assert counts[1] >= counts[0]


@given(SPEC, TARGET, FULL_BINS, st.floats(0, 1e4), st.floats(0, 1), st.floats(0, 1))
def test_slower_requests_never_raise_the_slo_target(
    spec: ScalingSpec, target: float, bins: tuple[int, ...], pod_load: float, place: float, share: float
) -> None:
    """Moving requests one bin up never raises the number of requests per pod."""
    number, later = int(place * (len(bins) - 2)), list(bins)
    moved = math.ceil(share * later[number])
    later[number] -= moved
    later[number + 1] += moved
    _, before = step(SloState(target=target), view_of(bins, pod_load, 5), spec=spec, now_s=NOW_S)
    _, after = step(SloState(target=target), view_of(tuple(later), pod_load, 5), spec=spec, now_s=NOW_S)
    assert after.target <= before.target + 1e-9


@given(GOAL, BINS.filter(sum))
def test_percentile_exceeds_the_limit_iff_too_many_requests_are_late(slo: Slo, bins: tuple[int, ...]) -> None:
    is_above = quantile_s(bins, slo) > slo.limit_s
    assert is_above == (not slo.allows(late_sum(bins), sum(bins)))
