"""Migrates a journal by numbered steps, after a backup copy.

A journal has two numbers. ``PRAGMA user_version`` is the oldest program version that may read the file; an older
program refuses it. The step is the last completed entry of ``STEPS``. A step that only adds data, which older programs
ignore, does not raise the first number, so that a downgrade still reads its objects. A step that older programs would
misread raises it. Steps run in one transaction, after a copy of the file was written and synchronized.
"""

import os
import sqlite3
from pathlib import Path

import msgspec

from serving import __version__
from serving.core.model.errors import JournalDamaged

READER = 1
"""The newest format that this program can read."""

# SQLite's messages about a damaged page may quote the page, which Python decodes as UTF-8.
SQLITE_DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors of a damaged file."""

_USER_VERSION_AT = 60
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_STEP, _PROGRAM = "step", "program"


class MigrationStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step ``number`` of the migrations of the journal's format. ``statements`` convert a file from the previous step.

    Programs that know at least step ``reader`` can read the converted file.
    """

    number: int
    reader: int
    """The oldest reader of a file that has taken this step."""

    statements: tuple[str, ...]


STEPS: tuple[MigrationStep, ...] = (
    # The program that wrote last, for a refusal that says which version to run.
    MigrationStep(
        number=2,
        reader=1,
        statements=("CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",),
    ),
)


def migrate(connection: sqlite3.Connection, path: Path, *, steps: tuple[MigrationStep, ...] = STEPS) -> None:
    """Run the missing steps, and record this program as the last writer.

    An existing journal is first copied to ``journal.db.before-step-N``. If the copy fails, nothing has changed. Raises
    ``OSError``, ``sqlite3.Error``.
    """
    missing = [step for step in steps if step.number > step_of(connection)]
    if missing and connection.execute("SELECT count(*) FROM objects").fetchone()[0]:
        write_synced(path.with_name(f"{path.name}.before-step-{missing[0].number}"), copy_of(connection))
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in missing:
            for statement in step.statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {step.reader}")
            _write_fact(connection, _STEP, str(step.number))
        if _fact(connection, _PROGRAM) != __version__:
            _write_fact(connection, _PROGRAM, __version__)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if missing:
        # The header is then in the file itself, where ``refuse_newer_journal`` reads it without a lock.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def step_of(connection: sqlite3.Connection) -> int:
    """The last migration step of a journal; 1 for a journal without a recorded step."""
    return int(_fact(connection, _STEP) or 1)


def check_reader(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ``JournalDamaged`` if an open journal requires a newer program; the text names its writer."""
    reader = connection.execute("PRAGMA user_version").fetchone()[0]
    if reader > READER:
        raise _newer(path, reader, _fact(connection, _PROGRAM))


def refuse_newer_journal(path: Path) -> None:
    """Raise ``JournalDamaged`` if a journal requires a newer program. Accepts a missing or damaged file.

    Another process may have the file open.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError:
        return
    reader = int.from_bytes(header[_USER_VERSION_AT : _USER_VERSION_AT + 4], "big")
    if header.startswith(_MAGIC) and reader > READER:
        raise _newer(path, reader, "")


def copy_of(connection: sqlite3.Connection) -> bytes:
    """All committed content of an open database, as one SQLite file."""
    copy = sqlite3.connect(":memory:")
    try:
        connection.backup(copy)
        return copy.serialize()
    finally:
        copy.close()


def _newer(path: Path, reader: int, program: str) -> JournalDamaged:
    by = f", written by serving {program}" if program else ""
    copies = sorted(path.parent.glob(f"{path.name}.before-step-*"))
    way_back = f", or stop and put {copies[-1].name} in its place, which loses later writes" if copies else ""
    detail = f"it has format {reader}{by}, and this program knows up to {READER}; run the newer version{way_back}"
    return JournalDamaged(path=str(path), detail=detail)


def _fact(connection: sqlite3.Connection, name: str) -> str:
    if not connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'facts'").fetchone()[0]:
        return ""
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return str(row[0]) if row else ""


def _write_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def write_synced(target: Path, content: bytes) -> None:
    """Write a private file completely and durably, or keep the old file. Raises ``OSError``."""
    temporary = target.with_name(f"{target.name}.new")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)
        sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises ``OSError``."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
