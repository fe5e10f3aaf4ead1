"""Repair of damaged journals: readable objects are retained, and each loss is reported."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.core.model.errors import JournalDamaged
from serving.home.store.journal import VERSION_BLOCK, Journal, JournalEntry
from serving.home.store.memory import MemoryCluster
from serving.home.store.pagescan import scan_objects
from serving.home.store.repair import find_damage, read_damaged, write_repaired
from serving.net.cluster.kinds import CONFIG_MAP

COUNT = 400
PAGE_BYTES = 4096


def entry(kind: str, number: int) -> JournalEntry:
    name = f"{number:03}"
    return JournalEntry(
        kind=kind, namespace="default", name=name, data=b'{"metadata":{"name":"%s"}}' % name.encode() + b" " * 200
    )


def entries(path: Path) -> list[JournalEntry]:
    journal = Journal(path)
    journal_entries = list(journal.entries())
    asyncio.run(journal.close())
    return journal_entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with two kinds."""
    new_path = tmp_path / "journal.db"
    journal = Journal(new_path)
    journal.write_now([entry(kind, number) for kind in ("configmaps", "secrets") for number in range(COUNT)])
    asyncio.run(journal.close())
    return new_path


def damage_page_of(path: Path, text: bytes) -> None:
    """Overwrite the page that contains ``text``."""
    at = path.read_bytes().index(text) // PAGE_BYTES * PAGE_BYTES
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"nonsense" * (PAGE_BYTES // 8))


def test_intact_journal_has_no_damage(path: Path) -> None:
    journal = read_damaged(path)
    assert (journal.damage, len(journal.entries), journal.lost) == ("", 2 * COUNT, [])


def test_damaged_page_loses_only_its_objects(path: Path) -> None:
    damage_page_of(path, b'"name":"200"')
    before = path.read_bytes()
    journal = read_damaged(path)
    assert path.read_bytes() == before
    assert journal.damage
    gap, scanned = journal.lost
    assert gap.startswith("configmaps: ")
    assert "were found by scanning pages" in scanned
    kinds = [journal_entry.kind for journal_entry in journal.entries]
    assert kinds.count("secrets") == COUNT
    assert COUNT - 40 < kinds.count("configmaps") < COUNT
    new_path = write_repaired(path, journal, stamp="today")
    assert (new_path.name, new_path.read_bytes()) == ("journal.db.damaged-today", before)
    assert entries(path) == journal.entries
    assert read_damaged(path).damage == ""
    assert sorted(file.name for file in path.parent.iterdir() if "repaired" in file.name) == []


async def test_repaired_journal_continues_above_reserved_versions(path: Path) -> None:
    reserved = read_damaged(path).reserved
    damage_page_of(path, b'"name":"200"')
    await asyncio.to_thread(write_repaired, path, read_damaged(path), stamp="today")
    cluster = MemoryCluster(Journal(path))
    assert int((await cluster.list(CONFIG_MAP)).resource_version) >= reserved > VERSION_BLOCK
    await cluster.close()


def test_invalid_object_is_lost_and_named(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE objects SET data = X'7B' WHERE kind = 'secrets' AND name = '007'")
    connection.close()
    journal = read_damaged(path)
    assert journal.lost == ["secrets default/007: its content is not an object"]
    assert len(journal.entries) == 2 * COUNT - 1


def test_non_database_file_has_no_entries_to_repair(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be looked at " * 100)
    journal = read_damaged(path, now_s=2.0)
    assert journal.damage
    assert (journal.entries, journal.reserved) == ([], 2 * 2**16)


def test_newer_journal_is_not_repaired(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA user_version = 9")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with pytest.raises(JournalDamaged, match="it has format 9"):
        read_damaged(path)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.82, 0.99])
def test_truncated_journal_retains_objects_of_its_pages(path: Path, part: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    journal = read_damaged(path)
    assert journal.damage
    # A row may continue on a missing page, and interior pages have only row keys.
    assert len(journal.entries) >= 2 * COUNT * (part - 0.1)
    write_repaired(path, journal, stamp="today")
    assert entries(path) == journal.entries


def test_journal_without_first_page_retains_all_objects(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes(PAGE_BYTES) + content[PAGE_BYTES:])
    assert len(read_damaged(path).entries) == 2 * COUNT


def test_page_scan_finds_latest_versions_without_deleted_objects(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)

    def versioned(name: str, version: int, size: int) -> JournalEntry:
        data = b'{"metadata":{"name":"%s","resourceVersion":"%d"}}' % (name.encode(), version) + b" " * size
        return JournalEntry(kind="configmaps", namespace="default", name=name, data=data)

    journal.write_now([versioned("large", 1, 200_000), versioned("small", 2, 1), versioned("gone", 3, 30_000)])
    for version in range(10, 40):
        journal.write_now([versioned("large", version, 150_000)])
    journal.write_now([JournalEntry(kind="configmaps", namespace="default", name="gone", data=None)])
    asyncio.run(journal.close())
    content = path.read_bytes()
    path.write_bytes(content[:-PAGE_BYTES])
    results = {(key[2], data) for key, data in scan_objects(path).items()}
    names = {name for name, _ in results}
    assert {"small"} <= names <= {"large", "small"}
    path.write_bytes(content)
    assert {(key[2], data[:60]) for key, data in scan_objects(path).items()} == {
        (journal_entry.name, (journal_entry.data or b"")[:60])
        for journal_entry in (versioned("large", 39, 150_000), versioned("small", 2, 1))
    }


@given(st.binary(max_size=3 * PAGE_BYTES), st.integers(0, 40_000))
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_page_scan_terminates_for_any_file_content(path: Path, junk: bytes, at: int) -> None:
    content = path.read_bytes()
    changed = path.with_name("changed.db")
    changed.write_bytes(content[:at] + junk + content[at + len(junk) :])
    assert len(scan_objects(changed)) <= 2 * COUNT


def test_find_damage_reports_causes_of_failed_starts(path: Path) -> None:
    assert find_damage(path) == ""
    content = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 7")
        connection.commit()
    assert "another program" in find_damage(path)
    path.write_bytes(content)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO objects VALUES ('configmaps', 'default', 'x', 'no json')")
        connection.commit()
    assert find_damage(path) == "configmaps default/x: its content is not an object"
    path.write_bytes(content[: len(content) // 2])
    assert find_damage(path)
