"""Points: the usage of a revision's pods at each evaluation, newest first, by type of trigger.

A trigger acts when enough points of its time are beyond its target. Each point has a time, and a point that is too old
does not count. So an autoscaler that was away for long collects new points. Points are plain data that can be saved, so
that a restart between two evaluations loses none.

Source: topfreegames/maestro v9 (dbbfd74), models.ScaleInfo, whose points have no times.
"""

import enum
import math
from collections.abc import Mapping, Sequence

import msgspec

from serving.core.model.nodata import NoData
from serving.core.scaling.policies.scalingpolicy import Trigger
from serving.core.settings.triggers import TriggerSettings

# An evaluation sooner than this share of a period after the newest point adds no point. Half a period separates a
# late evaluation, followed by one on time, from an autoscaler that restarted and evaluates again.
_REPETITION_RATIO = 0.5


class ScaleWay(enum.StrEnum):
    """A direction of scaling."""

    UP = "up"
    DOWN = "down"


class UsagePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The usage at one evaluation; 1.0 means full."""

    at_s: float
    usage_ratio: float


Points = tuple[UsagePoint, ...]


class PointWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The usage points that a trigger examines: the newest ``examined_count``, none older than ``time_s`` seconds.

    ``needed_count`` of them must lie beyond the trigger's target. ``time_s`` is None if points do not expire (quirk).
    """

    time_s: float | None
    examined_count: int
    needed_count: int


def point_capacity(time_s: int, period_s: float) -> int:
    """Number of points in a time: 600 s with a point every 10 s are 60, 100 s with one every 30 s are 3."""
    return int(time_s // period_s)


def point_window(trigger: Trigger, settings: TriggerSettings) -> PointWindow:
    """The points that a trigger examines, and how many must lie beyond its target.

    Example: with 80 percent of 100 s and a point every 10 s, 8 of the newest 10. With the quirks of the scaler maestro,
    9 of the newest 11. A time shorter than the period selects only the newest point.
    """
    capacity = point_capacity(trigger.time_s, settings.period_s)
    quirks = settings.quirks
    if quirks.threshold_is_exclusive:
        needed_count = trigger.threshold_percent * capacity // 100 + 1
    else:
        needed_count = max(1, math.ceil(trigger.threshold_percent * max(1, capacity) / 100))
    return PointWindow(
        time_s=None if quirks.points_without_times else trigger.time_s,
        examined_count=capacity + 1 if quirks.examines_one_point_more else max(1, capacity),
        needed_count=needed_count,
    )


def examined_points(points: Points, window: PointWindow, now_s: float) -> Points:
    """The points that a trigger examines: the newest ``examined_count``, without expired and future ones."""
    newest = points[: window.examined_count]
    if window.time_s is None:
        return newest
    return tuple(point for point in newest if 0 <= now_s - point.at_s < window.time_s)


def counted_points(points: Points, way: ScaleWay, target_ratio: float) -> int:
    """Count the points beyond the target: above it for up, below it for down. A point on the target does not count."""
    if way is ScaleWay.UP:
        return sum(point.usage_ratio > target_ratio for point in points)
    return sum(point.usage_ratio < target_ratio for point in points)


def stored_times(up: Sequence[Trigger], down: Sequence[Trigger], settings: TriggerSettings) -> dict[str, int]:
    """How long points of each type are kept, in seconds: the longest time of the type's triggers.

    Maestro uses the time of the last down trigger, or, without one, of the last up trigger.
    """
    times: dict[str, int] = {}
    for trigger in (*up, *down):
        if settings.quirks.stored_length_follows_last_trigger:
            times[trigger.type] = trigger.time_s
        else:
            times[trigger.type] = max(trigger.time_s, times.get(trigger.type, 0))
    return times


def recorded(
    points_by_type: Mapping[str, Points],
    usages: Mapping[str, float | NoData],
    times: Mapping[str, int],
    *,
    now_s: float,
    settings: TriggerSettings,
) -> dict[str, Points]:
    """The points after an evaluation: new points first, without points that no trigger needs.

    An unknown usage adds no point. Neither does a usage less than half a period after the newest point.
    """
    return {
        kind: _with_point(points_by_type.get(kind, ()), usages[kind], time_s, now_s=now_s, settings=settings)
        for kind, time_s in times.items()
    }


def _with_point(
    points: Points, usage: float | NoData, time_s: int, *, now_s: float, settings: TriggerSettings
) -> Points:
    quirks = settings.quirks
    if not quirks.points_without_times:
        points = tuple(point for point in points if 0 <= now_s - point.at_s < time_s)
        if points and now_s - points[0].at_s < settings.period_s * _REPETITION_RATIO:
            usage = NoData(missing="a new period")
    if not isinstance(usage, NoData):
        points = (UsagePoint(at_s=now_s, usage_ratio=usage), *points)
    capacity = point_capacity(time_s, settings.period_s)
    return points[: capacity + 1 if quirks.examines_one_point_more else max(1, capacity)]
