"""Parses the server name from the first bytes of a TLS connection, without I/O.

Input: all bytes that a client has sent so far. Output: the name in its ClientHello, or that more bytes are needed. The
bytes are not changed, because the app gets them. Follows RFC 8446 (sections 4.1.2 and 5.1) and RFC 6066 (section 3).
Unknown extensions, such as those of GREASE (RFC 8701), are skipped. With Encrypted Client Hello (RFC 9849) the name is
that of the outer ClientHello.
"""

import re

HELLO_BYTES_MAX = 16_384
"""Longest ClientHello in bytes; one with post-quantum keys and ECH has about 2,500."""

# Most records: each costs a copy at each call, and clients need only a few.
_RECORDS_MAX = 16
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_FRAGMENT_MAX = 2**14
_VERSION_MAJOR = 3
_VERSION_AND_RANDOM = 34
_SERVER_NAME, _HOST_NAME = 0, 0
_NAME = re.compile(rb"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NAME_MAX = 253


class BadClientHello(Exception):
    """The bytes are not a ClientHello with at most one server name."""


class _Fields:
    """Cuts length-prefixed fields out of bytes."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def number(self, size: int) -> int:
        return int.from_bytes(self.read(size))

    def vector(self, size: int) -> bytes:
        """A field with a length prefix of ``size`` bytes."""
        return self.read(self.number(size))

    def read(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise BadClientHello("a field of the ClientHello is longer than what is around it")
        self._at += count
        return piece


def read_server_name(data: bytes) -> str | None:
    """The server name in lower case, "" if the client sends none; None while the ClientHello is incomplete.

    Raises:
        BadClientHello: if the bytes are not a ClientHello, or the ClientHello is too long.
    """
    message = _message(data)
    if message is None:
        return None
    hello = _Fields(message)
    hello.read(_VERSION_AND_RANDOM)
    hello.vector(1)
    hello.vector(2)
    hello.vector(1)
    name: str | None = None
    # A TLS 1.2 client may send no extensions.
    extensions = _Fields(hello.vector(2) if hello.has_more else b"")
    if hello.has_more:
        raise BadClientHello("bytes after the extensions of the ClientHello")
    while extensions.has_more:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            if name is not None:
                raise BadClientHello("two extensions with a server name")
            name = _host_name(_Fields(content))
    return name or ""


def _message(data: bytes) -> bytes | None:
    """The content of the first handshake message, joined from its records; None while it is incomplete."""
    message, at = b"", 0
    for _ in range(_RECORDS_MAX):
        head = data[at : at + _RECORD_HEAD]
        if (head and head[0] != _HANDSHAKE) or (len(head) > 1 and head[1] != _VERSION_MAJOR):
            raise BadClientHello("not a TLS handshake")
        if len(head) < _RECORD_HEAD:
            return None
        size = int.from_bytes(head[3:])
        if not 0 < size <= _FRAGMENT_MAX:
            raise BadClientHello(f"a TLS record of {size} bytes")
        at += _RECORD_HEAD
        message += data[at : at + size]
        if message and message[0] != _CLIENT_HELLO:
            raise BadClientHello("a handshake message that is no ClientHello")
        if len(message) >= _MESSAGE_HEAD:
            end = _MESSAGE_HEAD + int.from_bytes(message[1:_MESSAGE_HEAD])
            if end > HELLO_BYTES_MAX:
                raise BadClientHello(f"a ClientHello of {end} bytes, of which {HELLO_BYTES_MAX} are allowed")
            if len(message) >= end:
                return message[_MESSAGE_HEAD:end]
        if len(data) < at + size:
            return None
        at += size
    raise BadClientHello(f"a ClientHello in more than {_RECORDS_MAX} records")


def _host_name(names: _Fields) -> str:
    names = _Fields(names.vector(2))
    kind, name = names.number(1), names.vector(2).lower()
    if kind != _HOST_NAME or names.has_more:
        raise BadClientHello("a server name that is not one host name")
    if len(name) > _NAME_MAX or not _NAME.fullmatch(name):
        raise BadClientHello("a server name that is no host name")
    return name.decode("ascii")
