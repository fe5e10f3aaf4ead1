"""Parses one header line of HTTP/1.1 strictly, with a cache of parsed lines.

A line is ``name ":" OWS value OWS`` (RFC 9112 section 5): the name a token with nothing between it and the colon, the value
without NUL, CR, LF or another control character but tab. A line that begins with a space (a folded header) has no name and is
rejected. Forwarded lines are rendered from name and value, never copied.

Lines repeat (``Accept-Encoding: gzip`` of every request of a client), so parsed and rendered lines are cached: 1.2 us for a head
of 12 known lines, where matching each takes 6 us. Long lines and secrets are not cached, and the cache is bounded.
"""

import re
from collections.abc import Sequence

import msgspec

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
# Host of RFC 9110 section 7.2: a registered name or IPv4 address, or an IPv6 address in brackets; and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=%]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")

# Names that only we may set (docs/architecture.md, trust). They are never forwarded as the peer wrote them.
RESERVED = frozenset(
    {
        b"k-held-ms",
        b"k-kubelet-probe",
        b"k-network-hash",
        b"k-network-probe",
        b"k-original-host",
        b"k-pod-secret",
        b"k-proxy-request",
        b"k-tcp-relay",
        b"knative-serving-namespace",
        b"knative-serving-revision",
        b"x-serving-caller",
    }
)
# Hop-by-hop, about framing, or set by the proxy: each needs a look when a head is forwarded.
_LEFT_OUT = frozenset({b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"})
_INSPECTED = (RESERVED | _LEFT_OUT) | {
    b"connection",
    b"content-length",
    b"expect",
    b"forwarded",
    b"host",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
}
_SECRET = frozenset(
    {b"authorization", b"cookie", b"k-pod-secret", b"proxy-authorization", b"set-cookie", b"x-serving-caller"}
)
# Most request lines of real clients but cookies are shorter; with the bound below, 4096 x 128 bytes = half a megabyte.
_REMEMBERED_BYTES_MAX = 128
_REMEMBERED_MAX = 4096


class BadHeaderLine(Exception):
    """A header line that violates the grammar. The text gives the reason."""


class HeaderLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A parsed header line.

    ``name`` is in lower case, ``value`` without surrounding space, ``wire`` the line to forward, with CR LF and the
    original case of its name. ``plain`` lines are forwarded as they are; ``matters`` marks lines that the proxy
    interprets. Other lines concern one hop, such as ``Connection: keep-alive``, and are dropped.
    """

    name: bytes
    value: bytes
    wire: bytes
    plain: bool
    matters: bool


class _Memory(dict[bytes, HeaderLine]):
    """The cache of parsed lines."""

    def __missing__(self, text: bytes) -> HeaderLine:
        return read_line(text)


_remembered = _Memory()


def read_line(text: bytes) -> HeaderLine:
    """Parse one line, without its CR LF.

    Raises:
        BadHeaderLine: when it violates the grammar.
    """
    match = _LINE.fullmatch(text)
    if match is None:
        raise BadHeaderLine("malformed header line")
    name, value = match.groups()
    lower, value = name.lower(), value.rstrip(b" \t")
    if lower == b"host" and _HOST.fullmatch(value) is None:
        raise BadHeaderLine("malformed Host")
    plain = lower not in _INSPECTED
    matters = not plain and lower not in _LEFT_OUT and not (lower == b"connection" and value.lower() == b"keep-alive")
    line = HeaderLine(name=lower, value=value, wire=b"%b: %b\r\n" % (name, value), plain=plain, matters=matters)
    if len(text) <= _REMEMBERED_BYTES_MAX and lower not in _SECRET:
        if len(_remembered) >= _REMEMBERED_MAX:
            # Cheaper than any order of use: real traffic fills it again with what is in use within a few requests.
            _remembered.clear()
        _remembered[text] = line
    return line


def read_lines(texts: Sequence[bytes]) -> list[HeaderLine]:
    """Parse all lines of a head after the first.

    Raises:
        BadHeaderLine: when one violates the grammar.
    """
    return list(map(_remembered.__getitem__, texts))


def header_lines(*headers: tuple[bytes, bytes]) -> bytes:
    r"""Encode headers: ``header_lines((b"A", b"1"))`` is ``b"A: 1\\r\\n"``."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])
