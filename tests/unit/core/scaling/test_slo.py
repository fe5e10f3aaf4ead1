"""Decisions about a latency SLO: each verdict, its step, and the retained measurements."""

import msgspec
import pytest

from serving.core.model.slo import BINS_BELOW, Slo, read_slo
from serving.core.scaling.slo import (
    RevisionSlo,
    SloOutcome,
    SloState,
    SloVerdict,
    SloView,
    is_late,
    step,
    with_slo_target,
)
from serving.core.scaling.spec import ScalingSpec
from tests.unit.core.scaling.kpa_builders import spec_with

P95 = read_slo("p95<300ms")
NOW_S = 1000.0


def goal(slo: Slo = P95, **numbers: object) -> ScalingSpec:
    """A revision with 70 of 100 requests in flight a pod."""
    usual = {"target_value": 70.0, "total_value": 100.0, "target_concurrency": 70.0, "max_scale": 0}
    return spec_with(slo=slo, **{**usual, **numbers})


def bins(on_time: int = 0, late: int = 0, *, above: int = 2, below: int = 0) -> tuple[float, ...]:
    """Requests ``below`` bins below the limit, and ``above`` bins beyond it."""
    results = [0.0] * (BINS_BELOW + above + 1)
    results[BINS_BELOW - below] += on_time
    results[BINS_BELOW + above] += late
    return tuple(results)


def view(
    recent: tuple[float, ...] = (), *, pod_load: float = 10.0, ready: int = 4, scale: int | None = None
) -> SloView:
    return SloView(
        recent=recent,
        steady=recent,
        bins=recent,
        pod_load=pod_load,
        ready_count=ready,
        present_scale=ready if scale is None else scale,
    )


def decided(
    state: SloState, seen: SloView, spec: ScalingSpec | None = None, now_s: float = NOW_S
) -> tuple[SloState, SloOutcome]:
    return step(state, seen, spec=spec or goal(), now_s=now_s)


def test_late_requests_lower_target_by_limit_over_percentile() -> None:
    state, outcome = decided(SloState(), view(bins(on_time=80, late=20)))
    assert outcome.verdict is SloVerdict.LATE
    assert outcome.quantile_s == pytest.approx(0.3 * 2 ** (1.75 / 4))
    assert state.target == outcome.target == pytest.approx(10 * 0.3 / outcome.quantile_s)
    assert outcome.more_count == 2
    assert state.awaited_count == 6


@pytest.mark.parametrize(("text", "least"), [("p95<300ms", 2.5), ("p95-wait<300ms", 7.0)])
def test_one_step_down_is_bounded(text: str, least: float) -> None:
    _, outcome = decided(SloState(), view(bins(late=50, above=17)), goal(read_slo(text)))
    assert outcome.target == pytest.approx(least)


def test_few_late_requests_are_not_significant() -> None:
    assert not is_late(bins(on_time=54, late=6), P95)
    assert is_late(bins(on_time=53, late=7), P95)
    assert not is_late(bins(late=1), P95)


def test_missing_pods_are_added_before_target_is_lowered_again() -> None:
    state, outcome = decided(SloState(target=10.0), view(bins(late=50), pod_load=30.0))
    assert (state.target, state.ceiling, outcome.more_count) == (8.0, 10.0, 6)
    again, _ = decided(msgspec.structs.replace(state, awaited_count=0), view(bins(late=50), pod_load=30.0))
    assert (again.target, again.ceiling) == (8.0, 10.0)


def test_new_pods_are_awaited_and_measured_anew() -> None:
    state, _ = decided(SloState(), view(bins(late=50)))
    waiting, outcome = decided(state, view(bins(late=50)), now_s=NOW_S + 2)
    assert (waiting, outcome.verdict) == (state, SloVerdict.SETTLING)
    assert outcome.more_count == state.awaited_count - 4
    ready = view(bins(late=50), ready=state.awaited_count)
    settled, outcome = decided(state, ready, now_s=NOW_S + 4)
    assert (outcome.verdict, outcome.more_count) == (SloVerdict.SETTLING, 0)
    assert settled.since_s > NOW_S + 4
    assert settled.awaited_count == 0


def test_pods_never_ready_are_awaited_for_60_s() -> None:
    state, _ = decided(SloState(), view(bins(late=50)))
    settled, _ = decided(state, view(bins(late=50)), now_s=NOW_S + 61)
    assert settled.awaited_count == 0


def test_target_is_not_lowered_at_max_scale() -> None:
    state, outcome = decided(SloState(target=90.0), view(bins(late=50)), goal(max_scale=4))
    assert (outcome.verdict, state.target) == (SloVerdict.BOUNDED, 70.0)


def test_more_pods_are_limited_by_max_scale_and_rate() -> None:
    _, few = decided(SloState(), view(bins(late=50, above=17)), goal(max_scale=5))
    _, slow = decided(SloState(), view(bins(late=50, above=17)), goal(max_scale_up_rate=1.25))
    assert (few.more_count, slow.more_count) == (1, 1)


def test_slo_that_pods_do_not_improve_is_suspended_for_ten_minutes() -> None:
    state, spec, alone = SloState(target=0.5), goal(), view(bins(late=50), pod_load=0.5)
    for _ in range(2):
        state, _ = decided(state, alone, spec)
        state = msgspec.structs.replace(state, awaited_count=0)
    state, outcome = decided(state, alone, spec)
    assert (outcome.verdict, outcome.target, state.target) == (SloVerdict.HOPELESS, 70.0, None)
    state, outcome = decided(state, view(bins(late=50)), spec, NOW_S + 599)
    assert outcome.verdict is SloVerdict.HOPELESS
    state, outcome = decided(state, view(bins(late=50)), spec, NOW_S + 601)
    assert outcome.verdict is SloVerdict.LATE


def test_fast_responses_raise_target_below_last_late_target() -> None:
    calm = view(bins(on_time=100, below=8))
    state, outcome = decided(SloState(target=10.0), calm)
    assert outcome.verdict is SloVerdict.ROOM
    assert outcome.target == 15.0
    _, outcome = decided(SloState(target=10.0), view(bins(on_time=100, below=3)))
    assert outcome.target == pytest.approx(10 * (0.7 * 0.3 / outcome.quantile_s) ** 0.5)
    state, outcome = decided(SloState(target=10.0, ceiling=15.0, ceiling_s=NOW_S), calm)
    assert outcome.target == pytest.approx(0.75 * 15.0)
    state, outcome = decided(SloState(target=10.0, ceiling=11.0, ceiling_s=NOW_S), calm)
    assert (outcome.verdict, state.target) == (SloVerdict.HELD, 10.0)


def test_responses_near_limit_or_of_idle_pods_retain_target() -> None:
    for seen in (view(bins(on_time=100)), view(bins(on_time=100, below=8), pod_load=1.0)):
        state, outcome = decided(SloState(target=10.0), seen)
        assert (outcome.verdict, state.target) == (SloVerdict.HELD, 10.0)


def test_few_requests_have_unknown_verdict() -> None:
    state, outcome = decided(SloState(target=10.0), view(bins(on_time=19, below=8)))
    assert (outcome.verdict, state.target) == (SloVerdict.UNKNOWN, 10.0)


def test_container_concurrency_bounds_target() -> None:
    _, outcome = decided(SloState(target=9.9), view(bins(on_time=100, below=8)), goal(container_concurrency=10, target_value=7.0))  # fmt: skip
    assert outcome.target == 10.0


def test_rps_target_is_bounded_by_20_times_configured_target() -> None:
    _, outcome = decided(SloState(target=1399.0), view(bins(on_time=100, below=8), pod_load=1399.0), goal(metric="rps"))
    assert outcome.target == 70.0 * 20
    assert with_slo_target(goal(metric="rps"), 35.0).target_concurrency == 70.0


def test_slo_target_retains_utilization_ratio() -> None:
    spec = with_slo_target(goal(), 35.0)
    assert (spec.target_value, spec.total_value, spec.target_concurrency) == (35.0, 50.0, 35.0)
    assert with_slo_target(spec, 35.0) is spec


# Retained measurements.


def updated_spec(slo: RevisionSlo, now_s: float, *, spec: ScalingSpec, ready: int = 4) -> ScalingSpec:
    return slo.update(spec, ready_count=ready, present_scale=ready, now_s=now_s)


def test_revision_without_slo_retains_its_spec() -> None:
    slo, spec = RevisionSlo(0.0), spec_with()
    assert updated_spec(slo, 1.0, spec=spec) is spec
    assert slo.outcome is None


def test_reports_and_loads_of_one_minute_decide() -> None:
    slo, spec = RevisionSlo(0.0), goal()
    updated_spec(slo, 0.0, spec=spec)
    for second in range(20, 26):
        slo.record(bins(on_time=5, late=5), float(second))
        slo.record((), float(second))
        slo.record_load(40.0, float(second))
    changed = updated_spec(slo, 26.0, spec=spec)
    assert slo.outcome is not None
    assert slo.outcome.verdict is SloVerdict.LATE
    assert changed.target_value == pytest.approx(10 * 0.3 / slo.outcome.quantile_s)


def test_measurements_without_ready_pod_are_ignored() -> None:
    slo, spec = RevisionSlo(0.0), goal()
    updated_spec(slo, 0.0, spec=spec, ready=0)
    slo.record_load(40.0, 1.0)
    slo.record(bins(late=50), 1.0)
    updated_spec(slo, 2.0, spec=spec, ready=1)
    assert slo.outcome is not None
    assert slo.outcome.verdict is SloVerdict.UNKNOWN


def test_changed_spec_resets_measurements() -> None:
    slo = RevisionSlo(0.0)
    updated_spec(slo, 0.0, spec=goal())
    for second in range(20, 26):
        slo.record(bins(late=5), float(second))
    updated_spec(slo, 26.0, spec=goal())
    assert updated_spec(slo, 27.0, spec=goal(target_value=50.0)).target_value == 50.0


def test_old_measurements_are_dropped() -> None:
    slo, spec = RevisionSlo(0.0), goal()
    updated_spec(slo, 0.0, spec=spec)
    slo.record(bins(on_time=100), 20.0)
    slo.record_load(1.0, 20.0)
    updated_spec(slo, 100.0, spec=spec)
    assert slo.outcome is not None
    assert slo.outcome.verdict is SloVerdict.UNKNOWN
