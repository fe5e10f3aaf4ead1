"""Schedules of a ScalingPolicy: whether one is active, until when, and its problems.

Input: the schedule, and the wall clock as seconds since the epoch. Output: a ``ScheduleState``. A schedule is active if
its last start is later than its last end, so no state is needed. Cron fields are those of Debian's cron, also when
clocks change: a skipped time counts as the end of the gap, and a repeated time counts once. KEDA's cron trigger
compares the next times instead, and is also active on days without a start.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from serving.core.model.errors import Problem
from serving.core.model.scaledworkload import SCHEDULES_MAX, Schedule
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec, ScheduleState

_FIELDS = 5
_DAYS = 7
_MINUTE_S = 60.0
# Longer than any clock change, in seconds.
_CHANGE_S = 3 * 3600.0
_CRON = "five fields of cron: minute, hour, day of month, month, day of week, as 0 8 * * 1-5"
# Sunday, January 4, 2026, where the search for start and end times begins.
_SOME_TIME = datetime(2026, 1, 4, tzinfo=UTC)


def schedule_state(schedule: Schedule, wall_s: float) -> ScheduleState:
    """Whether a schedule is active, and until when. The schedule must be valid (``schedule_problems``).

    Example: 0 8 * * 1-5 to 0 18 * * *, on a Monday. Before 8:00 the last end was on Sunday and the last start on
    Friday, so the schedule is not active. From 8:00 on the last start is later, so the schedule is active until 18:00.
    """
    zone = ZoneInfo(schedule.time_zone)
    is_active = _last_s(schedule.start, wall_s, zone) > _last_s(schedule.end, wall_s, zone)
    until_s = _next_s(schedule.end if is_active else schedule.start, wall_s, zone)
    until = f"{datetime.fromtimestamp(until_s, zone):%Y-%m-%d %H:%M} {schedule.time_zone}"
    return ScheduleState(is_active=is_active, until_s=until_s, until=until)


def schedule_problems(spec: ScalingPolicySpec) -> Iterator[Problem]:
    """Every problem in the schedules of a policy."""
    if len(spec.schedules) > SCHEDULES_MAX:
        yield Problem(
            where="spec.schedules", what=f"{len(spec.schedules)} schedules", expected=f"at most {SCHEDULES_MAX}"
        )
    for index, schedule in enumerate(spec.schedules):
        where = f"spec.schedules[{index}]"
        yield from _count_problems(schedule, spec, where)
        yield from _time_problems(schedule, where)
    yield from _name_problems(spec.schedules)


def _count_problems(schedule: Schedule, spec: ScalingPolicySpec, where: str) -> Iterator[Problem]:
    if schedule.min_count < 1:
        yield Problem(where=f"{where}.min", what=f"{schedule.min_count} has no effect", expected="1 or more")
    elif 0 < spec.max_count < schedule.min_count:
        yield Problem(
            where=f"{where}.min",
            what=f"{schedule.min_count} is above spec.max, {spec.max_count}",
            expected=f"at most {spec.max_count}, or spec.max 0",
        )


def _time_problems(schedule: Schedule, where: str) -> Iterator[Problem]:
    try:
        ZoneInfo(schedule.time_zone)
    except (KeyError, ValueError, OSError):
        yield Problem(
            where=f"{where}.timeZone",
            what=f"{schedule.time_zone!r} is not a known time zone",
            expected="a name of the IANA database, as Europe/Berlin",
        )
    bad = [name for name, text in (("start", schedule.start), ("end", schedule.end)) if not _is_cron(text)]
    for name in bad:
        text = getattr(schedule, name)
        yield Problem(where=f"{where}.{name}", what=f"{text!r} is not a cron time that occurs", expected=_CRON)
    if not bad and _times_of(schedule.start) == _times_of(schedule.end):
        yield Problem(
            where=f"{where}.end",
            what=f"{schedule.end!r} equals the start, so the schedule is never active",
            expected="another time",
        )


def _name_problems(schedules: Sequence[Schedule]) -> Iterator[Problem]:
    names = Counter(schedule.name for schedule in schedules if schedule.name)
    for index, schedule in enumerate(schedules):
        if names[schedule.name] > 1:
            what = f"{names[schedule.name]} schedules are called {schedule.name!r}"
            yield Problem(where=f"spec.schedules[{index}].name", what=what, expected="unique names, or none")


def _is_cron(text: str) -> bool:
    """Whether a cron expression is valid and fires at some time."""
    if len(text.split()) != _FIELDS:
        return False
    try:
        next(CronSim(text, _SOME_TIME))
    except (CronSimError, StopIteration):
        return False
    return True


def _times_of(text: str) -> tuple[object, ...]:
    """The normalised fields of a cron expression: "00 08 * * mon-fri" is "0 8 * * 1-5"."""
    sim = CronSim(text, _SOME_TIME)
    weekdays = {weekday if isinstance(weekday, tuple) else weekday % _DAYS for weekday in sim.weekdays}
    return sim.minutes, sim.hours, sim.days, sim.months, weekdays, sim.day_and


def _next_s(text: str, wall_s: float, zone: ZoneInfo) -> float:
    """The first time of a cron expression after ``wall_s``, in seconds since the epoch."""
    # In an hour that a clock change repeats, the parser also yields earlier times. Times are compared as seconds,
    # because datetimes of one zone are compared by the clock time that they show.
    times_s = (time.timestamp() for time in CronSim(text, datetime.fromtimestamp(wall_s, zone)))
    return next(one_s for one_s in times_s if one_s > wall_s)


def _last_s(text: str, wall_s: float, zone: ZoneInfo) -> float:
    """The last time of a cron expression up to ``wall_s``, in seconds since the epoch.

    Around a clock change the parser skips times when it searches backwards, so the last steps search forwards.
    """
    back = CronSim(text, datetime.fromtimestamp(wall_s + _MINUTE_S, zone), reverse=True)
    last_s = next(at_s for at_s in (at.timestamp() for at in back) if at_s <= wall_s)
    forward = CronSim(text, datetime.fromtimestamp(last_s - _CHANGE_S, zone))
    times_s = itertools.takewhile(lambda at_s: at_s <= wall_s, (at.timestamp() for at in forward))
    return max(times_s, default=last_s)
