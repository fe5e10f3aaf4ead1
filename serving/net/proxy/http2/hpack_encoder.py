"""Encodes HPACK header blocks (RFC 7541), with a cache of encoded heads.

A field is added to the table when it is sent for the second time on a connection, while there is room. No field is
evicted. A table that was full for many fields is cleared. Fields that differ each time are sent literally. Secrets are
sent literally too, marked as never indexed (RFC 7541, 7.1.3). A head whose fields are all in the table is encoded once:
``known`` maps the caller's key to the bytes, until the table changes.
"""

from collections.abc import Iterable

from serving.net.proxy.http2.hpack_huffman import huffman_encode
from serving.net.proxy.http2.hpack_statictable import ENTRY_BYTES, STATIC_FIELDS, TABLE_BYTES, Field

# The key by which the writer of a head identifies it.
HeadKey = bytes | tuple[object, ...]

_STATIC_COUNT = len(STATIC_FIELDS)
_STATIC_INDICES: dict[Field, int] = {field: index for index, field in reversed([*enumerate(STATIC_FIELDS, 1)])}
_STATIC_NAMES: dict[bytes, int] = {field[0]: index for index, field in reversed([*enumerate(STATIC_FIELDS, 1)])}
_SECRETS = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"set-cookie", b"k-pod-secret"})
# Fields that differ in each message, or each second.
_VOLATILE = frozenset(
    {
        *(
            b"age",
            b"content-length",
            b"content-range",
            b"date",
            b"etag",
            b"expires",
            b"grpc-timeout",
            b"if-modified-since",
        ),
        *(b"if-none-match", b"last-modified", b"location", b"referer", b"server-timing", b"traceparent", b"tracestate"),
        *(b"x-b3-spanid", b"x-b3-traceid", b"x-request-id"),
    }
)
_INDEXED_BYTES_MAX = 512
# Most fields that were sent once: 256 of at most 512 bytes.
_SEEN_MAX = 256
_KNOWN_MAX = 64
# Longest cached head: longer ones have fields outside the table, which differ next time.
_KNOWN_BYTES_MAX = 64
# Fields without space after which the table counts as outdated.
_MISSED_MAX = 256
# Cache of encoded literals for all connections: 1024 of at most 256 bytes.
_LITERALS_MAX = 1024
_LITERAL_BYTES_MAX = 256
_literals: dict[Field, bytes] = {}


class HeaderEncoder:
    """Encodes one direction of a connection."""

    __slots__ = (
        "_count",
        "_indices",
        "_left_bytes",
        "_missed",
        "_names",
        "_prefix",
        "_seen",
        "_table_bytes_max",
        "known",
    )

    def __init__(self) -> None:
        self.known: dict[HeadKey, bytes] = {}
        """Cached heads by key; valid until the next ``pack``."""
        # The fields in the table, each with the number of fields inserted before it.
        self._indices: dict[Field, int] = {}
        self._names: dict[bytes, int] = {}
        self._count = self._missed = 0
        self._table_bytes_max = self._left_bytes = TABLE_BYTES
        self._seen: set[Field] = set()
        # Table sizes to send with the next head.
        self._prefix = b""

    def resize(self, table_bytes_max: int) -> None:
        """Apply the peer's SETTINGS_HEADER_TABLE_SIZE, up to the default."""
        table_bytes_max = min(table_bytes_max, TABLE_BYTES)
        if table_bytes_max != self._table_bytes_max:
            self._begin_table(table_bytes_max)

    def _begin_table(self, table_bytes_max: int) -> None:
        self._table_bytes_max = self._left_bytes = table_bytes_max
        self._indices.clear()
        self._names.clear()
        self._seen.clear()
        self.known.clear()
        self._count = self._missed = 0
        # Empties the peer's table too.
        self._prefix = b"\x20" + (_integer(table_bytes_max, 0x1F, 0x20) if table_bytes_max else b"")

    def pack(self, fields: Iterable[Field], key: HeadKey | None = None) -> bytes:
        """Encode a head. The caller must send it before the next one. A head with a ``key`` is cached."""
        if self._missed > _MISSED_MAX:
            self._begin_table(self._table_bytes_max)
        before, prefix, self._prefix = self._count, self._prefix, b""
        block = prefix + b"".join([self._field(field) for field in fields])
        known = self.known
        if self._count != before:
            known.clear()
        elif key is not None and not prefix and len(block) <= _KNOWN_BYTES_MAX:
            if len(known) >= _KNOWN_MAX:
                known.clear()
            known[key] = block
        return block

    def _field(self, field: Field) -> bytes:
        index = _STATIC_INDICES.get(field)
        if index is not None:
            return b"%c" % (0x80 | index)
        number = self._indices.get(field)
        if number is not None:
            return _integer(_STATIC_COUNT + self._count - number, 0x7F, 0x80)
        name = field[0]
        size = len(name) + len(field[1]) + ENTRY_BYTES
        if name in _SECRETS or name in _VOLATILE or size > _INDEXED_BYTES_MAX:
            return _plain_literal(field)
        if field not in self._seen:
            if len(self._seen) >= _SEEN_MAX:
                self._seen.clear()
            self._seen.add(field)
            return _plain_literal(field)
        if size > self._left_bytes:
            self._missed += 1
            return _plain_literal(field)
        return self._insert(field, size)

    def _insert(self, field: Field, size: int) -> bytes:
        name, value = field
        index = _STATIC_NAMES.get(name, 0)
        if not index and name in self._names:
            index = _STATIC_COUNT + self._count - self._names[name]
        wire = _integer(index, 0x3F, 0x40) + (b"" if index else _string(name)) + _string(value)
        self._indices[field] = self._names[name] = self._count
        self._count += 1
        self._left_bytes -= size
        return wire


def _plain_literal(field: Field) -> bytes:
    """Encode a field that is not added to the table."""
    known = _literals.get(field)
    if known is not None:
        return known
    name, value = field
    index = _STATIC_NAMES.get(name, 0)
    is_secret = name in _SECRETS
    wire = _integer(index, 0xF, 0x10 if is_secret else 0) + (b"" if index else _string(name))
    if is_secret or name in _VOLATILE:
        # The Huffman length of a secret reveals more than its own length; a field sent once is not worth packing.
        return wire + _integer(len(value), 0x7F, 0) + value
    wire += _string(value)
    if len(wire) <= _LITERAL_BYTES_MAX:
        if len(_literals) >= _LITERALS_MAX:
            _literals.clear()
        _literals[field] = wire
    return wire


def _string(text: bytes) -> bytes:
    """A string literal, Huffman-coded if that is shorter."""
    packed = huffman_encode(text)
    if len(packed) < len(text):
        return _integer(len(packed), 0x7F, 0x80) + packed
    return _integer(len(text), 0x7F, 0) + text


def _integer(number: int, prefix: int, flags: int) -> bytes:
    """Encode an integer. Its prefix is in the low bits of a first byte that also has these flags."""
    if number < prefix:
        return b"%c" % (flags | number)
    wire = bytearray([flags | prefix])
    number -= prefix
    while number >= 0x80:
        wire.append(number & 0x7F | 0x80)
        number >>= 7
    wire.append(number)
    return bytes(wire)
