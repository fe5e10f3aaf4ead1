import contextlib
import logging
import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.tools.dashboard.archive import HistoryRange
from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.keeper import HistoryKeeper
from serving.tools.dashboard.marks import Mark

KEY = "default/hello-00001"
NOW_S = 1_800_000_000.0
MARK = Mark(key=KEY, at_s=NOW_S - 20, kind="deploy", text="created")


def row(running: float) -> list[float | None]:
    return [running, *[None] * (len(COLUMNS) - 1)]


@contextlib.asynccontextmanager
async def opened_keeper(path: Path, *, bytes_max: int = 2**30) -> AsyncIterator[HistoryKeeper]:
    keeper = HistoryKeeper(path, days=14, bytes_max=bytes_max)
    try:
        yield keeper
    finally:
        await keeper.close(NOW_S)


async def last_hour(keeper: HistoryKeeper) -> HistoryRange | None:
    return await keeper.read(KEY, from_s=NOW_S - 3600, to_s=NOW_S, now_s=NOW_S)


async def running_of(keeper: HistoryKeeper) -> list[float | None]:
    history_range = await last_hour(keeper)
    assert history_range is not None
    return history_range.columns["running"]


async def test_ticks_are_stored_as_steps_that_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with opened_keeper(path) as keeper:
        for before_s, running in ((20, 1.0), (18, 3.0), (15, 5.0), (13, 7.0)):
            keeper.record(NOW_S - before_s, {KEY: row(running)}, [MARK] if before_s == 20 else [])
        # The last step has not ended.
        assert await running_of(keeper) == [2.0]
    async with opened_keeper(path) as keeper:
        assert await running_of(keeper) == [2.0, 6.0]
        history_range = await last_hour(keeper)
        assert history_range is not None
        assert history_range.marks == [MARK]


@pytest.mark.parametrize(("content", "suffix"), [(random.Random(1).randbytes(8192), "damaged"), (b"", "newer")])
async def test_unusable_history_file_is_moved_aside(
    tmp_path: Path, content: bytes, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(content)
    if suffix == "newer":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    async with opened_keeper(path) as keeper:
        assert await last_hour(keeper) is None
        keeper.record(NOW_S - 9, {KEY: row(1.0)}, ())
        keeper.record(NOW_S - 4, {KEY: row(2.0)}, ())
        assert await running_of(keeper) == [1.0]
    assert path.with_name(f"history.db.{suffix}").read_bytes() == before
    assert [record.levelno for record in caplog.records if record.message == "history.put-aside"] == [logging.ERROR]


async def test_history_file_with_a_mistyped_value_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with opened_keeper(path) as keeper:
        keeper.record(NOW_S - 9, {KEY: row(1.0)}, ())
        keeper.record(NOW_S - 4, {KEY: row(2.0)}, ())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        # Like a flipped byte: SQLite accepts any type in any column.
        connection.execute("UPDATE row_5 SET at_s = 'x' || at_s")
    async with opened_keeper(path) as keeper:
        assert await keeper.usage(from_s=NOW_S - 3600, to_s=NOW_S, now_s=NOW_S) is None
    assert path.with_name("history.db.damaged").exists()


async def test_history_file_damaged_between_runs_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with opened_keeper(path) as keeper:
        for number in range(200):
            rows = {f"default/r-{index}": row(float(index)) for index in range(40)}
            keeper.record(NOW_S - 2000 + 5 * number, {KEY: row(1.0), **rows}, ())
            # Writes are queued for at most a minute of steps, so wait for the disk.
            await last_hour(keeper)
        assert len(await running_of(keeper)) == 199
    with path.open("r+b") as file:
        # The pages behind the schema.
        file.seek(4096)
        file.write(random.Random(1).randbytes(64 * 4096))
    async with opened_keeper(path) as keeper:
        assert await last_hour(keeper) is None
        keeper.record(NOW_S - 9, {KEY: row(3.0)}, ())
        keeper.record(NOW_S - 4, {KEY: row(4.0)}, ())
        assert await running_of(keeper) == [3.0]


async def test_unwritable_folder_loses_history_and_is_logged_once_per_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    async with opened_keeper(tmp_path / "file" / "history.db") as keeper:
        for number in range(10):
            keeper.record(NOW_S - 100 + 5 * number, {KEY: row(1.0)}, ())
        assert await last_hour(keeper) is None
    assert [record.message for record in caplog.records] == ["history.unwritten"] * 2


async def test_full_history_file_loses_only_rows_that_do_not_fit(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path / "history.db", bytes_max=2**18) as keeper:
        keeper.record(NOW_S - 100, {KEY: row(1.0)}, ())
        keeper.record(NOW_S - 95, {f"default/r-{index}": [0.1] * len(COLUMNS) for index in range(5000)}, ())
        keeper.record(NOW_S - 90, {KEY: row(3.0)}, ())
        keeper.record(NOW_S - 85, {KEY: row(4.0)}, ())
        assert await running_of(keeper) == [1.0, 3.0]
