"""Bytes that pass both ways as they come, after an upstream has agreed to change the protocol (a websocket, say).

Each direction ends by itself; the tunnel ends with the second.
"""

from collections.abc import Callable
from typing import Protocol

from serving.proxy.forwarding.client import Client


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
