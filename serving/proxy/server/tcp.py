"""A client's TCP connection that is relayed to a pod, whatever its protocol.

It is an exchange from its first moment, before the client has sent a byte: with many protocols the server speaks first. What
the client sends while no pod is ready is kept, up to the bound of a held body. A connection that gets no pod is reset.
"""

import asyncio

from serving.proxy.forwarding.exchange import Exchange, Wiring
from serving.proxy.forwarding.registry import Registry
from serving.proxy.forwarding.relay import relay_head
from serving.proxy.http1.requesthead import RequestRefusal
from serving.proxy.server.connection import Connection

_SWITCHED = b"HTTP/1.1 101 "


class TcpConnection(Connection):
    """One TCP connection of a client to a port, for the service of ``host``."""

    __slots__ = ("_host", "_is_relayed", "_port")

    def __init__(self, registry: Registry, wiring: Wiring, *, host: bytes, port: int) -> None:
        super().__init__(registry, wiring)
        self._host = host
        self._port = port
        self._is_relayed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a pod at once."""
        super().connection_made(transport)
        if self._closing:
            return
        now_s = self._clock()
        exchange = Exchange(self, relay_head(self._host, self._port), self._wiring, peer=self._peer, now_s=now_s)
        self._exchange = exchange
        exchange.begin()
        if self._exchange is exchange:
            self._registry.wake_by(self.check(now_s))

    def resume_writing(self) -> None:
        """Resume the tunnel."""
        self._set_full(full=False)

    def write(self, data: bytes) -> None:
        """Send bytes of the app; what HTTP says before them is not for the client."""
        if not self._is_relayed:
            head, _, data = data.partition(b"\r\n\r\n")
            if not head.startswith(_SWITCHED):
                return
            self._is_relayed = True
        if data:
            super().write(data)

    def exchange_done(self, *, keep: bool) -> None:
        """Close: after the app's last bytes, or by a reset where there were none."""
        del keep
        if self._is_relayed:
            super().exchange_done(keep=False)
        else:
            self._exchange = None
            if not self._closing:
                self.abort()

    def _refuse(self, refusal: RequestRefusal, headers: bytes = b"") -> None:
        del headers
        self._registry.refusals.note(refusal.code, str(refusal), self._address)
        self.abort()
