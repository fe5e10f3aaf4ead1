"""A client's connection that speaks HTTP/2: many streams, each an exchange of the same handler as any other request.

``Connection`` hands over here when the preface has come, in the clear or after ALPN. A stream is an exchange's client:
it takes what the exchange writes, which is HTTP/1.1, and sends it as frames (``stream.py``). Memory is bounded by the
streams at once, each with one window in either direction. What only costs the peer nothing (resets, pings, settings,
empty frames) is counted, and too many in a short time end the connection with ENHANCE_YOUR_CALM.
"""

import asyncio
import math
from typing import Any, Protocol

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from serving.proxy.exchange import Wiring
from serving.proxy.http2.stream import Stream
from serving.proxy.rendering import Peer
from serving.settings.http import HttpSettings

__all__ = ["Session", "SessionRegistry"]

# What nginx and Envoy allow by default.
_STREAMS_MAX = 128
# What one stream may send before the handler has taken it: RFC 9113's own default.
_WINDOW_BYTES = 65_535
# What costs a peer nothing, such as resets and pings: a browser that leaves a page sends a few dozen.
_CHEAP_MAX = 200
_CHEAP_WINDOW_S = 10.0
# The least that TCP carries between two full buffers on a bad line.
_FLUSH_S = 60.0


class SessionRegistry(Protocol):
    """What all connections of a server share, and tell it."""

    settings: HttpSettings
    draining: bool
    finishing: bool

    # The server keeps both kinds of connections in one set.
    def opened(self, connection: Any, address: str) -> str | None:  # noqa: ANN401 - as above
        """A client has connected."""

    def closed(self, connection: Any, address: str) -> None:  # noqa: ANN401 - as above
        """A client's connection has ended."""

    def wake_by(self, due_s: float) -> None:
        """Somebody's time is up then."""


class Session(asyncio.Protocol):
    """One HTTP/2 connection of a client."""

    def __init__(
        self, registry: SessionRegistry, wiring: Wiring, transport: asyncio.Transport, *, peer: Peer, address: str
    ) -> None:
        self.registry = registry
        self.wiring = wiring
        self.peer = peer
        self.is_full = False
        config = H2Configuration(client_side=False, header_encoding=None)
        self.h2 = H2Connection(config)
        self._transport = transport
        self._address = address
        self._streams: dict[int, Stream] = {}
        self._due_s = math.inf
        self._closing = False
        self._last_stream_id = 0
        self._cheap_count = 0
        self._cheap_since_s = wiring.clock()
        self._start(registry.settings)

    def __repr__(self) -> str:
        return f"Session({self._address}, streams {len(self._streams)}, {'closing' if self._closing else 'open'})"

    @property
    def is_idle(self) -> bool:
        """Whether no stream runs."""
        return not self._streams

    def _start(self, settings: HttpSettings) -> None:
        h2 = self.h2
        h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = _STREAMS_MAX
        h2.local_settings[SettingCodes.MAX_HEADER_LIST_SIZE] = settings.head_bytes_max
        h2.local_settings[SettingCodes.ENABLE_CONNECT_PROTOCOL] = 0
        h2.initiate_connection()
        # One stream that is not read must not stop the others.
        h2.increment_flow_control_window(_WINDOW_BYTES * (_STREAMS_MAX - 1))
        self.registry.opened(self, self._address)
        self._wait_until(self.wiring.clock() + settings.client_idle_max_s)
        self.send()

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        """Understand frames and give each to its stream."""
        if self._closing:
            return
        try:
            events = self.h2.receive_data(data)
        except ProtocolError:
            self.end(None)
            return
        # Frames that make no event cost the peer as little as those that do: each is counted by what it made us send.
        for event in events:
            self._take(event)
        if not self._closing:
            for stream in list(self._streams.values()):
                stream.flush()
            self.send()

    def eof_received(self) -> bool:
        """The client has left."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and all its streams with it."""
        del exc
        self._closing = True
        self.registry.closed(self, self._address)
        for stream in list(self._streams.values()):
            stream.gone()
        self._streams.clear()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The client reads again."""
        self.is_full = False
        for stream in list(self._streams.values()):
            stream.flush()
        self.send()

    # What streams call.

    def send(self) -> None:
        """Write the frames that are there."""
        data = self.h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def wake_by(self, due_s: float) -> None:
        """Have a look at that time."""
        self.registry.wake_by(due_s)

    def over(self, stream_id: int) -> None:
        """A stream has sent its last frame."""
        self._streams.pop(stream_id, None)
        if self._streams or self._closing:
            return
        if self.registry.finishing or self.registry.draining:
            self.end(ErrorCodes.NO_ERROR)
        else:
            self._wait_until(self.wiring.clock() + self.registry.settings.client_idle_max_s)

    def end(self, code: ErrorCodes | None) -> None:
        """Say goodbye and close; None when the library has said it already."""
        if code is not None:
            self.h2.close_connection(code, last_stream_id=self._last_stream_id)
        self.send()
        self._closing = True
        for stream in list(self._streams.values()):
            stream.gone()
        self._streams.clear()
        self._transport.close()
        self._wait_until(self.wiring.clock() + _FLUSH_S)

    # What the server calls.

    def close_if_idle(self) -> None:
        """Close if nothing is going on; otherwise after the last answer."""
        if not self._streams and not self._closing:
            self.end(ErrorCodes.NO_ERROR)

    def cut(self) -> bool:
        """Close, whatever is going on; whether a request was cut off."""
        had = bool(self._streams)
        for stream in list(self._streams.values()):
            stream.cut()
        self._closing = True
        self._transport.abort()
        return had

    def check(self, now_s: float) -> float:
        """When time will be up; if it is up, what follows from it."""
        if self._closing or not self._streams:
            if self._due_s <= now_s:
                if self._closing:
                    self._transport.abort()
                else:
                    self.end(ErrorCodes.NO_ERROR)
            return self._due_s
        due_s = min([stream.check(now_s) for stream in list(self._streams.values())], default=math.inf)
        self.send()
        return due_s

    def _take(self, event: Event) -> None:  # noqa: C901 - one branch for each kind of event
        if self._closing:
            return
        if isinstance(event, RequestReceived):
            stream_id = self._last_stream_id = event.stream_id
            stream = self._streams[stream_id] = Stream(self, stream_id)
            stream.begin(event.headers, ended=event.stream_ended is not None)
        elif isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, TrailersReceived):
            if found := self._streams.get(event.stream_id):
                found.trailers(event.headers)
        elif isinstance(event, StreamEnded):
            if found := self._streams.get(event.stream_id):
                found.ended()
        elif isinstance(event, StreamReset):
            if found := self._streams.pop(event.stream_id, None):
                found.gone()
            self._cheap()
        elif not isinstance(event, WindowUpdated):
            self._cheap()

    def _take_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        count = event.flow_controlled_length
        if stream is None:
            # Nobody reads it any more; the connection's window is given back all the same.
            self.give_back(event.stream_id, count)
            return
        if not event.data and event.stream_ended is None:
            self._cheap()
        stream.data(event.data, count)

    def give_back(self, stream_id: int, count: int) -> None:
        """Let the peer send this much more."""
        if count and not self._closing:
            self.h2.acknowledge_received_data(count, stream_id)

    def _cheap(self) -> None:
        now_s = self.wiring.clock()
        if now_s - self._cheap_since_s > _CHEAP_WINDOW_S:
            self._cheap_count, self._cheap_since_s = 0, now_s
        self._cheap_count += 1
        if self._cheap_count > _CHEAP_MAX and not self._closing:
            self.end(ErrorCodes.ENHANCE_YOUR_CALM)

    def _wait_until(self, due_s: float) -> None:
        self._due_s = due_s
        self.registry.wake_by(due_s)
