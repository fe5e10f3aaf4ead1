"""The interface between an exchange and its client's connection, and tunnels between client and upstream."""

import enum
from collections.abc import Callable
from typing import Protocol

from serving.proxy.http1.responsehead import ResponseHead


class Pause(enum.IntFlag):
    """Why a client's connection is not read for a while."""

    HELD = 1
    UPSTREAM_FULL = 2
    AHEAD = 4


class ResponseSink(Protocol):
    """Takes an upstream's response as it was parsed, for a client whose protocol has frames of its own."""

    def begin_response(self, head: ResponseHead, extra: bytes, payload: bytes, *, done: bool, trailers: bytes) -> None:
        """Send the head with ``extra`` lines and the available part of the body."""

    def send_piece(self, payload: bytes) -> None:
        """Send a piece of the body; more follows."""

    def send_last(self, payload: bytes, trailers: bytes) -> None:
        """Send the last piece of the body, perhaps empty, and the trailers."""


class Client(Protocol):
    """What an exchange needs of its client's connection."""

    @property
    def sink(self) -> ResponseSink | None:
        """Takes upstream responses; None to write them as HTTP/1.1."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_eof(self) -> None:
        """Close the sending direction."""

    def pause(self, why: Pause) -> None:
        """Read no more, for one more reason."""

    def resume(self, why: Pause) -> None:
        """One reason not to read is gone."""

    def open_tunnel(self) -> bytes:
        """Pass everything through from now on; returns what was read ahead."""

    def exchange_done(self, *, keep: bool) -> None:
        """The exchange is over; ``keep`` says that the connection may serve the next."""

    def truncate(self) -> None:
        """End the connection after what was written, in the middle of a response."""

    def abort(self) -> None:
        """Reset the connection, so that the end of a response is not mistaken for its completion."""


class TunnelUpstream(Protocol):
    """What a tunnel needs of its upstream's connection."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def write_eof(self) -> None:
        """Close this direction."""


class Tunnel:
    """One open tunnel. ``on_end`` is called when both directions have ended."""

    __slots__ = ("_client", "_clock", "_end_count", "_on_end", "_upstream", "has_upstream_spoken", "heard_s", "sent_s")

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
        """Whether bytes have come from the upstream."""
        self.heard_s = self.sent_s = clock()
        """When bytes came from the upstream, and went to it, last."""
        self._client = client
        self._upstream = upstream
        self._clock = clock
        self._on_end = on_end
        self._end_count = 0

    def send(self, data: bytes) -> None:
        """Pass on bytes of the client."""
        self.sent_s = self._clock()
        self._upstream.write(data)

    def send_eof(self) -> None:
        """The client has closed its direction."""
        self._upstream.write_eof()
        self._close_direction()

    def receive(self, data: bytes) -> None:
        """Pass on bytes of the upstream."""
        self.has_upstream_spoken = True
        self.heard_s = self._clock()
        self._client.write(data)

    def receive_eof(self) -> None:
        """The upstream has closed its direction."""
        self._client.write_eof()
        self._close_direction()

    def _close_direction(self) -> None:
        self._end_count += 1
        if self._end_count == 2:
            self._on_end()
