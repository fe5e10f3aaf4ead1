"""Points: needed, examined and counted ones, and their age."""

import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.points import (
    Points,
    ScaleWay,
    UsagePoint,
    counted_points,
    examined_points,
    point_capacity,
    point_window,
    recorded,
    stored_times,
)
from serving.core.scaling.policies.scalingpolicy import Trigger
from serving.core.settings.triggers import ORIGINAL, TriggerQuirks, TriggerSettings
from tests.unit.core.scaling.policies.builders import SETTINGS, points, trigger

AS_ORIGINAL = TriggerSettings(quirks=ORIGINAL)


def with_quirks(**flags: bool) -> TriggerSettings:
    return TriggerSettings(quirks=msgspec.convert(flags, TriggerQuirks))


def record(
    before: Points, usage: float | NoData, *, now_s: float, time_s: int = 100, settings: TriggerSettings = SETTINGS
) -> Points:
    return recorded({"occupancy": before}, {"occupancy": usage}, {"occupancy": time_s}, now_s=now_s, settings=settings)[
        "occupancy"
    ]


@pytest.mark.parametrize(
    ("time_s", "period_s", "capacity"), [(600, 10.0, 60), (100, 30.0, 3), (5, 10.0, 0), (0, 10.0, 0)]
)
def test_as_many_points_as_periods_fit_in_a_time(time_s: int, period_s: float, capacity: int) -> None:
    assert point_capacity(time_s, period_s) == capacity


@pytest.mark.parametrize(
    ("threshold", "time_s", "needed", "needed_by_original"),
    [(80, 100, 8, 9), (100, 100, 10, 11), (75, 100, 8, 8), (1, 100, 1, 1), (80, 5, 1, 1)],
)
def test_needed_points(threshold: int, time_s: int, needed: int, needed_by_original: int) -> None:
    asked = Trigger(usage_percent=70, threshold_percent=threshold, time_s=time_s)
    counts = [point_window(asked, settings).needed_count for settings in (SETTINGS, AS_ORIGINAL)]
    assert counts == [needed, needed_by_original]


def test_the_original_looks_at_one_point_more() -> None:
    windows = [point_window(trigger(time_s=100), settings) for settings in (SETTINGS, AS_ORIGINAL)]
    assert [window.examined_count for window in windows] == [10, 11]


def test_a_time_below_the_period_leaves_the_newest_point() -> None:
    windows = [point_window(trigger(time_s=5), settings) for settings in (SETTINGS, AS_ORIGINAL)]
    assert [window.examined_count for window in windows] == [1, 1]


def test_points_that_are_too_old_or_to_come_are_not_looked_at() -> None:
    window = point_window(trigger(time_s=100), SETTINGS)
    kept = (*points(0.9, newest_s=1.0), *points(0.8, newest_s=-99.5), *points(0.7, newest_s=-100.0))
    assert [point.usage_ratio for point in examined_points(kept, window, 0.0)] == [0.8]


def test_points_of_the_original_have_no_age() -> None:
    window = point_window(trigger(time_s=100), with_quirks(points_without_times=True))
    stale = points(0.9, 0.9, newest_s=-5000.0)
    assert examined_points(stale, window, 0.0) == stale


def test_a_point_on_the_target_counts_for_neither_way() -> None:
    kept = points(0.69, 0.7, 0.71)
    assert [counted_points(kept, way, 0.7) for way in (ScaleWay.UP, ScaleWay.DOWN)] == [1, 1]


@pytest.mark.parametrize(("quirk", "time_s"), [(False, 600), (True, 100)])
def test_points_are_kept_for_the_longest_time_of_their_type(*, quirk: bool, time_s: int) -> None:
    settings = with_quirks(stored_length_follows_last_trigger=quirk)
    times = stored_times([trigger(time_s=600)], [trigger(time_s=300), trigger(time_s=100)], settings)
    assert times == {"occupancy": time_s}


def test_each_type_in_use_has_its_own_points() -> None:
    assert stored_times([trigger(kind="cpu", time_s=20)], [trigger(time_s=30)], SETTINGS) == {
        "cpu": 20,
        "occupancy": 30,
    }


def test_a_new_point_comes_first() -> None:
    assert record(points(0.5, newest_s=0.0), 0.6, now_s=10.0) == points(0.6, 0.5, newest_s=10.0)


def test_a_type_without_points_begins_with_one() -> None:
    kept = recorded({}, {"cpu": 0.5}, {"cpu": 100}, now_s=3.0, settings=SETTINGS)
    assert kept == {"cpu": (UsagePoint(at_s=3.0, usage_ratio=0.5),)}


def test_types_that_no_trigger_uses_any_more_are_dropped() -> None:
    assert recorded(
        {"cpu": points(0.5)}, {"occupancy": 0.1}, {"occupancy": 100}, now_s=10.0, settings=SETTINGS
    ).keys() == {"occupancy"}


def test_a_usage_that_is_not_known_adds_no_point() -> None:
    assert record(points(0.5), NoData(missing="pods"), now_s=10.0) == points(0.5)


@pytest.mark.parametrize(("now_s", "count"), [(0.0, 1), (4.9, 1), (5.0, 2)])
def test_an_evaluation_within_half_a_period_repeats_the_newest_point(now_s: float, count: int) -> None:
    assert len(record(points(0.5), 0.6, now_s=now_s)) == count


def test_a_repetition_leaves_the_point_as_it_was() -> None:
    assert record(points(0.5), 0.6, now_s=0.0) == points(0.5)


def test_the_original_adds_a_point_at_every_evaluation() -> None:
    assert len(record(points(0.5), 0.6, now_s=0.1, settings=AS_ORIGINAL)) == 2


def test_points_from_the_future_are_dropped() -> None:
    assert record(points(0.5, newest_s=50.0), 0.6, now_s=10.0) == points(0.6, newest_s=10.0)


@pytest.mark.parametrize(("settings", "count"), [(SETTINGS, 10), (AS_ORIGINAL, 11)])
def test_no_more_points_are_kept_than_are_looked_at(settings: TriggerSettings, count: int) -> None:
    kept: Points = ()
    for tick in range(30):
        kept = record(kept, 0.5, now_s=10.0 * tick, settings=settings)
    assert len(kept) == count


def test_one_point_is_kept_for_a_time_below_the_period() -> None:
    assert len(record(points(0.5, every_s=1.0), 0.6, now_s=10.0, time_s=5)) == 1


def test_points_survive_being_written_down() -> None:
    kept = points(0.1, 0.7)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Points) == kept
