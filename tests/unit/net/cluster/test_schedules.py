"""Schedules: their times, also across clock changes, and their problems."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.scaledworkload import Schedule
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec
from serving.net.cluster.schedules import schedule_problems, schedule_state

BERLIN = "Europe/Berlin"
OFFICE = Schedule(name="office", start="0 8 * * 1-5", end="0 18 * * 1-5", min_count=5, time_zone=BERLIN)
# Cron fields and the days that they match; weekdays count from Sunday, as in cron.
_WEEKDAYS = {"*": range(7), "1-5": range(1, 6), "6": (6,), "0": (0,)}
_MONTH_DAYS = {"*": range(1, 32), "1": (1,), "15": (15,), "28-31": range(28, 32)}
_ZONES = [BERLIN, "Europe/Prague", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Cairo", "Etc/UTC"]
_DAYS = st.one_of(
    st.tuples(st.just("*"), st.sampled_from(sorted(_WEEKDAYS))),
    st.tuples(st.sampled_from(sorted(_MONTH_DAYS)), st.just("*")),
)
_TIMES = st.tuples(st.sampled_from([0, 15, 30]), st.integers(0, 23), _DAYS)


def wall_s(text: str, zone: str = BERLIN, *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def state_at(schedule: Schedule, text: str, *, fold: int = 0) -> tuple[bool, str]:
    state = schedule_state(schedule, wall_s(text, schedule.time_zone, fold=fold))
    return state.is_active, state.until


@pytest.mark.parametrize(
    ("at", "is_active", "until"),
    [
        ("2026-11-23 07:59:59", False, "2026-11-23 08:00 Europe/Berlin"),
        ("2026-11-23 08:00:00", True, "2026-11-23 18:00 Europe/Berlin"),
        ("2026-11-23 17:59:59", True, "2026-11-23 18:00 Europe/Berlin"),
        ("2026-11-23 18:00:00", False, "2026-11-24 08:00 Europe/Berlin"),
        ("2026-11-28 12:00:00", False, "2026-11-30 08:00 Europe/Berlin"),
    ],
)
def test_schedule_is_active_from_start_to_end(at: str, *, is_active: bool, until: str) -> None:
    assert state_at(OFFICE, at) == (is_active, until)


def test_schedule_hours_follow_its_time_zone_in_summer_and_winter() -> None:
    for day, hour_utc in (("2026-07-06", 6), ("2026-12-07", 7)):
        starts_s = wall_s(f"{day} {hour_utc:02}:00:00", "Etc/UTC")
        assert not schedule_state(OFFICE, starts_s - 1).is_active
        assert schedule_state(OFFICE, starts_s).is_active


def test_night_schedule_is_active_across_clock_changes() -> None:
    night = Schedule(start="0 22 * * *", end="0 6 * * *", min_count=1, time_zone=BERLIN)
    for evening, hours in (("2026-03-28", 7), ("2026-10-24", 9), ("2026-11-22", 8)):
        at_s = wall_s(f"{evening} 22:00:00")
        assert schedule_state(night, at_s).until_s - at_s == hours * 3600.0


def test_start_in_spring_gap_moves_to_end_of_gap() -> None:
    early = Schedule(start="30 2 * * *", end="0 5 * * *", min_count=1, time_zone=BERLIN)
    assert state_at(early, "2026-03-29 01:59:59") == (False, "2026-03-29 03:00 Europe/Berlin")
    assert state_at(early, "2026-03-29 03:00:00") == (True, "2026-03-29 05:00 Europe/Berlin")


def test_repeated_start_in_autumn_counts_once() -> None:
    """Clocks show 2:00 to 3:00 twice: the schedule is active from the first 2:30, also at the second 2:15."""
    early = Schedule(start="30 2 * * *", end="0 5 * * *", min_count=1, time_zone=BERLIN)
    assert state_at(early, "2026-10-25 02:15:00") == (False, "2026-10-25 02:30 Europe/Berlin")
    assert state_at(early, "2026-10-25 02:30:00") == (True, "2026-10-25 05:00 Europe/Berlin")
    assert state_at(early, "2026-10-25 02:15:00", fold=1) == (True, "2026-10-25 05:00 Europe/Berlin")
    assert state_at(early, "2026-10-25 02:45:00", fold=1) == (True, "2026-10-25 05:00 Europe/Berlin")


@settings(max_examples=60, deadline=None)
@given(
    at=st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)),  # noqa: DTZ001 - made aware below
    zone=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Etc/UTC"]),
    start=st.integers(0, 23),
    hours=st.integers(1, 23),
)
def test_schedule_state_lasts_until_its_announced_end(at: datetime, zone: str, start: int, hours: int) -> None:
    schedule = Schedule(start=f"0 {start} * * *", end=f"0 {(start + hours) % 24} * * *", min_count=1, time_zone=zone)
    at_s = at.replace(tzinfo=ZoneInfo(zone)).timestamp()
    state = schedule_state(schedule, at_s)
    assert 0 < state.until_s - at_s <= timedelta(hours=26).total_seconds()
    middle = schedule_state(schedule, (at_s + state.until_s) / 2)
    assert (middle.is_active, middle.until_s) == (state.is_active, state.until_s)
    after = schedule_state(schedule, state.until_s)
    # Both may fall on the end of the hour that is skipped.
    assert after.is_active is not state.is_active or after.until_s - state.until_s > timedelta(hours=20).total_seconds()


def problems(*schedules: Schedule, max_count: int = 0) -> list[str]:
    return [problem.where for problem in schedule_problems(ScalingPolicySpec(schedules=schedules, max_count=max_count))]


def test_all_problems_of_schedules_are_reported() -> None:
    bad = Schedule(name="office", start="0 25 * * *", end="@daily", min_count=0, time_zone="Mars/Olympus")
    where = "spec.schedules[1]"
    assert problems(OFFICE, bad) == [
        f"{where}.min",
        f"{where}.timeZone",
        f"{where}.start",
        f"{where}.end",
        "spec.schedules[0].name",
        "spec.schedules[1].name",
    ]
    assert problems(OFFICE, max_count=4) == ["spec.schedules[0].min"]
    assert problems(*([Schedule(start="0 1 * * *", end="0 2 * * *", min_count=1)] * 17)) == ["spec.schedules"]
    assert problems(OFFICE) == []


@pytest.mark.parametrize("text", ["0 8 * * MON-FRI", "*/15 * * * *", "0 8 1,15 * *", "0 0 L * *"])
def test_cron_syntax_is_accepted(text: str) -> None:
    assert problems(Schedule(start=text, end="59 23 * * *", min_count=1)) == []


@pytest.mark.parametrize("text", ["", "0 8 * *", "0 0 8 * * *", "0 0 30 2 *", "8:00", "0 8 * * 1-9"])
def test_malformed_or_impossible_start_is_rejected(text: str) -> None:
    assert problems(Schedule(start=text, end="59 23 * * *", min_count=1)) == ["spec.schedules[0].start"]


@pytest.mark.parametrize(
    ("start", "end"),
    [("0 8 * * *", "0  8 * * *"), ("0 8 * * 1-5", "00 08 * * MON-FRI"), ("0 8 * * 0", "0 8 * * 7")],
)
def test_end_equal_to_start_is_rejected(start: str, end: str) -> None:
    assert problems(Schedule(start=start, end=end, min_count=1)) == ["spec.schedules[0].end"]


@pytest.mark.parametrize("zone", ["", "Berlin", "../etc/passwd", "CEST+2"])
def test_unknown_time_zone_is_rejected(zone: str) -> None:
    assert problems(Schedule(start="0 8 * * *", end="0 9 * * *", min_count=1, time_zone=zone)) == [
        "spec.schedules[0].timeZone"
    ]


def _walk(minute: int, hour: int, day: str, weekday: str, *, until: datetime) -> float | None:
    """The last time up to ``until`` that matches these cron fields, searched backwards day by day."""
    zone, until_s = until.tzinfo, until.timestamp()
    for back in range(-1, 400):
        date = (until - timedelta(days=back)).date()
        if date.day not in _MONTH_DAYS[day] or date.isoweekday() % 7 not in _WEEKDAYS[weekday]:
            continue
        local = datetime(date.year, date.month, date.day, hour, minute, tzinfo=zone)
        # A time that clocks skip is the end of the gap.
        while datetime.fromtimestamp(local.timestamp(), zone).replace(fold=0) != local:
            local += timedelta(minutes=1)
        if local.timestamp() <= until_s:
            return local.timestamp()
    return None


@settings(max_examples=200, deadline=None)
@given(
    at=st.one_of(
        st.datetimes(datetime(2024, 1, 1), datetime(2030, 12, 31)),  # noqa: DTZ001 - made aware below
        # The nights of clock changes.
        st.builds(
            lambda day, minutes: datetime.fromisoformat(day) + timedelta(minutes=minutes),
            st.sampled_from(["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05", "2026-10-04"]),
            st.integers(0, 600),
        ),
    ),
    zone=st.sampled_from(_ZONES),
    start=_TIMES,
    end=_TIMES,
)
def test_schedule_state_equals_day_by_day_reference(
    at: datetime,
    zone: str,
    start: tuple[int, int, tuple[str, str]],
    end: tuple[int, int, tuple[str, str]],
) -> None:
    until = datetime.fromtimestamp(at.replace(tzinfo=ZoneInfo(zone)).timestamp(), ZoneInfo(zone))
    last_start_s, last_end_s = (
        _walk(minute, hour, day, weekday, until=until) for minute, hour, (day, weekday) in (start, end)
    )
    texts = [f"{minute} {hour} {day} * {weekday}" for minute, hour, (day, weekday) in (start, end)]
    schedule = Schedule(start=texts[0], end=texts[1], min_count=1, time_zone=zone)
    assert last_start_s is not None
    assert last_end_s is not None
    assert schedule_state(schedule, until.timestamp()).is_active is (last_start_s > last_end_s)


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        ("0 8 * * 1-5", "0 18 * * *", "MTWTF.."),
        ("30 6 * * 1-5", "10 22 * * *", "MTWTF.."),
        ("0 9 1 * *", "0 18 * * *", "......."),
        ("* * * * 1-5", "* * * * 6", "MTWTF.."),
    ],
)
def test_schedule_is_inactive_on_days_without_start(start: str, end: str, days: str) -> None:
    schedule = Schedule(start=start, end=end, min_count=3, time_zone=BERLIN)
    noons = [f"2026-11-{day} 12:00:00" for day in range(23, 30)]
    assert "".join("MTWTFSS"[index] if state_at(schedule, noon)[0] else "." for index, noon in enumerate(noons)) == days
