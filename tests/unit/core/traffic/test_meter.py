"""Request statistics: worked numbers, and unpaired calls."""

import pytest

from serving.core.model.stat import Stat
from serving.core.settings.queueproxy import ORIGINAL
from serving.core.traffic.meter import Meter, Report, stat_of
from tests.invariants import validate


def report(  # an idle period, except for the arguments
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


def test_proxied_requests_count_in_total_and_proxied_figures() -> None:
    meter = Meter(now_s=10.0)
    meter.arrive(10.0, proxied=False)
    meter.arrive(10.25, proxied=True)
    meter.exit(10.5, proxied=False)
    meter.exit(10.75, proxied=True)
    assert meter.report(11.0) == report(
        concurrency=1.0, proxied_concurrency=0.5, request_count=2, proxied_request_count=1
    )


def test_report_of_period_without_duration_includes_arrivals() -> None:
    meter = Meter(now_s=5.0)
    meter.arrive(5.0, proxied=False)
    assert meter.report(5.0) == report(period_s=0.0, request_count=1)


def test_backward_clock_step_counts_as_latest_time() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(1.0, proxied=False)
    meter.exit(0.5, proxied=False)
    meter.arrive(1.5, proxied=False)
    assert meter.report(2.0) == report(period_s=2.0, concurrency=0.25, request_count=2)


def test_level_includes_direct_and_proxied_requests() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(0.0, proxied=False)
    meter.arrive(0.0, proxied=True)
    assert meter.level == 2


def test_exit_without_arrival_is_counted_and_retains_level() -> None:
    meter = Meter(now_s=0.0)
    meter.exit(0.5, proxied=False)
    validate(meter)
    assert meter.report(1.0) == report(unmatched_leaves=1)


def test_exit_of_other_kind_is_unmatched() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(0.0, proxied=True)
    meter.exit(0.5, proxied=False)
    assert meter.report(1.0) == report(
        concurrency=1.0, proxied_concurrency=1.0, request_count=1, proxied_request_count=1, unmatched_leaves=1
    )


def test_unmatched_exits_are_counted_per_period() -> None:
    meter = Meter(now_s=0.0)
    meter.exit(0.5, proxied=True)
    meter.report(1.0)
    assert meter.report(2.0).unmatched_leaves == 0


def test_original_underreports_concurrency_after_unmatched_exit() -> None:
    meter = Meter(now_s=0.0, quirks=ORIGINAL)
    meter.exit(0.5, proxied=False)
    assert meter.report(1.0) == report(concurrency=-0.5, unmatched_leaves=1)
    meter.arrive(1.5, proxied=False)
    assert meter.report(2.0) == report(concurrency=-0.5, request_count=1)


def test_original_reports_concurrency_after_exit_of_other_kind() -> None:
    meter = Meter(now_s=0.0, quirks=ORIGINAL)
    meter.arrive(0.0, proxied=True)
    meter.exit(0.5, proxied=False)
    meter.report(1.0)
    assert meter.report(2.0) == report(concurrency=0.0, proxied_concurrency=1.0)


def test_stat_of_late_report_includes_all_requests() -> None:
    late = report(period_s=5.0, concurrency=2.5, request_count=500, proxied_request_count=100)
    assert stat_of(late, pod="pod-1", at_s=60.0, report_period_s=1.0) == Stat(
        pod="pod-1",
        at_s=60.0,
        concurrency=2.5,
        request_count=500.0,
        proxied_concurrency=0.0,
        proxied_request_count=100.0,
    )


def test_stat_counts_requests_per_second_of_report_period() -> None:
    stat = stat_of(report(request_count=7, proxied_request_count=3), pod="pod-1", at_s=0.0, report_period_s=2.0)
    assert (stat.request_count, stat.proxied_request_count) == (3.5, 1.5)


def test_validate_reports_negative_level() -> None:
    meter = Meter(now_s=0.0, quirks=ORIGINAL)
    meter.exit(0.0, proxied=False)
    with pytest.raises(AssertionError, match="inside -1"):
        validate(meter)


def test_skipped_idle_time_does_not_lower_concurrency() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(3600.0, proxied=False)
    meter.skip_idle()
    assert meter.report(3601.0) == report(concurrency=1.0, request_count=1)


def test_period_with_request_is_not_skipped() -> None:
    meter = Meter(now_s=0.0)
    meter.arrive(0.0, proxied=False)
    meter.exit(0.5, proxied=False)
    meter.skip_idle()
    assert meter.report(1.0) == report(concurrency=0.5, request_count=1)
