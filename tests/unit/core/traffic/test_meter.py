"""Request statistics: worked numbers, and unpaired calls."""

import pytest

from serving.core.model.stat import Stat
from serving.core.settings.queueproxy import ORIGINAL
from serving.core.traffic.meter import Meter, Report, stat_of
from tests.invariants import validate


def report(  # the figures of a period in which nothing happened, but for those given
    *,
    period_s: float = 1.0,
    concurrency: float = 0.0,
    proxied_concurrency: float = 0.0,
    request_count: int = 0,
    proxied_request_count: int = 0,
    unmatched_leaves: int = 0,
) -> Report:
    return Report(
        period_s=period_s,
        concurrency=concurrency,
        proxied_concurrency=proxied_concurrency,
        request_count=request_count,
        proxied_request_count=proxied_request_count,
        unmatched_leaves=unmatched_leaves,
    )


def test_proxied_requests_count_in_both_figures() -> None:
    meter = Meter(now_s=10.0)
    meter.arrive(10.0, proxied=False)
    meter.arrive(10.25, proxied=True)
    meter.exit(10.5, proxied=False)
    meter.exit(10.75, proxied=True)
    assert meter.report(11.0) == report(
        concurrency=1.0, proxied_concurrency=0.5, request_count=2, proxied_request_count=1
    )


def test_arrivals_of_a_period_without_time_are_reported() -> None:
    meter = Meter(now_s=5.0)
    meter.arrive(5.0, proxied=False)
    assert meter.report(5.0) == report(period_s=0.0, request_count=1)


def test_time_that_goes_back_counts_as_the_last_time_seen() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(1.0, proxied=False)
    meter.exit(0.5, proxied=False)
    meter.arrive(1.5, proxied=False)
    assert meter.report(2.0) == report(period_s=2.0, concurrency=0.25, request_count=2)


def test_the_level_is_what_is_inside_proxied_or_not() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(0.0, proxied=False)
    meter.arrive(0.0, proxied=True)
    assert meter.level == 2


def test_a_leave_without_an_arrive_is_counted_and_changes_no_level() -> None:
    meter = Meter(now_s=0.0)
    meter.exit(0.5, proxied=False)
    validate(meter)
    assert meter.report(1.0) == report(unmatched_leaves=1)


def test_a_leave_of_the_other_kind_is_unmatched() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(0.0, proxied=True)
    meter.exit(0.5, proxied=False)
    assert meter.report(1.0) == report(
        concurrency=1.0, proxied_concurrency=1.0, request_count=1, proxied_request_count=1, unmatched_leaves=1
    )


def test_unmatched_leaves_are_counted_per_period() -> None:
    meter = Meter(now_s=0.0)
    meter.exit(0.5, proxied=True)
    meter.report(1.0)
    assert meter.report(2.0).unmatched_leaves == 0


def test_after_an_unmatched_leave_the_original_reads_too_low_permanently() -> None:
    meter = Meter(now_s=0.0, quirks=ORIGINAL)
    meter.exit(0.5, proxied=False)
    assert meter.report(1.0) == report(concurrency=-0.5, unmatched_leaves=1)
    meter.arrive(1.5, proxied=False)
    assert meter.report(2.0) == report(concurrency=-0.5, request_count=1)


def test_with_the_original_a_leave_of_the_other_kind_makes_load_out_of_nothing() -> None:
    meter = Meter(now_s=0.0, quirks=ORIGINAL)
    meter.arrive(0.0, proxied=True)
    meter.exit(0.5, proxied=False)
    meter.report(1.0)
    assert meter.report(2.0) == report(concurrency=0.0, proxied_concurrency=1.0)


def test_the_stat_of_a_late_report_brings_all_of_its_requests() -> None:
    late = report(period_s=5.0, concurrency=2.5, request_count=500, proxied_request_count=100)
    assert stat_of(late, pod="pod-1", at_s=60.0, report_period_s=1.0) == Stat(
        pod="pod-1",
        at_s=60.0,
        concurrency=2.5,
        request_count=500.0,
        proxied_concurrency=0.0,
        proxied_request_count=100.0,
    )


def test_the_stat_counts_per_second_of_the_period_that_is_set() -> None:
    stat = stat_of(report(request_count=7, proxied_request_count=3), pod="pod-1", at_s=0.0, report_period_s=2.0)
    assert (stat.request_count, stat.proxied_request_count) == (3.5, 1.5)


def test_validate_reports_a_negative_level() -> None:
    meter = Meter(now_s=0.0, quirks=ORIGINAL)
    meter.exit(0.0, proxied=False)
    with pytest.raises(AssertionError, match="inside -1"):
        validate(meter)


def test_a_skipped_idle_time_does_not_thin_the_load() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(3600.0, proxied=False)
    meter.skip_idle()
    assert meter.report(3601.0) == report(concurrency=1.0, request_count=1)


def test_a_time_with_a_request_is_not_skipped() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(0.0, proxied=False)
    meter.exit(0.5, proxied=False)
    meter.skip_idle()
    assert meter.report(1.0) == report(concurrency=0.5, request_count=1)
