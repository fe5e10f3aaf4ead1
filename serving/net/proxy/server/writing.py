"""The writing half of a client's connection: responses, slow readers, and the hand-over to HTTP/2.

A connection is handed over after HTTP/2's preface or ALPN (RFC 9113, section 3.4). The parser of HTTP/1.1 refuses the
preface's first line, and only then the preface is detected, so that other requests have no cost. The first HTTP/2
connection imports the code for it, because it takes memory and most sidecars never need it.
"""

import asyncio

from serving.net.proxy.forwarding.client import Registry, reset
from serving.net.proxy.forwarding.exchange import Exchange, Wiring
from serving.net.proxy.forwarding.pace import ReaderPace, ResponseBuffer
from serving.net.proxy.http1.rendering import ClientPeer

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


class SlowReader:
    """The deadline and the buffer of a client with unread bytes of a response."""

    __slots__ = ("_buffer", "_exchange", "_pace", "_transport")

    def __init__(self, exchange: Exchange, transport: asyncio.Transport, wiring: Wiring) -> None:
        # Kept after the response's end, while its bytes still wait.
        self._exchange = exchange
        self._transport = transport
        self._pace = ReaderPace(wiring.read_pace, transport)
        self._buffer = ResponseBuffer(wiring.buffers)

    def change(self, now_s: float, *, full: bool) -> float:
        """Record whether the transport is now full; return the deadline, which is infinite unless it is full."""
        if not full:
            self.end()
        return self._pace.change(now_s, written_bytes=self._exchange.response.body_bytes, full=full)

    def check(self, now_s: float) -> float:
        """Return the deadline. A client that reads too slowly has passed it."""
        return self._pace.check(now_s, written_bytes=self._exchange.response.body_bytes)

    def has_room(self) -> bool:
        """Count the buffered bytes; return whether more may be buffered."""
        return self._buffer.set(self._transport.get_write_buffer_size())

    def unread_bytes(self) -> int:
        """The number of written bytes that the client has not read."""
        return self._pace.count_unread()

    def end(self) -> None:
        """Stop counting the client's unread bytes."""
        self._buffer.set(0)


class ResponseProtocol(asyncio.Protocol):
    """Writes responses to an HTTP/1.1 client. A subclass parses the requests."""

    __slots__ = ("_clock", "_closing", "_exchange", "_full", "_registry", "_slow_reader", "_transport", "_wiring")

    def __init__(self, registry: Registry, wiring: Wiring) -> None:
        self._registry = registry
        self._wiring = wiring
        self._clock = wiring.clock
        self._transport: asyncio.Transport
        self._exchange: Exchange | None = None
        self._full = False
        # While bytes of this or the last response wait for the client.
        self._slow_reader: SlowReader | None = None
        self._closing = False

    # Called by the loop.

    def pause_writing(self) -> None:
        """Buffer or pause the response, because the client reads too slowly."""
        self._set_full(full=True)

    def resume_writing(self) -> None:
        """Resume the response."""
        self._set_full(full=False)

    def _set_full(self, *, full: bool) -> None:
        self._full, exchange = full, self._exchange
        if exchange is not None and self._slow_reader is None:
            self._slow_reader = SlowReader(exchange, self._transport, self._wiring)
        if self._slow_reader is not None:
            self._registry.wake_by(self._slow_reader.change(self._clock(), full=full))
        if exchange is not None:
            exchange.client_full(full=full)

    # Called by its exchange.

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._transport.write(data)

    def write_eof(self) -> None:
        """Close the sending direction."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def has_room(self) -> bool:
        """Count the bytes buffered for the client; return whether more may be written."""
        return self._slow_reader is not None and self._slow_reader.has_room()

    def unread_bytes(self) -> int:
        """The number of written bytes that the client has not read."""
        return 0 if self._slow_reader is None else self._slow_reader.unread_bytes()

    def truncate(self) -> None:
        """Make ``exchange_done`` close the connection after pending writes. Over TLS it sends no close_notify."""
        if (truncate := getattr(self._transport, "truncate", None)) is not None:
            truncate()

    def abort(self) -> None:
        """Reset the connection, because a regular close could look like the end of the body."""
        self._closing = True
        reset(self._transport)


def hand_over(
    data: bytes, registry: Registry, wiring: Wiring, *, transport: asyncio.Transport, peer: ClientPeer
) -> None:
    """Pass a connection to an HTTP/2 session, with the bytes received so far."""
    start_session(registry, wiring, transport=transport, peer=peer).data_received(data)


def start_session(
    registry: Registry, wiring: Wiring, *, transport: asyncio.Transport, peer: ClientPeer
) -> asyncio.Protocol:
    """Start an HTTP/2 session on a connection for which ALPN selected HTTP/2. No bytes are read yet."""
    from serving.net.proxy.http2.session import Session  # noqa: PLC0415 - see the module

    session = Session(registry, wiring, transport, peer=peer, address=peer.address.decode())
    transport.set_protocol(session)
    return session
