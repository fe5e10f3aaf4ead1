"""Redirects plain HTTP to https, in front of another handler.

Each request for which ``stays`` is false gets a 301 to the same address over https; the other handler gets all others,
and those that reached a trusted proxy over https. It is used only if redirects are enabled.
"""

from collections.abc import Callable

from serving.net.proxy.forwarding.exchange import Exchange, Handler
from serving.net.proxy.http1.requesthead import RequestHead

_HTTPS_PORT = 443
# The context of an exchange that the wrapped handler has not seen.
_OURS = object()


class HttpsRedirect:
    """Redirects requests to https. ``port`` is the public TLS port."""

    def __init__(self, handler: Handler, *, stays: Callable[[RequestHead], bool], port: int) -> None:
        self._handler = handler
        self._stays = stays
        self._port = port

    def begin(self, exchange: Exchange) -> None:
        """Redirect the request, or pass it to the wrapped handler."""
        head = exchange.head
        if self._stays(head) or exchange.peer.scheme_of(head) == b"https":
            self._handler.begin(exchange)
            return
        exchange.context = _OURS
        exchange.respond(301, b"", b"Location: %b\r\n" % https_location(head.host, head.target, port=self._port))

    def unreachable(self, exchange: Exchange, error: OSError) -> None:
        """Call the wrapped handler: redirects are never forwarded."""
        self._handler.unreachable(exchange, error)

    def lost(self, exchange: Exchange, reason: str) -> bool:
        """Call the wrapped handler: redirects are never forwarded."""
        return self._handler.lost(exchange, reason)

    def overdue(self, exchange: Exchange) -> None:
        """Call the wrapped handler: redirects never wait."""
        self._handler.overdue(exchange)

    def body_ready(self, exchange: Exchange) -> None:
        """Call the wrapped handler: redirects do not wait for bodies."""
        self._handler.body_ready(exchange)

    def body_complete(self, exchange: Exchange) -> None:
        """Do nothing: redirects are never queued."""
        self._handler.body_complete(exchange)

    def held(self, exchange: Exchange) -> None:
        """Call the wrapped handler: redirects have no body."""
        if exchange.context is not _OURS:
            self._handler.held(exchange)

    def finish(self, exchange: Exchange) -> None:
        """Call the wrapped handler, unless the request was redirected."""
        if exchange.context is not _OURS:
            self._handler.finish(exchange)


def https_location(host: bytes, target: bytes, *, port: int) -> bytes:
    """The same address over https: host "a.example:8080" and target "/x?y" are "https://a.example/x?y" at port 443."""
    name, colon, number = host.rpartition(b":")
    bare = name if colon and (not number or number.isdigit()) else host
    where = bare if port == _HTTPS_PORT else b"%b:%d" % (bare, port)
    return b"https://%b%b" % (where, target if target != b"*" else b"/")
