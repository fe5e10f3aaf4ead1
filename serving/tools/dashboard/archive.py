"""The history of revisions on disk: one SQLite file, limited in time and in bytes.

The file has rows in three steps: 5 s for two hours, a minute for a day and a half, and 10 minutes for ``history-days``.
A row of a longer step is the mean of the shorter step's rows, or their maximum for ``panic`` and for latencies above
the median. Marks are changes: decisions, revisions, traffic, failures.

The methods block for milliseconds, so ``HistoryKeeper`` calls them in a thread.
"""

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from serving.tools.dashboard.board import COLUMNS
from serving.tools.dashboard.cost import RevisionOwner, RevisionUsage, ServiceUsage, UsageReport
from serving.tools.dashboard.marks import Mark

VERSION = 2
"""The format version of the file, in its ``user_version``."""

DAY_S = 86_400.0
POINTS_MAX = 2_200
"""Maximum number of rows per response: two hours, a day and a half, or two weeks in the three steps."""

_WORST = frozenset({"is_panic", "p95_s", "p99_s"})
# SQLite's default.
_PAGE_BYTES = 4096
# The part of each step to drop when the file is full.
_DROPPED_PART = 8
ARCHIVE_ERRORS = (sqlite3.Error, TypeError, ValueError)
"""Errors of reading and writing an open file."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

Row = Sequence[float | None]


class HistoryStep(msgspec.Struct, frozen=True):
    """A resolution of the history: one row every ``step_s`` seconds, stored for ``kept_s`` seconds."""

    step_s: int
    kept_s: float


class HistoryRange(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a revision in a time range: rows of ``step_s`` seconds, by column, and marks for its charts.

    The column ``at_s`` has each row's time. A row with no value except ``at_s`` marks the start of a gap in the
    history.
    """

    step_s: int
    columns: dict[str, list[float | None]]
    marks: list[Mark]


def history_steps(days: float) -> tuple[HistoryStep, ...]:
    """The steps, shortest first. Each step is a multiple of the previous one."""
    whole_s = days * DAY_S
    return tuple(
        HistoryStep(step_s, min(kept_s, whole_s))
        for step_s, kept_s in ((5, 7_200.0), (60, 1.5 * DAY_S), (600, whole_s))
    )


def step_of(steps: Sequence[HistoryStep], *, from_s: float, to_s: float, now_s: float) -> HistoryStep:
    """The shortest step that covers the range from ``from_s`` with at most ``POINTS_MAX`` rows; else the longest."""
    return next(
        (step for step in steps if from_s >= now_s - step.kept_s and to_s - from_s <= POINTS_MAX * step.step_s),
        steps[-1],
    )


def merged_row(rows: Sequence[Row]) -> list[float | None]:
    """Merge several rows: the mean or the maximum of each column; None if no row has a number for it."""
    merged: list[float | None] = []
    for name, *values in zip(COLUMNS, *rows, strict=True):
        known = [value for value in values if value is not None]
        worst = max(known, default=None)
        merged.append(worst if name in _WORST or worst is None else round(sum(known) / len(known), 4))
    return merged


class ArchiveNewerError(Exception):
    """The file has the format of a newer version."""


class Archive:
    """An open history file. Opening it raises ``sqlite3.Error``, ``OSError`` or ``ArchiveNewerError``."""

    def __init__(self, path: Path, steps: Sequence[HistoryStep], *, bytes_max: int) -> None:
        self._steps = steps
        self._bytes_max = bytes_max
        self._ids: dict[str, int] = {}
        self._owners: dict[str, RevisionOwner] = {}
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(path)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, path: Path) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise ArchiveNewerError(f"{path} has format {version}, this version knows up to {VERSION}")
        path.chmod(0o600)
        # Without a sync per commit, a machine failure loses the last seconds, never the file.
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA cache_size = -512")
        self._db.execute(f"PRAGMA max_page_count = {max(64, self._bytes_max // _PAGE_BYTES)}")
        columns = ", ".join(f"{name} REAL" for name in COLUMNS)
        with self._change():
            self._db.execute("CREATE TABLE IF NOT EXISTS revision (id INTEGER PRIMARY KEY, key TEXT UNIQUE)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS mark (id INTEGER, at_s REAL, kind TEXT, text TEXT, "
                "PRIMARY KEY (id, at_s, kind, text)) WITHOUT ROWID"
            )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS owner (id INTEGER PRIMARY KEY, service TEXT, memory_bytes INTEGER)"
            )
            for step in self._steps:
                # Sorted by time, so that a step of all revisions is on few pages.
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS row_{step.step_s} (at_s INTEGER, id INTEGER, {columns}, "
                    "PRIMARY KEY (at_s, id)) WITHOUT ROWID"
                )
                self._add_columns(f"row_{step.step_s}")
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._load()

    def _add_columns(self, table: str) -> None:
        """Add the columns that a file of an earlier version lacks, at the end of the table."""
        known = {name for _, name, *_ in self._db.execute(f"PRAGMA table_info({table})")}
        for name in COLUMNS:
            if name not in known:
                self._db.execute(f"ALTER TABLE {table} ADD COLUMN {name} REAL")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def put(
        self,
        at_s: int,
        rows: Mapping[str, Row],
        marks: Iterable[Mark],
        *,
        owners: Mapping[str, RevisionOwner] = MappingProxyType({}),
    ) -> None:
        """Write the rows of the 5 seconds from ``at_s`` on, by "namespace/revision", and marks, in one transaction.

        ``owners`` are stored as well, because rows outlive their revisions.
        """
        places = ", ".join("?" * (len(COLUMNS) + 2))
        table = f"row_{self._steps[0].step_s}"
        with self._change():
            self._db.executemany(
                f"INSERT OR REPLACE INTO {table} VALUES ({places})",  # noqa: S608 - a name of this module
                [(at_s, self._id(key), *row) for key, row in rows.items()],
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO mark VALUES (?, ?, ?, ?)",
                [(self._id(mark.key), mark.at_s, mark.kind, mark.text) for mark in marks],
            )
            new = {key: owner for key, owner in owners.items() if self._owners.get(key) != owner}
            self._db.executemany(
                "INSERT OR REPLACE INTO owner VALUES (?, ?, ?)", [(self._id(key), *owner) for key, owner in new.items()]
            )
            self._owners |= new

    def roll(self, now_s: float) -> None:
        """Write the rows of longer steps that have ended, and delete expired and excess rows."""
        for fine, coarse in zip(self._steps, self._steps[1:], strict=False):
            self._merge(fine.step_s, coarse.step_s, now_s)
        with self._change():
            for step in self._steps:
                self._db.execute(f"DELETE FROM row_{step.step_s} WHERE at_s < ?", (now_s - step.kept_s,))  # noqa: S608
            self._db.execute("DELETE FROM mark WHERE at_s < ?", (now_s - self._steps[-1].kept_s,))
        # Space stays free for the rows until the next roll.
        while self._used_bytes() > self._bytes_max * 0.9 and self._drop_oldest():
            pass

    def read(self, key: str, *, from_s: float, to_s: float, now_s: float) -> HistoryRange:
        """The history of "namespace/revision". A step that has not ended yet is returned as shorter steps."""
        chosen = step_of(self._steps, from_s=from_s, to_s=to_s, now_s=now_s)
        rows: list[tuple[float | None, ...]] = []
        cursor = from_s
        number = self._ids.get(key, -1)
        for step in reversed(self._steps[: self._steps.index(chosen) + 1]):
            step_rows = self._rows(
                number, step.step_s, from_s=max(cursor, now_s - step.kept_s - step.step_s), to_s=to_s
            )
            for row in step_rows:
                # The dashboard did not run: charts must not draw a line across the gap.
                if rows and row[0] > cursor + step.step_s:
                    rows.append((cursor, *[None] * len(COLUMNS)))
                rows.append(row)
                cursor = row[0] + step.step_s
        names = ("at_s", *COLUMNS)
        columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        marks = self._db.execute(
            "SELECT at_s, kind, text FROM mark WHERE id = ? AND at_s BETWEEN ? AND ? ORDER BY at_s DESC LIMIT ?",
            (number, from_s, to_s, POINTS_MAX),
        ).fetchall()
        return HistoryRange(
            step_s=chosen.step_s,
            columns=columns,
            marks=[Mark(key=key, at_s=at_s, kind=kind, text=text) for at_s, kind, text in reversed(marks)],
        )

    def usage(self, *, from_s: float, to_s: float, now_s: float) -> UsageReport:
        """The usage of all revisions and services in a range, in whole steps, except revisions without an owner."""
        chosen = step_of(self._steps, from_s=from_s, to_s=to_s, now_s=now_s)
        pods_s: defaultdict[str, float] = defaultdict(float)
        known_s: defaultdict[str, float] = defaultdict(float)
        absent_s: defaultdict[str, float] = defaultdict(float)
        cursor = from_s
        for step in reversed(self._steps[: self._steps.index(chosen) + 1]):
            table, span = f"row_{step.step_s}", (max(cursor, now_s - step.kept_s - step.step_s), to_s)
            for key, pods in self._db.execute(
                f"SELECT key, total(ready) FROM {table} JOIN revision USING (id) "  # noqa: S608 - a name of this module
                "WHERE at_s >= ? AND at_s < ? GROUP BY id",
                span,
            ):
                pods_s[key] += pods * step.step_s
            for service, count, absent in self._db.execute(
                "SELECT service, count(*), total(max(0.0, 1.0 - pods)) FROM (SELECT service, total(ready) AS pods "  # noqa: S608
                f"FROM {table} JOIN owner USING (id) WHERE at_s >= ? AND at_s < ? GROUP BY at_s, service) GROUP BY service",
                span,
            ):
                known_s[service] += count * step.step_s
                absent_s[service] += absent * step.step_s
            (last,) = self._db.execute(f"SELECT max(at_s) FROM {table}").fetchone()  # noqa: S608
            cursor = cursor if last is None else max(cursor, last + step.step_s)
        owned = {key: owner for key, owner in self._owners.items() if key in pods_s}
        return UsageReport(
            [RevisionUsage(revision=key, owner=owner, pod_s=pods_s[key]) for key, owner in owned.items()],
            [ServiceUsage(service=key, known_s=seconds, absent_s=absent_s[key]) for key, seconds in known_s.items()],
        )

    def _load(self) -> None:
        self._ids = dict(self._db.execute("SELECT key, id FROM revision"))
        owners = self._db.execute("SELECT key, service, memory_bytes FROM owner JOIN revision USING (id)")
        self._owners = {key: RevisionOwner(service, memory) for key, service, memory in owners}

    def _rows(self, number: int, step_s: int, *, from_s: float, to_s: float) -> list[tuple[float, ...]]:
        first = int(-(-from_s // step_s) * step_s)
        # One lookup per time, since rows of other revisions are in between.
        return self._db.execute(
            "WITH RECURSIVE grid (at_s) AS (VALUES (?) UNION ALL SELECT at_s + ? FROM grid WHERE at_s + ? <= ?) "  # noqa: S608
            f"SELECT row.at_s, {', '.join(COLUMNS)} FROM grid JOIN row_{step_s} row ON row.at_s = grid.at_s AND row.id = ?",
            (first, step_s, step_s, to_s, number),
        ).fetchall()

    def _merge(self, fine_s: int, coarse_s: int, now_s: float) -> None:
        end = int(now_s // coarse_s) * coarse_s
        ((last,), (oldest,)) = (
            self._db.execute(f"SELECT max(at_s) FROM row_{coarse_s}").fetchone(),  # noqa: S608
            self._db.execute(f"SELECT min(at_s) FROM row_{fine_s}").fetchone(),  # noqa: S608
        )
        if oldest is None:
            return
        # Write the last step again: its end may have been incomplete, and a clock may have been set back.
        start = min(oldest // coarse_s * coarse_s if last is None else last, end - coarse_s)
        columns = ", ".join(f"max({name})" if name in _WORST else f"round(avg({name}), 4)" for name in COLUMNS)
        with self._change():
            self._db.execute(
                f"INSERT OR REPLACE INTO row_{coarse_s} SELECT at_s / ? * ? AS step, id, {columns} "  # noqa: S608
                f"FROM row_{fine_s} WHERE at_s >= ? AND at_s < ? GROUP BY step, id",
                (coarse_s, coarse_s, start, end),
            )

    def _used_bytes(self) -> int:
        (pages,), (free,) = (self._db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
        return int(pages - free) * _PAGE_BYTES

    def _drop_oldest(self) -> bool:
        """Delete the oldest part of each step; return whether any row existed."""
        dropped = 0
        with self._change():
            for step in self._steps:
                table = f"row_{step.step_s}"
                first, last = self._db.execute(f"SELECT min(at_s), max(at_s) FROM {table}").fetchone()  # noqa: S608
                if first is not None:
                    until = first + max(step.step_s, (last - first) // _DROPPED_PART)
                    dropped += self._db.execute(f"DELETE FROM {table} WHERE at_s < ?", (until,)).rowcount  # noqa: S608
        return dropped > 0

    def _id(self, key: str) -> int:
        number = self._ids.get(key)
        if number is None:
            self._db.execute("INSERT OR IGNORE INTO revision (key) VALUES (?)", (key,))
            (number,) = self._db.execute("SELECT id FROM revision WHERE key = ?", (key,)).fetchone()
            self._ids[key] = number
        return number

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # SQLite rolls back by itself for some errors, such as a full disk.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._ids = {}
            self._owners = {}
            with contextlib.suppress(sqlite3.Error):
                self._load()
            raise


def is_damaged(error: Exception) -> bool:
    """Whether the error means that a file is a damaged database, or not a database.

    SQLite stores values of any type, and texts in invalid UTF-8, so reading may raise other errors.
    """
    return isinstance(error, TypeError | ValueError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
