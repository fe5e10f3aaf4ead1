"""One connection to an app that speaks HTTP/2, and its streams.

After the app's GOAWAY it takes no new streams: those that the app named go on to their end, those above were never looked
at and are sent again. The pool (``pool.py``) makes links and keeps them; a stream is a request (``upstream.py``).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RemoteSettingsChanged, StreamReset, WindowUpdated
from h2.exceptions import ProtocolError

from serving.proxy.http2.engine import client_engine
from serving.proxy.http2.frames import FrameGate, Violation
from serving.proxy.http2.sending import FrameSender
from serving.proxy.http2.upstream import StreamUpstream
from serving.proxy.upstream import Address
from serving.settings.http import HttpSettings

__all__ = ["LinkHome", "UpstreamSession"]

# Half of all numbers that a connection has: then another one is made.
_STREAM_ID_MAX = 2**30


class LinkHome(Protocol):
    """Where links come from: the pool."""

    settings: HttpSettings
    clock: Callable[[], float]

    def lost(self, link: "UpstreamSession") -> None:
        """A link has ended, or takes no new streams."""


class UpstreamSession(FrameSender):
    """One connection to an app."""

    def __init__(self, home: LinkHome, address: Address) -> None:
        self.address = address
        self.is_full = self.is_closed = self.is_going = False
        self.used_s = home.clock()
        """When its last stream ended; while there is one, it has no meaning."""
        self.carried_count = 0
        """Streams that it has had."""
        self.h2 = client_engine(head_bytes_max=home.settings.head_bytes_max)
        self._home = home
        self._gate = FrameGate(home.settings, is_server=False, now_s=self.used_s)
        self._streams: dict[int, StreamUpstream] = {}
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "going" if self.is_going else "open"
        return f"UpstreamSession({self.address[0]}:{self.address[1]}, streams {len(self._streams)}, {state})"

    @property
    def is_open(self) -> bool:
        """Whether it takes new streams, unless it has as many as the app allows."""
        return not (self.is_closed or self.is_going or self._transport.is_closing())

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened."""
        return self.is_open and len(self._streams) < self.h2.remote_settings.max_concurrent_streams

    @property
    def is_idle(self) -> bool:
        """Whether no stream runs."""
        return not self._streams

    # What streams call.

    def open(self, stream: StreamUpstream) -> int:
        """The number of a new stream; 0 when none can be had."""
        if not self.has_room:
            return 0
        number = self.h2.get_next_available_stream_id()
        self._streams[number] = stream
        self.carried_count += 1
        if number > _STREAM_ID_MAX:
            self._go()
        return number

    def give_back(self, stream_id: int, count: int) -> None:
        """Let the app send this much more."""
        if not self.is_closed:
            self.h2.acknowledge_received_data(count, stream_id)
            self.send()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """End a stream."""
        if not self.is_closed:
            try:
                self.h2.reset_stream(stream_id, code)
            except ProtocolError:
                pass
            else:
                self.send()
        self.forget(stream_id)

    def forget(self, stream_id: int) -> None:
        """A stream is over."""
        if self._streams.pop(stream_id, None) is not None:
            self.used_s = self._home.clock()
            self._close_if_gone()

    # What the pool calls.

    def close(self) -> None:
        """Close, with all streams."""
        self._write()
        self.is_closed = True
        self._transport.close()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast("asyncio.Transport", transport)
        self._write()

    def data_received(self, data: bytes) -> None:
        """Give each event to its stream."""
        if self.is_closed:
            return
        try:
            events = self.h2.receive_data(self._gate.feed(data, self._home.clock()))
        except Violation as violation:
            self.h2.close_connection(violation.code)
            self._write()
            self._lose(f"the app broke HTTP/2: {violation}")
            return
        except ProtocolError as error:
            self._write()
            self._lose(f"the app broke HTTP/2: {error}")
            return
        for event in events:
            self._take(event)
        for goaway in self._gate.goaways():
            self._go()
            for number in [number for number in self._streams if number > goaway.last_stream_id]:
                self._streams.pop(number).refused("the app took its leave")
            self._close_if_gone()
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and what ran on it."""
        del exc
        self._lose("the app closed its connection before its answer was complete")

    def _take(self, event: Event) -> None:
        number = getattr(event, "stream_id", None) or 0
        stream = self._streams.get(number)
        if isinstance(event, WindowUpdated):
            if stream is not None:
                stream.flush()
            elif not number:
                self._flush_all()
        elif isinstance(event, RemoteSettingsChanged):
            # Windows may be larger.
            self._flush_all()
        elif stream is None:
            if isinstance(event, DataReceived):
                self.give_back(number, event.flow_controlled_length)
        elif isinstance(event, StreamReset) and event.error_code == ErrorCodes.REFUSED_STREAM:
            self.forget(number)
            stream.refused("the app refuses the stream")
        else:
            stream.take(event)

    def _go(self) -> None:
        self.is_going = True
        self._home.lost(self)

    def _close_if_gone(self) -> None:
        if self.is_going and not self._streams and not self.is_closed:
            self.close()

    def _lose(self, reason: str) -> None:
        self.is_closed = True
        self._home.lost(self)
        self._transport.close()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(reason)
