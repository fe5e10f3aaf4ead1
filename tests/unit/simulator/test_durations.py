"""Times from a median and a 99th percentile."""

import itertools
import statistics

import pytest

from serving.simulator.durations import DurationModel, Quantiles, durations_of


def test_a_constant_is_the_same_each_time() -> None:
    assert list(itertools.islice(durations_of(Quantiles(p50_s=2.0, p99_s=2.0), "x"), 3)) == [2.0, 2.0, 2.0]


def test_a_distribution_keeps_its_quantiles_and_its_seed() -> None:
    quantiles = Quantiles(p50_s=1.0, p99_s=10.0)
    times = list(itertools.islice(durations_of(quantiles, "x"), 20_000))
    assert statistics.median(times) == pytest.approx(1.0, rel=0.05)
    assert statistics.quantiles(times, n=100)[98] == pytest.approx(10.0, rel=0.15)
    assert times[:5] == list(itertools.islice(durations_of(quantiles, "x"), 5))


def test_a_function_without_times_of_its_own_has_the_default() -> None:
    own, default = Quantiles(p50_s=1.0, p99_s=1.0), Quantiles(p50_s=2.0, p99_s=2.0)
    model = DurationModel(default=default, by_function={"a": own})
    assert (model.of("a"), model.of("b")) == (own, default)
