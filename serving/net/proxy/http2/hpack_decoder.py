"""Decodes HPACK header blocks (RFC 7541) strictly and within limits, and caches blocks that leave the table unchanged.

Similar requests of a client have the same few bytes, which are indices into the table. The meaning of such a block
depends only on the table. So the last blocks that did not change the table are cached until it changes.
"""

from collections import deque

from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_huffman import huffman_decode
from serving.net.proxy.http2.hpack_statictable import ENTRY_BYTES, STATIC_FIELDS, TABLE_BYTES, Field

_STATIC_COUNT = len(STATIC_FIELDS)
# Index 0 is unused.
_STATIC: tuple[Field, ...] = ((b"", b""), *STATIC_FIELDS)
# Larger than any number in a head: 4 bytes after the prefix.
_INTEGER_SHIFT_MAX = 21
# Cache per connection: 16 heads of at most 6 KiB in all forms, 96 KiB. Clients repeat fewer.
_REMEMBERED_MAX = 16
_REMEMBERED_BYTES_MAX = 1024
_REMEMBERED_LIST_BYTES_MAX = 4096
# RFC 7541, section 4.2: the smallest intermediate size, and the last one.
_SIZE_UPDATES_MAX = 2


class FieldSection:
    """A head or trailers: its fields in order, and their size by RFC 9113, 6.5.2.

    A cached section may be returned for several streams. ``meaning`` is for the reader, which may cache its result
    there.
    """

    __slots__ = ("fields", "list_bytes", "meaning")

    def __init__(self, fields: list[Field], list_bytes: int) -> None:
        self.fields = fields
        self.list_bytes = list_bytes
        self.meaning: object = None


class HeaderDecoder:
    """Decodes one direction of a connection. A head larger than ``list_bytes_max`` ends the connection."""

    __slots__ = ("_entries", "_list_bytes_max", "_remembered", "_table_bytes", "_table_bytes_max")

    def __init__(self, *, list_bytes_max: int) -> None:
        self._list_bytes_max = list_bytes_max
        # Newest first.
        self._entries: deque[Field] = deque()
        self._table_bytes = 0
        self._table_bytes_max = TABLE_BYTES
        self._remembered: dict[bytes, FieldSection] = {}

    def decode(self, block: bytes) -> FieldSection:
        """Decode a complete header block into its fields.

        Raises:
            Violation: when the block is malformed, or its fields exceed the limit.
        """
        known = self._remembered.get(block)
        if known is not None:
            return known
        section, has_changed = self._read(block)
        if has_changed:
            self._remembered.clear()
        elif len(block) <= _REMEMBERED_BYTES_MAX and section.list_bytes <= _REMEMBERED_LIST_BYTES_MAX:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[block] = section
        return section

    def _read(self, block: bytes) -> tuple[FieldSection, bool]:
        """Decode a block; return its fields, and whether it changed the table."""
        fields: list[Field] = []
        at, size, list_bytes = 0, len(block), 0
        has_changed = False
        while at < size:
            byte = block[at]
            if byte & 0x80:
                index = byte & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _continued(block, at, 0x7F)
                field = self._at(index)
            elif byte & 0x40:
                field, at = self._literal(block, at, 0x3F)
                self._insert(field)
                has_changed = True
            elif byte & 0x20:
                if fields:
                    raise Violation(ErrorCode.COMPRESSION_ERROR, "dynamic table size update after a field")
                at = self._resize(block, at)
                has_changed = True
                continue
            else:
                field, at = self._literal(block, at, 0xF)
            fields.append(field)
            list_bytes += len(field[0]) + len(field[1]) + ENTRY_BYTES
            if list_bytes > self._list_bytes_max:
                raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "header list too large")
        return FieldSection(fields, list_bytes), has_changed

    def _at(self, index: int) -> Field:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC[index]
        index -= _STATIC_COUNT + 1
        if 0 <= index < len(self._entries):
            return self._entries[index]
        raise Violation(ErrorCode.COMPRESSION_ERROR, "invalid HPACK index")

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index = block[at] & mask
        at += 1
        if index == mask:
            index, at = _continued(block, at, mask)
        if index:
            name = self._at(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _insert(self, field: Field) -> None:
        self._entries.appendleft(field)
        self._table_bytes += len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict()

    def _evict(self) -> None:
        entries = self._entries
        while self._table_bytes > self._table_bytes_max:
            name, value = entries.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_BYTES

    def _resize(self, block: bytes, start: int) -> int:
        """Apply a dynamic table size update; return the position after it."""
        at, size = start + 1, block[start] & 0x1F
        if size == 0x1F:
            size, at = _continued(block, at, 0x1F)
        if size > TABLE_BYTES:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "dynamic table size above the limit")
        if start > _SIZE_UPDATES_MAX * 3:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "too many dynamic table size updates")
        self._table_bytes_max = size
        self._evict()
        return at


def _continued(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Decode the rest of an integer after its prefix; return it and the position after it."""
    number, shift = prefix, 0
    size = len(block)
    while at < size:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
        shift += 7
        if shift > _INTEGER_SHIFT_MAX:
            raise Violation(ErrorCode.COMPRESSION_ERROR, "HPACK integer too large")
    raise Violation(ErrorCode.COMPRESSION_ERROR, "a head that is cut off")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Decode a string; return it and the position after it."""
    if at >= len(block):
        raise Violation(ErrorCode.COMPRESSION_ERROR, "a head that is cut off")
    byte = block[at]
    length = byte & 0x7F
    at += 1
    if length == 0x7F:
        length, at = _continued(block, at, 0x7F)
    end = at + length
    text = block[at:end]
    if len(text) < length:
        raise Violation(ErrorCode.COMPRESSION_ERROR, "a head that is cut off")
    return (huffman_decode(text) if byte & 0x80 else text), end
