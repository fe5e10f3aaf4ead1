"""Connects to upstreams over mutual TLS, and verifies their identity.

The peer's certificate must have the identity that is expected at its address. The authority's signature is not enough:
the address may now belong to another pod, which has a signed certificate too. A connection of an earlier certificate
gets no further request (``turn``), so that no connection outlives its certificates for long.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import cast

from serving.net.aio.clock import now_s
from serving.net.aio.mutualtls import NO_TLS, WRONG_IDENTITY, MutualTls, identity_of, is_expected, reason_of
from serving.net.proxy.http1.pool import UpstreamProtocol
from serving.net.proxy.http1.upstream import Address, unread_pieces
from serving.net.proxy.tls.records import Records
from serving.net.proxy.tls.transport import TlsTransport

_log = logging.getLogger("tls")

# Parallel handshakes: one takes 1.4 ms of both ends, and more only slow each other down.
_HANDSHAKES_MAX = 8
# Time without TLS attempts to a peer that did not speak TLS, in seconds.
_PLAIN_S = 30.0
# Most peers without TLS that are remembered.
_PLAIN_MAX = 4096
# Shortest time between two log lines about refused peers, in seconds; the metric counts all.
_LOG_PERIOD_S = 1.0


class PeerRefused(ConnectionError):
    """The handshake with a peer failed. ``reason`` is for a metric."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RefusalLog:
    """Counts refused peers by reason, and logs at most one line a second."""

    def __init__(self, tls: MutualTls) -> None:
        self._failures = tls.failures
        self._logged_s = float("-inf")

    def refuse(self, address: str, reason: str) -> None:
        """Count and log a refusal that was not counted yet."""
        self._failures[reason] += 1
        self.log(address, reason)

    def log(self, address: str, reason: str) -> None:
        """Log a refusal."""
        if now_s() - self._logged_s >= _LOG_PERIOD_S:
            self._logged_s = now_s()
            _log.warning("tls.refused", extra={"peer": address, "reason": reason, "since_start": dict(self._failures)})


async def open_client(
    context: ssl.SSLContext,
    make: Callable[[], UpstreamProtocol],
    address: Address,
    *,
    check: Callable[["TlsClient"], None] = lambda _: None,
) -> UpstreamProtocol:
    """Connect over TLS; ``check`` raises ``PeerRefused`` for an unacceptable peer. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    protocols: list[UpstreamProtocol] = []

    def app() -> UpstreamProtocol:
        protocols.append(make())
        return protocols[0]

    ready = loop.create_future()
    _, client = await loop.create_connection(lambda: TlsClient(context, app, ready), *address)
    try:
        await ready
        check(client)
    except BaseException:
        client.abort()
        raise
    client.start()
    return protocols[0]


class TlsConnector:
    """Opens upstream connections over TLS.

    ``expected`` returns the SPIFFE id that the peer at an address must have (``is_expected``). ``takes_plain`` allows
    connections to peers without TLS.
    """

    attempts_max = _HANDSHAKES_MAX

    def __init__(
        self, tls: MutualTls, *, expected: Callable[[Address], str], takes_plain: bool, refusals: RefusalLog
    ) -> None:
        self._tls = tls
        self._expected = expected
        self._takes_plain = takes_plain
        self._refusals = refusals
        self._plain: dict[Address, float] = {}

    @property
    def turn(self) -> int:
        """A counter that each new certificate increments."""
        return self._tls.turn

    async def connect(self, make: Callable[[], UpstreamProtocol], address: Address) -> UpstreamProtocol:
        """Implements ``serving.net.proxy.http1.pool.Connector``."""
        if self._plain and self._plain.get(address, 0.0) > now_s():
            _, plain = await asyncio.get_running_loop().create_connection(make, *address)
            return plain
        try:
            return await open_client(self._tls.client, make, address, check=lambda client: self._check(client, address))
        except PeerRefused as refused:
            if refused.reason == NO_TLS and self._takes_plain:
                self._remember_plain(address)
                return await self.connect(make, address)
            self._refusals.refuse(address[0], refused.reason)
            raise

    def _check(self, client: "TlsClient", address: Address) -> None:
        expected = self._expected(address)
        if not is_expected(client.identity, expected):
            text = f"the peer at {address[0]}:{address[1]} is {client.identity or 'without an identity'}, expected {expected}"
            raise PeerRefused(WRONG_IDENTITY, text)

    def _remember_plain(self, address: Address) -> None:
        if len(self._plain) >= _PLAIN_MAX:
            self._plain.clear()
        self._plain[address] = now_s() + _PLAIN_S


class TlsClient(TlsTransport):
    """The client's end of one connection.

    ``ready`` is set to the handshake's result. ``start`` begins the protocol that ``make`` creates.
    """

    __slots__ = ("_make", "_ready")

    def __init__(
        self, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol], ready: "asyncio.Future[None]"
    ) -> None:
        super().__init__()
        self._records = Records(context, is_server=False)
        self._make = make
        self._ready = ready

    @property
    def identity(self) -> str:
        """The SPIFFE id of the peer, after the handshake."""
        return self._identity

    def start(self) -> None:
        """Pass the connection to its protocol, with the bytes received so far."""
        self._app = self._make()
        self._app.connection_made(self)
        self._pass_on()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # uvloop's transports do not inherit from asyncio's.
        self._outer = cast("asyncio.Transport", transport)
        self._shake()

    def data_received(self, data: bytes) -> None:
        """Decrypt and forward, or continue the handshake."""
        if self._closing or self._eof_passed:
            return
        self._records.put(data)
        if self._app is not None:
            self._pass_on()
        elif not self._ready.done():
            self._shake()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the handshake or the protocol. After a failed write, first process the bytes that had arrived."""
        if exc is not None:
            for data in unread_pieces(self._outer):
                self.data_received(data)
        self._closing = True
        if self._app is not None:
            self._app.connection_lost(exc)
        elif not self._ready.done():
            self._ready.set_exception(PeerRefused("closed", f"the peer ended the handshake: {exc or 'end of stream'}"))

    def _shake(self) -> None:
        try:
            is_over = self._records.shake()
        except ssl.SSLError as error:
            reason = reason_of(error)
            self._flush()
            if not self._ready.done():
                self._ready.set_exception(PeerRefused(reason, f"no TLS handshake with the peer: {reason} ({error})"))
            return
        self._flush()
        if is_over and not self._ready.done():
            self._identity = identity_of(self._records.ssl)
            self._ready.set_result(None)

    def _break(self, error: ssl.SSLError) -> None:
        _log.info("tls.broken", extra={"peer": self._identity, "reason": reason_of(error)})
        super()._break(error)
