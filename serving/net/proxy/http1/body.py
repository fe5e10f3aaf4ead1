"""Parses message bodies: by length, by chunks, or until the end of the connection.

``feed`` takes received bytes, split anywhere, and returns the payload in them. ``done``: the body has ended; ``rest``
then has the bytes after it. Chunks are parsed strictly (RFC 9112 section 7.1): sizes have at most 15 hexadecimal
digits, each line ends with CR LF, and extensions must be well-formed and bounded; they are dropped. Only incomplete
size lines, line ends and trailers are buffered.
"""

import re
import sys
from collections.abc import Callable

from serving.net.proxy.http1.lines import MARKED, BadHeaderLine, read_lines

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t !-~\x80-\xff])*"'
_EXTENSION = rb"[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:%b)*" % _EXTENSION)
# Part of a line end; no complete line contains it.
_HALF_LINE_END = re.compile(rb"(?<!\r)\n|\r[^\n]")
# A size needs 15 bytes; the rest is for extensions, which are unused in practice.
_SIZE_LINE_BYTES_MAX = 256
# Most bytes of all extensions in a body: otherwise one-byte chunks could carry 200 times their size in them.
_EXTENSION_BYTES_MAX = 16 * 1024
_TRAILER_BYTES_MAX = 8 * 1024
_TRAILER_COUNT_MAX = 64

CHUNKS_AT_ONCE = 512
"""Chunks that a server parses at a time: half a millisecond of work."""

# A chunk takes three steps. Below this number, or with this much payload per chunk, a read costs the normal amount.
_STEPS_OF_CHUNK, _STEPS_FREE, _STEP_BYTES = 3, 192, 64
LAST_CHUNK = b"0\r\n\r\n"


class BadBody(Exception):
    """A request body that violates its framing. The text is the reason."""


def chunk(payload: bytes) -> bytes:
    r"""Encode a payload that is not empty as one chunk: ``chunk(b"abc")`` is ``b"3\r\nabc\r\n"``."""
    assert payload
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def chunks(payload: bytes, *, done: bool, trailers: bytes = b"") -> bytes:
    """Encode a payload, which may be empty, as a chunk; with ``done`` also the body's end."""
    wire = chunk(payload) if payload else b""
    if done:
        wire += b"0\r\n%b\r\n" % trailers if trailers else LAST_CHUNK
    return wire


class LengthBody:
    """A body with a declared length above 0."""

    __slots__ = ("done", "left", "rest", "trailers")
    is_costly = has_more = False

    def __init__(self, length: int) -> None:
        assert length > 0, length
        self.left = length
        self.done = False
        self.rest = b""
        self.trailers = b""

    def feed(self, data: bytes) -> bytes:
        """Return the payload in ``data``."""
        count = len(data)
        if count < self.left:
            self.left -= count
            return data
        self.done = True
        if count == self.left:
            self.left = 0
            return data
        payload, self.rest, self.left = data[: self.left], data[self.left :], 0
        return payload


class CloseBody:
    """A body that ends with its connection."""

    __slots__ = ("done", "rest", "trailers")
    is_costly = has_more = False

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self.trailers = b""

    def feed(self, data: bytes) -> bytes:
        """Return ``data``, all of which is payload."""
        return data


class ChunkedBody:
    """A chunked body. ``trailers`` are the trailers to forward, once ``done``.

    ``chunks_max`` limits the chunks of one ``feed``. If ``has_more``, another ``feed`` continues, even without new
    bytes. ``is_costly``: the last ``feed`` had many chunks with few bytes.
    """

    __slots__ = (
        "_extension_bytes",
        "_left",
        "_pending",
        "_step",
        "_steps_max",
        "done",
        "has_more",
        "is_costly",
        "rest",
        "trailers",
    )

    def __init__(self, *, chunks_max: int = 0) -> None:
        self.done = self.has_more = self.is_costly = False
        self._steps_max = _STEPS_OF_CHUNK * chunks_max or sys.maxsize
        self.rest = b""
        self.trailers = b""
        self._pending = b""
        self._left = 0
        self._extension_bytes = 0
        self._step: Callable[[bytes, int, list[bytes]], int] = self._size

    def feed(self, data: bytes) -> bytes:
        """Return the payload of the chunks in ``data``.

        Raises:
            BadBody: when the framing is broken.
        """
        if self._pending:
            data, self._pending = self._pending + data, b""
        payload: list[bytes] = []
        at = steps = 0
        self.has_more = False
        while at < len(data) and not self.done:
            if steps == self._steps_max:
                self.has_more = True
                break
            after = self._step(data, at, payload)
            if after == at:
                break
            at = after
            steps += 1
        if self.done:
            self.rest = data[at:]
        else:
            self._pending = data[at:]
        self.is_costly = steps > _STEPS_FREE and at < steps * _STEP_BYTES
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _size(self, data: bytes, at: int, _: list[bytes]) -> int:
        """Parse the line with a chunk's size; return the position after it, or ``at`` if the line is incomplete."""
        end = data.find(b"\r\n", at, at + _SIZE_LINE_BYTES_MAX + 2)
        if end < 0:
            if len(data) - at > _SIZE_LINE_BYTES_MAX + 1 or _HALF_LINE_END.search(data, at):
                raise BadBody("malformed chunk size")
            return at
        match = _SIZE_LINE.fullmatch(data, at, end)
        if match is None:
            raise BadBody("malformed chunk size")
        self._extension_bytes += end - match.end(1)
        if self._extension_bytes > _EXTENSION_BYTES_MAX:
            raise BadBody("oversize chunk extensions")
        self._left = int(match[1], 16)
        self._step = self._data if self._left else self._trailers
        return end + 2

    def _data(self, data: bytes, at: int, payload: list[bytes]) -> int:
        piece = data[at : at + self._left]
        payload.append(piece)
        self._left -= len(piece)
        if not self._left:
            self._step = self._data_end
        return at + len(piece)

    def _data_end(self, data: bytes, at: int, _: list[bytes]) -> int:
        ending = data[at : at + 2]
        if ending == b"\r\n":
            self._step = self._size
            return at + 2
        if ending == b"\r":
            return at
        raise BadBody("a chunk that is longer than its size")

    def _trailers(self, data: bytes, at: int, _: list[bytes]) -> int:
        if data.startswith(b"\r\n", at):
            self.done = True
            return at + 2
        end = data.find(b"\r\n\r\n", at, at + _TRAILER_BYTES_MAX)
        if end < 0:
            if len(data) - at >= _TRAILER_BYTES_MAX:
                raise BadBody("oversize trailers")
            if _HALF_LINE_END.search(data, at):
                raise BadBody("malformed trailers")
            return at
        texts = data[at:end].split(b"\r\n")
        if len(texts) > _TRAILER_COUNT_MAX:
            raise BadBody("too many trailers")
        try:
            lines = read_lines(texts)
        except BadHeaderLine as bad:
            raise BadBody(f"trailer: {bad}") from bad
        # Fields for framing or routing have no meaning in trailers, and reserved fields are never forwarded.
        self.trailers = b"".join([line.wire for line in lines if line.plain and line.name not in MARKED])
        self.done = True
        return end + 4
