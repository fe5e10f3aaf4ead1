"""Redirects plain HTTP to https, in front of another handler.

A request gets a 301 to the same address over https, with two exceptions that reach the other handler: requests for
which ``stays`` is true, and requests that reached a trusted proxy over https. The handler is used only if redirects are
enabled.
"""

from collections.abc import Callable

from serving.net.proxy.forwarding.exchange import Exchange, Handler
from serving.net.proxy.forwarding.front import Front
from serving.net.proxy.http1.requesthead import RequestHead

_HTTPS_PORT = 443


class HttpsRedirect(Front):
    """Redirects requests to https. ``port`` is the public TLS port."""

    def __init__(self, handler: Handler, *, stays: Callable[[RequestHead], bool], port: int) -> None:
        super().__init__(handler)
        self._stays = stays
        self._port = port

    def respond(self, exchange: Exchange) -> bool:
        """Redirect the request, and return True.

        Returns False if its host is served without TLS, or a proxy received it over https.
        """
        head = exchange.head
        if self._stays(head) or exchange.peer.scheme_of(head) == b"https":
            return False
        exchange.respond(301, b"", b"Location: %b\r\n" % https_location(head.host, head.target, port=self._port))
        return True


def https_location(host: bytes, target: bytes, *, port: int) -> bytes:
    """The https URL of a request: host "a.example:8080" and target "/x?y" give "https://a.example/x?y" at port 443."""
    name, colon, number = host.rpartition(b":")
    bare = name if colon and (not number or number.isdigit()) else host
    where = bare if port == _HTTPS_PORT else b"%b:%d" % (bare, port)
    return b"https://%b%b" % (where, target if target != b"*" else b"/")
