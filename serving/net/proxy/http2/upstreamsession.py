"""One connection to an app that speaks HTTP/2, and its streams.

After the app's GOAWAY it takes no new streams: those that the app named go on to their end, those above were never looked
at and are sent again. The pool (``pool.py``) makes links and keeps them; a stream is a request (``upstream.py``).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from serving.core.settings.http import HttpSettings
from serving.net.aio.turns import FairTurns
from serving.net.proxy.http1.upstream import Address, unread_pieces, unreceived_bytes
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.frames import Violation
from serving.net.proxy.http2.hpack_decoder import FieldSection
from serving.net.proxy.http2.sending import FrameSender
from serving.net.proxy.http2.upstream import StreamUpstream

# Streams per connection: half of all ids, then another connection is opened.
_STREAM_ID_MAX = 2**30

_NOT_SPOKEN = "the app does not speak HTTP/2, which gRPC calls and a port named h2c need"


class LinkHome(Protocol):
    """The pool, as used by its connections."""

    settings: HttpSettings
    clock: Callable[[], float]
    turns: FairTurns

    def lost(self, link: "UpstreamSession") -> None:
        """Remove a connection that has ended or accepts no new streams."""


class UpstreamSession(FrameSender):
    """One HTTP/2 connection to an app."""

    def __init__(self, home: LinkHome, address: Address) -> None:
        self.address = address
        self.is_closed = self.is_going = False
        self.used_s = home.clock()
        """When its last stream ended; undefined while a stream is open."""
        self.carried_count = 0
        """Streams opened so far."""
        self.turn = 0
        """The connector's turn when it opened this connection."""
        self.engine = Http2Engine(self, home.settings, is_server=False, now_s=self.used_s)
        self.violation = ""
        """How the app violated the protocol, if that ended the connection."""
        self._home = home
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "going" if self.is_going else "open"
        return f"UpstreamSession({self.address[0]}:{self.address[1]}, streams {len(self.engine.streams)}, {state})"

    @property
    def is_open(self) -> bool:
        """Whether the connection accepts new streams, up to the app's limit."""
        return not (self.is_closed or self.is_going or self._transport.is_closing())

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened."""
        return len(self.engine.streams) < self.engine.peer_streams_max and self.is_open

    @property
    def is_idle(self) -> bool:
        """Whether no stream runs."""
        return not self.engine.streams

    # Called by streams.

    def open(self, stream: StreamUpstream) -> int:
        """Open a stream and return its id; 0 if none is available."""
        if not self.has_room:
            return 0
        stream.sent_before_bytes = self._sent_bytes
        number = self.engine.next_id()
        self.engine.streams[number] = stream
        self.carried_count += 1
        if number > _STREAM_ID_MAX:
            self._go()
        return number

    # Called by the pool.

    def close(self) -> None:
        """Close the connection with all its streams."""
        self.write_now()
        self.is_closed = self.engine.is_ended = True
        self._transport.close()

    # Called by the engine.

    def open_stream(self, stream_id: int, section: FieldSection, *, ended: bool) -> None:
        """Never called: an app opens no streams."""
        raise AssertionError(stream_id, section, ended)

    def emptied(self) -> None:
        """Mark the link as idle, or close it after GOAWAY."""
        self.used_s = self._home.clock()
        self._close_if_gone()

    def peer_leaves(self, last_stream_id: int) -> None:
        """Process GOAWAY: the app processes no streams above ``last_stream_id``."""
        self._go()
        streams = self.engine.streams
        for number in [number for number in streams if number > last_stream_id]:
            stream = streams.pop(number)
            stream.is_done = True
            if isinstance(stream, StreamUpstream):
                stream.refused("the app took its leave")
        self._close_if_gone()

    def on_ping_ack(self, payload: bytes) -> None:
        """Do nothing: this side sends no pings."""

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast("asyncio.Transport", transport)
        self.write_now()

    def parse(self, data: bytes) -> None:
        """Dispatch each frame to its stream."""
        if self.is_closed:
            return
        engine = self.engine
        try:
            engine.receive(data, self._home.clock())
            if engine.is_costly or engine.has_more:
                self.yield_turn(self._home.turns)
        except Violation as violation:
            engine.send_goaway(0, violation.code)
            self.write_now()
            self.violation = f"the app broke HTTP/2: {violation}" if engine.has_begun else _NOT_SPOKEN
            self._lose(self.violation)
            return
        if engine.out:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all streams of a lost connection, after processing what was received before a failed write."""
        if exc is not None:
            for data in unread_pieces(self._transport):
                self.data_received(data)
                if self.engine.has_more:
                    # Frames of a few bytes: parsing all of them would delay other requests.
                    break
        unreceived = 0 if exc is not None else unreceived_bytes(self._transport)
        self._lose("the app closed its connection before its answer was complete", unreceived=unreceived)

    def _go(self) -> None:
        self.is_going = True
        self._home.lost(self)

    def _close_if_gone(self) -> None:
        if self.is_going and not self.engine.streams and not self.is_closed:
            self.close()

    def _lose(self, reason: str, *, unreceived: int = 0) -> None:
        """End all streams; those within the last ``unreceived`` bytes have not reached the app."""
        self.is_closed = self.engine.is_ended = True
        self._home.lost(self)
        self._transport.close()
        streams = [stream for stream in self.engine.streams.values() if isinstance(stream, StreamUpstream)]
        self.engine.streams.clear()
        for stream in streams:
            stream.is_done = True
            stream.lost(reason, unseen=self._sent_bytes - stream.sent_before_bytes <= unreceived)
