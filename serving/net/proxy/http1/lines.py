"""Parses a header line of HTTP/1.1 strictly, with a cache of parsed lines.

A line is ``name ":" OWS value OWS`` (RFC 9112 section 5). The name is a token directly before the colon. The value has
no control character except tab. A line that begins with a space (a folded header) has no name and is rejected.
Forwarded lines are rendered from name and value, never copied.

Lines repeat (``Accept-Encoding: gzip`` in every request of a client), so parsed and rendered lines are cached. A head
of 12 cached lines takes 1.2 us; parsing them takes 6 us. Long lines and secrets are not cached, and the cache is
bounded.
"""

import re
from collections.abc import Sequence

import msgspec

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
# Host of RFC 9110 section 7.2: a registered name or IPv4 address, or an IPv6 address in brackets; and a port.
_HOST = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=%]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")

# Header names reserved for us (docs/architecture.md, trust). The peer's values are never forwarded.
RESERVED = frozenset(
    {
        b"k-client-address",
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
# Response headers with marks of our own hops. An app's marks are never forwarded.
MARKED = frozenset(
    {b"k-undelivered", b"proxy-status", b"server-timing", b"x-serving-cold-start", b"x-serving-revision"}
)
_OWN = {b"server-timing": {b"pod-wait", b"queue", b"upstream"}, b"proxy-status": {b"queue-proxy"}}
# A quoted text, other text, or a single comma or quote.
_PART = re.compile(rb'"(?:[^"\\]|\\.)*"|[^,"]+|[,"]')
_TIMING = re.compile(rb"(?im)^server-timing:[^\r\n]*\r\n")
# Written by an activator, which has no other activator upstream.
_OF_ACTIVATOR = re.compile(rb"(?im)^x-serving-[^\r\n]*\r\n")
# Hop-by-hop headers, framing, or headers set by the proxy: each is examined when a head is forwarded.
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
# Most request lines of real clients except cookies are shorter; with the limit below, 4096 x 128 bytes = half a
# megabyte.
_REMEMBERED_BYTES_MAX = 128
_REMEMBERED_MAX = 4096


class BadHeaderLine(Exception):
    """A header line that violates the grammar. The text is the reason."""


class HeaderLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A parsed header line.

    ``name`` is in lower case, ``value`` without surrounding space, ``wire`` the line to forward, with CR LF and the
    original case of its name. ``plain`` lines are forwarded unchanged. ``matters`` marks lines that the proxy
    interprets, and lines with "_" in their name. All other lines concern one hop, such as ``Connection: keep-alive``,
    and are dropped.
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
        BadHeaderLine: when the line violates the grammar.
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
    matters = matters or lower in MARKED or b"_" in lower
    line = HeaderLine(name=lower, value=value, wire=b"%b: %b\r\n" % (name, value), plain=plain, matters=matters)
    if len(text) <= _REMEMBERED_BYTES_MAX and lower not in _SECRET:
        if len(_remembered) >= _REMEMBERED_MAX:
            # Cheaper than tracking the order of use: real traffic refills the cache within a few requests.
            _remembered.clear()
        _remembered[text] = line
    return line


def read_lines(
    texts: Sequence[bytes], before: Sequence[bytes] = (), known: Sequence[HeaderLine] = ()
) -> list[HeaderLine]:
    """Parse all header lines of a head.

    ``before`` are the lines of the previous head, ``known`` their parsed forms. Equal lines are not parsed again.

    Raises:
        BadHeaderLine: when a line violates the grammar.
    """
    if not len(texts) == len(before) == len(known):
        return list(map(_remembered.__getitem__, texts))
    # Comparing a line with its predecessor is cheaper than looking it up.
    return [line if text == last else _remembered[text] for text, last, line in zip(texts, before, known, strict=True)]


def header_lines(*headers: tuple[bytes, bytes]) -> bytes:
    r"""Encode headers: ``header_lines((b"A", b"1"))`` is ``b"A: 1\\r\\n"``."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def split_marks(line: HeaderLine) -> tuple[bytes, bytes]:
    """Split a header line into two: one with marks, which only this system's proxies add, and one with other entries.

    Either line may be empty. A list with an unterminated quote is ambiguous, so all of it counts as marks.
    """
    own = _OWN.get(line.name)
    entries = _entries(line.value) if own is not None else None
    if own is None or entries is None:
        return line.wire, b""
    ours = [entry for entry in entries if entry.partition(b";")[0].strip(b' \t"').lower() in own]
    if not ours:
        return b"", line.wire
    others = [entry for entry in entries if entry not in ours]
    name = line.wire.partition(b":")[0]
    return header_lines((name, b", ".join(ours))), header_lines((name, b", ".join(others))) if others else b""


def marks_for_client(marks: bytes, *, is_timed: bool) -> bytes:
    """The header lines of a queue-proxy that a client may see. Server-Timing is included only if ``is_timed``."""
    remaining = _OF_ACTIVATOR.sub(b"", marks)
    return remaining if is_timed else _TIMING.sub(b"", remaining)


def _entries(value: bytes) -> list[bytes] | None:
    """The entries of a list; None if a quote is not closed."""
    entries = [b""]
    for match in _PART.finditer(value):
        part = match[0]
        if part == b'"':
            return None
        if part == b",":
            entries.append(b"")
        else:
            entries[-1] += part
    return [entry.strip(b" \t") for entry in entries if entry.strip(b" \t")]
