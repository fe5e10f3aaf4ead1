"""Requests to apps that speak HTTP/2 with prior knowledge (h2c): one connection per address, a stream per request.

``Http2Pool`` replaces the pool of HTTP/1.1. A further connection to an address is opened only when the app accepts no
more streams on the existing ones; requests without a stream wait for it. As in ``serving.net.proxy.http1.pool``, a
request that must not be sent twice does not use a connection that was idle for long, and idle connections are closed.

A stream has the interface of other upstreams: it converts a request's HTTP/1.1 head to frames, and passes on the app's
response as heads and pieces. While its receiver is full, the stream's window stays closed. So a slow reader buffers at
most one window, and does not block other streams. A request that the app refused without processing is sent once more
on another connection, for any method. After the app's GOAWAY a connection opens no new streams. Streams up to the named
one continue to their end. Later streams were not processed, and are sent again.
"""

import asyncio
import math
from collections.abc import Callable
from typing import cast

from serving.core.settings.http import HttpSettings
from serving.net.aio.turns import FairTurns
from serving.net.proxy.http1.pool import SURE_IDLE_MAX_S, Connector, Pool, Waiter
from serving.net.proxy.http1.responsehead import BadResponse, Framing
from serving.net.proxy.http1.upstream import (
    INTERIM_MAX,
    Address,
    RequestCarrier,
    ResponseReceiver,
    unread_pieces,
    unreceived_bytes,
)
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.flow import EngineStream
from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.heads import Malformed, read_response_section, read_trailer_section, request_fields
from serving.net.proxy.http2.hpack_decoder import FieldSection
from serving.net.proxy.http2.sending import FrameSender

# Most bytes of a request kept for another attempt; an app that has not processed it received at most one window.
_RESENDABLE_BYTES_MAX = 128 * 1024
_LENGTH, _CHUNKED = Framing.LENGTH, Framing.CHUNKED
# Streams per connection: half of all ids, then another connection is opened.
_STREAM_ID_MAX = 2**30

_NOT_SPOKEN = "the app does not speak HTTP/2, which gRPC calls and a port named h2c need"


class StreamUpstream(EngineStream):
    """One request to the app and its response."""

    __slots__ = (
        "_begun",
        "_has_received",
        "_home",
        "_interim_left",
        "_is_client_full",
        "_is_moving",
        "_is_paused",
        "_left_bytes",
        "_link",
        "_receiver",
        "_resendable",
        "_resendable_bytes",
        "_was_moved",
        "_wire",
        "address",
        "is_reused",
        "sent_before_bytes",
    )

    def __init__(self, link: "UpstreamSession", home: "Http2Pool") -> None:
        super().__init__(0, send_left=0, peer_ended=False)
        self.address = link.address
        self.is_reused = False
        self.sent_before_bytes = 0
        """The bytes that the link had sent when the stream was opened."""
        self._home = home
        self._link = link
        self._receiver: ResponseReceiver | None = None
        self._interim_left = INTERIM_MAX
        self._wire = b""
        # Remaining bytes of a body with known length; None for any other.
        self._left_bytes: int | None = None
        # The sent bytes, while they may have to be sent again.
        self._resendable: list[bytes] | None = None
        self._resendable_bytes = 0
        self._begun = self._has_received = self._is_client_full = self._is_paused = False
        self._is_moving = self._was_moved = False

    # Called by an exchange.

    def carry(self, receiver: ResponseReceiver, wire: bytes, body: bytes) -> None:
        """Send the head of a request, and the body received so far."""
        self._receiver = receiver
        self._wire = wire
        self._resendable = [body]
        self._resendable_bytes = len(body)
        self._begin(receiver, body)

    def write(self, data: bytes) -> None:
        """Send more of the request's body."""
        receiver = self._receiver
        if receiver is None:
            return
        if self._resendable is not None:
            self._resendable.append(data)
            self._resendable_bytes += len(data)
            if self._resendable_bytes > _RESENDABLE_BYTES_MAX and not self._is_moving:
                self._resendable = None
        if not self._is_moving:
            link = self._link
            link.engine.send_data(self, data)
            if self.pending is not None:
                self.sent()
            link.send()

    def finish(self, data: bytes, trailers: bytes) -> None:
        """Send the end of the request."""
        if self._receiver is None:
            return
        if self._resendable is not None:
            self._resendable.append(data)
        if not self._is_moving:
            link = self._link
            link.engine.send_last(self, data, trailers=trailers)
            self.sent()
            link.send()

    def write_eof(self) -> None:
        """Do nothing: END_STREAM has ended the request."""

    def pause_reading(self, *, full: bool) -> None:
        """Stop updating the window while the client's buffer is full, or resume."""
        self._is_client_full = full
        if not full:
            self._link.engine.replenish(self)
            self._link.send()

    def drop(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Reset the stream, and discard the rest of the response."""
        self._receiver = None
        if self.stream_id and not self.is_done:
            self._link.engine.reset(self, code)
            self._link.send()

    close = drop

    # Called by the engine.

    def receive_head(self, section: FieldSection, *, ended: bool) -> None:
        """Process a head or trailers."""
        receiver = self._receiver
        if receiver is None:
            return
        self._has_received = True
        self._resendable = None
        try:
            if self._begun:
                if not ended:
                    raise Malformed("a second head")  # noqa: TRY301 - as what the readers raise
                self._finish(receiver, b"", read_trailer_section(section))
                return
            head = read_response_section(
                section, ended=ended, method=receiver.head.method, header_count_max=self._home.header_count_max
            )
        except (BadResponse, Malformed) as bad:
            self._break(receiver, bad)
            return
        if head.status < 200:
            self._interim_left -= 1
            if self._interim_left:
                receiver.on_interim(head)
            else:
                self._break(receiver, BadResponse("too many interim responses"))
            return
        self._begun = True
        if head.framing is not _CHUNKED:
            self._left_bytes = head.content_length or 0 if head.framing is _LENGTH else 0
        receiver.on_response(head, b"", done=ended)
        if ended and self._receiver is receiver:
            self._end(receiver)

    def receive_data(self, payload: bytes) -> None:
        """Process a piece of the response's body."""
        receiver = self._receiver
        if receiver is None or not self._is_counted(receiver, payload):
            return
        receiver.on_piece(payload)
        if self.window_left * 2 <= self.window_bytes and not self._is_client_full:
            self._link.engine.replenish(self)

    def receive_last(self, payload: bytes) -> None:
        """Process the last piece of the response's body."""
        receiver = self._receiver
        if receiver is None or not self._is_counted(receiver, payload):
            return
        try:
            self._finish(receiver, payload, b"")
        except BadResponse as bad:
            self._break(receiver, bad)

    def receive_reset(self, code: int) -> None:
        """Process a reset by the app."""
        if code == ErrorCode.REFUSED_STREAM:
            self.refused("the app refuses the stream")
        else:
            self._has_received = True
            self.lost(f"the app has reset the stream ({code})", is_cancelled=code == ErrorCode.CANCEL)

    def sent(self, byte_count: int = 0) -> None:
        """After bytes were sent or buffered, pause or resume the receiver."""
        del byte_count
        full = self.pending is not None and self.is_full
        if full is not self._is_paused and self._receiver is not None:
            self._is_paused = full
            self._receiver.upstream_full(full=full)

    # Called by its link.

    def refused(self, reason: str) -> None:
        """Process REFUSED_STREAM or GOAWAY: the app has not processed the request."""
        receiver, frames = self._receiver, self._resendable
        if receiver is None or frames is None or self._has_received:
            self.lost(reason)
            return
        if self._was_moved:
            # No other connection is available, so the receiver may try another upstream.
            self._receiver = None
            receiver.upstream_refused(reason, b"".join(frames))
            return
        self._is_moving = self._was_moved = True
        if not self._is_paused:
            self._is_paused = True
            receiver.upstream_full(full=True)
        self._home.again(self)

    def restart(self, link: "UpstreamSession") -> None:
        """Resend the whole request on another connection."""
        receiver, frames = self._receiver, self._resendable
        if receiver is None or frames is None:
            return
        self._link = link
        self._is_moving = False
        self.ending = self.has_ended = self.is_done = self.is_queued = self.peer_ended = False
        self.pending = None
        self.trailers = b""
        self._begin(receiver, b"".join(frames))

    def lost(self, reason: str, *, is_cancelled: bool = False, unseen: bool = False) -> None:
        """Report that the response will not be completed; ``unseen``: no byte of the request reached the app."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.upstream_lost(reason, heard=self._has_received, unseen=unseen, is_cancelled=is_cancelled)

    def _begin(self, receiver: ResponseReceiver, body: bytes) -> None:
        link = self._link
        # On a reused connection the app may have closed its end while the request was in transit.
        self.is_reused = link.carried_count > 0
        self.stream_id = link.open(self)
        if not self.stream_id:
            self._receiver = None
            receiver.upstream_lost("the app takes no more streams", heard=False, unseen=True)
            return
        engine, wire = link.engine, self._wire
        self.send_left = engine.peer_window
        has_body = receiver.head.has_body
        engine.send_head(self, wire, lambda: request_fields(wire[:-4]), ended=not has_body)
        if has_body and receiver.request_complete:
            engine.send_last(self, body, trailers=receiver.request_trailers)
        elif body:
            engine.send_data(self, body)
        self.sent()
        link.send()

    def _is_counted(self, receiver: ResponseReceiver, payload: bytes) -> bool:
        """Count a piece of the response's body; return False if the body exceeds the declared length."""
        self._has_received = True
        self._resendable = None
        if not self._begun:
            self._break(receiver, BadResponse("a body without a head"))
            return False
        if self._left_bytes is not None:
            self._left_bytes -= len(payload)
            if self._left_bytes < 0:
                self._break(receiver, BadResponse("a body longer than its content-length"))
                return False
        return True

    def _finish(self, receiver: ResponseReceiver, payload: bytes, trailers: bytes) -> None:
        if self._left_bytes:
            if payload:
                receiver.on_piece(payload)
            raise BadResponse("a body shorter than its content-length")
        receiver.on_last(payload, trailers)
        if self._receiver is receiver:
            self._end(receiver)

    def _end(self, receiver: ResponseReceiver) -> None:
        self._receiver = None
        if not receiver.request_complete:
            self.drop(ErrorCode.NO_ERROR)
        receiver.upstream_done()

    def _break(self, receiver: ResponseReceiver, bad: Exception) -> None:
        has_left = self._receiver is not receiver
        self.drop(ErrorCode.PROTOCOL_ERROR)
        if not has_left:
            receiver.upstream_lost(f"malformed answer: {bad}", heard=self._has_received, unseen=False)


class UpstreamSession(FrameSender):
    """One HTTP/2 connection to an app."""

    def __init__(self, home: "Http2Pool", address: Address) -> None:
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
            self._retire()
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
        """Mark the connection as idle, or close it after GOAWAY."""
        self.used_s = self._home.clock()
        self._close_if_gone()

    def peer_leaves(self, last_stream_id: int) -> None:
        """Process GOAWAY: the app processes no streams above ``last_stream_id``."""
        self._retire()
        streams = self.engine.streams
        for number in [number for number in streams if number > last_stream_id]:
            stream = streams.pop(number)
            stream.is_done = True
            if isinstance(stream, StreamUpstream):
                stream.refused("the app sent GOAWAY")
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
        """End all streams of a lost connection. After a failed write, first process the bytes that had arrived."""
        if exc is not None:
            for data in unread_pieces(self._transport):
                self.data_received(data)
                if self.engine.has_more:
                    # Frames of a few bytes: parsing all of them would delay other requests.
                    break
        unreceived = 0 if exc is not None else unreceived_bytes(self._transport)
        self._lose("the app closed its connection before its answer was complete", unreceived=unreceived)

    def _retire(self) -> None:
        self.is_going = True
        self._home.lost(self)

    def _close_if_gone(self) -> None:
        if self.is_going and not self.engine.streams and not self.is_closed:
            self.close()

    def _lose(self, reason: str, *, unreceived: int = 0) -> None:
        """End all streams. Streams whose head is within the last ``unreceived`` bytes have not reached the app."""
        self.is_closed = self.engine.is_ended = True
        self._home.lost(self)
        self._transport.close()
        streams = [stream for stream in self.engine.streams.values() if isinstance(stream, StreamUpstream)]
        self.engine.streams.clear()
        for stream in streams:
            stream.is_done = True
            stream.lost(reason, unseen=self._sent_bytes - stream.sent_before_bytes <= unreceived)


class Http2Pool(Pool):
    """A pool of upstreams that speak HTTP/2."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Callable[[], float],
        connector: Connector | None = None,
        turns: FairTurns | None = None,
    ) -> None:
        super().__init__(settings, clock=clock, connector=connector, turns=turns)
        self.settings = settings
        self._links: dict[Address, list[UpstreamSession]] = {}
        self._making: dict[Address, asyncio.Task[UpstreamSession]] = {}

    @property
    def open_count(self) -> int:
        """The number of open connections."""
        return sum(map(len, self._links.values()))

    def acquire(self, address: Address, *, sure: bool = False) -> RequestCarrier | None:
        """Return a stream of a connection with capacity; None if there is none."""
        link = self._link_with_room(address, sure=sure)
        return None if link is None else StreamUpstream(link, self)

    def connect(self, address: Address, waiter: Waiter, *, new: bool = False) -> None:
        """Pass a stream to ``waiter`` once a connection has capacity. Each stream is new, so ``new`` has no effect."""
        del new
        self._connecting.start(self._open_stream(address, waiter), name=f"connect {address}")

    def again(self, stream: StreamUpstream) -> None:
        """Send a request that was refused without processing on another connection."""
        self._connecting.start(self._move(stream), name=f"again {stream.address}")

    def lost(self, link: UpstreamSession) -> None:
        """Remove a connection that has ended or accepts no new streams."""
        links = self._links.get(link.address, [])
        if link in links:
            links.remove(link)
        if not links:
            self._links.pop(link.address, None)

    def expire(self, now_s: float) -> float:
        """Close connections that were idle for too long; return when the next one expires."""
        due_s = math.inf
        for link in [link for links in self._links.values() for link in links if link.is_idle]:
            if link.used_s + self._idle_max_s <= now_s:
                link.close()
            else:
                due_s = min(due_s, link.used_s + self._idle_max_s)
        return due_s

    def close(self) -> None:
        """Close all connections, and cancel connection attempts."""
        super().close()
        for link in [link for links in self._links.values() for link in links]:
            link.close()

    async def _open_stream(self, address: Address, waiter: Waiter) -> None:
        try:
            link = await self._link(address)
        except OSError as error:
            if waiter.is_waiting:
                waiter.unreachable(error)
        else:
            if waiter.is_waiting:
                waiter.connected(StreamUpstream(link, self))

    async def _move(self, stream: StreamUpstream) -> None:
        try:
            link = await self._link(stream.address)
        except OSError as error:
            stream.refused(f"the app accepts no further connection: {error}")
        else:
            stream.restart(link)

    async def _link(self, address: Address) -> UpstreamSession:
        """A connection with capacity for another stream, opened if needed."""
        while True:
            link = self._link_with_room(address)
            if link is not None:
                return link
            making = self._making.get(address)
            if making is None:
                making = self._making[address] = self._connecting.start(
                    self._make(address), name=f"make {address}", is_awaited=True
                )
                making.add_done_callback(lambda task: self._on_connected(address, task))
            # Shielded: a cancelled request leaves the connection attempt to the others.
            session = await asyncio.shield(making)
            if not session.is_open:
                why = session.violation or "it closed a new connection at once"
                raise ConnectionResetError(f"{address[0]}:{address[1]}: {why}")
            if not session.engine.peer_streams_max:
                # Another connection would be of no use either.
                session.close()
                raise ConnectionRefusedError(f"{address[0]}:{address[1]}: it accepts no streams")

    async def _make(self, address: Address) -> UpstreamSession:
        turn = self.connector.turn
        link = await self.open_connection(lambda: UpstreamSession(self, address), address)
        link.turn = turn
        self._links.setdefault(address, []).append(link)
        return link

    def _link_with_room(self, address: Address, *, sure: bool = False) -> UpstreamSession | None:
        for link in list(self._links.get(address, ())):
            if link.turn != self.connector.turn:
                # Its streams continue, and ``expire`` closes it afterwards.
                continue
            if sure and link.is_idle and self.clock() - link.used_s > SURE_IDLE_MAX_S:
                # The app may be closing it, and then it would be unknown whether the request arrived.
                link.close()
            if link.has_room:
                return link
        return None

    def _on_connected(self, address: Address, task: "asyncio.Task[UpstreamSession]") -> None:
        del self._making[address]
        if not task.cancelled():
            # Retrieved, because asyncio logs unretrieved exceptions, and all requests may have disconnected.
            task.exception()
