import math

import pytest

from serving.core.model.loadmetric import CONCURRENCY, QUEUE_LENGTH, RPS, LoadMetric
from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.kpa.window import LinearWindow, MetricWindows, Observation, WeightedWindow, Window, window_of
from serving.core.scaling.spec import WindowKind
from serving.core.settings.autoscaler import ORIGINAL, SAFE, KpaQuirks
from tests.invariants import validate
from tests.unit.core.scaling.kpa_builders import stat_of

NOTHING = NoData(missing="no stat in the stable window")


def filled(window: Window, values: list[float], *, from_s: float = 0) -> Window:
    """A window with one value a second."""
    for second, value in enumerate(values):
        window.record(from_s + second, value)
    validate(window)
    return window


def test_new_window_is_empty_with_average_zero() -> None:
    for window in (LinearWindow(60), WeightedWindow(60)):
        assert window.is_empty(0.0)
        assert window.average(0.0) == 0.0


def test_young_window_averages_over_elapsed_seconds() -> None:
    # docs/calculations.md: 10, 20 and 30 in three seconds of 60.
    assert filled(LinearWindow(60), [10, 20, 30]).average(2.9) == 20.0


def test_silent_seconds_at_end_do_not_count_as_zero() -> None:
    # docs/calculations.md: of 9, 6 and 3 the 9 is pushed out, (6 + 3) / 2.
    assert filled(LinearWindow(3), [9, 6, 3]).average(3.0) == 4.5


def test_late_value_counts_in_its_second() -> None:
    window = filled(LinearWindow(5), [4, 4, 4])
    window.record(0.5, 6)
    assert window.average(2) == 6.0


def test_value_older_than_first_extends_window() -> None:
    window = LinearWindow(10)
    window.record(20, 10)
    window.record(15, 2)
    assert window.average(20) == 2.0


def test_value_older_than_window_is_ignored() -> None:
    window = filled(LinearWindow(5), [1], from_s=10)
    window.record(5, 100)
    window.record(6, 4)
    assert window.average(10) == 1.0


@pytest.mark.parametrize(
    ("load", "average"),
    [(1 / 3, 0.333333), (2.0000005, 2.000001), (4e-7, 0.0), (-2 / 3, -0.666667), (1e12 + 0.1, 1e12 + 0.1)],
)
def test_linear_average_has_six_decimals_rounded_half_away_from_zero(load: float, average: float) -> None:
    assert filled(LinearWindow(60), [load]).average(0) == average


def test_partial_bucket_adds_one_bucket_to_window() -> None:
    window = LinearWindow(5, granularity_s=2)
    for second in range(30, 36):
        window.record(second, 1)
    assert window.average(35) == 2.0
    assert not window.is_empty(38)
    assert window.is_empty(40)


def test_weighted_window_weights_newest_second_most() -> None:
    # n = 60: weights 0.2, 0.16, 0.128, together 0.488; (0.2 x 30 + 0.16 x 20 + 0.128 x 10) / 0.488.
    average = filled(WeightedWindow(60), [10, 20, 30]).average(2)
    assert average == pytest.approx(10.48 / 0.488)


def test_short_weighted_window_has_nearly_all_weight() -> None:
    # n = 6: s = 1 - 0.0001^(1/6) = 0.785.
    smoothing = 1 - 0.0001 ** (1 / 6)
    assert smoothing == pytest.approx(0.785, abs=1e-3)
    window = filled(WeightedWindow(6, quirks=ORIGINAL), [1, 0, 0])
    assert window.average(2) == pytest.approx(smoothing * (1 - smoothing) ** 2)


def test_newest_of_42_buckets_has_a_fifth_of_weight() -> None:
    assert filled(WeightedWindow(41, quirks=ORIGINAL), [1]).average(0) > 0.2
    assert filled(WeightedWindow(42, quirks=ORIGINAL), [1]).average(0) == pytest.approx(0.2)


def test_weighted_average_of_constant_load_is_that_load() -> None:
    window = WeightedWindow(60)
    for second in range(100):
        window.record(second, 10)
        assert window.average(second) == pytest.approx(10)
    assert window.average(130) == pytest.approx(10)


def test_original_underreads_young_weighted_window() -> None:
    window = filled(WeightedWindow(60, quirks=ORIGINAL), [10])
    assert window.average(0) == pytest.approx(2.0)
    assert window.average(1) == pytest.approx(1.6)


@pytest.mark.parametrize("quirks", [SAFE, ORIGINAL])
def test_weighted_average_is_zero_one_window_after_last_value(quirks: KpaQuirks) -> None:
    assert filled(WeightedWindow(6, quirks=quirks), [10]).average(6) == 0.0


@pytest.mark.parametrize("kind", list(WindowKind))
def test_original_window_is_empty_one_second_later_and_reads_zero(kind: WindowKind) -> None:
    window = filled(window_of(kind, 60, quirks=ORIGINAL), [10])
    assert not window.is_empty(60)
    assert window.average(60) == 0.0
    assert window.is_empty(61)


def test_long_weighted_window_ignores_negligible_old_values() -> None:
    window = filled(WeightedWindow(3600), [1e6] * 100 + [1.0] * 900)
    assert window.average(999) == pytest.approx(1.0)


def test_original_divides_widened_window_by_its_old_width() -> None:
    window = filled(LinearWindow(10, quirks=ORIGINAL), [6, 6])
    window.resize(20, 1)
    assert window.average(1) == 1.2


def test_original_counts_discarded_data_as_zero_in_widened_window() -> None:
    window = filled(LinearWindow(5, quirks=ORIGINAL), [6, 6])
    window.resize(60, 30)
    assert not window.is_empty(30)
    assert window.average(30) == 0.0


def test_original_divides_by_full_window_until_first_second_is_recorded() -> None:
    window = filled(LinearWindow(5, quirks=ORIGINAL), [6, 6])
    window.resize(60, 30)
    window.record(1, 6)
    assert window.average(1) == 0.1
    window.resize(120, 2)
    assert window.average(1) == 0.1


@pytest.mark.parametrize("kind", list(WindowKind))
def test_window_converts_to_other_kind(kind: WindowKind) -> None:
    window = filled(window_of(kind, 60), [8, 8, 8]).read_as(WindowKind.WEIGHTED_EXPONENTIAL)
    window.record(3, 8)
    assert isinstance(window, WeightedWindow)
    assert window.average(3) == pytest.approx(8)


def test_average_of_huge_values_is_finite() -> None:
    assert math.isfinite(filled(LinearWindow(60), [1e300, -1e300]).average(1))


def windows_of(quirks: KpaQuirks = SAFE, metric: LoadMetric = CONCURRENCY) -> MetricWindows:
    return MetricWindows(stable_window_s=60, panic_window_s=6, kind=WindowKind.LINEAR, metric=metric, quirks=quirks)


def fed(windows: MetricWindows, concurrencies: list[float]) -> MetricWindows:
    """One stat a second, each with twice as many requests as are in flight."""
    for second, concurrency in enumerate(concurrencies):
        assert windows.record(stat_of(concurrency, requests=2 * concurrency), float(second))
    validate(windows)
    return windows


def test_windows_without_stats_have_no_data() -> None:
    assert windows_of().query(0.0) == NOTHING


def test_both_windows_average_the_selected_metric() -> None:
    loads = [0.0] * 6 + [6.0] * 6
    assert fed(windows_of(), loads).query(11.5) == Observation(stable=3.0, panic=6.0)
    assert fed(windows_of(metric=RPS), loads).query(11.5) == Observation(stable=6.0, panic=12.0)


def test_proxied_requests_are_excluded() -> None:
    for metric, load in ((CONCURRENCY, 2.0), (RPS, 1.0)):
        windows = windows_of(metric=metric)
        windows.record(stat_of(5.0, requests=8.0, proxied=3.0, proxied_requests=7.0), 0.0)
        assert windows.query(0.0) == Observation(stable=load, panic=load)


def test_stat_is_recorded_at_receipt_time() -> None:
    windows = windows_of()
    windows.record(stat_of(5.0), 100.0)
    assert windows.query(100.0) == Observation(stable=5.0, panic=5.0)


@pytest.mark.parametrize("concurrency", [math.nan, math.inf])
def test_stat_that_is_not_finite_is_rejected(concurrency: float) -> None:
    windows = fed(windows_of(), [1.0])
    assert not windows.record(stat_of(concurrency), 1.0)
    assert windows.query(1.0) == Observation(stable=1.0, panic=1.0)


def test_silent_sources_leave_last_load_then_no_data() -> None:
    windows = fed(windows_of(), [4.0])
    assert windows.query(59.0) == Observation(stable=4.0, panic=0.0)
    assert windows.query(60.0) == NOTHING


def test_original_reads_zero_load_one_second_before_no_data() -> None:
    windows = fed(windows_of(ORIGINAL), [4.0])
    assert windows.query(60.0) == Observation(stable=0.0, panic=0.0)
    assert windows.query(61.0) == NOTHING


def test_resized_windows_retain_recorded_seconds() -> None:
    windows = fed(windows_of(), [2.0] * 6 + [8.0] * 6)
    windows.resize(stable_window_s=12, panic_window_s=3, kind=WindowKind.LINEAR, now_s=11.0)
    # Of 12 seconds the first is out and the last is silent: 5 x 2 + 6 x 8 over 11.
    assert windows.query(12.0) == Observation(stable=5.272727, panic=8.0)


def test_changed_window_kind_retains_recorded_seconds() -> None:
    windows = fed(windows_of(metric=RPS), [8.0] * 12)
    windows.resize(stable_window_s=60, panic_window_s=6, kind=WindowKind.WEIGHTED_EXPONENTIAL, now_s=11.0)
    windows.record(stat_of(16.0, requests=32.0), 12.0)
    validate(windows)
    observed = windows.query(12.0)
    assert isinstance(observed, Observation)
    assert 16.0 < observed.stable < observed.panic < 32.0


def test_missing_gauge_is_no_data_after_panic_window() -> None:
    windows = windows_of(metric=QUEUE_LENGTH)
    windows.record(Stat(pod="p", concurrency=1.0, gauges={"queue_length": 30.0}), 0.0)
    assert not windows.record(Stat(pod="p", concurrency=1.0), 5.0)
    assert windows.query(5.0) == Observation(stable=30.0, panic=30.0)
    assert windows.query(6.0) == NoData(missing="no pod reports the gauge queue_length")


def test_reported_gauge_is_load() -> None:
    windows = windows_of(metric=QUEUE_LENGTH)
    assert windows.record(Stat(pod="p", gauges={"queue_length": 30.0}), 0.0)
    assert windows.query(0.0) == Observation(stable=30.0, panic=30.0)
