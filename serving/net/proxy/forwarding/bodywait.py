"""Holds requests until enough of their bodies has arrived to take a pod's slot.

A client that sends a head and no body then holds a connection, and no slot. A body with Content-Length is ready in whole, or with
``held_bytes_max`` of it; one without is ready with its first byte, because it may be a stream that the app reads piece by piece. A
gRPC call is ready at once: its client may wait for the server.
"""

from serving.net.proxy.forwarding.client import Client
from serving.net.proxy.forwarding.exchangestate import ExchangeParts
from serving.net.proxy.http1.requesthead import is_grpc_call

# A thousand bodies of 64 KiB. Beyond it all are ready, so that the bounds of the queue apply to them.
_BYTES_MAX = 64 * 1024**2
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BodyWait:
    """The waiting requests of one listener. With ``is_on`` False none waits."""

    __slots__ = ("_byte_count", "_held_bytes_max", "_is_on")

    def __init__(self, held_bytes_max: int, *, is_on: bool) -> None:
        self._held_bytes_max = held_bytes_max
        self._is_on = is_on
        self._byte_count = 0

    def begin(self, exchange: ExchangeParts, client: Client) -> bool:
        """Return whether enough of the body has arrived; if not, the exchange waits for ``received``, or for the end of the body."""
        if self._is_ready(exchange):
            return True
        exchange.body.is_awaited = True
        self._byte_count += exchange.body.held_bytes
        if exchange.head.expects_continue and not exchange.body.held_bytes:
            # As nginx and Envoy do: the app could be asked only with a slot.
            exchange.body.is_continued = True
            client.write(_CONTINUE)
        return False

    def received(self, exchange: ExchangeParts, byte_count: int) -> bool:
        """Count a piece that the exchange has buffered; return whether its wait ends with it."""
        self._byte_count += byte_count
        if not self._is_ready(exchange):
            return False
        self.end(exchange)
        exchange.body.is_awaited = False
        return True

    def end(self, exchange: ExchangeParts) -> None:
        """Stop counting a waiting request."""
        self._byte_count -= exchange.body.held_bytes

    def _is_ready(self, exchange: ExchangeParts) -> bool:
        if exchange.body.is_complete or not self._is_on or self._byte_count >= _BYTES_MAX:
            return True
        held_bytes = exchange.body.held_bytes
        if exchange.head.content_length is None:
            return held_bytes > 0 or is_grpc_call(exchange.head)
        return held_bytes >= self._held_bytes_max
