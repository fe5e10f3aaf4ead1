"""The interface between an exchange and its client's connection, and tunnels between client and upstream."""

import asyncio
import enum
import logging
import struct
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET
from typing import Protocol

from serving.core.settings.http import HttpSettings
from serving.net.aio.turns import FairTurns
from serving.net.proxy.http1.responsehead import ResponseHead

# "Linger for 0 seconds": discards unsent data and resets the connection.
_RESET = struct.pack("ii", 1, 0)


def peer_address(name: object) -> str:
    """The address in a socket's peer name, or "unknown". An IPv4-mapped address becomes IPv4."""
    address = str(name[0]) if isinstance(name, tuple) else "unknown"
    return address.removeprefix("::ffff:") if "." in address else address


class Pause(enum.IntFlag):
    """Why reading from a client's connection is paused.

    HELD: too much of a waiting request's body is buffered. UPSTREAM_FULL: the upstream does not read. AHEAD: the client
    has sent its next request early. TURN: other connections run first.
    """

    HELD = 1
    UPSTREAM_FULL = 2
    AHEAD = 4
    TURN = 8


class ResponseSink(Protocol):
    """Receives an upstream's parsed response, for clients whose protocol has frames."""

    def begin_response(self, head: ResponseHead, extra: bytes, payload: bytes, *, done: bool, trailers: bytes) -> None:
        """Send the head with the ``extra`` lines, and the available part of the body."""

    def send_piece(self, payload: bytes) -> None:
        """Send a piece of the body; more follows."""

    def send_last(self, payload: bytes, trailers: bytes) -> None:
        """Send the last piece of the body, which may be empty, and the trailers."""


class Client(Protocol):
    """A client's connection, as used by an exchange."""

    @property
    def sink(self) -> ResponseSink | None:
        """The receiver of upstream responses; None if they are written as HTTP/1.1."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_eof(self) -> None:
        """Close the sending direction."""

    def pause(self, why: Pause) -> None:
        """Add a reason to pause reading."""

    def resume(self, why: Pause) -> None:
        """Remove a reason to pause reading."""

    def has_room(self) -> bool:
        """Count the bytes buffered for the client; return whether more may be written."""

    def unread_bytes(self) -> int:
        """Return the number of written bytes that the client has not read."""

    def open_tunnel(self) -> bytes:
        """Turn the connection into a tunnel; return the bytes already read."""

    def exchange_done(self, *, keep: bool) -> None:
        """Finish the exchange; ``keep`` allows the connection to serve another request."""

    def truncate(self) -> None:
        """Close the connection in the middle of a response, after all written data."""

    def abort(self) -> None:
        """Reset the connection, so that a truncated response does not look complete."""


class TunnelUpstream(Protocol):
    """An upstream's connection, as used by a tunnel."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_eof(self) -> None:
        """Close the sending direction."""


class Tunnel:
    """An open tunnel. ``on_end`` is called once both directions have ended."""

    __slots__ = (
        "_client",
        "_clock",
        "_end_count",
        "_on_end",
        "_upstream",
        "has_upstream_spoken",
        "received_s",
        "sent_s",
    )

    def __init__(
        self,
        client: Client,
        upstream: TunnelUpstream,
        *,
        clock: Callable[[], float],
        on_end: Callable[[], None],
        has_upstream_spoken: bool,
    ) -> None:
        self.has_upstream_spoken = has_upstream_spoken
        """Whether the upstream has sent bytes."""
        self.received_s = self.sent_s = clock()
        """When the upstream last sent, and last received, bytes."""
        self._client = client
        self._upstream = upstream
        self._clock = clock
        self._on_end = on_end
        self._end_count = 0

    def send(self, data: bytes) -> None:
        """Forward bytes from the client."""
        self.sent_s = self._clock()
        self._upstream.write(data)

    def send_eof(self) -> None:
        """Close the direction to the upstream, because the client closed its direction."""
        self._upstream.write_eof()
        self._close_direction()

    def receive(self, data: bytes) -> None:
        """Forward bytes from the upstream."""
        self.has_upstream_spoken = True
        self.received_s = self._clock()
        self._client.write(data)

    def receive_eof(self) -> None:
        """Close the direction to the client, because the upstream closed its direction."""
        self._client.write_eof()
        self._close_direction()

    def _close_direction(self) -> None:
        self._end_count += 1
        if self._end_count == 2:
            self._on_end()


def reset(transport: asyncio.Transport) -> None:
    """Reset a connection and discard unsent data."""
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
    transport.abort()


BODY_TOO_LARGE = "the request's body is too large"
BODY_TOO_SLOW = "the request's body came too slowly"
_log = logging.getLogger(__name__)


class Refusals:
    """Counts, by code, requests and connections that were refused before a handler processed them.

    They are neither in the access log nor in the metrics of requests. The codes are those of ``RefusalCode``, and
    ``h2_`` with the name of an error code of RFC 9113, section 7.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def record(self, code: str, reason: str, address: str) -> None:
        """Count a refusal, and log it with the client's address."""
        self.counts[code] = self.counts.get(code, 0) + 1
        _log.debug("refused %s from %s: %s", code, address, reason)


class Member(Protocol):
    """A client's connection, as used by the server."""

    @property
    def is_idle(self) -> bool:
        """Whether no request runs and none has begun to arrive."""

    def wind_down(self) -> None:
        """Ask the client to send no more requests on this connection. Requests already on the way are still served."""

    def close_if_idle(self) -> None:
        """Close now if the connection is idle, otherwise after the response."""

    def cut(self) -> bool:
        """Close now; return whether a request was interrupted."""

    def check(self, now_s: float) -> float:
        """Enforce expired time limits; return when the next limit expires."""


class Registry(Protocol):
    """The server, as used by its client connections.

    ``draining``: connections close after their next response. ``finishing``: idle connections close, too. ``sweep_s``
    is when all connections are next checked.
    """

    settings: HttpSettings
    draining: bool
    finishing: bool
    sweep_s: float
    refusals: Refusals

    @property
    def turns(self) -> FairTurns:
        """The queue for costly work, shared by all connections of the loop so that none delays the others."""

    def opened(self, connection: Member, address: str) -> str | None:
        """Add a connection. If it exceeds a limit, return the reason."""

    def closed(self, connection: Member, address: str) -> None:
        """Remove a closed connection."""

    def count_tunnel(self, change: int) -> None:
        """Count an opened (1) or closed (-1) tunnel."""

    def wake_by(self, due_s: float) -> None:
        """Schedule a check of all connections for that time."""
