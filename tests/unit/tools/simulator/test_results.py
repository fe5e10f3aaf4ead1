"""Waits as percentiles, and pods over time."""

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.simulator.report import bars, sparkline
from serving.tools.simulator.results import (
    SERIES_COLUMNS,
    DurationModel,
    PodSeries,
    Quantiles,
    WaitHistogram,
    durations_of,
    summed,
)


@given(waits_s=st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200), share=st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_histogram_percentile_is_within_1_percent_of_the_exact_one(waits_s: list[float], share: float) -> None:
    histogram = WaitHistogram()
    for wait_s in waits_s:
        histogram.add(wait_s)
    ranked = sorted(waits_s)
    exact = ranked[max(0, -int(-share * len(ranked) // 1) - 1)]
    assert histogram.percentile(share, requests=len(waits_s)) == pytest.approx(exact, rel=0.011)


def test_percentiles_include_unqueued_requests_and_merged_histograms() -> None:
    first, second = WaitHistogram(), WaitHistogram()
    first.add(2.0)
    second.add(2.0)
    second.add(4.0)
    first.update(second)
    assert first.count == 3
    assert [first.above(wait_s) for wait_s in (1.0, 3.0, 5.0)] == [3, 1, 0]
    assert [first.percentile(share, requests=100) for share in (0.97, 0.98, 1.0)] == [0.0, 2.0, 4.0]
    assert WaitHistogram().percentile(0.99, requests=5) == 0.0


def test_pod_series_has_means_of_equal_intervals() -> None:
    series = PodSeries(SERIES_COLUMNS * 10.0)
    series.add(5.0, 20.0)
    series.add(0.0, 1e9)
    assert series.means()[:3] == pytest.approx([1.5, 2.0, 1.0])
    assert summed([[1.0, 2.0], [3.0, 4.0]]) == [4.0, 6.0]


def test_charts_are_scaled_to_their_maximum() -> None:
    assert sparkline([0.0, 1.0, 2.0]) == " ▄█"
    assert (sparkline([]), sparkline([0.0])) == ("", " ")
    lines = list(bars({"a": {"cold": 1.0}, "b": {"cold": 2.0}}))
    assert lines[0] == "cold"
    assert lines[1].count("█") * 2 == lines[2].count("█")
    assert list(bars({"a": {"cold": 0.0}}))[1].count("█") == 0


def test_equal_quantiles_yield_a_constant_duration() -> None:
    assert list(itertools.islice(durations_of(Quantiles(p50_s=2.0, p99_s=2.0), "x"), 3)) == [2.0, 2.0, 2.0]


def test_durations_match_their_quantiles_and_are_deterministic() -> None:
    quantiles = Quantiles(p50_s=1.0, p99_s=10.0)
    times = list(itertools.islice(durations_of(quantiles, "x"), 20_000))
    assert statistics.median(times) == pytest.approx(1.0, rel=0.05)
    assert statistics.quantiles(times, n=100)[98] == pytest.approx(10.0, rel=0.15)
    assert times[:5] == list(itertools.islice(durations_of(quantiles, "x"), 5))


def test_function_without_own_quantiles_uses_the_default() -> None:
    own, default = Quantiles(p50_s=1.0, p99_s=1.0), Quantiles(p50_s=2.0, p99_s=2.0)
    model = DurationModel(default=default, by_function={"a": own})
    assert (model.of("a"), model.of("b")) == (own, default)
