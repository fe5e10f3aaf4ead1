"""Scans the pages of a damaged journal for objects, as ``sqlite3``'s ``.recover`` does.

SQLite does not open a truncated file, or a file without its first page, although most pages are intact. Each page of
the table ``objects`` has complete rows, which are read by SQLite's file format (https://sqlite.org/fileformat.html).
Each position and length is checked, because the file may have any content. Free pages are skipped, because they have
old rows. Of two rows of one object, the one with the higher version is used.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from serving.core.model.errors import UNREADABLE

_PAGE_BYTES_DEFAULT = 4096
_FILE_HEADER_BYTES, _WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 100, 32, 24
_INTERIOR, _LEAF = 0x02, 0x0A
_HEADER_BYTES = {_INTERIOR: 12, _LEAF: 8}
_COLUMNS = 4
# Far above the largest object of the journal.
_ROW_BYTES_MAX = 64 * 2**20

_Key = tuple[str, str, str]


class _BrokenRow(Exception):
    """A page or row that is damaged."""


class _RowMetadata(msgspec.Struct):
    name: str
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _RowObject(msgspec.Struct):
    metadata: _RowMetadata


def scan_objects(path: Path) -> dict[_Key, bytes]:
    """The objects in the readable pages of a damaged journal and of its write-ahead log. Raises ``OSError``."""
    pages = _DatabasePages(path.read_bytes())
    with contextlib.suppress(FileNotFoundError):
        pages.apply_log(path.with_name(f"{path.name}-wal").read_bytes())
    newest: dict[_Key, tuple[int, bytes]] = {}
    free = pages.free_numbers()
    for number in range(1, pages.count + 1):
        for key, data in pages.rows(number) if number not in free else ():
            version = _version_of(key, data)
            if version is not None and version >= newest.get(key, (0, b""))[0]:
                newest[key] = version, data
    return {key: data for key, (_, data) in newest.items()}


def _version_of(key: _Key, data: bytes) -> int | None:
    """The version of an object; None if the row has no object, or an object that does not match its key."""
    try:
        metadata = msgspec.json.decode(data, type=_RowObject).metadata
    except UNREADABLE:
        return None
    version = metadata.resource_version
    return (int(version) if version.isdecimal() and len(version) < 20 else 0) if metadata.name == key[2] else None


class _DatabasePages:
    """The pages of a database file, by number from 1."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        size = int.from_bytes(content[16:18], "big")
        size = 65536 if size == 1 else size
        is_size = size >= 512 and size & (size - 1) == 0
        self._size = size if is_size else _PAGE_BYTES_DEFAULT
        self._usable = self._size - (content[20] if is_size and content[20] < 64 else 0)
        self._newer: dict[int, bytes] = {}
        self.count = -(-len(content) // self._size)

    def apply_log(self, log: bytes) -> None:
        """Apply the pages of a write-ahead log up to its last commit."""
        salts, pending = log[16:24], dict[int, bytes]()
        step = _FRAME_HEADER_BYTES + self._size
        for at in range(_WAL_HEADER_BYTES, len(log) - step + 1, step):
            number = int.from_bytes(log[at : at + 4], "big")
            if log[at + 8 : at + 16] != salts or not number:
                break
            pending[number] = log[at + _FRAME_HEADER_BYTES : at + step]
            if int.from_bytes(log[at + 4 : at + 8], "big"):
                self._newer.update(pending)
                pending.clear()
        self.count = max([self.count, *self._newer])

    def _page(self, number: int) -> bytes:
        newer = self._newer.get(number)
        return self._content[(number - 1) * self._size : number * self._size] if newer is None else newer

    def free_numbers(self) -> set[int]:
        """The numbers of the pages in the list of free pages, up to the first unreadable one."""
        free = set[int]()
        trunk = int.from_bytes(self._page(1)[32:36], "big")
        while trunk and trunk not in free and trunk <= self.count:
            page = self._page(trunk)
            free.add(trunk)
            count = min(int.from_bytes(page[4:8], "big"), self._size // 4)
            free.update(int.from_bytes(page[at : at + 4], "big") for at in range(8, 8 + 4 * count, 4))
            trunk = int.from_bytes(page[:4], "big")
        return free

    def rows(self, number: int) -> Iterator[tuple[_Key, bytes]]:
        """Yield the rows of a page that have the four columns of an object, as key and data."""
        page = self._page(number)
        start = _FILE_HEADER_BYTES if number == 1 else 0
        header = _HEADER_BYTES.get(page[start]) if len(page) > start + 12 else None
        if header is None:
            return
        for place in range(int.from_bytes(page[start + 3 : start + 5], "big")):
            at = start + header + 2 * place
            cell = int.from_bytes(page[at : at + 2], "big") + (4 if page[start] == _INTERIOR else 0)
            with contextlib.suppress(_BrokenRow, UnicodeDecodeError):
                yield _row(self._payload(page, cell))

    def _payload(self, page: bytes, at: int) -> bytes:
        """The payload of an index cell, with its overflow pages."""
        size, at = _varint(page, at)
        if size > _ROW_BYTES_MAX:
            raise _BrokenRow
        most, least = ((self._usable - 12) * part // 255 - 23 for part in (64, 32))
        here = size
        if size > most:
            here = least + (size - least) % (self._usable - 4)
            here = here if here <= most else least
        payload = page[at : at + here]
        number, seen = (int.from_bytes(page[at + here : at + here + 4], "big") if here < size else 0), set[int]()
        while number and number not in seen and len(payload) < size:
            seen.add(number)
            more = self._page(number)
            payload += more[4 : 4 + min(self._usable - 4, size - len(payload))]
            number = int.from_bytes(more[:4], "big")
        if len(payload) != size:
            raise _BrokenRow
        return payload


def _row(payload: bytes) -> tuple[_Key, bytes]:
    """The key and data in a record of three texts and a blob or text."""
    end, at = _varint(payload, 0)
    kinds = []
    while at < min(end, len(payload)):
        kind, at = _varint(payload, at)
        kinds.append(kind)
    # Even types from 12 on are blobs, odd ones from 13 on texts.
    if len(kinds) != _COLUMNS or min(kinds) < 12 or not all(kind & 1 for kind in kinds[:3]):
        raise _BrokenRow
    values = []
    for kind in kinds:
        size = (kind - 12) // 2
        values.append(payload[at : at + size])
        at += size
    if at != len(payload):
        raise _BrokenRow
    resource, namespace, name = (value.decode() for value in values[:3])
    return (resource, namespace, name), values[3]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer in SQLite's format, of up to nine bytes, and the position after it."""
    number = 0
    for index in range(9):
        if at + index >= len(data):
            raise _BrokenRow
        byte = data[at + index]
        if index == 8:
            return number << 8 | byte, at + 9
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, at + index + 1
    raise _BrokenRow
