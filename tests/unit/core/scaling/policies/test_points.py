"""Points: needed, examined and counted ones, and their age."""

import msgspec
import pytest

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.points import (
    Points,
    UsagePoint,
    examined_points,
    point_window,
    recorded,
    stored_times,
)
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


def test_original_examines_one_more_point() -> None:
    windows = [point_window(trigger(time_s=100), settings) for settings in (SETTINGS, AS_ORIGINAL)]
    assert [window.examined_count for window in windows] == [10, 11]


def test_time_below_period_examines_newest_point() -> None:
    windows = [point_window(trigger(time_s=5), settings) for settings in (SETTINGS, AS_ORIGINAL)]
    assert [window.examined_count for window in windows] == [1, 1]


def test_points_of_original_do_not_expire() -> None:
    window = point_window(trigger(time_s=100), with_quirks(points_without_times=True))
    stale = points(0.9, 0.9, newest_s=-5000.0)
    assert examined_points(stale, window, 0.0) == stale


@pytest.mark.parametrize(("quirk", "time_s"), [(False, 600), (True, 100)])
def test_points_are_retained_for_longest_time_of_their_type(*, quirk: bool, time_s: int) -> None:
    settings = with_quirks(stored_length_follows_last_trigger=quirk)
    times = stored_times([trigger(time_s=600)], [trigger(time_s=300), trigger(time_s=100)], settings)
    assert times == {"occupancy": time_s}


def test_each_type_in_use_has_its_retention_time() -> None:
    assert stored_times([trigger(kind="cpu", time_s=20)], [trigger(time_s=30)], SETTINGS) == {
        "cpu": 20,
        "occupancy": 30,
    }


def test_first_usage_of_type_adds_point() -> None:
    usage_points = recorded({}, {"cpu": 0.5}, {"cpu": 100}, now_s=3.0, settings=SETTINGS)
    assert usage_points == {"cpu": (UsagePoint(at_s=3.0, usage_ratio=0.5),)}


def test_unused_types_are_dropped() -> None:
    assert recorded(
        {"cpu": points(0.5)}, {"occupancy": 0.1}, {"occupancy": 100}, now_s=10.0, settings=SETTINGS
    ).keys() == {"occupancy"}


def test_unknown_usage_adds_no_point() -> None:
    assert record(points(0.5), NoData(missing="pods"), now_s=10.0) == points(0.5)


def test_repeated_evaluation_does_not_replace_point() -> None:
    assert record(points(0.5), 0.6, now_s=0.0) == points(0.5)


def test_original_adds_point_at_every_evaluation() -> None:
    assert len(record(points(0.5), 0.6, now_s=0.1, settings=AS_ORIGINAL)) == 2


def test_points_from_future_are_dropped() -> None:
    assert record(points(0.5, newest_s=50.0), 0.6, now_s=10.0) == points(0.6, newest_s=10.0)


def test_one_point_is_retained_for_time_below_period() -> None:
    assert len(record(points(0.5, every_s=1.0), 0.6, now_s=10.0, time_s=5)) == 1


def test_points_round_trip_through_json() -> None:
    usage_points = points(0.1, 0.7)
    assert msgspec.json.decode(msgspec.json.encode(usage_points), type=Points) == usage_points
