"""The journal under injected errors: each write is rejected or on disk, and the journal keeps working."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.model.errors import Unavailable
from serving.home.store.journal import Journal, JournalEntry

ERRORS: dict[str, Callable[[], BaseException]] = {
    "memory": MemoryError,
    "interrupt": KeyboardInterrupt,
    "disk": lambda: OSError(28, "No space left on device"),
    "sqlite": lambda: sqlite3.OperationalError("disk I/O error"),
    "broken": lambda: sqlite3.DatabaseError("database disk image is malformed"),
    "value": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
}
# The number of the failing statement, its error, and whether it fails after its execution.
FAULTS = st.none() | st.tuples(st.integers(0, 4), st.sampled_from(sorted(ERRORS)), st.booleans())
WRITES = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.binary(min_size=1, max_size=20), FAULTS), min_size=1, max_size=12
)


class Faulty:
    """A connection that fails once at a chosen statement."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.left = -1
        self.error = ""
        self.is_after = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:  # noqa: ANN401
        fails, error = self.left == 0, ERRORS.get(self.error, MemoryError)()
        self.left -= 1
        # A committed statement cannot fail: SQLite reports errors before the commit.
        if fails and not (self.is_after and sql != "COMMIT"):
            raise error
        cursor = self._connection.execute(sql, *parameters)
        if fails:
            raise error
        return cursor

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._connection, name)


async def outcome(journal: Journal, entry: JournalEntry) -> Unavailable | None:
    future: asyncio.Future[Unavailable | None] = asyncio.get_running_loop().create_future()
    journal.submit(entry, future.set_result)
    return await asyncio.wait_for(future, 60)


async def run(path: Path, writes: list[tuple[int, bytes | None, Any]]) -> dict[str, bytes]:
    journal, known = Journal(path), dict[str, bytes]()
    faulty = Faulty(journal._connection)
    journal._connection = faulty  # type: ignore[assignment]
    for number, data, fault in writes:
        faulty.left, faulty.error, faulty.is_after = fault or (-1, "", False)
        entry = JournalEntry(kind="k", namespace="", name=str(number), data=data)
        if await outcome(journal, entry) is None:
            known.pop(entry.name, None)
            if data is not None:
                known[entry.name] = data
    faulty.left = -1
    # After any fault, the next write is accepted.
    assert await outcome(journal, JournalEntry(kind="k", namespace="", name="last", data=b"x")) is None
    await journal.close()
    return known | {"last": b"x"}


@settings(max_examples=60, deadline=None)
@given(WRITES)
def test_write_is_rejected_or_on_disk_after_any_fault(writes: list[tuple[int, bytes | None, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        known = asyncio.run(run(path, writes))
        again = Journal(path)
        try:
            assert {entry.name: entry.data for entry in again.entries()} == known
        finally:
            asyncio.run(again.close())
