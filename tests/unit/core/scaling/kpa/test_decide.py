import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.decide import (
    KpaState,
    ScaleDecision,
    ScaleLimit,
    ScalerMode,
    decide,
    starting_state,
    with_initial_scale,
)
from serving.core.scaling.kpa.window import Observation
from serving.core.settings.autoscaler import ORIGINAL, SAFE, KpaQuirks
from tests.unit.core.scaling.kpa_builders import CALM, DEFAULTS, decided, spec_with

NOTHING = NoData(missing="no stat in the stable window")


def restarted(*, ready_count: int, present_scale: int = 0, delay_s: float = 0.0, quirks: KpaQuirks = SAFE) -> KpaState:
    return starting_state(
        ready_count=ready_count,
        present_scale=present_scale,
        spec=spec_with(scale_down_delay_s=delay_s),
        now_s=0.0,
        quirks=quirks,
    )


def counts(decision: ScaleDecision) -> tuple[int, ScalerMode, ScaleLimit | None]:
    return decision.desired_count, decision.mode, decision.limited_by


def test_desired_count_is_load_over_target_rounded_up() -> None:
    # docs/calculations.md: 95 at 70 a pod.
    _, decision = decided(load=95.0, ready_count=2)
    assert counts(decision) == (2, ScalerMode.STABLE, None)
    assert (decision.desired_stable_count, decision.desired_panic_count) == (2, 2)


def test_negative_load_needs_no_pod() -> None:
    assert decided(load=-3.0)[1].desired_count == 0


def test_huge_load_is_limited_to_int32_replicas() -> None:
    assert decided(load=1e300)[1].desired_stable_count == 2**31 - 1


@pytest.mark.parametrize("missing", ["observed", "ready_count"])
def test_missing_data_changes_no_state(missing: str) -> None:
    state = KpaState(panic_since_s=1.0, panic_count_max=7)
    observed = NOTHING if missing == "observed" else Observation(stable=1.0, panic=1.0)
    ready_count = NOTHING if missing == "ready_count" else 3
    assert decide(state, observed=observed, ready_count=ready_count, spec=DEFAULTS, now_s=500.0) == (state, NOTHING)


def test_scale_up_is_limited_by_rate_rounded_up() -> None:
    # docs/calculations.md: 1.1 x 2 = 2.2, so 3.
    _, decision = decided(load=7000.0, ready_count=2, spec=spec_with(max_scale_up_rate=1.1))
    assert counts(decision) == (3, ScalerMode.PANIC, ScaleLimit.UP_RATE)
    assert decision.rate_count_max == 3


def test_scale_down_is_limited_by_rate_rounded_down() -> None:
    # docs/calculations.md: 5 / 2 = 2.5, so 2.
    _, decision = decided(load=0.0, ready_count=5)
    assert counts(decision) == (2, ScalerMode.STABLE, ScaleLimit.DOWN_RATE)
    assert decision.rate_count_min == 2


def test_any_load_wants_activation_scale_beyond_rate() -> None:
    spec = spec_with(activation_scale=4, max_scale_up_rate=2.0)
    _, decision = decided(load=1.0, spec=spec)
    assert counts(decision) == (4, ScalerMode.STABLE, ScaleLimit.ACTIVATION_SCALE)
    assert decided(load=0.0, spec=spec)[1].desired_count == 0


def test_panic_begins_when_rounded_count_reaches_threshold() -> None:
    # docs/calculations.md: one pod, 71 at 70 a pod: 2 pods over 1 ready.
    state, decision = decided(load=10.0, panic_load=71.0, now_s=30.0)
    assert counts(decision) == (2, ScalerMode.PANIC, None)
    assert decision.is_over_panic_threshold
    assert (state.panic_since_s, state.panic_count_max) == (30.0, 2)


def test_panic_lasts_one_stable_window_after_last_cause() -> None:
    # docs/calculations.md: at 60 s still, at 60.5 s no more.
    state, _ = decided(load=700.0, now_s=0.0)
    assert decided(state, load=70.0, ready_count=10, now_s=60.0)[1].desired_count == 10
    state, decision = decided(state, load=70.0, ready_count=10, now_s=60.5)
    assert counts(decision) == (5, ScalerMode.STABLE, ScaleLimit.DOWN_RATE)
    assert (state.panic_since_s, state.panic_count_max) == (None, 0)


def test_lower_count_is_delayed() -> None:
    spec = spec_with(scale_down_delay_s=6.0)
    state, _ = decided(load=280.0, ready_count=4, spec=spec, now_s=0.0)
    state, decision = decided(state, load=70.0, ready_count=4, spec=spec, now_s=4.0)
    assert counts(decision) == (4, ScalerMode.STABLE, ScaleLimit.SCALE_DOWN_DELAY)
    assert (decision.undelayed_count, decision.delayed_count) == (2, 4)
    assert decided(state, load=70.0, ready_count=4, spec=spec, now_s=6.0)[1].desired_count == 2


def test_unreachable_revision_has_no_delay() -> None:
    spec = spec_with(scale_down_delay_s=6.0, reachable=False)
    state, decision = decided(load=280.0, ready_count=4, spec=spec)
    assert decision.desired_count == 4
    assert decided(state, load=0.0, ready_count=4, spec=spec, now_s=2.0)[1].desired_count == 0


def test_changed_delay_applies_at_once() -> None:
    state, _ = decided(restarted(ready_count=1), load=280.0, ready_count=4)
    delayed = spec_with(scale_down_delay_s=6.0)
    state, _ = decided(state, load=280.0, ready_count=4, spec=delayed, now_s=100.0)
    assert decided(state, load=70.0, ready_count=4, spec=delayed, now_s=102.0)[1].desired_count == 4
    assert decided(state, load=70.0, ready_count=4, now_s=102.0)[1].desired_count == 2


@pytest.mark.parametrize(
    ("quirks", "max_scale", "reachable", "desired_count"),
    [(SAFE, 0, True, 3), (SAFE, 2, True, 2), (SAFE, 0, False, 0), (ORIGINAL, 0, True, 0)],
)
def test_delay_includes_initial_scale_except_in_original(
    quirks: KpaQuirks, max_scale: int, *, reachable: bool, desired_count: int
) -> None:
    spec = spec_with(
        initial_scale=3, scale_down_delay_s=120.0, max_scale=max_scale, reachable=reachable, max_scale_down_rate=1000.0
    )
    state = restarted(ready_count=0, delay_s=120.0, quirks=quirks)
    state = with_initial_scale(state, spec=spec, now_s=1.0, quirks=quirks)
    for now_s, count in ((2.0, desired_count), (119.0, desired_count), (120.0, 0)):
        state, decision = decided(state, load=0.0, ready_count=3, spec=spec, now_s=now_s, quirks=quirks)
        assert decision.desired_count == count


def test_original_retains_delay_of_scaler_creation() -> None:
    state, _ = decided(restarted(ready_count=1, delay_s=6.0), load=280.0, ready_count=4, quirks=ORIGINAL)
    _, decision = decided(state, load=70.0, ready_count=4, now_s=2.0, quirks=ORIGINAL)
    assert counts(decision) == (4, ScalerMode.STABLE, ScaleLimit.SCALE_DOWN_DELAY)


def test_restart_with_several_ready_pods_begins_in_panic() -> None:
    _, decision = decided(restarted(ready_count=5), load=0.0, ready_count=5, now_s=2.0)
    assert counts(decision) == (5, ScalerMode.PANIC, ScaleLimit.PANIC_HOLD)


def test_restart_allows_immediate_scale_up() -> None:
    _, decision = decided(restarted(ready_count=1), load=280.0, ready_count=1, now_s=2.0)
    assert decision.desired_count == 4


def test_original_removes_single_pod_after_restart() -> None:
    state = restarted(ready_count=1, quirks=ORIGINAL)
    assert decided(state, load=0.0, now_s=2.0, quirks=ORIGINAL)[1].desired_count == 0
    assert decided(restarted(ready_count=1), load=0.0, now_s=2.0)[1].desired_count == 1


def test_equal_inputs_give_equal_decisions() -> None:
    _, decision = decided(CALM, load=95.0, panic_load=300.0, ready_count=2, now_s=7.0)
    again = decided(
        CALM,
        load=decision.observed_stable,
        panic_load=decision.observed_panic,
        ready_count=decision.ready_count,
        now_s=decision.at_s,
    )
    assert again[1] == decision
