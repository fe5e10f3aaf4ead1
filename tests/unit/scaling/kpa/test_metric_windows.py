import math

import pytest

from serving.model.load.metric import LoadMetric
from serving.model.load.queue_length import QUEUE_LENGTH
from serving.model.load.requests import CONCURRENCY, RPS
from serving.model.nodata import NoData
from serving.model.stat import Stat
from serving.scaling.kpa.metric_windows import MetricWindows, Observation
from serving.scaling.spec import WindowKind
from serving.settings.kpa_quirks import ORIGINAL, SAFE, KpaQuirks
from tests.unit.scaling.kpa_builders import stat_of

NOTHING = NoData(missing="no stat in the stable window")


def windows_of(quirks: KpaQuirks = SAFE, metric: LoadMetric = CONCURRENCY) -> MetricWindows:
    return MetricWindows(stable_window_s=60, panic_window_s=6, kind=WindowKind.LINEAR, metric=metric, quirks=quirks)


def fed(windows: MetricWindows, concurrencies: list[float]) -> MetricWindows:
    """One stat a second, each with twice as many requests as are in flight."""
    for second, concurrency in enumerate(concurrencies):
        assert windows.record(stat_of(concurrency, requests=2 * concurrency), float(second))
    windows.validate()
    return windows


def test_without_a_stat_there_is_no_data() -> None:
    assert windows_of().query(0.0) == NOTHING


def test_both_windows_are_asked_of_the_metric() -> None:
    loads = [0.0] * 6 + [6.0] * 6
    assert fed(windows_of(), loads).query(11.5) == Observation(stable=3.0, panic=6.0)
    assert fed(windows_of(metric=RPS), loads).query(11.5) == Observation(stable=6.0, panic=12.0)


def test_what_came_through_an_activator_counts_there() -> None:
    for metric, load in ((CONCURRENCY, 2.0), (RPS, 1.0)):
        windows = windows_of(metric=metric)
        windows.record(stat_of(5.0, requests=8.0, proxied=3.0, proxied_requests=7.0), 0.0)
        assert windows.query(0.0) == Observation(stable=load, panic=load)


def test_a_stat_is_stamped_on_receipt() -> None:
    windows = windows_of()
    windows.record(stat_of(5.0), 100.0)
    assert windows.query(100.0) == Observation(stable=5.0, panic=5.0)


@pytest.mark.parametrize("concurrency", [math.nan, math.inf])
def test_a_stat_that_is_not_finite_is_refused(concurrency: float) -> None:
    windows = fed(windows_of(), [1.0])
    assert not windows.record(stat_of(concurrency), 1.0)
    assert windows.query(1.0) == Observation(stable=1.0, panic=1.0)


def test_sources_that_fall_silent_leave_their_last_load_and_then_no_data() -> None:
    windows = fed(windows_of(), [4.0])
    assert windows.query(59.0) == Observation(stable=4.0, panic=0.0)
    assert windows.query(60.0) == NOTHING


def test_the_original_sees_no_load_in_the_last_second_of_a_silent_window() -> None:
    windows = fed(windows_of(ORIGINAL), [4.0])
    assert windows.query(60.0) == Observation(stable=0.0, panic=0.0)
    assert windows.query(61.0) == NOTHING


def test_silence_is_no_load_where_only_load_is_reported() -> None:
    observed = windows_of().query(0.0, silence_is_idle=True)
    assert observed == Observation(stable=0.0, panic=0.0)


def test_new_widths_keep_what_was_seen() -> None:
    windows = fed(windows_of(), [2.0] * 6 + [8.0] * 6)
    windows.resize(stable_window_s=12, panic_window_s=3, kind=WindowKind.LINEAR, now_s=11.0)
    # Of 12 seconds the first is out and the last is silent: 5 x 2 + 6 x 8 over 11.
    assert windows.query(12.0) == Observation(stable=5.272727, panic=8.0)


def test_another_way_of_averaging_keeps_what_was_seen() -> None:
    windows = fed(windows_of(metric=RPS), [8.0] * 12)
    windows.resize(stable_window_s=60, panic_window_s=6, kind=WindowKind.WEIGHTED_EXPONENTIAL, now_s=11.0)
    windows.record(stat_of(16.0, requests=32.0), 12.0)
    windows.validate()
    observed = windows.query(12.0)
    assert isinstance(observed, Observation)
    assert 16.0 < observed.stable < observed.panic < 32.0


def test_windows_have_a_repr_of_one_line() -> None:
    assert repr(fed(windows_of(), [1.0])) == "MetricWindows(concurrency LinearWindow(60 s, 1 buckets to 0, total 1))"


def test_a_gauge_that_the_app_reports_is_a_load() -> None:
    windows = windows_of(metric=QUEUE_LENGTH)
    assert windows.record(Stat(pod="p", gauges={"queue_length": 30.0}), 0.0)
    assert windows.query(0.0) == Observation(stable=30.0, panic=30.0)
