import bisect
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.dashboard.quantiles import quantile
from serving.metrics.names import BUCKETS_S

RATIOS = (0.5, 0.95, 0.99)


def histogram(values: list[float]) -> list[tuple[float, float]]:
    values = sorted(values)
    return [(bound, float(bisect.bisect_right(values, bound))) for bound in (*BUCKETS_S, math.inf)]


def straight(counts: list[tuple[float, float]], ratio: float) -> float:
    """As Prometheus has it."""
    rank, low, passed = ratio * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            return low + (bound - low) * (rank - passed) / (count - passed)
        low, passed = bound, count
    raise AssertionError


# Seconds: exponential, log-normal and of several stages, as servers answer; the worst error that each p95 and p99 may have.
SHAPES: dict[str, tuple[Callable[[random.Random], float], float]] = {
    "exponential 100 ms": (lambda dice: dice.expovariate(10), 0.06),
    "exponential 30 ms": (lambda dice: dice.expovariate(33), 0.25),
    "log-normal 80 ms": (lambda dice: dice.lognormvariate(math.log(0.08), 0.5), 0.12),
    "log-normal 300 ms": (lambda dice: dice.lognormvariate(math.log(0.3), 0.4), 0.15),
    "two stages 20 ms": (lambda dice: dice.gammavariate(2, 0.02), 0.30),
    "long tail": (lambda dice: 0.02 * dice.paretovariate(1.8), 0.05),
}


@pytest.mark.parametrize("name", SHAPES)
def test_latencies_as_servers_have_them_come_out_nearer_than_on_a_straight_line(name: str) -> None:
    shape, error_max = SHAPES[name]
    dice = random.Random(1)
    values = sorted(shape(dice) for _ in range(20_000))
    counts, errors, straight_errors = histogram(values), [], []
    for ratio in (0.95, 0.99):
        true = values[math.ceil(ratio * len(values)) - 1]
        found = quantile(counts, ratio)
        assert found is not None
        errors.append(abs(found / true - 1))
        straight_errors.append(abs(straight(counts, ratio) / true - 1))
    assert max(errors) < error_max
    assert sum(errors) < 0.7 * sum(straight_errors)


@given(st.lists(st.floats(0.0001, 50.0), min_size=1), st.sampled_from(RATIOS))
def test_a_quantile_is_in_the_bucket_where_it_lies_and_more_is_never_less(values: list[float], ratio: float) -> None:
    counts = histogram(values)
    true = sorted(values)[math.ceil(ratio * len(values)) - 1]
    found = quantile(counts, ratio)
    assert found is not None
    place = bisect.bisect_left(BUCKETS_S, true)
    low = BUCKETS_S[place - 1] if place else BUCKETS_S[0] / 2
    assert low * 0.999 <= found <= BUCKETS_S[place] * 1.001
    found_all = [quantile(counts, one) or 0.0 for one in RATIOS]
    assert found_all == sorted(found_all)


def test_beyond_the_last_bound_nothing_is_known_but_that() -> None:
    assert quantile([(0.1, 1.0), (0.4, 2.0), (math.inf, 100.0)], 0.95) == 0.4


def test_nothing_has_no_quantile() -> None:
    assert quantile([], 0.5) is None
    assert quantile([(0.1, 0.0), (math.inf, 0.0)], 0.5) is None
    assert quantile([(math.inf, 3.0)], 0.5) is None
