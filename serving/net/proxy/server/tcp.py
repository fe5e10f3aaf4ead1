"""A client's TCP connection that is relayed to a pod, for any protocol.

The exchange begins before the client has sent a byte, because in many protocols the server sends first. While no pod is
ready, the client's bytes are buffered up to the bound of a waiting body. A connection that gets no pod is reset.

With TLS several services may share a port: ``SharedConnection`` finds the service by the server name of the
ClientHello, and relays all bytes unchanged.
"""

import asyncio
from collections.abc import Callable

from serving.net.proxy.forwarding.client import Registry
from serving.net.proxy.forwarding.exchange import Exchange, Wiring
from serving.net.proxy.forwarding.relay import relay_head
from serving.net.proxy.http1.requesthead import RefusalCode, RequestRefusal
from serving.net.proxy.server.clienthello import BadClientHello, read_server_name
from serving.net.proxy.server.connection import Connection

_SWITCHED = b"HTTP/1.1 101 "
# Fatal TLS alerts (RFC 8446, section 6).
_DECODE_ERROR, _UNRECOGNIZED_NAME = (b"\x15\x03\x03\0\2\2" + bytes([code]) for code in (50, 112))


class TcpConnection(Connection):
    """One TCP connection of a client to a port, for the service of ``host``."""

    __slots__ = ("_host", "_is_relayed", "_port")

    def __init__(self, registry: Registry, wiring: Wiring, *, host: bytes, port: int) -> None:
        super().__init__(registry, wiring)
        self._host = host
        self._port = port
        self._is_relayed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request a pod immediately."""
        super().connection_made(transport)
        if not self._closing:
            self._begin_relay()

    def _begin_relay(self) -> None:
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
        """Send bytes of the app. The HTTP response head before the first bytes is dropped."""
        if not self._is_relayed:
            head, _, data = data.partition(b"\r\n\r\n")
            if not head.startswith(_SWITCHED):
                return
            self._is_relayed = True
        if data:
            super().write(data)

    def exchange_done(self, *, keep: bool) -> None:
        """Close after the app's last bytes; reset the connection if the app sent none."""
        del keep
        if self._is_relayed:
            super().exchange_done(keep=False)
        else:
            self._exchange = None
            if not self._closing:
                self.abort()

    def _refuse(self, refusal: RequestRefusal, headers: bytes = b"") -> None:
        del headers
        self._registry.refusals.record(refusal.code, str(refusal), self._address)
        self.abort()


class SharedConnection(TcpConnection):
    """One TLS connection of a client to a shared port.

    ``is_served`` returns whether the service of a host accepts connections at this port.
    """

    __slots__ = ("_is_served",)

    def __init__(self, registry: Registry, wiring: Wiring, *, port: int, is_served: Callable[[str], bool]) -> None:
        super().__init__(registry, wiring, host=b"", port=port)
        self._is_served = is_served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the ClientHello, with the time limit of a request's head."""
        Connection.connection_made(self, transport)

    def data_received(self, data: bytes) -> None:
        """Find the service, or forward bytes."""
        if self._exchange is not None or self._lingering or self._closing:
            super().data_received(data)
            return
        self._buffer += data
        try:
            name = read_server_name(self._buffer)
        except BadClientHello as error:
            self._end_with(_DECODE_ERROR, str(error))
            return
        if name is None:
            return
        if not name or not self._is_served(name):
            known = f"no service takes TLS for {name} at this port" if name else "a client without a server name"
            self._end_with(_UNRECOGNIZED_NAME, known)
            return
        self._host = name.encode()
        self._begin_relay()

    def _end_with(self, alert: bytes, why: str) -> None:
        """Send a TLS alert that clients report, and close."""
        self._registry.refusals.record(RefusalCode.SERVER_NAME, why, self._address)
        self._transport.write(alert)
        self._linger()
