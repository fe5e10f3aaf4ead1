"""The server's end of mutual TLS on a port that also accepts plain HTTP, in front of another protocol."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from serving.net.aio.mutualtls import identity_of, reason_of
from serving.net.proxy.forwarding.client import peer_address
from serving.net.proxy.tls.connector import RefusalLog
from serving.net.proxy.tls.records import HANDSHAKE_RECORD, Records
from serving.net.proxy.tls.transport import TlsTransport

_HANDSHAKE_MAX_S = 10.0


class TlsFront(TlsTransport):
    """One client's connection: TLS if it begins with a handshake, otherwise plain.

    A plain connection is passed unchanged to the protocol of ``make``. The transport's ``sslcontext`` shows the
    protocol whether the connection is TLS, and ``identity`` is the peer's SPIFFE id.
    """

    __slots__ = ("_address", "_context", "_due", "_has_begun", "_make", "_refusals")

    def __init__(self, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol], *, refusals: RefusalLog) -> None:
        super().__init__()
        self._context = context
        self._make = make
        self._refusals = refusals
        self._address = ""
        self._has_begun = False
        self._due: asyncio.TimerHandle | None = None

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes, for a bounded time."""
        # uvloop's transports do not inherit from asyncio's.
        self._outer = cast("asyncio.Transport", transport)
        self._address = peer_address(self._outer.get_extra_info("peername"))
        self._records = Records(self._context)
        self._due = asyncio.get_running_loop().call_later(_HANDSHAKE_MAX_S, self._expire)

    def data_received(self, data: bytes) -> None:
        """Decrypt and forward, or continue the handshake."""
        if self._closing or self._eof_passed:
            return
        if not self._has_begun and data[0] != HANDSHAKE_RECORD:
            self._step_aside(data)
            return
        self._has_begun = True
        self._records.put(data)
        if self._app is not None:
            self._pass_on()
        else:
            self._shake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the protocol, if it has started."""
        self._cancel()
        self._closing = True
        if self._app is not None:
            self._app.connection_lost(exc)

    # Internals.

    def _shake(self) -> None:
        try:
            is_over = self._records.shake()
        except ssl.SSLError as error:
            self._refusals.refuse(self._address, reason_of(error))
            self._flush()
            self._closing = True
            self._outer.close()
            return
        self._flush()
        if is_over:
            self._cancel()
            self._identity = identity_of(self._records.ssl)
            self._app = self._make()
            self._app.connection_made(self)
            self._pass_on()

    def _step_aside(self, data: bytes) -> None:
        self._cancel()
        plain = self._make()
        self._outer.set_protocol(plain)
        plain.connection_made(self._outer)
        plain.data_received(data)

    def _expire(self) -> None:
        self._refusals.refuse(self._address, "too slow")
        self.abort()

    def _cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _break(self, error: ssl.SSLError) -> None:
        if not self._write_ended:
            self._refusals.refuse(self._address, reason_of(error))
        super()._break(error)
