import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.dashboard.archive import (
    POINTS_MAX,
    VERSION,
    Archive,
    ArchiveNewerError,
    HistoryStep,
    Row,
    history_steps,
    is_damaged,
    merged_row,
    step_of,
)
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.marks import Mark

KEY = "default/hello-00001"
DAY_S = 86_400.0
STEPS = history_steps(14)
# A whole multiple of every step.
NOW_S = 1_800_000_000
READY = COLUMNS.index("ready")


def row(ready: float | None = 1.0, p99_s: float | None = None, is_panic: float | None = 0.0) -> list[float | None]:
    values = {"ready": ready, "p99_s": p99_s, "is_panic": is_panic}
    return [values.get(name) for name in COLUMNS]


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    new_archive = Archive(tmp_path / "history.db", STEPS, bytes_max=200 * 2**20)
    yield new_archive
    new_archive.close()


def written(archive: Archive, *, from_s: float, to_s: float, every_s: int = 5) -> None:
    """Rows whose number of ready pods is the minute of the day."""
    for at_s in range(int(from_s), int(to_s), every_s):
        archive.put(at_s, {KEY: row(float(at_s // 60 % 1440))}, ())


def test_history_steps_grow_up_to_the_retention() -> None:
    assert [history_step.step_s for history_step in STEPS] == [5, 60, 600]
    assert STEPS[-1].kept_s == 14 * DAY_S
    assert [history_step.kept_s for history_step in history_steps(1)] == [7200, DAY_S, DAY_S]


@pytest.mark.parametrize(
    ("from_s", "to_s", "step_s"),
    [
        (NOW_S - 3600, NOW_S, 5),
        (NOW_S - 7200, NOW_S, 5),
        (NOW_S - 7201, NOW_S, 60),
        (NOW_S - DAY_S, NOW_S, 60),
        # A short range long ago.
        (NOW_S - 3 * DAY_S, NOW_S - 3 * DAY_S + 60, 600),
        (NOW_S - 14 * DAY_S, NOW_S, 600),
        (NOW_S - 20 * DAY_S, NOW_S, 600),
    ],
)
def test_range_uses_the_shortest_retained_step(from_s: float, to_s: float, step_s: int) -> None:
    assert step_of(STEPS, from_s=from_s, to_s=to_s, now_s=NOW_S).step_s == step_s


@given(st.floats(0, 14 * DAY_S), st.floats(1, 14 * DAY_S), st.integers(1, 14))
def test_range_has_at_most_points_max_rows(before_s: float, long_s: float, days: int) -> None:
    from_s = NOW_S - before_s
    history_step = step_of(history_steps(days), from_s=from_s, to_s=from_s + long_s, now_s=NOW_S)
    assert long_s / history_step.step_s <= POINTS_MAX


@given(st.lists(st.lists(st.none() | st.floats(0, 1e6), min_size=len(COLUMNS), max_size=len(COLUMNS)), min_size=1))
def test_merged_values_lie_between_minimum_and_maximum(rows: list[Row]) -> None:
    for place, value in enumerate(merged_row(rows)):
        known = [result for each_row in rows if (result := each_row[place]) is not None]
        if not known:
            assert value is None
            continue
        assert value is not None
        assert min(known) - 1e-3 <= value <= max(known) + 1e-3


def test_merged_row_has_the_maximum_of_panic_and_high_quantiles() -> None:
    rows = merged_row([row(1, 0.1, 0), row(3, 0.9, 1), row(None, None, None)])
    assert dict(zip(COLUMNS, rows, strict=True)) | {"ready": 2.0, "p99_s": 0.9, "is_panic": 1} == dict(
        zip(COLUMNS, rows, strict=True)
    )


def test_rows_are_read_by_key_and_time_range(archive: Archive) -> None:
    archive.put(NOW_S - 10, {KEY: row(1), "other/hello-00001": row(9)}, ())
    archive.put(NOW_S - 5, {KEY: row(2)}, ())
    history_range = archive.read(KEY, from_s=NOW_S - 60, to_s=NOW_S, now_s=NOW_S)
    assert (history_range.columns["at_s"], history_range.columns["ready"]) == ([NOW_S - 10, NOW_S - 5], [1, 2])
    assert archive.read("default/unknown", from_s=0, to_s=NOW_S, now_s=NOW_S).columns["at_s"] == []
    assert archive.read(KEY, from_s=NOW_S - 7, to_s=NOW_S, now_s=NOW_S).columns["ready"] == [2]


def test_gap_in_the_rows_is_read_as_a_null_row(archive: Archive) -> None:
    for at_s in (NOW_S - 100, NOW_S - 95, NOW_S - 20):
        archive.put(at_s, {KEY: row(4)}, ())
    history_range = archive.read(KEY, from_s=NOW_S - 200, to_s=NOW_S, now_s=NOW_S)
    assert history_range.columns["at_s"] == [NOW_S - 100, NOW_S - 95, NOW_S - 90, NOW_S - 20]
    assert history_range.columns["ready"] == [4, 4, None, 4]


def test_longer_steps_are_means_and_outlive_shorter_steps(archive: Archive) -> None:
    begun_s = NOW_S - 6 * 3600
    written(archive, from_s=begun_s, to_s=NOW_S)
    archive.roll(NOW_S)
    day = archive.read(KEY, from_s=NOW_S - DAY_S, to_s=NOW_S - 1, now_s=NOW_S)
    assert day.step_s == 60
    assert day.columns["at_s"] == list(range(begun_s, NOW_S, 60))
    assert day.columns["ready"] == [at_s // 60 % 1440 for at_s in range(begun_s, NOW_S, 60)]
    fortnight = archive.read(KEY, from_s=NOW_S - 14 * DAY_S, to_s=NOW_S - 1, now_s=NOW_S)
    assert fortnight.columns["at_s"] == list(range(begun_s, NOW_S, 600))
    assert fortnight.columns["ready"] == [
        sum((at_s + 60 * index) // 60 % 1440 for index in range(10)) / 10 for at_s in range(begun_s, NOW_S, 600)
    ]
    # The 5 s rows of the first four hours have been deleted.
    archive.roll(NOW_S)
    near = archive.read(KEY, from_s=NOW_S - 7200, to_s=NOW_S, now_s=NOW_S)
    assert near.columns["at_s"] == list(range(NOW_S - 7200, NOW_S, 5))


def test_unfinished_step_is_read_as_shorter_steps(archive: Archive) -> None:
    written(archive, from_s=NOW_S - 1200, to_s=NOW_S + 425)
    archive.roll(NOW_S + 425)
    history_range = archive.read(KEY, from_s=NOW_S - 14 * DAY_S, to_s=NOW_S + 425, now_s=NOW_S + 425)
    assert history_range.columns["at_s"] == [
        *(NOW_S - 1200, NOW_S - 600),
        *range(NOW_S, NOW_S + 420, 60),
        NOW_S + 420,
    ]


def test_missed_roll_is_caught_up(archive: Archive) -> None:
    written(archive, from_s=NOW_S - 3600, to_s=NOW_S - 1800)
    archive.roll(NOW_S + 3600)
    history_range = archive.read(KEY, from_s=NOW_S - 14 * DAY_S, to_s=NOW_S, now_s=NOW_S + 3600)
    assert history_range.columns["at_s"][:3] == [NOW_S - 3600, NOW_S - 3000, NOW_S - 2400]


def test_steps_are_rolled_up_after_the_clock_is_set_back(archive: Archive) -> None:
    written(archive, from_s=NOW_S + 3600, to_s=NOW_S + 4200)
    archive.roll(NOW_S + 4200)
    written(archive, from_s=NOW_S, to_s=NOW_S + 600)
    archive.roll(NOW_S + 600)
    history_range = archive.read(KEY, from_s=NOW_S - 14 * DAY_S, to_s=NOW_S + 599, now_s=NOW_S + 600)
    assert history_range.columns["at_s"] == [NOW_S]


def test_marks_are_stored_once_until_their_rows_expire(archive: Archive) -> None:
    marks = [Mark(key=KEY, at_s=NOW_S - 3.5, kind="deploy", text="created")]
    archive.put(NOW_S - 5, {}, marks)
    archive.put(NOW_S, {}, marks)
    assert archive.read(KEY, from_s=NOW_S - 60, to_s=NOW_S, now_s=NOW_S).marks == marks
    later_s = NOW_S + 15 * DAY_S
    archive.roll(later_s)
    assert archive.read(KEY, from_s=NOW_S - 60, to_s=later_s, now_s=later_s).marks == []


def test_archive_size_is_bounded_by_dropping_the_oldest_rows(tmp_path: Path) -> None:
    bytes_max = 2**20
    archive = Archive(tmp_path / "history.db", (HistoryStep(5, 1e9), HistoryStep(60, 1e9)), bytes_max=bytes_max)
    names = [f"default/revision-{number:05}" for number in range(40)]
    for at_s in range(NOW_S, NOW_S + 6000, 5):
        archive.put(at_s, {name: [float(at_s % 97) + 0.123] * len(COLUMNS) for name in names}, ())
        if at_s % 60 == 0:
            archive.roll(at_s)
    history_range = archive.read(names[0], from_s=NOW_S + 3000, to_s=NOW_S + 6000, now_s=NOW_S + 6000)
    archive.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("history.db")) <= bytes_max
    assert history_range.columns["at_s"][-1] == NOW_S + 5995
    first_s = history_range.columns["at_s"][0]
    assert first_s is not None
    assert first_s > NOW_S


def test_full_archive_retains_its_rows_and_accepts_small_writes(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "history.db", STEPS, bytes_max=2**18)
    rows: dict[str, Sequence[float | None]] = {f"default/r-{number}": [0.1] * len(COLUMNS) for number in range(3000)}
    archive.put(NOW_S, {KEY: row(7)}, ())
    with pytest.raises(sqlite3.OperationalError, match="full"):
        archive.put(NOW_S + 5, rows, ())
    archive.put(NOW_S + 10, {KEY: row(8)}, ())
    assert archive.read(KEY, from_s=NOW_S, to_s=NOW_S + 20, now_s=NOW_S + 20).columns["ready"] == [7, 8]
    archive.close()


def test_archive_survives_its_process_with_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.db"
    first = Archive(path, STEPS, bytes_max=2**30)
    first.put(NOW_S, {KEY: row(5)}, ())
    # Not closed, as after kill -9.
    second = Archive(path, STEPS, bytes_max=2**30)
    assert second.read(KEY, from_s=NOW_S, to_s=NOW_S + 1, now_s=NOW_S).columns["ready"] == [5]
    assert path.stat().st_mode & 0o777 == 0o600
    first.close()
    second.close()


def test_archive_of_an_earlier_format_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    first = Archive(path, STEPS, bytes_max=2**30)
    first.put(NOW_S, {KEY: row(5)}, ())
    first.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE row_5 DROP COLUMN memory_bytes")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    second = Archive(path, STEPS, bytes_max=2**30)
    second.put(NOW_S + 5, {KEY: [7.0] * len(COLUMNS)}, ())
    columns = second.read(KEY, from_s=NOW_S, to_s=NOW_S + 5, now_s=NOW_S + 5).columns
    assert (columns["ready"], columns["memory_bytes"]) == ([5, 7], [None, 7])
    second.close()


def test_archive_of_a_newer_format_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(ArchiveNewerError, match=f"has format {VERSION + 1}"):
        Archive(path, STEPS, bytes_max=2**30)


@pytest.mark.parametrize(
    "content", [b"not a database, though long enough to look at" * 100, random.Random(1).randbytes(8192)]
)
def test_file_that_is_no_database_is_reported_as_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history.db").write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError) as exception_info:
        Archive(tmp_path / "history.db", STEPS, bytes_max=2**30)
    assert is_damaged(exception_info.value)
    assert not is_damaged(sqlite3.OperationalError("database is locked"))
