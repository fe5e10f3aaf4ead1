"""TLS between a client and its server: a protocol for the event loop, a transport for ``Connection`` or ``Session``.

This module decides when to read, write and close; ``records.py`` handles the records. uvloop's own TLS is not used for
three reasons. It drops the alert with which a client learns why its handshake failed. It cannot close one direction, so
the end of a response may be lost. It does not count failed handshakes.

During the handshake the connection counts towards all limits of connections, and its time is bounded. Then ALPN selects
the protocol: ``h2`` starts an HTTP/2 session, anything else is HTTP/1.1. Memory is bounded as without TLS: reading
pauses while the client does not read, and the undecrypted bytes are at most one read of the socket.
"""

import asyncio
import math
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

import msgspec

from serving.core.model.responses import TEXT_PLAIN
from serving.net.aio.mutualtls import identity_of, reason_of
from serving.net.proxy.forwarding.client import Registry, peer_address
from serving.net.proxy.forwarding.exchange import Wiring
from serving.net.proxy.http1.rendering import render_date, render_response
from serving.net.proxy.server.connection import Connection
from serving.net.proxy.server.writing import start_session
from serving.net.proxy.tls.records import HANDSHAKE_RECORD, Records
from serving.net.proxy.tls.transport import TlsTransport

# Time for an alert to leave on a bad line, in seconds.
_CLOSE_WAIT_S = 1.0


class TlsTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Settings shared by all connections of a TLS listener. ``failures`` counts failed handshakes by reason.

    With ``is_mutual``, clients present certificates of this installation's authority. ``plain_refusal`` is the response
    to plain HTTP; with ``takes_plain``, plain HTTP is served instead. ``on_failure`` is called with the address and the
    reason of each failed handshake.
    """

    context: ssl.SSLContext
    handshake_max_s: float
    failures: Counter[str]
    plain_refusal: tuple[int, bytes] = (400, b"this port speaks HTTPS only\n")
    takes_plain: bool = False
    is_mutual: bool = False
    on_failure: Callable[[str, str], None] | None = None


class TlsLayer(TlsTransport):
    """One client's connection over TLS."""

    __slots__ = ("_address", "_begun", "_due_s", "_registry", "_terms", "_wiring")

    def __init__(self, registry: Registry, wiring: Wiring, terms: TlsTerms) -> None:
        super().__init__()
        self._registry = registry
        self._wiring = wiring
        self._terms = terms
        self._address = ""
        self._due_s = math.inf
        self._begun = False

    def __repr__(self) -> str:
        state = "closing" if self._closing else "handshake" if self._app is None else repr(self._app)
        return f"TlsLayer({self._address}, {state})"

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake and its time limit."""
        # uvloop's transports do not inherit from asyncio's.
        self._outer = cast("asyncio.Transport", transport)
        self._address = peer_address(self._outer.get_extra_info("peername"))
        if self._registry.opened(self, self._address) is not None or self._registry.finishing:
            # A response would need a handshake, whose cost may be the goal of a client with too many connections.
            self._fail("too many connections")
            self.abort()
            return
        self._records = Records(self._terms.context)
        self._wait_until(self._wiring.clock() + self._terms.handshake_max_s)

    def data_received(self, data: bytes) -> None:
        """Decrypt and forward, or continue the handshake."""
        if self._closing or self._eof_passed:
            return
        self._records.put(data)
        if self._app is not None:
            self._pass_on()
        elif self._begun or data[0] == HANDSHAKE_RECORD:
            self._begun = True
            self._shake()
        elif self._terms.takes_plain:
            self._step_aside(data)
        else:
            self._refuse_plain(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection has ended."""
        if self._app is not None:
            self._app.connection_lost(exc)
        else:
            if not self._closing:
                self._fail("client left")
            self._registry.closed(self, self._address)
        self._closing = True

    # Called by the server during the handshake.

    @property
    def is_idle(self) -> bool:
        """Always true: no request exists before the handshake ends."""
        return True

    def wind_down(self) -> None:
        """Do nothing: no request exists before the handshake ends."""

    def close_if_idle(self) -> None:
        """Close the connection: it is idle until its handshake ends."""
        self.abort()

    def cut(self) -> bool:
        """Close the connection. Returns False: no request was interrupted."""
        self.abort()
        return False

    def check(self, now_s: float) -> float:
        """Abort a handshake that has exceeded its time limit; return when the limit ends, on the clock of ``now_s``."""
        if self._due_s <= now_s:
            if not self._closing:
                self._fail("too slow")
            self.abort()
        return self._due_s

    # Internals.

    def _shake(self) -> None:
        try:
            is_over = self._records.shake()
        except ssl.SSLError as error:
            self._fail(reason_of(error) if self._terms.is_mutual else error.reason or type(error).__name__)
            self._flush_and_close()
            return
        self._flush()
        if not is_over:
            return
        self._registry.closed(self, self._address)
        if self._terms.is_mutual:
            self._identity = identity_of(self._records.ssl)
        if self._records.ssl.selected_alpn_protocol() == "h2":
            peer = self._wiring.peer_at(self._address, is_tls=True, identity=self._identity)
            start_session(self._registry, self._wiring, transport=self, peer=peer)
        else:
            self._app = Connection(self._registry, self._wiring)
            self._app.connection_made(self)
        self._pass_on()

    def _step_aside(self, data: bytes) -> None:
        """Pass a connection without TLS to a plain ``Connection``."""
        self._registry.closed(self, self._address)
        connection = Connection(self._registry, self._wiring)
        self._outer.set_protocol(connection)
        connection.connection_made(self._outer)
        connection.data_received(data)

    def _break(self, error: ssl.SSLError) -> None:
        if self._terms.is_mutual and not self._write_ended:
            # In TLS 1.3 a client finishes before the server checks its certificate, and vice versa.
            self._fail(reason_of(error))
        super()._break(error)

    def _refuse_plain(self, data: bytes) -> None:
        """Answer plain HTTP with the refusal; close other connections."""
        self._fail("no TLS")
        if data[:1].isalpha():
            status, text = self._terms.plain_refusal
            headers = TEXT_PLAIN + render_date(time.time())
            self._outer.write(render_response(status, body=text, headers=headers, close=True))
        self._flush_and_close()

    def _flush_and_close(self) -> None:
        """Flush the last bytes, and close."""
        self._flush()
        self._closing = True
        self._outer.close()
        self._wait_until(self._wiring.clock() + _CLOSE_WAIT_S)

    def _fail(self, reason: str) -> None:
        self._terms.failures[reason] += 1
        if self._terms.on_failure is not None:
            self._terms.on_failure(self._address, reason)

    def _wait_until(self, due_s: float) -> None:
        self._due_s = due_s
        self._registry.wake_by(due_s)
