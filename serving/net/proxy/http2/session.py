"""A client's HTTP/2 connection: each stream is an exchange of the same handler as in HTTP/1.1.

``Connection`` hands over to this class after HTTP/2's preface in plain text, or after ALPN. A stream is an exchange's
client: it gets the HTTP/1.1 bytes that the exchange writes, and sends them as frames (``stream.py``). Memory is bounded
by the number of open streams, each with one window in either direction. Frames that cost the peer nothing are limited
(``flow.py``).

The connection ends in two steps, so that no request in flight is lost (RFC 9113, section 6.8). The first GOAWAY names
no stream, and asks the client to open no new ones. After a ping's round trip, a second GOAWAY names the last served
stream. The connection ends with that stream.
"""

import asyncio
import math

from serving.net.proxy.forwarding.client import Registry
from serving.net.proxy.forwarding.exchange import Wiring
from serving.net.proxy.forwarding.pace import ReaderPace
from serving.net.proxy.http1.rendering import ClientPeer
from serving.net.proxy.http1.requesthead import RefusalCode
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_decoder import FieldSection
from serving.net.proxy.http2.sending import FrameSender
from serving.net.proxy.http2.stream import Stream

# Longest wait for the PING acknowledgement, in seconds: three times the longest round trip on earth.
_PING_MAX_S = 1.0
_PING = b"farewell"
# The last stream id in the first GOAWAY: no stream is above it.
_NO_STREAM_ID = 2**31 - 1

# Longer than TCP stalls between two full buffers on a bad line, in seconds.
_FLUSH_S = 60.0
# How long a client has to read why its connection ends, and how much it may send meanwhile.
_LINGER_S = 1.0
_PASSED_OVER_BYTES_MAX = 1024 * 1024


class GracefulShutdown:
    """The graceful shutdown of one connection, with two GOAWAY frames."""

    __slots__ = ("_engine", "due_s", "has_begun", "served_id_max")

    def __init__(self, engine: Http2Engine) -> None:
        self._engine = engine
        self.has_begun = False
        self.due_s = math.inf
        """The deadline of the PING acknowledgement."""
        self.served_id_max = _NO_STREAM_ID
        """The last served stream, as named in the second GOAWAY."""

    @property
    def is_finished(self) -> bool:
        """Whether the second GOAWAY was sent."""
        return self.served_id_max < _NO_STREAM_ID

    def begin(self, now_s: float) -> bool:
        """Send the first GOAWAY; return False if it was already sent."""
        if self.has_begun:
            return False
        self.has_begun = True
        self._engine.send_goaway(_NO_STREAM_ID, ErrorCode.NO_ERROR)
        self._engine.send_ping(_PING)
        self.due_s = now_s + _PING_MAX_S
        return True

    def is_acknowledged_by(self, ping_data: bytes) -> bool:
        """Whether a PING acknowledgement belongs to the first GOAWAY."""
        return self.has_begun and ping_data == _PING

    def finish(self, last_stream_id: int) -> None:
        """Send the second GOAWAY."""
        self.due_s = math.inf
        self.served_id_max = last_stream_id
        self._engine.send_goaway(last_stream_id, ErrorCode.NO_ERROR)


class Session(FrameSender):
    """One HTTP/2 connection of a client."""

    def __init__(
        self, registry: Registry, wiring: Wiring, transport: asyncio.Transport, *, peer: ClientPeer, address: str
    ) -> None:
        now_s = wiring.clock()
        self.registry = registry
        self.wiring = wiring
        self.peer = peer
        self.engine = Http2Engine(
            self,
            registry.settings,
            is_server=True,
            now_s=now_s,
            on_fault=lambda code, reason: registry.refusals.record(f"h2_{code.name.lower()}", reason, address),
        )
        self._transport = transport
        self._address = address
        # The id of the last begun stream.
        self._last_stream_id = 0
        # Deadline of a client without streams; while closing, the deadline for written data.
        self._due_s = math.inf
        # The deadline for completing a head that has begun.
        self._head_due_s = math.inf
        self._shutdown = GracefulShutdown(self.engine)
        self._client_leaves = False
        self._closing = False
        self._passed_over_bytes = 0
        pace = self._read_pace = ReaderPace(wiring.read_pace, transport)
        self.on_full = lambda full: registry.wake_by(
            pace.change(wiring.clock(), written_bytes=self._sent_bytes, full=full)
        )
        registry.opened(self, address)
        self._wait_until(now_s + registry.settings.client_idle_max_s)
        self.send()

    def __repr__(self) -> str:
        state = "closing" if self._closing else "leaving" if self._shutdown.has_begun else "open"
        return f"Session({self._address}, streams {len(self.engine.streams)}, {state})"

    @property
    def is_idle(self) -> bool:
        """Whether no stream runs."""
        return not self.engine.streams

    # Called by the event loop.

    def parse(self, data: bytes) -> None:
        """Parse frames and dispatch them to their streams."""
        if self._closing:
            self._pass_over(data)
            return
        now_s = self.wiring.clock()
        engine = self.engine
        try:
            engine.receive(data, now_s)
            if engine.is_costly or engine.has_more:
                self.yield_turn(self.registry.turns)
        except Violation as violation:
            engine.on_fault(violation.code, str(violation))
            self.end(violation.code, lingers=True)
            return
        if self._client_leaves and not engine.streams:
            self.end(ErrorCode.NO_ERROR)
            return
        if self._head_due_s != math.inf or engine.is_amid_head:
            self._watch_head(now_s)
        if engine.out:
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all streams of a lost connection."""
        del exc
        self._closing = True
        self.registry.closed(self, self._address)
        self._close_streams()

    # Called by the engine.

    def open_stream(self, stream_id: int, section: FieldSection, *, ended: bool) -> None:
        """Begin a request on a new stream."""
        engine = self.engine
        streams = engine.streams
        if len(streams) >= self.registry.settings.http2_streams_max or stream_id > self._shutdown.served_id_max:
            engine.on_fault(ErrorCode.REFUSED_STREAM, "more streams at once than allowed, or after GOAWAY")
            engine.refuse(stream_id, ErrorCode.REFUSED_STREAM)
            return
        self._last_stream_id = stream_id
        stream = streams[stream_id] = Stream(self, stream_id, ended=ended)
        stream.begin(section)
        if self.registry.draining:
            self.wind_down()

    def emptied(self) -> None:
        """Close the connection after its last stream, if it is winding down."""
        if self._closing:
            return
        if self._client_leaves or self.registry.finishing or self._shutdown.is_finished:
            self.end(ErrorCode.NO_ERROR)
        elif not self._shutdown.has_begun:
            self._wait_until(self.wiring.clock() + self.registry.settings.client_idle_max_s)

    def peer_leaves(self, last_stream_id: int) -> None:
        """Process GOAWAY: the client opens no new streams."""
        del last_stream_id
        self._client_leaves = True

    def on_ping_ack(self, payload: bytes) -> None:
        """Process a PING acknowledgement: the client has seen everything sent before it."""
        if self._shutdown.is_acknowledged_by(payload):
            self._send_last_goaway()

    # Called by the server.

    def wind_down(self) -> None:
        """Refuse new streams. Current streams are still served."""
        if not self._closing and self._shutdown.begin(self.wiring.clock()):
            self.send()
            self.registry.wake_by(self._shutdown.due_s)

    def close_if_idle(self) -> None:
        """Close if no stream runs; otherwise after the last response."""
        if self._closing:
            return
        if self.engine.streams:
            self.wind_down()
        else:
            self.end(ErrorCode.NO_ERROR)

    def cut(self) -> bool:
        """Close now; return whether a request was cut off."""
        streams = self._streams()
        for stream in streams:
            stream.cut()
        self._closing = True
        self._transport.abort()
        return bool(streams)

    def check(self, now_s: float) -> float:
        """Enforce expired time limits; return when the next limit expires."""
        if self._closing:
            if self._due_s <= now_s:
                self._transport.abort()
            return self._due_s
        read_due_s = self._read_pace.check(now_s, written_bytes=self._sent_bytes)
        if read_due_s <= now_s:
            self.cut()
            return read_due_s
        streams = self.engine.streams
        if self._head_due_s <= now_s:
            self.registry.refusals.record(RefusalCode.SLOW_HEAD, "a head came too slowly", self._address)
        if self._head_due_s <= now_s or (not streams and self._due_s <= now_s):
            self.end(ErrorCode.NO_ERROR)
            return self._due_s
        if self._shutdown.due_s <= now_s:
            self._send_last_goaway()
        due_s = min(self._head_due_s, self._shutdown.due_s, read_due_s)
        if not streams:
            return min(due_s, self._due_s)
        due_s = min([due_s, *[stream.check(now_s) for stream in self._streams()]])
        self.send()
        return due_s

    def end(self, code: ErrorCode, *, lingers: bool = False) -> None:
        """Send GOAWAY and close. With ``lingers``, first wait: an early reset would discard the GOAWAY."""
        if self._closing:
            return
        if code is not ErrorCode.NO_ERROR or not self._shutdown.is_finished:
            self.engine.send_goaway(self._last_stream_id, code)
        self.write_now()
        self._closing = self.engine.is_ended = True
        self._close_streams()
        if lingers and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self._wait_until(self.wiring.clock() + _LINGER_S)
        else:
            self._transport.close()
            self._wait_until(self.wiring.clock() + _FLUSH_S)

    def _pass_over(self, data: bytes) -> None:
        """Discard bytes sent by the client after the end, up to a limit."""
        self._passed_over_bytes += len(data)
        if self._passed_over_bytes > _PASSED_OVER_BYTES_MAX:
            self._transport.abort()

    def _streams(self) -> list[Stream]:
        return [stream for stream in self.engine.streams.values() if isinstance(stream, Stream)]

    def _send_last_goaway(self) -> None:
        self._shutdown.finish(self._last_stream_id)
        self.send()
        if not self.engine.streams:
            self.end(ErrorCode.NO_ERROR)

    def _watch_head(self, now_s: float) -> None:
        if not self.engine.is_amid_head:
            self._head_due_s = math.inf
        elif self._head_due_s == math.inf:
            self._head_due_s = now_s + self.registry.settings.head_wait_max_s
            self.registry.wake_by(self._head_due_s)

    def _close_streams(self) -> None:
        streams = self._streams()
        self.engine.streams.clear()
        for stream in streams:
            stream.is_done = True
            stream.removed()
            stream.receive_reset(ErrorCode.CANCEL)

    def _wait_until(self, due_s: float) -> None:
        self._due_s = due_s
        if due_s < self.registry.sweep_s:
            self.registry.wake_by(due_s)
