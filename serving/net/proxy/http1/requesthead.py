"""Parses the head of a request, or refuses it with a status.

Input: the bytes before the empty line. Output: a ``RequestHead``, or ``RequestRefusal`` with the status to answer. A
head that two parsers could read differently is refused, because request smuggling depends on such heads. The parser
follows each "MUST" of RFC 9110 and 9112. Where they leave a choice, it refuses: repeated Content-Length, a transfer
coding other than one "chunked", any transfer coding on HTTP/1.0, several or missing Hosts, an authority that differs
from Host, and a body with an Upgrade.
"""

import enum
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from serving.net.proxy.http1.lines import RESERVED, BadHeaderLine, HeaderLine, read_lines

# A target is ASCII and has no fragment (RFC 9112 section 3.2), because apps disagree about both.
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([!\"$-~]+) HTTP/([0-9])\.([0-9])")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(/[^#]*|\?[^#]*)?", re.IGNORECASE)
# 18 digits are below 2**63, and above the length of any body.
_LENGTH = re.compile(rb"[0-9]{1,18}")
# Methods that may be sent again without a response (RFC 9110 section 9.2.2).
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})
_REMEMBERED_BYTES_MAX = 2048
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})

_NAME = b"traceparent"
GRPC_TYPE = b"application/grpc"


class RefusalCode(enum.StrEnum):
    """Why a request was refused, as a metric label."""

    BODY = enum.auto()
    BODY_SIZE = enum.auto()
    CONNECTIONS = enum.auto()
    EXPECT = enum.auto()
    FRAMING = enum.auto()
    HEAD_SIZE = enum.auto()
    HEADER = enum.auto()
    HOST = enum.auto()
    METHOD = enum.auto()
    REQUEST_LINE = enum.auto()
    SERVER_NAME = enum.auto()
    SLOW_BODY = enum.auto()
    SLOW_HEAD = enum.auto()
    TARGET = enum.auto()
    UPGRADE = enum.auto()
    VERSION = enum.auto()


class RequestRefusal(Exception):
    """A request that the parser refused: the status, the code for the metric, and the reason."""

    def __init__(self, status: int, code: RefusalCode, reason: str) -> None:
        self.status = status
        self.code = code
        super().__init__(reason)


class RequestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed head of a request.

    ``target`` is always in origin form ("/path?query", or "*"). ``host`` is the Host as sent, empty only for HTTP/1.0
    without Host. ``content_length`` is None without the header. ``keep_alive``: the client wants to keep the
    connection. ``upgrade`` is the requested protocol, if any. ``nominated`` are the headers, in lower case, that the
    Connection header declares as hop-by-hop. ``reserved``: the head has headers that only this system may set.
    ``forwarded``: the head has X-Forwarded-* or Forwarded headers. ``wire`` are the rendered lines to forward
    unchanged. ``is_plain``: the request has no body, and no further line is needed.
    """

    method: bytes
    target: bytes
    host: bytes
    lines: list[HeaderLine]
    wire: bytes
    is_plain: bool = False
    minor: int = 1
    content_length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    upgrade: bytes | None = None
    expects_continue: bool = False
    nominated: frozenset[bytes] | None = None
    reserved: bool = False
    forwarded: bool = False
    trailers_wanted: bool = False

    @property
    def has_body(self) -> bool:
        """Whether bytes of a body follow."""
        return self.chunked or bool(self.content_length)

    @property
    def may_be_repeated(self) -> bool:
        """Whether the request may run twice: its method is idempotent, or it has an Idempotency-Key."""
        return self.method in _IDEMPOTENT or self.is_marked_repeatable

    @property
    def is_marked_repeatable(self) -> bool:
        """Whether the request has an Idempotency-Key, so that it may be sent again."""
        return self.get(b"idempotency-key") is not None

    def get(self, name: bytes) -> bytes | None:
        """The first value of a header, by its name in lower case; None without one."""
        for line in self.lines:
            if line.name == name:
                return line.value
        return None

    def values(self, name: bytes) -> Iterator[bytes]:
        """All values of a header in order, by its name in lower case."""
        return (line.value for line in self.lines if line.name == name)

    def without(self, is_unwanted: Callable[[HeaderLine], bool]) -> "RequestHead":
        """The same head without some of its lines."""
        lines = [line for line in self.lines if not is_unwanted(line)]
        return msgspec.structs.replace(self, lines=lines, wire=_forwarded_wire(lines, self.nominated))


class HeadMemory:
    """Caches the last request head of one connection, because clients repeat their heads.

    ``read`` returns the result of ``read_request_head``: in 0.1 us for the same head, and in 1 us if only the request
    line differs. Equal lines are not parsed again either. The cache keeps one head of at most 2 KiB, including secrets,
    until the connection closes.
    """

    __slots__ = ("_head", "_keeps_underscores", "_lines", "_raw", "_texts")

    def __init__(self, *, keeps_underscores: bool = False) -> None:
        self._keeps_underscores = keeps_underscores
        self._raw = b""
        self._lines = b""
        self._texts: list[bytes] = []
        self._head: RequestHead | None = None

    def read(self, raw: bytes, *, header_count_max: int) -> RequestHead:
        """Parse a head, given without the empty line and the CR LF before it.

        Raises:
            RequestRefusal: in the same cases as ``read_request_head``.
        """
        known = self._head
        if known is not None and raw == self._raw:
            return known
        first, _, lines = raw.partition(b"\r\n")
        head = _with_other_line(known, first) if known is not None and known.is_plain and lines == self._lines else None
        texts = self._texts
        if head is None:
            first, *texts = raw.split(b"\r\n")
            head = _read_head(
                first,
                texts,
                before=self._texts,
                known=known.lines if known is not None else (),
                header_count_max=header_count_max,
                keeps_underscores=self._keeps_underscores,
            )
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            self._raw = raw
            self._lines = lines
            self._texts = texts
            self._head = head
        return head


def _with_other_line(known: RequestHead, first: bytes) -> RequestHead | None:
    """A cached head with another request line; None if the head must be parsed."""
    match = _REQUEST_LINE.fullmatch(first)
    if match is None or match[2][0] != 0x2F or match[3] != b"1" or match[4] != b"1" or match[1] == b"CONNECT":
        return None
    return RequestHead(
        method=match[1], target=match[2], host=known.host, lines=known.lines, wire=known.wire, is_plain=True
    )


def _forwarded_wire(lines: Sequence[HeaderLine], nominated: frozenset[bytes] | None) -> bytes:
    """The lines to forward, without the headers that Connection names."""
    return b"".join([line.wire for line in lines if line.plain and line.name not in (nominated or ())])


def read_request_head(raw: bytes, *, header_count_max: int, keeps_underscores: bool = False) -> RequestHead:
    """Parse a head, given without the empty line and the CR LF before it.

    Lines with "_" in their name are dropped unless ``keeps_underscores``, because an app of CGI or WSGI does not
    distinguish X_Forwarded_For from X-Forwarded-For.

    Raises:
        RequestRefusal: with 400, 405, 417, 431 or 505.
    """
    first, *texts = raw.split(b"\r\n")
    return _read_head(first, texts, header_count_max=header_count_max, keeps_underscores=keeps_underscores)


def _read_head(
    first: bytes,
    texts: Sequence[bytes],
    *,
    header_count_max: int,
    keeps_underscores: bool,
    before: Sequence[bytes] = (),
    known: Sequence[HeaderLine] = (),
) -> RequestHead:
    """Parse a head from lines. ``known`` are the parsed lines of another head, ``before`` their texts."""
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise RequestRefusal(400, RefusalCode.REQUEST_LINE, "malformed request line")
    method, target, major, minor_digit = match.groups()
    if major != b"1" or minor_digit not in b"01":
        raise RequestRefusal(505, RefusalCode.VERSION, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if len(texts) > header_count_max:
        raise RequestRefusal(431, RefusalCode.HEAD_SIZE, f"more than {header_count_max} header lines")
    try:
        lines = read_lines(texts, before, known)
    except BadHeaderLine as bad:
        raise RequestRefusal(400, RefusalCode.HEADER, str(bad)) from bad
    if target[0] == 0x2F and minor_digit == b"1" and method != b"CONNECT":
        inspected = [line for line in lines if line.matters]
        if len(inspected) == 1 and inspected[0].name == b"host":
            # The common case: nothing about the body or the connection.
            wire = b"".join([line.wire for line in lines if line.plain])
            return RequestHead(
                method=method, target=target, host=inspected[0].value, lines=lines, wire=wire, is_plain=True
            )
    if not keeps_underscores:
        lines = [line for line in lines if b"_" not in line.name]
    return _with_care(method, target, int(minor_digit), lines=lines)


def refused_start(start: bytes, *, head_bytes_max: int) -> RequestRefusal | None:
    """Why an incomplete head is refused; None if it may still become valid.

    Above the limit, the status is 400 for a long method, 414 for a long target, and 431 for long header lines.
    """
    if len(start) > head_bytes_max:
        if b"\n" in start[:head_bytes_max]:
            return RequestRefusal(431, RefusalCode.HEAD_SIZE, "the request's head is too large")
        if b" " in start[:head_bytes_max]:
            return RequestRefusal(414, RefusalCode.HEAD_SIZE, "the request's target is too long")
        return RequestRefusal(400, RefusalCode.REQUEST_LINE, "the request's method is too long")
    if _BARE_LF.search(start) is not None:
        # The client may wait for a response because it considers the head complete.
        return RequestRefusal(400, RefusalCode.HEADER, "a line that does not end in CR LF")
    return None


def _with_care(method: bytes, target: bytes, minor: int, *, lines: list[HeaderLine]) -> RequestHead:
    by_name: dict[bytes, list[bytes]] = {}
    for line in lines:
        if line.matters:
            by_name.setdefault(line.name, []).append(line.value)
    hosts = by_name.get(b"host", [])
    if len(hosts) > 1 or (minor == 1 and not hosts):
        raise RequestRefusal(400, RefusalCode.HOST, "exactly one Host is needed" if hosts else "Host is missing")
    host = hosts[0] if hosts else b""
    length, chunked = _framing(by_name, minor)
    tokens = _tokens(by_name.get(b"connection", ()))
    upgrade = _upgrade(by_name, tokens, minor)
    if upgrade is not None and (length or chunked):
        raise RequestRefusal(400, RefusalCode.UPGRADE, "an upgrade with a body")
    expected = by_name.get(b"expect", ())
    if any(value.lower() != b"100-continue" for value in expected):
        raise RequestRefusal(417, RefusalCode.EXPECT, "unknown expectation")
    nominated = tokens - {b"close", b"keep-alive", b"upgrade"} or None
    return RequestHead(
        method=method,
        target=_origin_form(method, target, host),
        host=host,
        lines=lines,
        wire=_forwarded_wire(lines, nominated),
        minor=minor,
        content_length=length,
        chunked=chunked,
        # HTTP/1.0 connections are closed after the response, because keep-alive was never standardised there.
        keep_alive=minor == 1 and b"close" not in tokens,
        upgrade=upgrade,
        expects_continue=bool(expected) and minor == 1,
        nominated=nominated,
        reserved=not RESERVED.isdisjoint(by_name),
        forwarded=not FORWARDED.isdisjoint(by_name),
        trailers_wanted=b"te" in tokens and b"trailers" in _tokens(by_name.get(b"te", ())),
    )


def _framing(by_name: dict[bytes, list[bytes]], minor: int) -> tuple[int | None, bool]:
    """The declared length of a request, and whether it is chunked."""
    lengths, codings = by_name.get(b"content-length"), by_name.get(b"transfer-encoding")
    if codings is not None:
        if lengths is not None:
            raise RequestRefusal(400, RefusalCode.FRAMING, "both Content-Length and Transfer-Encoding")
        if minor == 0:
            raise RequestRefusal(400, RefusalCode.FRAMING, "Transfer-Encoding on HTTP/1.0")
        if len(codings) != 1 or codings[0].lower() != b"chunked":
            raise RequestRefusal(400, RefusalCode.FRAMING, "a transfer coding other than chunked")
        return None, True
    if lengths is None:
        return None, False
    if len(lengths) != 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise RequestRefusal(400, RefusalCode.FRAMING, "malformed or repeated Content-Length")
    return int(lengths[0]), False


def _upgrade(by_name: dict[bytes, list[bytes]], tokens: frozenset[bytes], minor: int) -> bytes | None:
    """The protocol that a request may upgrade to; None if it requests no upgrade."""
    protocols = by_name.get(b"upgrade")
    if protocols is None or b"upgrade" not in tokens or minor == 0:
        return None
    if len(protocols) != 1 or b"," in protocols[0] or not protocols[0]:
        raise RequestRefusal(400, RefusalCode.UPGRADE, "more than one protocol to upgrade to")
    # Java's HttpClient and curl offer HTTP/2 with each first request, and continue in HTTP/1.1 without an upgrade (RFC
    # 9110 section 7.8). The offer is not forwarded, because an app could accept it past this proxy.
    return None if protocols[0].lower().startswith(b"h2") else protocols[0]


def _origin_form(method: bytes, target: bytes, host: bytes) -> bytes:
    """Convert a target to the form that is forwarded: "http://h/a" becomes "/a" if h is the Host."""
    if method == b"CONNECT":
        raise RequestRefusal(405, RefusalCode.METHOD, "CONNECT is not offered")
    if target[0] == 0x2F or (target == b"*" and method == b"OPTIONS"):
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise RequestRefusal(400, RefusalCode.TARGET, "malformed target")
    authority, path = match[1], match[2] or b""
    if authority.lower() != host.lower():
        raise RequestRefusal(400, RefusalCode.HOST, "the target's authority is not the Host")
    if not path and method == b"OPTIONS":
        return b"*"
    return path if path.startswith(b"/") else b"/" + path


def _tokens(values: "tuple[()] | list[bytes]") -> frozenset[bytes]:
    """The members of a comma-separated header, in lower case."""
    if not values:
        return frozenset()
    return frozenset(token.strip(b" \t").lower() for token in b",".join(values).split(b",")) - {b""}


def with_traceparent(head: RequestHead, value: bytes) -> RequestHead:
    """The same head with exactly this traceparent."""
    # Not read_line, whose cache has no use for a line that never repeats.
    line = HeaderLine(name=_NAME, value=value, wire=b"traceparent: %b\r\n" % value, plain=True, matters=False)
    rest = head.without(lambda line: line.name == _NAME)
    return msgspec.structs.replace(rest, lines=[*rest.lines, line], wire=rest.wire + line.wire)


def is_grpc_call(head: RequestHead) -> bool:
    """Whether the request is a gRPC call."""
    return (head.get(b"content-type") or b"").startswith(GRPC_TYPE)
