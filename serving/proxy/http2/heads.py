"""Heads between HTTP/2's lists of fields and the lines of HTTP/1.1 that the engine works on, in both directions.

Inside, a message is always HTTP/1.1's, so that one grammar, one set of limits and one handler hold for both. What comes
from HTTP/2 is checked for what would mean something else there (CR, LF, NUL, a name that is no token) before it becomes
text, and is then read by the strict reader like anything else.
"""

import re
from collections.abc import Iterable, Sequence

from serving.proxy.lines import BadLine, read_lines
from serving.proxy.requesthead import Refusal, RequestHead, read_request_head

__all__ = ["Fields", "answer_fields", "read_request_fields", "read_trailer_fields", "request_fields", "split_lines"]

Fields = Sequence[tuple[bytes, bytes]]

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})


def read_request_fields(  # noqa: C901, PLR0912 - one rule of RFC 9113 a branch
    fields: Iterable[tuple[bytes, bytes]], *, ended: bool, header_count_max: int
) -> RequestHead:
    """A request's head of its fields; ``ended`` says that no body follows.

    Raises:
        Refusal: as ``read_request_head`` does, and with 400 for what HTTP/2 forbids.
    """
    pseudo: dict[bytes, bytes] = {}
    texts: list[bytes] = []
    cookies: list[bytes] = []
    has_length = has_te = False
    hosts: list[bytes] = []
    for name, value in fields:
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or texts:
                raise Refusal(400, "malformed pseudo-header")
            pseudo[name] = _checked(value)
            continue
        _check(name, value)
        if name == b"host":
            hosts.append(value)
        elif name == b"cookie":
            # One line again for HTTP/1.1 (RFC 9113, 8.2.3).
            cookies.append(value)
        else:
            has_length = has_length or name == b"content-length"
            has_te = has_te or name == b"te"
            texts.append(b"%b: %b" % (name, value))
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    if method == b"CONNECT":
        raise Refusal(405, "CONNECT is not offered")
    if not (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS")) or b":scheme" not in pseudo:
        raise Refusal(400, "a request needs :method, :scheme and :path")
    authority = pseudo.get(b":authority")
    if len(hosts) > 1 or (authority is not None and hosts and hosts[0].lower() != authority.lower()):
        raise Refusal(400, ":authority and host are not the same")
    host = authority if authority is not None else b"".join(hosts)
    if cookies:
        texts.append(b"cookie: " + b"; ".join(cookies))
    if has_te:
        texts.append(b"connection: te")
    if not ended and not has_length:
        texts.append(b"transfer-encoding: chunked")
    raw = b"\r\n".join([b"%b %b HTTP/1.1" % (method, path), b"host: " + host, *texts])
    head = read_request_head(raw, header_count_max=header_count_max)
    if ended and head.content_length:
        raise Refusal(400, "a Content-Length without a body")
    return head


def read_trailer_fields(fields: Fields) -> bytes:
    """Trailers as lines; what frames, routes or is ours alone is left out.

    Raises:
        Refusal: with 400 when one is malformed.
    """
    for name, value in fields:
        _check(name, value)
    try:
        lines = read_lines([b"%b: %b" % field for field in fields])
    except BadLine as bad:
        raise Refusal(400, f"trailer: {bad}") from bad
    return b"".join([line.wire for line in lines if line.plain])


def request_fields(raw: bytes, *, scheme: bytes = b"http") -> list[tuple[bytes, bytes]]:
    """The fields of a request whose head we have written ourselves as HTTP/1.1, given without the empty line."""
    first, *texts = raw.split(b"\r\n")
    method, path, _ = first.split(b" ")
    fields = [(b":method", method), (b":scheme", scheme), (b":path", path)]
    for name, value in split_lines(texts):
        if name == b"host":
            fields.insert(3, (b":authority", value))
        elif name not in _OF_A_CONNECTION and name != b"expect":
            fields.append((name, value))
    return fields


def answer_fields(status: int, wire: Iterable[bytes], *, length: int | None) -> list[tuple[bytes, bytes]]:
    """The fields of an answer: its status, its lines, its length if it is known."""
    fields = [(b":status", b"%d" % status)]
    fields += [field for field in split_lines([line[:-2] for line in wire]) if field[0] not in _OF_A_CONNECTION]
    if length is not None:
        fields.append((b"content-length", b"%d" % length))
    return fields


def split_lines(texts: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Name in lower case and value of lines that were read strictly before."""
    pairs = [text.split(b":", 1) for text in texts if text]
    return [(name.lower(), value.strip(b" \t")) for name, value in pairs]


def _check(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None or name in _OF_A_CONNECTION:
        raise Refusal(400, "a header name that HTTP/2 does not allow")
    if name == b"te" and value.lower() != b"trailers":
        raise Refusal(400, "te other than trailers")
    _checked(value)


def _checked(value: bytes) -> bytes:
    if _VALUE.fullmatch(value) is None:
        raise Refusal(400, "a control character in a header")
    return value
