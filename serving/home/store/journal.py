"""Persists the durable part of each object in one SQLite file.

A thread commits all waiting writes (at most ``_BATCH_MAX``) in one transaction (WAL, ``synchronous=FULL``), and calls
the ``done`` of each on the loop, in order. Versions are reserved ahead in blocks, so that after a crash the store
starts above every version that clients may have.

A failed write (a full disk) changes nothing and raises ``Unavailable``; the next may succeed. On a full disk objects
can still be deleted: a second file reserves space, which is then released for deletions only. An unreadable file raises
``JournalDamaged`` and is never modified. One process has the file at a time. ``home/store/durability.py`` decides which
parts are durable.
"""

import asyncio
import contextlib
import errno
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import JournalDamaged, Unavailable
from serving.home.store.migrations import SQLITE_DAMAGE, check_reader, copy_of, migrate, write_synced
from serving.net.cluster.kinds import CONFIGURATION, SERVING_SERVICE

VERSION_BLOCK = 2**24
"""Versions reserved at a time. 16.8 million: half an hour at 10,000 writes a second."""

# Most writes per transaction: their ``done`` calls run on the event loop together, about 40 µs each.
_BATCH_MAX = 128
# Most writes that wait for the disk; each is a waiting HTTP request.
_WAITING_MAX = 10_000
# In SQLite's words.
_FULL = "database or disk is full"
# Most growth of a row on a full disk, in bytes.
_GROWTH_BYTES_MAX = 512
_TEMPLATED = {SERVING_SERVICE.resource, CONFIGURATION.resource}
# More than SQLite's log has before a checkpoint (1,000 pages), which needs as much space.
_RESERVE_BYTES = 5 * 2**20
# "srvg": what `file` and `PRAGMA application_id` show.
_APPLICATION_ID = 0x73727667
# The first program's schema; ``migrations`` updates it.
_SCHEMA = (
    """CREATE TABLE objects (kind TEXT, namespace TEXT, name TEXT, data BLOB NOT NULL,
         PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID""",
    "CREATE TABLE versions (id INTEGER PRIMARY KEY CHECK (id = 0), reserved INTEGER NOT NULL)",
    "INSERT INTO versions VALUES (0, 0)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    "PRAGMA user_version = 1",
)

_log = logging.getLogger("store")

Done = Callable[[Unavailable | None], None]


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One write to the journal: an object as JSON, or None as ``data`` to remove the object."""

    kind: str
    namespace: str
    name: str
    data: bytes | None


class _Reservation(msgspec.Struct, frozen=True):
    up_to: int


_Waiting = tuple[JournalEntry | _Reservation, Done]


class Journal:
    """An open journal. Resource versions begin at ``start_version``, above those of all earlier runs.

    They end at ``reserved``, until more versions are reserved.
    """

    def __init__(self, path: str | os.PathLike[str], *, bytes_max: int = 2**30) -> None:
        """Open or create the file; ``entries`` reads it. Raises ``JournalDamaged``, ``Unavailable``."""
        self.path = Path(path)
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._reserve = self.path.with_name(f"{self.path.name}.reserve")
        self._is_reserving = self._is_full = False
        self._writing = threading.Lock()
        try:
            self.start_version = self._open(bytes_max)
        except Unavailable as error:
            code = getattr(error.__cause__, "sqlite_errorcode", None)
            if code != sqlite3.SQLITE_FULL or not self._reserve.exists():
                raise
            # The disk has filled up since the last run.
            self._reserve.unlink()
            self.start_version = self._open(bytes_max)
            self._is_full = True
        self._reserve_space()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _open(self, bytes_max: int) -> int:
        """Open the file and reserve versions; return the first."""
        self._connection = _opened(self.path, bytes_max)
        try:
            start_version: int = self._connection.execute("SELECT reserved FROM versions").fetchone()[0]
            start_version = _above_older_copy(self.path, start_version)
            self.reserved = start_version + VERSION_BLOCK
            self._write([_Reservation(self.reserved)])
            _mark_reserved(self.path, self.reserved)
        except sqlite3.Error as error:
            self._connection.close()
            raise Unavailable(f"the journal {self.path} cannot be written: {error}") from error
        return start_version

    def __repr__(self) -> str:
        return f"Journal({self.path.name}, {self._waiting.qsize()} waiting)"

    def entries(self) -> Iterator[JournalEntry]:
        """Yield all objects in the file. Must be called before the first ``submit``."""
        rows = self._connection.execute(
            "SELECT kind, namespace, name, data FROM objects ORDER BY kind, namespace, name"
        )
        with _reporting_damage(self.path):
            for kind, namespace, name, data in rows:
                yield JournalEntry(
                    kind=kind, namespace=namespace, name=name, data=data if isinstance(data, bytes) else b""
                )

    def submit(self, entry: JournalEntry, done: Done) -> None:
        """Queue a write. ``done`` is called in the event loop with None once it is on disk, or with the error."""
        if self._waiting.qsize() >= _WAITING_MAX:
            raise Unavailable(f"the journal is {_WAITING_MAX} writes behind; try again later")
        self._send((entry, done))

    def write_now(self, entries: Sequence[JournalEntry], *, reserved: int = 0) -> None:
        """Commit entries, and reserve versions up to ``reserved``.

        Must be called before the first ``submit``. Raises ``Unavailable``.
        """
        try:
            self._write([*entries, _Reservation(reserved)])
        except sqlite3.Error as error:
            raise Unavailable(f"the journal {self.path} cannot be written: {error}") from error

    def claim(self, version: int) -> None:
        """Check that a version is reserved. More versions are reserved in the background before they are needed.

        Raises ``Unavailable`` if no reserved versions are left, as after many writes on a full disk.
        """
        if version > self.reserved:
            self._reserve_more()
            raise Unavailable(f"no versions are left: the journal {self.path} could not be written for a long time")
        if self.reserved - version < VERSION_BLOCK // 2:
            self._reserve_more()

    def _reserve_more(self) -> None:
        if self._is_reserving:
            return
        self._is_reserving = True
        up_to = self.reserved + VERSION_BLOCK

        def done(error: Unavailable | None) -> None:
            self._is_reserving = False
            if error is None:
                self.reserved = up_to
                _mark_reserved(self.path, up_to)

        self._send((_Reservation(up_to), done))

    async def close(self) -> None:
        """Flush the queue and end the thread."""
        if self._thread is None:
            self._connection.close()
            return
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    def _send(self, item: _Waiting) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
        self._waiting.put(item)

    def _run(self) -> None:
        """Run in a thread: execute one transaction after another, each with all waiting writes."""
        is_open = True
        while is_open:
            batch: list[_Waiting] = []
            item = self._waiting.get()
            while item is not None:
                batch.append(item)
                if len(batch) == _BATCH_MAX:
                    break
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
            is_open = item is not None
            if batch:
                self._commit(batch)
        self._connection.close()

    def _commit(self, batch: list[_Waiting]) -> None:
        failures = self._failures([item for item, _ in batch])

        def notify() -> None:
            for (_, done), failure in zip(batch, failures, strict=True):
                done(failure)

        assert self._loop is not None
        # Without an event loop the process is exiting, and no caller waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(notify)

    def _failures(self, items: Sequence[JournalEntry | _Reservation]) -> list[Unavailable | None]:
        """Write items to disk; return why each failed, or None.

        On a full disk, items that need no space are written alone.
        """
        if self._is_full:
            self._reserve_space()
        # While the reserve is released, growing items would use the space of the deletions.
        failures = [self._refusal(_FULL) if self._is_full else self._failure_of(items)] * len(items)
        if failures[0] is None or not self._make_room():
            return failures
        try:
            small = [number for number, item in enumerate(items) if self._takes_no_room(item)]
        except Exception as error:  # noqa: BLE001 - as below
            return [self._refusal(str(error))] * len(items)
        again = self._failure_of([items[number] for number in small])
        for number in small:
            failures[number] = again
        return failures

    def _failure_of(self, items: Sequence[JournalEntry | _Reservation]) -> Unavailable | None:
        """Write to disk; return why it failed, or None."""
        try:
            self._write(items)
        except BaseException as error:  # noqa: BLE001 - the outermost frame of the thread: the waiting callers must get it
            self._is_full = self._is_full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            return self._refusal(str(error))
        return None

    def _refusal(self, why: str) -> Unavailable:
        way_out = "; make room on its disk: deletes still work" if self._is_full else ""
        return Unavailable(f"nothing was changed: the journal {self.path} cannot be written: {why}{way_out}")

    def _make_room(self) -> bool:
        """On a full disk, release the reserved space, and restart SQLite's log; return whether this succeeded."""
        try:
            if self._is_full:
                self._reserve.unlink(missing_ok=True)
                return bool(self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0)
        except (OSError, sqlite3.Error):
            pass
        return False

    def _reserve_space(self) -> None:
        """Reserve disk space, if any is free, so that deletions succeed even on a full disk."""
        try:
            descriptor = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _RESERVE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._is_full = self._is_full and error.errno in {errno.ENOSPC, errno.EDQUOT}
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
        else:
            self._is_full = False

    def _takes_no_room(self, item: JournalEntry | _Reservation) -> bool:
        """Whether an item needs no further space: a removal, a reservation, or a row that hardly grows.

        A new template needs space for a new revision.
        """
        if isinstance(item, _Reservation) or item.data is None:
            return True
        key = (item.kind, item.namespace, item.name)
        row = self._connection.execute(
            "SELECT data FROM objects WHERE kind = ? AND namespace = ? AND name = ?", key
        ).fetchone()
        if row is None or len(item.data) > len(row[0]) + _GROWTH_BYTES_MAX:
            return False
        return item.kind not in _TEMPLATED or _template_of(item.data) == _template_of(row[0])

    def copy(self) -> bytes:
        """All committed data, as one SQLite file.

        Call it in a thread; writes wait until it returns. Raises ``Unavailable``.
        """
        with self._writing:
            try:
                return copy_of(self._connection)
            except sqlite3.Error as error:
                raise Unavailable(f"the journal {self.path} cannot be copied: {error}") from error

    def _write(self, items: Sequence[JournalEntry | _Reservation]) -> None:
        with self._writing:
            _commit_items(self._connection, items)


def _template_of(data: bytes) -> object:
    return msgspec.json.decode(data).get("spec", {}).get("template")


def _mark_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.versions")


def _above_older_copy(path: Path, start_version: int) -> int:
    """The first version above all versions used in this folder, even if an older copy of the file was restored."""
    marked = 0
    with contextlib.suppress(OSError, ValueError):
        marked = int(_mark_of(path).read_text(encoding="ascii"))
    if marked > start_version:
        extra = {"path": str(path), "its_versions": start_version, "handed_out": marked}
        _log.warning("journal.older_copy", extra=extra)
    return max(marked, start_version)


def _mark_reserved(path: Path, reserved: int) -> None:
    """Store the last reserved version in a file beside the journal, to detect an older copy of the journal later."""
    with contextlib.suppress(OSError):
        write_synced(_mark_of(path), str(reserved).encode())


def _commit_items(connection: sqlite3.Connection, items: Sequence[JournalEntry | _Reservation]) -> None:
    """Execute all items in one transaction, or none."""
    if connection.in_transaction:
        # The rollback of the last failure has failed too.
        connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for item in items:
            match item:
                case _Reservation(up_to):
                    connection.execute("UPDATE versions SET reserved = max(reserved, ?)", (up_to,))
                case JournalEntry(kind=kind, namespace=namespace, name=name, data=None):
                    connection.execute(
                        "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", (kind, namespace, name)
                    )
                case JournalEntry(kind=kind, namespace=namespace, name=name, data=data):
                    connection.execute(
                        "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (kind, namespace, name, data)
                    )
        connection.execute("COMMIT")
    except BaseException:
        # From SQLite, or from Python for a name that is not UTF-8. Some failures have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _opened(path: Path, bytes_max: int) -> sqlite3.Connection:
    try:
        # Created here rather than by SQLite, so that no other user can ever read it: it contains Secrets.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        is_new = path.stat().st_size == 0
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(f"the journal {path} cannot be opened: {error}") from error
    try:
        with _reporting_damage(path):
            _prepare(connection, path, is_new=is_new, bytes_max=bytes_max)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, *, is_new: bool, bytes_max: int) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if not is_new:
        check_journal(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {max(1, bytes_max // page_bytes)}")
    # A file without tables is one whose creation was interrupted.
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")
    migrate(connection, path)


def check_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ``JournalDamaged`` if the journal is so damaged that the system must not start with it."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if tables and application_id != _APPLICATION_ID:
        raise JournalDamaged(path=str(path), detail="it is a database of another program")
    check_reader(connection, path)
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise JournalDamaged(path=str(path), detail=" ".join(str(verdict).split()))


@contextlib.contextmanager
def _reporting_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the journal {path} was not migrated, and is as before: {error}") from error
    except sqlite3.OperationalError as error:
        # A lock, a full disk, or a missing right: the file itself is intact.
        text = "another process holds it" if "locked" in str(error) else str(error)
        raise Unavailable(f"the journal {path} cannot be opened: {text}") from error
    except SQLITE_DAMAGE as error:
        raise JournalDamaged(path=str(path), detail=str(error)) from error
