import math

import pytest

from serving.autoscaler.collection import Collection, Observation
from serving.model.nodata import NoData
from serving.scaling.spec import ORIGINAL, SAFE, KpaQuirks, Metric, WindowKind
from tests.unit.autoscaler.kpa_builders import stat_of

NOTHING = NoData(missing="no stat in the stable window")


def collection_of(quirks: KpaQuirks = SAFE) -> Collection:
    return Collection(stable_window_s=60, panic_window_s=6, kind=WindowKind.LINEAR, quirks=quirks)


def fed(collection: Collection, concurrencies: list[float]) -> Collection:
    """One stat a second, each with twice as many requests as are in flight."""
    for second, concurrency in enumerate(concurrencies):
        assert collection.record(stat_of(concurrency, requests=2 * concurrency), float(second))
    collection.validate()
    return collection


def test_without_a_stat_there_is_no_data() -> None:
    assert collection_of().query(0.0, Metric.CONCURRENCY) == NOTHING


def test_both_windows_are_asked_of_the_metric() -> None:
    collection = fed(collection_of(), [0.0] * 6 + [6.0] * 6)
    assert collection.query(11.5, Metric.CONCURRENCY) == Observation(stable=3.0, panic=6.0)
    assert collection.query(11.5, Metric.RPS) == Observation(stable=6.0, panic=12.0)


def test_what_came_through_an_activator_counts_there() -> None:
    collection = collection_of()
    collection.record(stat_of(5.0, requests=8.0, proxied=3.0, proxied_requests=7.0), 0.0)
    assert collection.query(0.0, Metric.CONCURRENCY) == Observation(stable=2.0, panic=2.0)
    assert collection.query(0.0, Metric.RPS) == Observation(stable=1.0, panic=1.0)


def test_a_stat_is_stamped_on_receipt() -> None:
    collection = collection_of()
    collection.record(stat_of(5.0), 100.0)
    assert collection.query(100.0, Metric.CONCURRENCY) == Observation(stable=5.0, panic=5.0)


@pytest.mark.parametrize("concurrency", [math.nan, math.inf])
def test_a_stat_that_is_not_finite_is_refused(concurrency: float) -> None:
    collection = fed(collection_of(), [1.0])
    assert not collection.record(stat_of(concurrency), 1.0)
    assert collection.query(1.0, Metric.CONCURRENCY) == Observation(stable=1.0, panic=1.0)


def test_sources_that_fall_silent_leave_their_last_load_and_then_no_data() -> None:
    collection = fed(collection_of(), [4.0])
    assert collection.query(59.0, Metric.CONCURRENCY) == Observation(stable=4.0, panic=0.0)
    assert collection.query(60.0, Metric.CONCURRENCY) == NOTHING


def test_the_original_sees_no_load_in_the_last_second_of_a_silent_window() -> None:
    collection = fed(collection_of(ORIGINAL), [4.0])
    assert collection.query(60.0, Metric.CONCURRENCY) == Observation(stable=0.0, panic=0.0)
    assert collection.query(61.0, Metric.CONCURRENCY) == NOTHING


def test_silence_is_no_load_where_only_load_is_reported() -> None:
    observed = collection_of().query(0.0, Metric.CONCURRENCY, silence_is_idle=True)
    assert observed == Observation(stable=0.0, panic=0.0)


def test_new_widths_keep_what_was_seen() -> None:
    collection = fed(collection_of(), [2.0] * 6 + [8.0] * 6)
    collection.reshape(stable_window_s=12, panic_window_s=3, kind=WindowKind.LINEAR, now_s=11.0)
    # Of 12 seconds the first is out and the last is silent: 5 x 2 + 6 x 8 over 11.
    assert collection.query(12.0, Metric.CONCURRENCY) == Observation(stable=5.272727, panic=8.0)


def test_another_way_of_averaging_keeps_what_was_seen() -> None:
    collection = fed(collection_of(), [8.0] * 12)
    collection.reshape(stable_window_s=60, panic_window_s=6, kind=WindowKind.WEIGHTED_EXPONENTIAL, now_s=11.0)
    collection.record(stat_of(16.0, requests=32.0), 12.0)
    collection.validate()
    observed = collection.query(12.0, Metric.RPS)
    assert isinstance(observed, Observation)
    assert 16.0 < observed.stable < observed.panic < 32.0


def test_a_collection_tells_itself_in_one_line() -> None:
    assert repr(fed(collection_of(), [1.0])) == (
        "Collection(concurrency LinearWindow(60 s, 1 buckets to 0, total 1), "
        "rps LinearWindow(60 s, 1 buckets to 0, total 2))"
    )
