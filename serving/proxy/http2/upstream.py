"""Upstreams that speak HTTP/2 with prior knowledge (h2c): one connection for each address, a stream for each request.

``Http2Pool`` stands in a pool's place. What an exchange takes from it is a ``StreamUpstream``, which is used as any other
upstream: it is given a request as HTTP/1.1 and sends it as frames, and what the app answers comes back as heads and
pieces. A stream is never used twice. While its taker is full its window stays closed, so that one slow reader holds one
window of bytes and stops nobody else.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from serving.proxy.answerhead import AnswerHead, BadAnswer, Framing, read_answer_head
from serving.proxy.body import BadBody, ChunkedBody, LengthBody
from serving.proxy.http2.heads import Fields, read_trailer_fields, request_fields, split_lines
from serving.proxy.http2.outbox import Outbox
from serving.proxy.pool import Pool, Waiter
from serving.proxy.requesthead import Refusal
from serving.proxy.upstream import Address, Taker, Upstream
from serving.settings.http import HttpSettings

__all__ = ["Http2Pool", "StreamUpstream"]

_WINDOW_BYTES = 65_535
# All streams of a connection together: none that is held may stop the others. HTTP/2's largest window.
_CONNECTION_WINDOW_BYTES = 2**31 - 1


class StreamUpstream(Upstream):
    """One request on its way to the app and back."""

    __slots__ = ("_answered", "_ended", "_link", "_outbox", "_owed_bytes", "_request", "_stream_id", "_told_full")

    def __init__(self, link: "_Link", home: "Http2Pool") -> None:
        super().__init__(home, link.address)
        self._link = link
        self._stream_id = 0
        self._outbox: Outbox | None = None
        self._request: LengthBody | ChunkedBody | None = None
        self._owed_bytes = 0
        self._answered = self._ended = self._told_full = False

    @property
    def is_usable(self) -> bool:
        """Whether it may carry its request."""
        return self._taker is None and not self._ended

    def carry(self, taker: Taker, data: bytes) -> None:
        """Send the first bytes of a request."""
        self._taker = taker
        end = data.index(b"\r\n\r\n")
        self._stream_id = self._link.open(self)
        if not self._stream_id:
            self._ended, self._taker = True, None
            taker.upstream_lost("the app takes no more streams", heard=False, reused=False)
            return
        head = taker.head
        self._outbox = Outbox(self._link.h2, self._stream_id)
        self._link.h2.send_headers(self._stream_id, request_fields(data[:end]), end_stream=not head.has_body)
        if head.has_body:
            self._request = ChunkedBody() if head.chunked else LengthBody(head.content_length or 0)
            self.write(data[end + 4 :])
        else:
            self._outbox.is_done = True
        self._link.send()

    def write(self, data: bytes) -> None:
        """Send more of the request."""
        request, outbox = self._request, self._outbox
        if request is None or outbox is None or not data or self._ended:
            return
        payload = request.feed(data)
        trailers = split_lines(request.trailers.split(b"\r\n")) if request.done else ()
        outbox.put(payload, done=request.done, trailers=trailers)
        self.flush()
        self._link.send()

    def write_eof(self) -> None:
        """Nothing more follows; its framing has said so."""

    def hold(self, *, full: bool) -> None:
        """Open the window no more; or again."""
        self._held = full
        if not full:
            self._give_back()

    def drop(self) -> None:
        """Nobody wants the rest of the answer."""
        self._taker = None
        self._reset(ErrorCodes.CANCEL)

    def close(self) -> None:
        """End it."""
        self.drop()

    def flush(self) -> None:
        """Send what may be sent; the taker is told whether it may go on."""
        outbox = self._outbox
        if outbox is None or self._ended:
            return
        if not self._link.is_full:
            outbox.flush()
        if self._taker is not None and outbox.is_full is not self._told_full:
            self._told_full = outbox.is_full
            self._taker.upstream_full(full=self._told_full)

    def take(self, event: Event) -> None:  # noqa: C901 - one branch for each kind of event
        """Something of the answer has come."""
        taker = self._taker
        if taker is None:
            return
        self._heard = True
        try:
            if isinstance(event, InformationalResponseReceived):
                taker.on_interim(self._head(event.headers, ended=False))
            elif isinstance(event, ResponseReceived):
                self._take_answer(taker, event)
            elif isinstance(event, DataReceived):
                self._owed_bytes += event.flow_controlled_length
                if event.data:
                    taker.on_piece(event.data, done=False)
                if not self._held:
                    self._give_back()
            elif isinstance(event, TrailersReceived):
                self._finish_answer(taker, read_trailer_fields(event.headers))
            elif isinstance(event, StreamEnded):
                self._finish_answer(taker, b"")
            elif isinstance(event, StreamReset):
                self._ended = True
                self.lost(f"the app has reset the stream ({event.error_code})")
        except (BadAnswer, BadBody, Refusal) as bad:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            self.lost(f"malformed answer: {bad}")

    def lost(self, reason: str) -> None:
        """The answer will not be completed."""
        self._ended = True
        self._link.forget(self._stream_id)
        taker, self._taker = self._taker, None
        if taker is not None:
            taker.upstream_lost(reason, heard=self._heard, reused=False)

    def _take_answer(self, taker: Taker, event: ResponseReceived) -> None:
        ended = event.stream_ended is not None
        head = self._head(event.headers, ended=ended)
        self._answered = True
        if ended:
            taker.on_answer(head, b"", done=True)
            self._end(taker)
        else:
            taker.on_answer(head, b"", done=False)

    def _head(self, fields: Fields, *, ended: bool) -> AnswerHead:
        assert self._taker is not None
        given = dict(fields)
        read_trailer_fields([field for field in fields if not field[0].startswith(b":")])
        texts = [b"%b: %b" % field for field in fields if not field[0].startswith(b":")]
        if not ended and b"content-length" not in given and given[b":status"][:1] != b"1":
            texts.append(b"transfer-encoding: chunked")
        elif ended and b"content-length" not in given:
            texts.append(b"content-length: 0")
        raw = b"\r\n".join([b"HTTP/1.1 %b " % given[b":status"], *texts])
        head = read_answer_head(raw, method=self._taker.head.method, header_count_max=self._home.header_count_max)
        if head.status == 101 or (ended and head.framing is not Framing.NONE):
            raise BadAnswer("an answer that HTTP/2 does not allow")
        return head

    def _finish_answer(self, taker: Taker, trailers: bytes) -> None:
        if self._answered and not self._ended:
            taker.on_piece(b"", done=True, trailers=trailers)
            self._end(taker)

    def _end(self, taker: Taker) -> None:
        if self._taker is not taker:
            return
        self._taker = None
        if not taker.request_complete:
            self._reset(ErrorCodes.NO_ERROR)
        self._ended = True
        self._give_back()
        self._link.forget(self._stream_id)
        taker.upstream_done()

    def _give_back(self) -> None:
        count, self._owed_bytes = self._owed_bytes, 0
        if count:
            self._link.give_back(self._stream_id, count)

    def _reset(self, code: ErrorCodes) -> None:
        if not self._ended and self._stream_id:
            self._ended = True
            self._give_back()
            self._link.reset(self._stream_id, code)


class _Link(asyncio.Protocol):
    """One connection to an app, and its streams."""

    def __init__(self, pool: "Http2Pool", address: Address) -> None:
        self.address = address
        self.is_full = self.is_closed = False
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._pool = pool
        self._streams: dict[int, StreamUpstream] = {}
        self._transport: asyncio.Transport

    @property
    def has_room(self) -> bool:
        """Whether another stream may be opened."""
        if self.is_closed:
            return False
        return len(self._streams) < self.h2.remote_settings.max_concurrent_streams

    def open(self, stream: StreamUpstream) -> int:
        """The number of a new stream; 0 when none can be had."""
        if not self.has_room:
            return 0
        number = self.h2.get_next_available_stream_id()
        self._streams[number] = stream
        return number

    def send(self) -> None:
        """Write the frames that are there."""
        data = self.h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def give_back(self, stream_id: int, count: int) -> None:
        """Let the app send this much more."""
        if not self.is_closed:
            self.h2.acknowledge_received_data(count, stream_id)
            self.send()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """End a stream."""
        self.forget(stream_id)
        if not self.is_closed:
            try:
                self.h2.reset_stream(stream_id, code)
            except ProtocolError:
                return
            self.send()

    def forget(self, stream_id: int) -> None:
        """A stream is over."""
        self._streams.pop(stream_id, None)

    def close(self) -> None:
        """Close, with all streams."""
        self.is_closed = True
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast("asyncio.Transport", transport)
        self.h2.local_settings[SettingCodes.ENABLE_PUSH] = 0
        self.h2.local_settings[SettingCodes.MAX_HEADER_LIST_SIZE] = self._pool.head_bytes_max
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - _WINDOW_BYTES)
        self.send()

    def data_received(self, data: bytes) -> None:
        """Give each event to its stream."""
        try:
            events = self.h2.receive_data(data)
        except ProtocolError as error:
            self.send()
            self._lose(f"the app broke HTTP/2: {error}")
            return
        for event in events:
            if isinstance(event, ConnectionTerminated):
                self._lose("the app ended its HTTP/2 connection")
                return
            stream = self._streams.get(getattr(event, "stream_id", None) or 0)
            if stream is not None:
                stream.take(event)
            elif isinstance(event, DataReceived):
                self.give_back(event.stream_id, event.flow_controlled_length)
        for stream in list(self._streams.values()):
            stream.flush()
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and what ran on it."""
        del exc
        self._lose("the app closed its connection before its answer was complete")

    def pause_writing(self) -> None:
        """What was sent is not taken yet."""
        self.is_full = True

    def resume_writing(self) -> None:
        """What was sent has been taken."""
        self.is_full = False
        for stream in list(self._streams.values()):
            stream.flush()
        self.send()

    def _lose(self, reason: str) -> None:
        self.is_closed = True
        self._pool.lost(self)
        self._transport.close()
        for stream in list(self._streams.values()):
            stream.lost(reason)


class Http2Pool(Pool):
    """A pool of upstreams that speak HTTP/2."""

    def __init__(self, settings: HttpSettings, *, clock: Callable[[], float]) -> None:
        super().__init__(settings, clock=clock)
        self._links: dict[Address, list[_Link]] = {}

    @property
    def open_count(self) -> int:
        """Connections."""
        return sum(map(len, self._links.values()))

    def take(self, address: Address, *, sure: bool = False) -> Upstream | None:
        """A stream of a connection that has room."""
        del sure
        for link in self._links.get(address, ()):
            if link.has_room:
                return StreamUpstream(link, self)
        return None

    def give(self, upstream: Upstream) -> None:
        """A stream that nobody needs any more was never opened."""

    def lost(self, link: _Link) -> None:
        """A connection has ended."""
        links = self._links.get(link.address, [])
        if link in links:
            links.remove(link)

    def close(self) -> None:
        """Close all connections, and give up what is being made."""
        super().close()
        for links in list(self._links.values()):
            for link in list(links):
                link.close()

    async def _connect(self, address: Address, waiter: Waiter) -> None:
        loop = asyncio.get_running_loop()
        upstream = self.take(address)
        if upstream is None:
            try:
                async with asyncio.timeout(self._connect_max_s):
                    _, link = await loop.create_connection(lambda: _Link(self, address), *address)
            except TimeoutError:
                waiter.unreachable(TimeoutError(f"no connection to {address[0]}:{address[1]} in time"))
                return
            except OSError as error:
                waiter.unreachable(error)
                return
            self._links.setdefault(address, []).append(link)
            upstream = StreamUpstream(link, self)
        waiter.connected(upstream)
