"""Reads the remaining objects of a damaged journal, and writes a new one; the damaged file is kept.

``read_damaged`` changes nothing: it returns the objects of a new journal and the losses, so that a person can decide.
It reads each kind from both ends up to the unreadable page. ``write_repaired`` renames the damaged files and writes the
new one.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from serving.core.model.errors import UNREADABLE, JournalDamaged
from serving.home.store.journal import VERSION_BLOCK, Journal, JournalEntry, check_journal
from serving.home.store.migrations import SQLITE_DAMAGE, refuse_newer_journal, sync_folder
from serving.home.store.pagescan import scan_objects
from serving.net.cluster.kinds import KINDS

_ORDER = "kind, namespace, name"
# Without a known version: above all that 6 million starts could have reserved.
_VERSIONS_A_SECOND = 2**16
_SUFFIXES = ("", "-wal", "-shm")

_Key = tuple[str, str, str]


class _Metadata(msgspec.Struct):
    name: str


class _Readable(msgspec.Struct):
    metadata: _Metadata


class DamagedJournal(msgspec.Struct, frozen=True, kw_only=True):
    """The readable part of a journal.

    ``damage`` says what is wrong, "" if nothing is. ``lost`` has a line for each loss. Versions up to ``reserved`` were
    used.
    """

    damage: str
    entries: list[JournalEntry]
    lost: list[str]
    reserved: int


def read_damaged(path: Path, *, now_s: float | None = None) -> DamagedJournal:
    """Read all readable objects. Raises ``JournalDamaged`` for a newer format, ``OSError`` for a missing file."""
    refuse_newer_journal(path)
    with path.open("rb"):
        pass
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        damage = _damage(connection)
        rows: dict[_Key, bytes] = {}
        lost = list(_read_kinds(connection, rows)) if damage else []
        if damage:
            scanned = {key: data for key, data in scan_objects(path).items() if key not in rows}
            rows.update(scanned)
            if scanned:
                lost.append(
                    f"{len(scanned)} of the objects kept were found by scanning pages: a deleted one may be among them"
                )
        if not damage:
            rows = {(kind, space, name): data for kind, space, name, data in connection.execute(_query("", "ASC"))}
        reserved = _reserved(connection) or int((time.time() if now_s is None else now_s) * _VERSIONS_A_SECOND)
    finally:
        connection.close()
    entries = []
    for (kind, space, name), data in sorted(rows.items(), key=lambda row: tuple(map(str, row[0]))):
        if not _is_readable((kind, space, name), data):
            damage = damage or "an object is not JSON"
            lost.append(f"{kind} {space}/{name}: its content is not an object")
        else:
            entries.append(JournalEntry(kind=kind, namespace=space, name=name, data=data))
    return DamagedJournal(damage=damage, entries=entries, lost=lost, reserved=reserved)


def find_damage(path: Path) -> str:
    """Why this system must not start with the journal; "" if it is intact."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            check_journal(connection, path)
            for kind, space, name, data in connection.execute(_query("", "ASC")):
                if not _is_readable((kind, space, name), data):
                    return f"{kind} {space}/{name}: its content is not an object"
    except JournalDamaged as error:
        return error.detail
    except SQLITE_DAMAGE as error:
        return str(error)
    return ""


def _is_readable(key: _Key, data: object) -> bool:
    """Whether a row is an object. A damaged page may contain values of other types."""
    try:
        *_, content = msgspec.convert((*key, data), type=tuple[str, str, str, bytes])
        msgspec.json.decode(content, type=_Readable)
    except UNREADABLE:
        return False
    return True


def write_repaired(path: Path, damaged: DamagedJournal, *, stamp: str) -> Path:
    """Write a new journal with the readable entries; return the new path of the damaged one. Raises ``OSError``.

    The new file is complete and synchronized before the damaged one is renamed.
    """
    repaired = path.with_name(f"{path.name}.repaired")
    for suffix in _SUFFIXES:
        Path(f"{repaired}{suffix}").unlink(missing_ok=True)
    journal = Journal(repaired)
    try:
        journal.write_now(damaged.entries, reserved=damaged.reserved)
    finally:
        asyncio.run(journal.close())
    for beside in ("reserve", "versions"):
        repaired.with_name(f"{repaired.name}.{beside}").unlink(missing_ok=True)
    damaged_path = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{damaged_path}{suffix}")
    repaired.rename(path)
    sync_folder(path.parent)
    return damaged_path


def _damage(connection: sqlite3.Connection) -> str:
    try:
        verdict = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except SQLITE_DAMAGE as error:
        return str(error)
    return "" if verdict == "ok" else " ".join(verdict.split())


def _query(where: str, order: str) -> str:
    fields = ", ".join(f"{column} {order}" for column in _ORDER.split(", "))
    return f"SELECT kind, namespace, name, data FROM objects {where} ORDER BY {fields}"  # noqa: S608 - our own words


def _read_kinds(connection: sqlite3.Connection, rows: dict[_Key, bytes]) -> Iterator[str]:
    """Read all readable rows into ``rows``; yield a line for each gap."""
    known = sorted(kind.resource for kind in KINDS if kind.durable or kind.durable_unowned)
    for kind in (*known, None):
        where, values = ("WHERE kind = ?", (kind,)) if kind else ("", ())
        ends = []
        for order in ("ASC", "DESC"):
            last = None
            try:
                for row_kind, space, name, data in connection.execute(_query(where, order), values):
                    last = (row_kind, space, name)
                    rows[last] = data
            except SQLITE_DAMAGE:
                ends.append(last)
            else:
                break
        if len(ends) == 2 and kind:
            first, other = (f"{end[1]}/{end[2]}" if end else "" for end in ends)
            place = (
                f"after {first} and before {other}"
                if first and other
                else f"after {first}"
                if first
                else f"before {other}"
            )
            yield f"{kind}: any object {place}" if first or other else f"{kind}: all objects, if there were any"


def _reserved(connection: sqlite3.Connection) -> int:
    try:
        row = connection.execute("SELECT reserved FROM versions").fetchone()
    except SQLITE_DAMAGE:
        return 0
    return row[0] + VERSION_BLOCK if row and isinstance(row[0], int) else 0
