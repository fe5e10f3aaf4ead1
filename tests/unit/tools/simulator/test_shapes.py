"""Synthetic workloads: deterministic per seed, ordered and within their length."""

import math
from itertools import pairwise

import pytest

from serving.tools.simulator.shapes import Shape, ShapedFunction, shaped


@pytest.mark.parametrize("shape", list(Shape))
def test_shaped_requests_are_deterministic_and_ordered(shape: Shape) -> None:
    functions, length_s = shaped(shape)
    assert len({function.name for function in functions}) == len(functions)
    function = functions[-1]
    times = [at_s for at_s, _ in function.arrivals(3)]
    assert times == [at_s for at_s, _ in function.arrivals(3)]
    assert times != [at_s for at_s, _ in function.arrivals(4)]
    assert all(before <= after for before, after in pairwise(times))
    assert times[0] >= 0
    assert times[-1] < length_s
    assert function.request_count == len(list(function.arrivals(1))) > 5
    assert all(math.isnan(took_s) for _, took_s in function.arrivals(1))


def test_step_shape_has_20_times_the_rate_in_its_middle() -> None:
    times = [at_s for at_s, _ in ShapedFunction(shape=Shape.STEP, number=0).arrivals(1)]
    middle = sum(600 <= at_s < 1800 for at_s in times) / 1200
    assert middle == pytest.approx(20, rel=0.1)
    assert (len(times) - middle * 1200) / 2400 == pytest.approx(1, rel=0.2)


def test_diurnal_shape_has_no_requests_at_night() -> None:
    times = [at_s for at_s, _ in ShapedFunction(shape=Shape.DIURNAL, number=7).arrivals(1)]
    assert max(times) < 43_500
    assert sum(18_000 <= at_s < 25_200 for at_s in times) / 120 == pytest.approx(7.9, rel=0.1)
