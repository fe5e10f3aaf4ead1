"""The interface between an exchange and its client's connection, and tunnels between client and upstream."""

import asyncio
import enum
import struct
from collections.abc import Callable
from socket import SO_LINGER, SOL_SOCKET
from typing import Protocol

from serving.net.proxy.http1.responsehead import ResponseHead

# "Linger for 0 seconds": discards unsent data and resets the connection.
_RESET = struct.pack("ii", 1, 0)


class Pause(enum.IntFlag):
    """Why reading from a client's connection is paused."""

    HELD = 1
    UPSTREAM_FULL = 2
    AHEAD = 4
    TURN = 8


class ResponseSink(Protocol):
    """Receives an upstream's parsed response, for clients whose protocol has frames."""

    def begin_response(self, head: ResponseHead, extra: bytes, payload: bytes, *, done: bool, trailers: bytes) -> None:
        """Send the head with ``extra`` lines and the available part of the body."""

    def send_piece(self, payload: bytes) -> None:
        """Send a piece of the body; more follows."""

    def send_last(self, payload: bytes, trailers: bytes) -> None:
        """Send the last piece of the body, which may be empty, and the trailers."""


class Client(Protocol):
    """A client's connection, as used by an exchange."""

    @property
    def sink(self) -> ResponseSink | None:
        """Receiver of upstream responses; None to write them as HTTP/1.1."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_eof(self) -> None:
        """Close the sending direction."""

    def pause(self, why: Pause) -> None:
        """Add a reason to pause reading."""

    def resume(self, why: Pause) -> None:
        """Remove a reason to pause reading."""

    def has_room(self) -> bool:
        """Count the bytes that wait for the client; return whether more may be written."""

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
