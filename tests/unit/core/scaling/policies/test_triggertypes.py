"""The usage measured by each type, and the resulting pods."""

import math
from fractions import Fraction

import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.scaling.policies.points import UsagePoint
from serving.core.scaling.policies.scalingpolicy import Trigger, check_scaling_policy
from serving.core.scaling.policies.tick import TriggerRule, TriggerState, decide
from serving.core.scaling.policies.triggertypes import (
    REGISTRY,
    ContainerUse,
    FixedStepPolicy,
    ObservedPods,
    OccupancyPolicy,
    ResourcePolicy,
    TriggerPolicy,
    bound_ratio,
    fraction_of_percent,
    round_half_away,
    share_of,
    single,
)
from serving.core.settings.triggers import ORIGINAL, TriggerQuirks, TriggerSettings
from tests.unit.core.scaling.policies.builders import pods, policy, trigger, using

EXACT = TriggerQuirks()
SINGLE = TriggerQuirks(single_precision=True)
ROOM = OccupancyPolicy()
CPU = ResourcePolicy("cpu_m")

MEASURED = ContainerUse(requested=Resources(cpu_m=1000), used=Resources(cpu_m=900))
SILENT = ContainerUse(requested=Resources(cpu_m=1000))
BOUNDLESS = ContainerUse(used=Resources(cpu_m=900))
BY_ZERO = TriggerQuirks(divides_by_zero=True)


def test_occupancy_without_pods_has_no_data() -> None:
    assert isinstance(ROOM.usage_ratio(pods(), EXACT), NoData)


def test_occupancy_delta_rounds_exact_half_away_from_zero() -> None:
    # 7 / 0.56 = 12.5; in binary fractions it is 12.499999999999998.
    observed = pods(idle=3, occupied=7)
    assert (ROOM.delta(trigger(56), observed, EXACT), ROOM.delta(trigger(56), observed, SINGLE)) == (3, 2)


def test_occupancy_target_of_0_has_no_delta() -> None:
    assert isinstance(ROOM.delta(trigger(0), pods(occupied=1), EXACT), NoData)


def test_fixed_step_uses_occupancy_and_its_own_delta() -> None:
    fixed = Trigger(type="fixed-step", usage_percent=70, delta=-3)
    observed = pods(idle=2, occupied=8)
    legacy = FixedStepPolicy()
    assert (legacy.usage_ratio(observed, EXACT), legacy.delta(fixed, observed, EXACT)) == (0.8, -3)


def test_cpu_usage_is_use_over_requests() -> None:
    container_use = ContainerUse(requested=Resources(cpu_m=1000), used=Resources(cpu_m=900))
    other = ContainerUse(requested=Resources(cpu_m=1000), used=Resources(cpu_m=100))
    assert CPU.usage_ratio(ObservedPods(pods=((container_use,), (other,))), EXACT) == 0.5


def test_mem_usage_is_use_over_requests() -> None:
    container = ContainerUse(requested=Resources(memory_bytes=2**30), used=Resources(memory_bytes=2**29))
    assert REGISTRY["mem"].usage_ratio(ObservedPods(pods=((container,),)), EXACT) == 0.5


@pytest.mark.parametrize(
    ("cpu_m", "usage", "delta"),
    [(900, 70, 3), (700, 70, 0), (100, 50, -8), (0, 50, -10)],
)
def test_cpu_delta_is_use_over_target_rounded_up(cpu_m: int, usage: int, delta: int) -> None:
    assert CPU.delta(trigger(usage), using(cpu_m, 1000), EXACT) == delta


@pytest.mark.parametrize(("cpu_m", "delta"), [(703, 0), (704, 10), (697, 0), (696, -10)])
def test_usage_within_half_a_percent_of_target_changes_nothing(cpu_m: int, delta: int) -> None:
    assert CPU.delta(trigger(70), using(cpu_m, 1000, occupied=1000, idle=0), EXACT) == delta


def test_rounding_error_adds_no_pod() -> None:
    observed = using(1100, 1000, occupied=100, idle=0)
    assert (CPU.delta(trigger(100), observed, EXACT), CPU.delta(trigger(100), observed, SINGLE)) == (10, 11)


def test_cpu_without_measurements_has_no_data() -> None:
    observed = pods(idle=1)
    assert isinstance(CPU.usage_ratio(observed, EXACT), NoData)
    assert isinstance(CPU.delta(trigger(70), observed, EXACT), NoData)


def test_cpu_without_requests_has_no_delta_even_in_original() -> None:
    observed = using(100, None)
    assert CPU.usage_ratio(observed, ORIGINAL) == float("inf")
    assert CPU.delta(trigger(70), observed, ORIGINAL) == NoData(missing="a finite use of cpu_m")


def test_cpu_target_of_0_has_no_delta() -> None:
    assert isinstance(CPU.delta(trigger(0), using(100, 1000), EXACT), NoData)


@pytest.mark.parametrize(
    ("containers", "usage", "usage_in_original"),
    [((MEASURED, SILENT), 0.9, 0.45), ((MEASURED, BOUNDLESS), 0.9, 1.8)],
)
def test_only_original_counts_unmeasured_containers(
    containers: tuple[ContainerUse, ...], usage: float, usage_in_original: float
) -> None:
    counting = TriggerQuirks(counts_unmeasured_containers=True)
    observed = ObservedPods(pods=(containers,))
    usages = [CPU.usage_ratio(observed, quirks) for quirks in (EXACT, counting)]
    assert usages == [usage, usage_in_original]


def test_request_of_0_counts_as_missing() -> None:
    zero = ContainerUse(requested=Resources(cpu_m=0), used=Resources(cpu_m=900))
    assert CPU.usage_ratio(ObservedPods(pods=((MEASURED, zero),)), EXACT) == 0.9


class QueueDepthPolicy:
    """A user-defined type: waiting requests, 10 per pod."""

    def usage_ratio(self, observed: ObservedPods, _quirks: TriggerQuirks, /) -> float | NoData:
        return observed.gauges["queue_depth"] / 10 / observed.available_count

    def delta(self, trigger: Trigger, observed: ObservedPods, _quirks: TriggerQuirks, /) -> int | NoData:
        return round(observed.gauges["queue_depth"] / 10 * 100 / trigger.usage_percent) - observed.available_count


def test_new_type_requires_only_a_registered_class() -> None:
    registry: dict[str, TriggerPolicy] = {**REGISTRY, "queue": QueueDepthPolicy()}
    spec = policy(up=(trigger(50, kind="queue"),))
    observed = msgspec.structs.replace(pods(idle=4), gauges={"queue_depth": 38.0})
    assert check_scaling_policy(spec, known_types=registry) == ()
    state, decision = decide(TriggerState(), observed, spec, settings=TriggerSettings(), now_s=0.0, policies=registry)
    # 38 waiting are 3.8 pods' worth: 0.95 of 4 pods, above the limit of 90 percent; 7.6 pods at 50 percent.
    assert (decision.rule, decision.change.delta) == (TriggerRule.LIMIT, 4)
    assert state.points["queue"] == (UsagePoint(at_s=0.0, usage_ratio=0.95),)


@pytest.mark.parametrize(
    ("number", "rounded"),
    [(0.7, 0.699999988079071), (0.5, 0.5), (16_777_217.0, 16_777_216.0), (math.inf, math.inf)],
)
def test_single_is_nearest_32_bit_float(number: float, rounded: float) -> None:
    assert single(number) == rounded


def test_share_is_exact() -> None:
    assert share_of([1, 2], [4, 2], EXACT) == Fraction(1, 2)


def test_share_in_original_has_32_bits() -> None:
    assert share_of([7], [10], ORIGINAL) == 0.699999988079071


def test_sums_in_original_have_32_bits() -> None:
    assert share_of([16_777_216, 1], [16_777_216], ORIGINAL) == 1.0


def test_share_of_zero_has_no_data() -> None:
    assert share_of([1], [0], EXACT) == NoData(missing="something that usage could be a share of")


@pytest.mark.parametrize("quirks", [ORIGINAL, BY_ZERO])
def test_share_of_zero_is_infinite_in_original(quirks: TriggerQuirks) -> None:
    assert share_of([1], [0], quirks) == math.inf


@pytest.mark.parametrize("quirks", [ORIGINAL, BY_ZERO])
def test_empty_share_is_nan_in_original(quirks: TriggerQuirks) -> None:
    share = share_of([], [], quirks)
    assert isinstance(share, float)
    assert math.isnan(share)


def test_fraction_of_percent_is_exact() -> None:
    assert (fraction_of_percent(70, EXACT), fraction_of_percent(70, ORIGINAL)) == (Fraction(7, 10), 0.7)


def test_bound_ratio_has_precision_of_usages() -> None:
    assert (bound_ratio(70, EXACT), bound_ratio(70, ORIGINAL)) == (0.7, 0.699999988079071)


def test_share_of_7_in_10_equals_bound_of_70_percent_in_both_precisions() -> None:
    shares = [share_of([7], [10], quirks) for quirks in (EXACT, ORIGINAL)]
    assert [float(share) for share in shares if not isinstance(share, NoData)] == [
        bound_ratio(70, EXACT),
        bound_ratio(70, ORIGINAL),
    ]


@pytest.mark.parametrize(
    ("number", "whole"),
    [
        (2.5, 3),
        (-2.5, -3),
        (2.4, 2),
        (-2.4, -2),
        (0, 0),
        (0.49999999999999994, 0),
        (Fraction(5, 2), 3),
        (Fraction(-5, 2), -3),
        (Fraction(-1, 3), 0),
    ],
)
def test_halves_are_rounded_away_from_zero(number: float | Fraction, whole: int) -> None:
    assert round_half_away(number) == whole


def test_available_pods_include_idle_occupied_and_creating() -> None:
    assert pods(idle=3, occupied=5, creating=2).available_count == 10
