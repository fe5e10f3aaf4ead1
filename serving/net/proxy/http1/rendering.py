"""Renders HTTP/1.1 heads from parsed fields, so that no unparsed byte is forwarded.

It omits hop-by-hop headers and names reserved for this system, and sets the framing of the next hop. It also records
the request's path. The peer is appended to X-Forwarded-For, or replaces it (``forwarded-for``). X-Forwarded-Proto and
-Host of a trusted peer are kept, and set otherwise. Forwarded (RFC 7239) is built from these, unless a trusted peer
sent one. Follows knative/serving 98e5ef90 (pkg/http/handler, forwarded) with the trust of docs/architecture.md.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus

from serving.net.proxy.http1.lines import header_lines
from serving.net.proxy.http1.requesthead import RequestHead
from serving.net.proxy.http1.responsehead import Framing, ResponseHead

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_CHUNKED = Framing.CHUNKED
_CLOSE = b"Connection: close\r\n"
# Shorter waits in a pod are due to the event loop, in seconds.
_NO_WAIT_S = 0.001
_DAYS = b"Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
# Most bytes of a reason, which is one sentence.
_DETAILS_MAX = 200
# A shorter queue time counts as none, in seconds.
_NO_QUEUE_S = 0.0005

IDENTITY = "identity"
"""The ``get_extra_info`` key of a transport for its peer's SPIFFE id; "" without inner TLS."""

_ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class ClientPeer:
    """The remote client: its address, and header lines that repeat on its connection."""

    __slots__ = (
        "_host",
        "_lines",
        "_scheme",
        "address",
        "full_host",
        "identity",
        "is_trusted",
        "known",
        "load",
        "replaces",
    )

    def __init__(
        self,
        address: str,
        scheme: bytes = b"http",
        *,
        is_trusted: bool = False,
        replaces: bool = False,
        identity: str = "",
        full_host: Callable[[str], str] = str,
    ) -> None:
        self.address = address.encode()
        self.identity = identity
        """The SPIFFE id of its certificate; "" without inner TLS."""
        self._scheme = scheme
        self.is_trusted = is_trusted
        """Whether its X-Forwarded-* headers are trusted."""
        self.replaces = replaces
        """Whether its address replaces an untrusted X-Forwarded-For."""
        self.known: object = None
        """The handler's cache for requests of this connection."""
        self.load: object = None
        """The handler's load record of this address."""
        self.full_host = full_host
        """Completes a short host name, if the listener's clients send these."""
        self._host: bytes | None = None
        self._lines = b""

    def scheme_of(self, head: RequestHead) -> bytes:
        """The client's scheme: this peer's, or the scheme that a trusted peer forwarded."""
        stated = head.get(b"x-forwarded-proto") if self.is_trusted and head.forwarded else None
        return (stated or self._scheme).lower()

    def forwarded_lines(self, head: RequestHead, host: bytes, *, trusted: bool) -> bytes:
        """Encode X-Forwarded-* and Forwarded for a request. With ``trusted``, extend the request's own headers."""
        if not head.forwarded:
            if host != self._host:
                self._host, self._lines = host, self._written(host)
            return self._lines
        trusted = trusted or self.is_trusted
        before = b", ".join(head.values(b"x-forwarded-for")) if trusted or not self.replaces else b""
        way = b"%b, %b" % (before, self.address) if before else self.address
        scheme = (trusted and head.get(b"x-forwarded-proto")) or self._scheme
        name = (trusted and head.get(b"x-forwarded-host")) or host
        forwarded = b", ".join(head.values(b"forwarded")) if trusted else b""
        return b"X-Forwarded-For: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\nForwarded: %b\r\n" % (
            way,
            name,
            scheme,
            forwarded or _forwarded(way, name, scheme),
        )

    def _written(self, host: bytes) -> bytes:
        return header_lines(
            (b"X-Forwarded-For", self.address),
            (b"X-Forwarded-Host", host),
            (b"X-Forwarded-Proto", self._scheme),
            (b"Forwarded", _forwarded(self.address, host, self._scheme)),
        )


def render_request(
    head: RequestHead, *, peer: ClientPeer, host: bytes, extra: bytes = b"", trusted: bool = False
) -> bytes:
    """Encode a request's head for the upstream. ``host`` is the Host, ``extra`` are further lines."""
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b%b%b\r\n" % (
        head.method,
        head.target,
        host,
        head.wire,
        b"" if head.is_plain else _hop_lines(head),
        peer.forwarded_lines(head, host, trusted=trusted),
        extra,
    )


def _hop_lines(head: RequestHead) -> bytes:
    """Encode the body and connection headers for the next hop."""
    wire = b""
    if head.chunked:
        trailer = b"".join([line.wire for line in head.lines if line.name == b"trailer"])
        wire = b"Transfer-Encoding: chunked\r\n" + trailer
    elif head.content_length is not None:
        wire = b"Content-Length: %d\r\n" % head.content_length
    if head.expects_continue:
        wire += b"Expect: 100-continue\r\n"
    if head.upgrade is not None:
        wire += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade
    elif head.trailers_wanted:
        wire += b"Connection: te\r\nTE: trailers\r\n"
    return wire


def render_forwarded_response(head: ResponseHead, *, framing: Framing, close: bool, extra: bytes = b"") -> bytes:
    """Encode an upstream's response head for the client. ``framing`` is the framing of the body to the client."""
    tail = extra
    if framing is _CHUNKED:
        tail += b"Transfer-Encoding: chunked\r\n"
        if head.trailer is not None:
            tail += b"Trailer: %b\r\n" % head.trailer
    elif head.content_length is not None and head.status >= 200 and head.status != 204:
        tail += b"Content-Length: %d\r\n" % head.content_length
    if close:
        tail += _CLOSE
    return b"%b%b%b\r\n" % (head.status_wire, head.wire, tail)


def render_interim(head: ResponseHead) -> bytes:
    """Encode a 1xx response for the client; a 101 includes the agreed protocol."""
    tail = b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade if head.upgrade is not None else b""
    return b"%b%b%b\r\n" % (head.status_wire, head.wire, tail)


def render_response(
    status: int, *, body: bytes, headers: bytes = b"", close: bool = False, bodiless: bool = False
) -> bytes:
    """Encode a response of the proxy. ``headers`` are encoded lines; ``bodiless`` is for HEAD."""
    return b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\n%b\r\n%b" % (
        status,
        _REASONS.get(status, b"Unknown"),
        headers,
        len(body),
        _CLOSE if close else b"",
        b"" if bodiless else body,
    )


def render_date(now_s: float) -> bytes:
    """Encode the Date header for seconds since the epoch. Each response has one (RFC 9110, 6.6.1)."""
    return _date_of(int(now_s))


@lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(second)
    # Neither strftime, which depends on the locale, nor email.utils, which imports 12 modules.
    date = _DAYS[weekday], day, _MONTHS[month - 1], year, hour, minute, second
    return b"Date: %b, %02d %b %04d %02d:%02d:%02d GMT\r\n" % date


def render_timing(*, queue_s: float, upstream_s: float) -> bytes:
    """Encode Server-Timing (W3C): the time in the queue, and the time until the upstream's response began."""
    if queue_s < _NO_QUEUE_S:
        # The common case, with one number less.
        return b"Server-Timing: queue;dur=0, upstream;dur=%.3f\r\n" % (1000 * upstream_s)
    return b"Server-Timing: queue;dur=%.3f, upstream;dur=%.3f\r\n" % (1000 * queue_s, 1000 * upstream_s)


def render_pod_wait(wait_s: float) -> bytes:
    """Encode Server-Timing with the time that a request waited in its pod; empty without a wait."""
    return b"" if wait_s < _NO_WAIT_S else b"Server-Timing: pod-wait;dur=%.3f\r\n" % (1000 * wait_s)


def render_proxy_status(name: bytes, reason: bytes) -> bytes:
    """Encode Proxy-Status (RFC 9209) for an error of the proxy ``name``, with the reason as details."""
    text = reason[:_DETAILS_MAX].decode("ascii", "replace").replace("\ufffd", "?").strip()
    safe = (
        "".join(character if character.isprintable() else " " for character in text)
        .replace("\\", "\\\\")
        .replace('"', '\\"')
    )
    return b'Proxy-Status: %b; details="%b"\r\n' % (name, safe.encode("ascii"))


def _forwarded(way: bytes, host: bytes, scheme: bytes) -> bytes:
    """The Forwarded header for a chain of addresses: "a, b" becomes "for=a;host=h;proto=http, for=b"."""
    first, *others = [b"for=" + _node(hop.strip(b" \t")) for hop in way.split(b",")]
    return b", ".join([b"%b;host=%b;proto=%b" % (first, _quoted(host), scheme), *others])


def _node(address: bytes) -> bytes:
    """An address as a node of RFC 7239: IPv6 is in brackets and quotes."""
    bare = address.strip(b"[]")
    return b'"[%b]"' % bare if b":" in bare else _quoted(address)


def _quoted(text: bytes) -> bytes:
    """A value, in quotes unless it is a token. A host with a port is not a token."""
    if text and not text.translate(None, b"!#$%&'*+-.^_`|~" + _ALPHANUMERIC):
        return text
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
