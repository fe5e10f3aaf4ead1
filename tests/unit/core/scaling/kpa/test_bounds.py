import pytest

from serving.core.scaling.kpa.merge import ScaleBound, bounded, ready_count_min
from tests.unit.core.scaling.kpa_builders import spec_with


@pytest.mark.parametrize(
    ("count", "min_scale", "max_scale", "bounded_count", "limited_by"),
    [
        (3, 0, 0, 3, None),
        (1, 2, 0, 2, ScaleBound.MIN_SCALE),
        (2, 2, 5, 2, None),
        (9, 2, 5, 5, ScaleBound.MAX_SCALE),
        (10**9, 2, 0, 10**9, None),
    ],
)
def test_count_is_bounded_by_min_and_max_scale(
    count: int, min_scale: int, max_scale: int, bounded_count: int, limited_by: ScaleBound | None
) -> None:
    spec = spec_with(min_scale=min_scale, max_scale=max_scale)
    response = bounded(count, spec=spec, is_initialized=True)
    assert (response.count, response.limited_by) == (bounded_count, limited_by)
    assert (response.count_min, response.count_max) == (min_scale, max_scale)


@pytest.mark.parametrize(
    ("is_initialized", "initial_scale", "bounded_count", "limited_by"),
    [
        (False, 5, 5, ScaleBound.INITIAL_SCALE),
        (True, 5, 2, ScaleBound.MIN_SCALE),
        (False, 1, 2, ScaleBound.MIN_SCALE),
        (False, 0, 2, ScaleBound.MIN_SCALE),
    ],
)
def test_initial_scale_is_minimum_until_first_reached(
    *, is_initialized: bool, initial_scale: int, bounded_count: int, limited_by: ScaleBound
) -> None:
    spec = spec_with(min_scale=2, initial_scale=initial_scale)
    response = bounded(0, spec=spec, is_initialized=is_initialized)
    assert (response.count, response.limited_by) == (bounded_count, limited_by)


def test_initial_scale_of_1_retains_no_pod() -> None:
    assert bounded(0, spec=spec_with(initial_scale=1), is_initialized=False).count == 0


def test_max_scale_overrides_initial_scale() -> None:
    # docs/calculations.md: min 2, initial 5, max 4.
    spec = spec_with(min_scale=2, initial_scale=5, max_scale=4)
    response = bounded(0, spec=spec, is_initialized=False)
    assert (response.count, response.limited_by) == (4, ScaleBound.MAX_SCALE)


def test_count_restored_by_second_bound_is_not_limited() -> None:
    spec = spec_with(initial_scale=5, max_scale=4)
    assert bounded(4, spec=spec, is_initialized=False).limited_by is None


def test_unreachable_revision_has_maximum_but_no_minimum() -> None:
    spec = spec_with(min_scale=2, initial_scale=5, max_scale=7, reachable=False)
    assert bounded(0, spec=spec, is_initialized=False).count == 0
    assert bounded(9, spec=spec, is_initialized=False).count == 7


@pytest.mark.parametrize(
    ("is_initialized", "min_scale", "initial_scale", "reachable", "ready_min"),
    [
        (True, 0, 5, True, 1),
        (True, 3, 5, True, 3),
        (False, 3, 5, True, 5),
        (False, 0, 0, True, 0),
        (True, 3, 5, False, 1),
        (False, 3, 5, False, 5),
    ],
)
def test_active_phase_requires_ready_minimum(
    *, is_initialized: bool, min_scale: int, initial_scale: int, reachable: bool, ready_min: int
) -> None:
    spec = spec_with(min_scale=min_scale, initial_scale=initial_scale, reachable=reachable)
    assert ready_count_min(spec, is_initialized=is_initialized) == ready_min
