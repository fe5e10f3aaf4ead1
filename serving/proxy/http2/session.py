"""A client's connection that speaks HTTP/2: many streams, each an exchange of the same handler as any other request.

``Connection`` hands over here when the preface has come, in the clear or after ALPN. A stream is an exchange's client:
it takes what the exchange writes, which is HTTP/1.1, and sends it as frames (``stream.py``). Memory is bounded by the
streams at once, each with one window in either direction; what costs the peer nothing is counted (``frames.py``).

Its end has two steps, so that no request is lost that was on its way (RFC 9113, section 6.8): a GOAWAY that names no
stream and asks for no new ones, and, after a ping has gone to the client and back, one that names the last stream that is
served. The connection ends with that stream.
"""

import asyncio
import math

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from serving.proxy.exchange import Wiring
from serving.proxy.http2.engine import server_engine
from serving.proxy.http2.farewell import Farewell
from serving.proxy.http2.frames import FrameGate, Violation
from serving.proxy.http2.sending import FrameSender
from serving.proxy.http2.stream import Stream
from serving.proxy.registry import Registry
from serving.proxy.rendering import ClientPeer

__all__ = ["Session"]

# The least that TCP carries between two full buffers on a bad line.
_FLUSH_S = 60.0


class Session(FrameSender):
    """One HTTP/2 connection of a client."""

    def __init__(
        self, registry: Registry, wiring: Wiring, transport: asyncio.Transport, *, peer: ClientPeer, address: str
    ) -> None:
        now_s = wiring.clock()
        self.registry = registry
        self.wiring = wiring
        self.peer = peer
        self.is_full = False
        self.h2 = server_engine(registry.settings)
        self.gate = FrameGate(registry.settings, is_server=True, now_s=now_s)
        self._transport = transport
        self._address = address
        self._streams: dict[int, Stream] = {}
        # The last stream that was begun.
        self._last_stream_id = 0
        # Until when a client with no streams may stay; when it is closing, until when what was written may take.
        self._due_s = math.inf
        # Until when a head that has begun must be complete.
        self._head_due_s = math.inf
        self._farewell = Farewell(self.h2, self.write_goaway)
        self._client_leaves = False
        self._closing = False
        registry.opened(self, address)
        self._wait_until(now_s + registry.settings.client_idle_max_s)
        self.send()

    def __repr__(self) -> str:
        state = "closing" if self._closing else "leaving" if self._farewell.has_begun else "open"
        return f"Session({self._address}, streams {len(self._streams)}, {state})"

    @property
    def is_idle(self) -> bool:
        """Whether no stream runs."""
        return not self._streams

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        """Understand frames and give each to its stream."""
        if self._closing:
            return
        now_s = self.wiring.clock()
        try:
            events = self.h2.receive_data(self.gate.feed(data, now_s))
        except Violation as violation:
            self.end(violation.code)
            return
        except ProtocolError:
            self.end(None)
            return
        for event in events:
            self._take(event)
        if self.gate.goaways():
            self._client_leaves = True
        if self._client_leaves and not self._streams:
            self.end(ErrorCodes.NO_ERROR)
        if not self._closing:
            self._watch_head(now_s)
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and all its streams with it."""
        del exc
        self._closing = True
        self.registry.closed(self, self._address)
        self._leave_streams()

    # What streams call.

    def over(self, stream_id: int) -> None:
        """A stream has sent its last frame."""
        self._streams.pop(stream_id, None)
        if self._streams or self._closing:
            return
        if self._client_leaves or self.registry.finishing or self._farewell.is_finished:
            self.end(ErrorCodes.NO_ERROR)
        elif not self._farewell.has_begun:
            self._wait_until(self.wiring.clock() + self.registry.settings.client_idle_max_s)

    def give_back(self, stream_id: int, count: int) -> None:
        """Let the peer send this much more."""
        if count and not self._closing:
            self.h2.acknowledge_received_data(count, stream_id)

    # What the server calls.

    def close_if_idle(self) -> None:
        """Close if no stream runs; otherwise after the last answer."""
        if self._closing:
            return
        if self._streams:
            self._take_leave()
        else:
            self.end(ErrorCodes.NO_ERROR)

    def cut(self) -> bool:
        """Close now; return whether a request was cut off."""
        had = bool(self._streams)
        for stream in list(self._streams.values()):
            stream.cut()
        self._closing = True
        self._transport.abort()
        return had

    def check(self, now_s: float) -> float:
        """Enforce the time limits that have passed; return when the next will."""
        if self._closing:
            if self._due_s <= now_s:
                self._transport.abort()
            return self._due_s
        if self._head_due_s <= now_s or (not self._streams and self._due_s <= now_s):
            self.end(ErrorCodes.NO_ERROR)
            return self._due_s
        if self._farewell.due_s <= now_s:
            self._say_last()
        due_s = min(self._head_due_s, self._farewell.due_s)
        if not self._streams:
            return min(due_s, self._due_s)
        due_s = min([due_s, *[stream.check(now_s) for stream in list(self._streams.values())]])
        self.send()
        return due_s

    def end(self, code: ErrorCodes | None) -> None:
        """Send GOAWAY and close; with None the library has written the GOAWAY already."""
        if self._closing:
            return
        if code is not None and (code is not ErrorCodes.NO_ERROR or not self._farewell.is_finished):
            self.h2.close_connection(code, last_stream_id=self._last_stream_id)
        self._write()
        self._closing = True
        self._leave_streams()
        self._transport.close()
        self._wait_until(self.wiring.clock() + _FLUSH_S)

    def _take(self, event: Event) -> None:
        if self._closing:
            return
        if isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, WindowUpdated) and event.stream_id:
            if found := self._streams.get(event.stream_id):
                found.flush()
        elif isinstance(event, WindowUpdated | RemoteSettingsChanged):
            # All windows are larger, or may be.
            self._flush_all()
        elif isinstance(event, PingAckReceived):
            if self._farewell.is_answered_by(event.ping_data):
                self._say_last()
        elif isinstance(event, TrailersReceived | StreamEnded | StreamReset):
            self._take_end(event)

    def _take_end(self, event: TrailersReceived | StreamEnded | StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        if isinstance(event, TrailersReceived):
            stream.ended(event.headers)
        elif isinstance(event, StreamEnded):
            stream.ended()
        else:
            stream.gone()
            self.over(event.stream_id)

    def _begin(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        if stream_id > self._farewell.served_id_max or len(self._streams) >= self.registry.settings.http2_streams_max:
            self.h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._last_stream_id = stream_id
        stream = self._streams[stream_id] = Stream(self, stream_id)
        stream.begin(event.headers, ended=event.stream_ended is not None)
        if self.registry.draining:
            self._take_leave()

    def _take_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            # The stream is over; the connection's window is given back all the same.
            self.give_back(event.stream_id, event.flow_controlled_length)
        else:
            stream.data(event.data, event.flow_controlled_length)

    def _take_leave(self) -> None:
        """Ask for no new streams; those that are on their way are still served."""
        if not self._closing and self._farewell.begin(self.wiring.clock()):
            self.registry.wake_by(self._farewell.due_s)

    def _say_last(self) -> None:
        self._farewell.finish(self._last_stream_id)
        if not self._streams:
            self.end(ErrorCodes.NO_ERROR)

    def _watch_head(self, now_s: float) -> None:
        if not self.gate.is_amid_head:
            self._head_due_s = math.inf
        elif self._head_due_s == math.inf:
            self._head_due_s = now_s + self.registry.settings.head_wait_max_s
            self.registry.wake_by(self._head_due_s)

    def _leave_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.gone()

    def _wait_until(self, due_s: float) -> None:
        self._due_s = due_s
        self.registry.wake_by(due_s)
