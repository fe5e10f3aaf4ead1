"""Journal migrations: once, with a copy, atomic, and readable by the previous version."""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from serving import __version__
from serving.core.model.errors import JournalDamaged, Unavailable
from serving.home.store.journal import Journal, JournalEntry
from serving.home.store.migrations import READER, STEPS, MigrationStep, migrate, refuse_newer_journal, step_of

ENTRY = JournalEntry(kind="configmaps", namespace="default", name="one", data=b'{"metadata":{"name":"one"}}')
# As written by a version without migration steps.
FIRST = """
CREATE TABLE objects (kind TEXT, namespace TEXT, name TEXT, data BLOB NOT NULL,
  PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
CREATE TABLE versions (id INTEGER PRIMARY KEY CHECK (id = 0), reserved INTEGER NOT NULL);
INSERT INTO versions VALUES (0, 5);
INSERT INTO objects VALUES ('configmaps', 'default', 'one', CAST('{"metadata":{"name":"one"}}' AS BLOB));
PRAGMA application_id = 1936881255;
PRAGMA user_version = 1;
"""
NEWER = MigrationStep(number=3, reader=2, statements=("ALTER TABLE objects ADD COLUMN size INTEGER",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of the first format."""
    new_path = tmp_path / "journal.db"
    connection = sqlite3.connect(new_path)
    connection.executescript(FIRST)
    connection.close()
    return new_path


def entries(path: Path) -> list[JournalEntry]:
    journal = Journal(path)
    journal_entries = list(journal.entries())
    asyncio.run(journal.close())
    return journal_entries


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_old_journal_is_migrated_and_copied(path: Path) -> None:
    assert entries(path) == [ENTRY]
    copy = path.with_name("journal.db.before-step-2")
    assert copy.stat().st_mode & 0o077 == 0
    assert rows(copy, "SELECT name FROM sqlite_schema WHERE name = 'facts'") == []
    assert rows(copy, "SELECT name FROM objects") == [("one",)]
    assert rows(path, "SELECT * FROM facts") == [("program", __version__), ("step", str(STEPS[-1].number))]


def test_journal_is_migrated_once(path: Path) -> None:
    entries(path)
    copy = path.with_name("journal.db.before-step-2")
    copy.unlink()
    assert entries(path) == [ENTRY]
    assert not copy.exists()


def test_empty_journal_is_not_copied(tmp_path: Path) -> None:
    assert entries(tmp_path / "journal.db") == []
    assert list(tmp_path.glob("*.before-step-*")) == []


def test_migrated_journal_is_readable_by_the_previous_version(path: Path) -> None:
    """The previous version requires user_version 1 and reads these two tables."""
    entries(path)
    assert rows(path, "PRAGMA user_version") == [(1,)]
    assert rows(path, "SELECT kind, namespace, name FROM objects") == [("configmaps", "default", "one")]


def test_failed_migration_step_is_rolled_back(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    broken = MigrationStep(number=3, reader=2, statements=("CREATE TABLE more (a)", "CREATE TABLE objects (a)"))
    with pytest.raises(sqlite3.Error):
        migrate(connection, path, steps=(*STEPS, broken))
    assert step_of(connection) == 1
    connection.close()
    assert rows(path, "SELECT count(*) FROM sqlite_schema WHERE name IN ('facts', 'more')") == [(0,)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_failed_copy_prevents_the_migration(path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(Unavailable, match=f"was not migrated, and is as before: .*{os.strerror(number)}"):
        Journal(path)
    monkeypatch.undo()
    assert rows(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'facts'") == [(0,)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["journal.db"]
    assert entries(path) == [ENTRY]


def newer(path: Path) -> None:
    """Migrate the journal as a future version does."""
    entries(path)
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, path, steps=(*STEPS, NEWER))
    connection.execute("UPDATE facts SET value = '9.1.0' WHERE name = 'program'")
    connection.close()


def test_newer_journal_is_rejected_with_instructions(path: Path) -> None:
    newer(path)
    before = path.read_bytes()
    with pytest.raises(JournalDamaged) as caught:
        Journal(path)
    text = str(caught.value)
    assert (
        f"it has format 2, written by serving 9.1.0, and this program knows up to {READER}; run the newer version"
        in text
    )
    assert "journal.db.before-step-3" in text
    assert "\n" not in text
    assert path.read_bytes() == before


def test_newer_journal_is_detected_without_opening_it(path: Path) -> None:
    refuse_newer_journal(path)
    newer(path)
    with pytest.raises(JournalDamaged, match="it has format 2, and this program knows up to 1; run the newer version"):
        refuse_newer_journal(path)


def no_file(path: Path) -> None:
    path.unlink()


def no_journal(path: Path) -> None:
    path.write_bytes(b"x" * 200)


@pytest.mark.parametrize("make", [no_file, no_journal])
def test_missing_or_invalid_journal_is_not_reported_as_newer(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    refuse_newer_journal(path)
