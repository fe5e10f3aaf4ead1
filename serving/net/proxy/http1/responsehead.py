"""Parses the head of a response: status, framing of the body, and whether its connection can be reused.

Input: the bytes before the empty line, and the method of the request. Output: a ``ResponseHead``, or ``BadResponse``,
for which the client gets a 502. The parser is as strict as for requests, because later requests use the same
connection.
"""

import enum
import re

import msgspec

from serving.net.proxy.http1.lines import MARKED, BadHeaderLine, HeaderLine, read_lines, split_marks

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?")
# 18 digits are below 2**63, and above the length of any body.
_LENGTH_DIGITS_MAX = 18
# Hop-by-hop headers are never forwarded. Content-Length, Transfer-Encoding and Trailer depend on the next hop's
# framing.
_HOP = frozenset(
    {
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_STATUS_LINES_MAX = 256
_REMEMBERED_BYTES_MAX = 2048
_status_lines: dict[bytes, tuple[int, int, bytes]] = {}


class BadResponse(Exception):
    """A response that violates the protocol. The text names the violation."""


class Framing(enum.Enum):
    """How a response's body ends: no body, by length, by chunks, or with the connection."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


# Read once: an enum attribute costs 60 ns.
_WITHOUT, _BY_LENGTH = Framing.NONE, Framing.LENGTH


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed head of a response.

    ``wire`` are the rendered lines to forward, without hop-by-hop headers and lengths. ``content_length`` is the
    header's value, or None; for HEAD and 304 it is not the body's length. ``trailer`` is the Trailer header. ``marks``
    are the entries of this system (``lines.py``), which are not in ``wire``. ``is_dated``: the response has a Date.
    """

    status: int
    status_wire: bytes
    wire: bytes
    framing: Framing
    content_length: int | None
    keep_alive: bool
    upgrade: bytes | None = None
    trailer: bytes | None = None
    marks: bytes = b""
    is_dated: bool = False


def read_response_head(raw: bytes, *, method: bytes, header_count_max: int) -> ResponseHead:
    """Parse the head of a response to a request of ``method``, given without the empty line.

    Raises:
        BadResponse: when the head violates the protocol.
    """
    first, *texts = raw.split(b"\r\n")
    status, minor, status_wire = _status_lines.get(first) or _read_status_line(first)
    if len(texts) > header_count_max:
        raise BadResponse(f"more than {header_count_max} header lines")
    try:
        lines = read_lines(texts)
    except BadHeaderLine as bad:
        raise BadResponse(str(bad)) from bad
    care = [line for line in lines if line.matters]
    if len(care) == 1 and care[0].name == b"content-length" and minor == 1:
        # The common case: a length and nothing about the connection.
        length = _read_length(care)
        return ResponseHead(
            status=status,
            status_wire=status_wire,
            wire=b"".join([line.wire for line in lines if line.plain]),
            framing=_BY_LENGTH if length and _may_have_body(status, method) else _WITHOUT,
            content_length=length,
            keep_alive=True,
            is_dated=b"\r\nDate:" in raw or b"\r\ndate:" in raw.lower(),
        )
    return _with_care(status, status_wire, lines, minor=minor, method=method)


class ResponseMemory:
    """Caches the last head of one upstream connection, because most responses differ only in their date.

    Its size has the same limit as ``HeadMemory``. ``read`` returns the result of ``read_response_head``.
    """

    __slots__ = ("_head", "_is_of_head", "_raw")

    def __init__(self) -> None:
        self._raw = b""
        self._is_of_head = False
        self._head: ResponseHead | None = None

    def read(self, raw: bytes, *, method: bytes, header_count_max: int) -> ResponseHead:
        """Parse the head of a response to a request of ``method``, given without the empty line.

        Raises:
            BadResponse: when the head violates the protocol.
        """
        known, is_of_head = self._head, method == b"HEAD"
        if known is not None and raw == self._raw and is_of_head is self._is_of_head:
            return known
        head = read_response_head(raw, method=method, header_count_max=header_count_max)
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            self._raw = raw
            self._is_of_head = is_of_head
            self._head = head
        return head


def _read_status_line(first: bytes) -> tuple[int, int, bytes]:
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadResponse("malformed status line")
    minor, digits, reason = match.groups()
    parsed = int(digits), int(minor), b"HTTP/1.1 %b %b\r\n" % (digits, reason or b"")
    if len(_status_lines) >= _STATUS_LINES_MAX:
        _status_lines.clear()
    _status_lines[first] = parsed
    return parsed


def _with_care(status: int, status_wire: bytes, lines: list[HeaderLine], *, minor: int, method: bytes) -> ResponseHead:
    inspected = [line for line in lines if line.name in _HOP]
    values: dict[bytes, bytes] = {}
    for line in inspected:
        known = values.get(line.name)
        values[line.name] = line.value if known is None else b"%b, %b" % (known, line.value)
    tokens = {token.strip(b" \t").lower() for token in values.get(b"connection", b"").split(b",")}
    length = _read_length([line for line in inspected if line.name == b"content-length"])
    coding = values.get(b"transfer-encoding")
    if coding is not None and (length is not None or minor == 0 or coding.lower() != b"chunked"):
        raise BadResponse("a framing that can be read in two ways")
    if length == 0 or not _may_have_body(status, method):
        framing = Framing.NONE
    elif coding is not None:
        framing = Framing.CHUNKED
    else:
        framing = Framing.CLOSE if length is None else Framing.LENGTH
    marks: list[bytes] = []
    others: list[bytes] = []
    for line in lines:
        if line.name in _HOP or line.name in tokens:
            continue
        ours, rest = split_marks(line) if line.name in MARKED else (b"", line.wire)
        marks.append(ours)
        others.append(rest)
    return ResponseHead(
        status=status,
        status_wire=status_wire,
        wire=b"".join(others),
        marks=b"".join(marks),
        framing=framing,
        content_length=length,
        keep_alive=minor == 1 and b"close" not in tokens and framing is not Framing.CLOSE,
        upgrade=values.get(b"upgrade") if b"upgrade" in tokens else None,
        trailer=values.get(b"trailer"),
        is_dated=any(line.name == b"date" for line in lines),
    )


def _read_length(lines: list[HeaderLine]) -> int | None:
    if not lines:
        return None
    value = lines[0].value
    if len(lines) != 1 or not value.isdigit() or len(value) > _LENGTH_DIGITS_MAX:
        raise BadResponse("malformed or repeated Content-Length")
    return int(value)


def _may_have_body(status: int, method: bytes) -> bool:
    return status >= 200 and status not in (204, 304) and method != b"HEAD"
