"""The learnt target in each mode and unit, and the saved state."""

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import TargetMode
from serving.core.scaling.learnt.target import (
    LearntState,
    LearntTarget,
    TargetBound,
    in_flight,
    learnt_target,
    read_state,
    with_saved_target,
    with_target,
)
from serving.core.scaling.spec import ScalingSpec
from tests.unit.core.scaling.kpa_builders import spec_with

RPS = spec_with(metric="rps", target_value=140.0, total_value=200.0, target_mode=TargetMode.USE)


def state(total: float = 10.3, bound: TargetBound | None = TargetBound.CPU, above: float | None = 8.0) -> LearntState:
    return LearntState(total=total, bound=bound, above=above, response_s=0.1)


def learnt(learnt_state: LearntState, spec: ScalingSpec) -> LearntTarget | None:
    return learnt_target(learnt_state, spec, total_max=1000.0)


@pytest.mark.parametrize(
    ("mode", "bound", "total", "is_used"),
    [
        (TargetMode.SHADOW, TargetBound.CPU, 10.0, False),
        (TargetMode.USE, None, 150.0, True),
        (TargetMode.USE, TargetBound.LATENCY, 10.0, True),
        (TargetMode.PROTECT, TargetBound.CPU, 10.0, True),
        (TargetMode.PROTECT, TargetBound.MEMORY, 10.0, True),
        (TargetMode.PROTECT, TargetBound.LATENCY, 10.0, False),
        (TargetMode.PROTECT, TargetBound.CPU, 100.0, False),
        (TargetMode.PROTECT, TargetBound.CPU, 150.0, False),
        (TargetMode.PROTECT, None, 150.0, False),
    ],
)
def test_protect_mode_only_lowers_target_bound_by_cpu_or_memory(
    mode: TargetMode, bound: TargetBound | None, total: float, *, is_used: bool
) -> None:
    learnt_state, spec = state(total, bound), spec_with(target_mode=mode)
    assert learnt(learnt_state, spec) == LearntTarget(total=total, bound=bound, above=8.0, is_used=is_used)
    decided = with_target(spec, learnt(learnt_state, spec), learnt_state)
    assert decided.total_value == (total if is_used else 100.0)
    assert mode is not TargetMode.PROTECT or decided.total_value <= spec.total_value


def test_no_target_is_learnt_if_off_or_for_gauges() -> None:
    assert learnt(state(), spec_with(target_mode=TargetMode.OFF)) is None
    assert learnt(state(), spec_with(metric="queue-length")) is None
    assert learnt(LearntState(), spec_with()) is None


def test_rps_target_is_concurrency_over_response_time() -> None:
    """8 requests of 0.1 s are 80 a second, of which 70 % are aimed at; 5.6 of them are in flight then."""
    target = learnt(state(), RPS)
    assert target is not None
    assert (target.total, target.above) == pytest.approx((80.0, 80.0))
    spec = with_target(RPS, target, state())
    assert (spec.total_value, spec.target_value) == pytest.approx((80.0, 56.0))
    assert spec.target_concurrency == pytest.approx(10.3 * 0.7)


def test_rps_target_keeps_headroom_with_memory_or_no_bound() -> None:
    by_memory, free = learnt(state(3.4, TargetBound.MEMORY, 10.0), RPS), learnt(state(50.0, None, None), RPS)
    assert by_memory is not None
    assert free is not None
    assert by_memory.total == pytest.approx(34.0)
    assert free.total == pytest.approx(500.0)
    assert free.above is None
    assert learnt(LearntState(total=5.0), RPS) is None


def test_rps_spec_is_learnt_in_concurrency() -> None:
    assert in_flight(RPS).metric == "concurrency"
    assert (in_flight(RPS).total_value, in_flight(RPS).target_value) == pytest.approx((100.0, 70.0))


def test_activator_uses_saved_target() -> None:
    text = msgspec.json.encode(state()).decode()
    spec = spec_with(target_mode=TargetMode.PROTECT)
    assert with_saved_target(spec, text, total_max=1000.0).target_concurrency == pytest.approx(10.3 * 0.7)
    assert with_saved_target(spec_with(), text, total_max=1000.0) == spec_with()
    for unreadable in ("", "{", '{"total": -1}', "[]"):
        assert with_saved_target(spec, unreadable, total_max=1000.0) is spec
    with pytest.raises(InvalidValue, match="a learnt target, as JSON"):
        read_state("[]")
