"""Relays a TCP connection from an activator through a queue-proxy to the app.

The activator requests the connection by an upgrade to ``serving-tcp``, as for a websocket. The queue-proxy responds
with 101 once the app has accepted a connection. Both treat the connection as an exchange, with a place in the queue, a
slot, statistics and the time limits of a tunnel. Clients cannot set the header of this upgrade, because bytes for an
HTTP app must not bypass the proxy's checks of requests.
"""

from serving.net.proxy.http1.pool import Pool
from serving.net.proxy.http1.requesthead import RequestHead
from serving.net.proxy.http1.responsehead import Framing, ResponseHead
from serving.net.proxy.http1.upstream import Address, Home, RequestCarrier, ResponseReceiver, Upstream

_PROTOCOL = b"serving-tcp"
_NAME = b"k-tcp-relay"
# Digits of a port.
_DIGITS_MAX = 5
_SWITCHED = ResponseHead(
    status=101,
    status_wire=b"HTTP/1.1 101 Switching Protocols\r\n",
    wire=b"",
    framing=Framing.NONE,
    content_length=None,
    keep_alive=False,
    upgrade=_PROTOCOL,
)


def relay_head(host: bytes, port: int) -> RequestHead:
    """The head of an activator's request for a TCP connection to ``port`` of ``host``.

    The method is GET, so that the request may be sent to another pod after a failure.
    """
    wire = b"%b: %d\r\n" % (_NAME, port)
    return RequestHead(method=b"GET", target=b"/", host=host, lines=[], wire=wire, keep_alive=False, upgrade=_PROTOCOL)


def relay_port(head: RequestHead) -> int | None:
    """The port in a request for a TCP connection, 0 if the port is invalid; None for other requests."""
    text = head.get(_NAME) if head.upgrade == _PROTOCOL else None
    if text is None:
        return None
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else 0


class RelayUpstream(Upstream):
    """A connection to an app that does not speak HTTP."""

    __slots__ = ("_is_lost",)

    def __init__(self, home: Home, address: Address) -> None:
        super().__init__(home, address)
        self._is_lost = False

    def carry(self, receiver: ResponseReceiver, wire: bytes, body: bytes) -> None:
        """Open the tunnel, and forward the bytes that the app has already sent. The head is not sent to the app."""
        del wire, body
        self._receiver = receiver
        ahead, self._buffer = self._buffer, b""
        self.pause_reading(full=False)
        self._tunnel = receiver.on_upgraded(_SWITCHED, ahead)
        if self._is_lost:
            receiver.upstream_lost("the app closed the connection", heard=True, unseen=False)
        elif self._full:
            receiver.upstream_full(full=True)

    def data_received(self, data: bytes) -> None:
        """Forward bytes. Until the tunnel exists they are buffered, because many servers send first."""
        if self._tunnel is not None:
            super().data_received(data)
        else:
            self._buffer += data
            self.pause_reading(full=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the tunnel; if it does not exist yet, end it as soon as it does."""
        self._is_lost = True
        super().connection_lost(exc)


class RelayPool(Pool):
    """Opens a connection for each relay; no connection is reused."""

    __slots__ = ()
    make = RelayUpstream

    def release(self, upstream: RequestCarrier) -> None:
        """Close a connection whose client disconnected meanwhile."""
        upstream.close()
