"""Translates heads between HTTP/2 fields and HTTP/1.1 lines.

Inside the engine every message is HTTP/1.1, so that both protocols share one grammar, one set of limits and one
handler. HTTP/2 fields are first checked for bytes that would change their meaning as text: CR, LF, NUL, or a name that
is no token. The strict parser of HTTP/1.1 then reads them as text. A head that HTTP/2 forbids is ``Malformed``, and its
stream is reset. Other invalid heads are refused with a status, as in HTTP/1.1.
"""

import re
from collections.abc import Iterable

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http1.lines import MARKED, BadHeaderLine, read_lines
from serving.net.proxy.http1.requesthead import RefusalCode, RequestHead, RequestRefusal, read_request_head
from serving.net.proxy.http1.responsehead import BadResponse, Framing, ResponseHead, read_response_head
from serving.net.proxy.http2.hpack_decoder import FieldSection
from serving.net.proxy.http2.hpack_statictable import Field, Fields

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_STATUS = re.compile(rb"[1-9][0-9][0-9]")
_BODILESS = (b"204", b"304")
# RFC 9113, 10.5.1: bytes counted for each field besides its name and value.
_FIELD_BYTES = 32
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})


class _Known:
    """The parsed form of a section: a head, or trailer lines."""

    __slots__ = ("ended", "is_of_head", "outcome")

    def __init__(self, outcome: RequestHead | ResponseHead | bytes, *, ended: bool, is_of_head: bool = False) -> None:
        self.outcome = outcome
        self.ended = ended
        self.is_of_head = is_of_head


class Malformed(Exception):
    """A malformed HTTP/2 message. The text is the reason. Its stream ends with PROTOCOL_ERROR (RFC 9113, 8.1.1)."""


def read_request_fields(
    fields: Fields, *, ended: bool, head_bytes_max: int, header_count_max: int, keeps_underscores: bool = False
) -> RequestHead:
    """Parse the head of a request from its fields; ``ended`` means that no body follows.

    Raises:
        Malformed: when HTTP/2 forbids the fields.
        RequestRefusal: in the same cases as ``read_request_head``, and with 431 for a head that is too large.
    """
    pseudo, hosts, texts = _sorted_out(fields)
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if method == b"CONNECT":
        raise RequestRefusal(405, RefusalCode.METHOD, "CONNECT is not offered")
    if not method or b":scheme" not in pseudo or not path:
        raise Malformed("a request needs :method, :scheme and :path")
    if sum([len(name) + len(value) + _FIELD_BYTES for name, value in fields]) > head_bytes_max:
        raise RequestRefusal(431, RefusalCode.HEAD_SIZE, "the request's head is too large")
    if not (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS")):
        raise RequestRefusal(400, RefusalCode.TARGET, ":path is no path")
    authority = pseudo.get(b":authority")
    if len(hosts) > 1 or (authority is not None and hosts and hosts[0].lower() != authority.lower()):
        raise RequestRefusal(400, RefusalCode.HOST, ":authority and host are not the same")
    host = authority if authority is not None else b"".join(hosts)
    has_length = False
    for name, _ in fields:
        has_length = has_length or name == b"content-length"
        if name == b"te":
            texts.append(b"connection: te")
    if not ended and not has_length:
        texts.append(b"transfer-encoding: chunked")
    raw = b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), b"host: " + host, *texts])
    head = read_request_head(raw, header_count_max=header_count_max, keeps_underscores=keeps_underscores)
    if ended and head.content_length:
        raise Malformed("a content-length without a body")
    return head


def read_request_section(section: FieldSection, *, ended: bool, settings: HttpSettings) -> RequestHead:
    """``read_request_fields``, cached for a repeated section."""
    known = section.meaning
    if isinstance(known, _Known) and known.ended is ended and isinstance(known.outcome, RequestHead):
        return known.outcome
    head = read_request_fields(
        section.fields,
        ended=ended,
        head_bytes_max=settings.head_bytes_max,
        header_count_max=settings.header_count_max,
        keeps_underscores=settings.keep_underscore_headers,
    )
    section.meaning = _Known(head, ended=ended)
    return head


def read_response_section(section: FieldSection, *, ended: bool, method: bytes, header_count_max: int) -> ResponseHead:
    """``read_response_fields``, cached for a repeated section."""
    known = section.meaning
    is_of_head = method == b"HEAD"
    if isinstance(known, _Known) and known.ended is ended and known.is_of_head is is_of_head:
        outcome = known.outcome
        if isinstance(outcome, ResponseHead):
            return outcome
    head = read_response_fields(section.fields, ended=ended, method=method, header_count_max=header_count_max)
    section.meaning = _Known(head, ended=ended, is_of_head=is_of_head)
    return head


def read_trailer_section(section: FieldSection) -> bytes:
    """``read_trailer_fields``, cached for a repeated section."""
    known = section.meaning
    if isinstance(known, _Known) and isinstance(known.outcome, bytes):
        return known.outcome
    lines = read_trailer_fields(section.fields)
    section.meaning = _Known(lines, ended=True)
    return lines


def _sorted_out(fields: Fields) -> tuple[dict[bytes, bytes], list[bytes], list[bytes]]:
    """Split fields into pseudo-headers, hosts, and the lines of other fields."""
    pseudo: dict[bytes, bytes] = {}
    hosts: list[bytes] = []
    cookies: list[bytes] = []
    texts: list[bytes] = []
    is_regular = False
    for name, value in fields:
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or is_regular:
                raise Malformed("a pseudo-header that is unknown, doubled, or late")
            pseudo[name] = _checked(value)
            continue
        is_regular = True
        _check(name, value)
        if name == b"host":
            hosts.append(value)
        elif name == b"cookie":
            # A single cookie line for HTTP/1.1 (RFC 9113, 8.2.3).
            cookies.append(value)
        else:
            texts.append(b"%b: %b" % (name, value))
    if cookies:
        texts.append(b"cookie: " + b"; ".join(cookies))
    return pseudo, hosts, texts


def read_response_fields(fields: Fields, *, ended: bool, method: bytes, header_count_max: int) -> ResponseHead:
    """Parse the head of a response to a request of ``method``; ``ended`` means that no body follows.

    Raises:
        Malformed: when HTTP/2 forbids the fields.
        BadResponse: in the same cases as ``read_response_head``.
    """
    name, status = fields[0] if fields else (b"", b"")
    if name != b":status" or _STATUS.fullmatch(status) is None:
        raise Malformed("an answer needs one :status, which comes first")
    has_length = False
    texts = [b"HTTP/1.1 %b " % status]
    for name, value in fields[1:]:
        _check(name, value)
        has_length = has_length or name == b"content-length"
        texts.append(b"%b: %b" % (name, value))
    if status[:1] != b"1" and not has_length:
        if not ended:
            texts.append(b"transfer-encoding: chunked")
        elif method != b"HEAD" and status not in _BODILESS:
            texts.append(b"content-length: 0")
    head = read_response_head(b"\r\n".join(texts), method=method, header_count_max=header_count_max)
    if head.status == 101 or (ended and head.framing is not Framing.NONE):
        raise BadResponse("an answer that HTTP/2 does not allow")
    return head


def read_trailer_fields(fields: Fields) -> bytes:
    """Convert trailers to lines. Framing, routing and reserved fields are left out.

    Raises:
        Malformed: when a trailer is malformed.
    """
    for name, value in fields:
        _check(name, value)
    try:
        lines = read_lines([b"%b: %b" % field for field in fields])
    except BadHeaderLine as bad:
        raise Malformed(f"trailer: {bad}") from bad
    return b"".join([line.wire for line in lines if line.plain and line.name not in MARKED])


def request_fields(raw: bytes) -> list[Field]:
    """The HTTP/2 fields of an HTTP/1.1 request head, given without the empty line."""
    first, *texts = raw.split(b"\r\n")
    method, path, _ = first.split(b" ")
    fields = [(b":method", method), (b":scheme", b"http"), (b":path", path)]
    for name, value in split_lines(texts):
        if name == b"host":
            fields.insert(3, (b":authority", value))
        elif name not in _OF_A_CONNECTION and name != b"expect":
            fields.append((name, value))
    return fields


def response_fields(status: int, wire: Iterable[bytes], *, length: int | None) -> list[Field]:
    """The HTTP/2 fields of a response: its status, its lines, and its length if known."""
    fields = [(b":status", b"%d" % status)]
    fields += [field for field in split_lines([line[:-2] for line in wire]) if field[0] not in _OF_A_CONNECTION]
    if length is not None:
        fields.append((b"content-length", b"%d" % length))
    return fields


def split_lines(texts: Iterable[bytes]) -> list[Field]:
    """Split valid lines into names (in lower case) and values."""
    pairs = [text.split(b":", 1) for text in texts if text]
    return [(name.lower(), value.strip(b" \t")) for name, value in pairs]


def _check(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None or name in _OF_A_CONNECTION:
        raise Malformed("a header name that HTTP/2 does not allow")
    if name == b"te" and value.lower() != b"trailers":
        raise Malformed("te other than trailers")
    _checked(value)


def _checked(value: bytes) -> bytes:
    if _VALUE.fullmatch(value) is None:
        raise Malformed("a control character in a header")
    return value
