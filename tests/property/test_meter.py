"""The meter equals a naive integral and counts load once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.meter import Meter, Report
from tests.invariants import validate

# Sixteenths of a second are exact in binary, so sums are compared without a tolerance.
TICK_S = 1 / 16
Span = tuple[int, int, bool]
SPANS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 60), st.booleans()), max_size=30)
PERIODS = st.lists(st.integers(1, 40), min_size=1, max_size=10)


def metered(spans: Sequence[Span], report_ticks: Sequence[int]) -> list[Report]:
    """Reports of requests given by start, length and kind; at equal times arrivals first, then ends, then reports."""
    calls = [(start, 0, proxied) for start, _, proxied in spans]
    calls += [(start + length, 1, proxied) for start, length, proxied in spans]
    calls += [(tick, 2, False) for tick in report_ticks]
    meter = Meter(now_s=0.0)
    reports = []
    for tick, kind, proxied in sorted(calls):
        if kind == 0:
            meter.arrive(tick * TICK_S, proxied=proxied)
        elif kind == 1:
            meter.exit(tick * TICK_S, proxied=proxied)
        else:
            reports.append(meter.report(tick * TICK_S))
        validate(meter)
    return reports


def report_ticks(periods: Sequence[int]) -> list[int]:
    return [sum(periods[: index + 1]) for index in range(len(periods))]


@given(spans=SPANS, periods=PERIODS)
def test_concurrency_is_the_time_integral_of_the_requests(spans: list[Span], periods: list[int]) -> None:
    ends = report_ticks(periods)
    for begin, end, report in zip([0, *ends], ends, metered(spans, ends), strict=False):
        overlaps = [(max(0, min(start + length, end) - max(start, begin)), proxied) for start, length, proxied in spans]
        assert report.period_s == (end - begin) * TICK_S
        assert report.concurrency == sum(ticks for ticks, _ in overlaps) / (end - begin)
        assert report.proxied_concurrency == sum(ticks for ticks, proxied in overlaps if proxied) / (end - begin)


@given(spans=SPANS, periods=PERIODS)
def test_each_arrival_is_reported_once(spans: list[Span], periods: list[int]) -> None:
    ends = [*report_ticks(periods), 1000]
    reports = metered(spans, ends)
    assert sum(report.request_count for report in reports) == len(spans)
    assert sum(report.proxied_request_count for report in reports) == sum(proxied for _, _, proxied in spans)


@given(spans=SPANS, periods=PERIODS)
def test_proxied_load_is_part_of_the_load(spans: list[Span], periods: list[int]) -> None:
    for report in metered(spans, report_ticks(periods)):
        assert 0 <= report.proxied_concurrency <= report.concurrency
        assert 0 <= report.proxied_request_count <= report.request_count


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["arrive", "exit", "report"]), st.floats(0, 1e6), st.booleans()), max_size=60
    )
)
def test_concurrency_never_exceeds_the_arrivals_for_any_call_order(calls: list[tuple[str, float, bool]]) -> None:
    meter = Meter(now_s=0.0)
    arrived = 0
    for call, now_s, proxied in calls:
        if call == "report":
            report = meter.report(now_s)
            assert 0 <= report.concurrency <= arrived * (1 + 1e-9)
        elif call == "arrive":
            meter.arrive(now_s, proxied=proxied)
            arrived += 1
        else:
            meter.exit(now_s, proxied=proxied)
        validate(meter)


@given(splits=st.lists(st.floats(0.001, 10), min_size=1, max_size=20))
def test_frequent_reports_sum_to_a_single_report(splits: list[float]) -> None:
    often, once = Meter(now_s=0.0), Meter(now_s=0.0)
    for meter in (often, once):
        meter.arrive(0.0, proxied=False)
    now_s, held_s = 0.0, 0.0
    for split in splits:
        now_s += split
        report = often.report(now_s)
        held_s += report.concurrency * report.period_s
    whole = once.report(now_s)
    assert held_s == pytest.approx(whole.concurrency * whole.period_s)
