"""One request to an app that speaks HTTP/2, and its answer: a stream of a link.

It has the interface of any other upstream: it takes a request as HTTP/1.1 and sends it as frames, and passes on the app's
answer as heads and pieces. It carries one request. While its taker is full its window stays closed, so that one slow reader
holds one window of bytes and stops no other stream. A stream that the app has refused unprocessed is sent once more on
another connection, whatever its method.
"""

from typing import Protocol

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    StreamReset,
)

from serving.proxy.answerhead import BadAnswer
from serving.proxy.body import BadBody, ChunkedBody, LengthBody
from serving.proxy.http2.answerreader import AnswerReader
from serving.proxy.http2.heads import (
    Malformed,
    request_fields,
    split_lines,
)
from serving.proxy.http2.outbox import StreamOutbox
from serving.proxy.upstream import Address, Home, Taker, Upstream

__all__ = ["StreamHome", "StreamLink", "StreamUpstream"]

# What is kept of a request for another try; an app that has not looked at it has taken one window of it at most.
_KEPT_BYTES_MAX = 128 * 1024


class StreamHome(Home, Protocol):
    """Where streams come from: the pool."""

    def again(self, stream: "StreamUpstream") -> None:
        """Give a stream that the app has refused unseen another link."""


class StreamLink(Protocol):
    """The connection, as its streams see it."""

    address: Address
    h2: H2Connection
    carried_count: int
    is_full: bool

    def open(self, stream: "StreamUpstream") -> int:
        """The number of a new stream; 0 when there can be none."""

    def give_back(self, stream_id: int, count: int) -> None:
        """Let the app send this much more."""

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """End a stream."""

    def forget(self, stream_id: int) -> None:
        """Remove a stream that is over."""

    def send(self) -> None:
        """Write the frames that are there soon."""


class StreamUpstream(Upstream):
    """One request on its way to the app and back."""

    __slots__ = (
        *("_answer", "_ended", "_is_moving", "_kept", "_kept_bytes", "_link", "_outbox"),
        *("_owed_bytes", "_pool", "_request", "_stream_id", "_told_full", "_was_moved"),
    )

    def __init__(self, link: StreamLink, home: StreamHome) -> None:
        super().__init__(home, link.address)
        self._pool = home
        self._link = link
        self._stream_id = 0
        self._outbox: StreamOutbox | None = None
        self._request: LengthBody | ChunkedBody | None = None
        self._owed_bytes = 0
        self._answer = AnswerReader(header_count_max=home.header_count_max)
        # What was given to send, as long as it may have to be sent again.
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._ended = self._told_full = self._is_moving = self._was_moved = False

    @property
    def is_usable(self) -> bool:
        """Whether it may carry its request."""
        return self._taker is None and not self._ended

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return self._outbox is not None and self._outbox.is_waiting

    # What an exchange calls.

    def carry(self, taker: Taker, data: bytes) -> None:
        """Send the first bytes of a request."""
        self._taker = taker
        self._kept, self._kept_bytes = [data], len(data)
        self._begin(taker, data)

    def write(self, data: bytes) -> None:
        """Send more of the request."""
        if self._ended:
            return
        if self._kept is not None:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes > _KEPT_BYTES_MAX and not self._is_moving:
                self._kept = None
        if not self._is_moving:
            self._send(data)

    def write_eof(self) -> None:
        """Nothing more follows; its framing has said so."""

    def hold(self, *, full: bool) -> None:
        """Open the window no more; or again."""
        self._held = full
        if not full:
            self._give_back()

    def drop(self) -> None:
        """Reset the stream: the rest of the answer is not wanted."""
        self._taker = None
        self._reset(ErrorCodes.CANCEL)

    def close(self) -> None:
        """End it."""
        self.drop()

    # What its link calls.

    def flush(self) -> None:
        """Send what may be sent, and pause or resume the taker."""
        outbox = self._outbox
        if outbox is None or self._ended or self._is_moving:
            return
        if not self._link.is_full:
            outbox.flush()
        if self._taker is not None and outbox.is_full is not self._told_full:
            self._told_full = outbox.is_full
            self._taker.upstream_full(full=self._told_full)

    def take(self, event: Event) -> None:
        """Something of the answer has come."""
        taker = self._taker
        if taker is None:
            return
        self._heard = True
        self._kept = None
        try:
            if isinstance(event, DataReceived):
                self._owed_bytes += event.flow_controlled_length
            if isinstance(event, StreamReset):
                self._ended = True
                self.lost(f"the app has reset the stream ({event.error_code})")
            elif self._answer.read(event, taker):
                self._end(taker)
            elif not self._held:
                self._give_back()
        except (BadAnswer, BadBody, Malformed) as bad:
            self._reset(ErrorCodes.PROTOCOL_ERROR)
            self.lost(f"malformed answer: {bad}")

    def refused(self, reason: str) -> None:
        """The app has not looked at it, and says so."""
        taker = self._taker
        if taker is None or self._kept is None or self._was_moved or self._heard:
            self.lost(reason)
            return
        self._is_moving = self._was_moved = True
        if not self._told_full:
            self._told_full = True
            taker.upstream_full(full=True)
        self._pool.again(self)

    def restart(self, link: StreamLink) -> None:
        """Another link is there: send all again."""
        taker, kept = self._taker, self._kept
        if taker is None or kept is None:
            return
        self._link, self._is_moving = link, False
        self._begin(taker, b"".join(kept))

    def lost(self, reason: str) -> None:
        """The answer will not be completed."""
        self._ended = True
        self._link.forget(self._stream_id)
        taker, self._taker = self._taker, None
        if taker is not None:
            taker.upstream_lost(reason, heard=self._heard, reused=self.is_reused)

    def _begin(self, taker: Taker, data: bytes) -> None:
        end = data.index(b"\r\n\r\n")
        link = self._link
        # Of one that has carried others, the app may have closed its end while ours was on its way.
        self.is_reused = link.carried_count > 0
        self._stream_id = link.open(self)
        if not self._stream_id:
            self._ended, self._taker = True, None
            taker.upstream_lost("the app takes no more streams", heard=False, reused=False)
            return
        head = taker.head
        self._outbox = StreamOutbox(link.h2, self._stream_id)
        link.h2.send_headers(self._stream_id, request_fields(data[:end]), end_stream=not head.has_body)
        if head.has_body:
            self._request = ChunkedBody() if head.chunked else LengthBody(head.content_length or 0)
            self._send(data[end + 4 :])
        else:
            self._outbox.is_done = True
        self.flush()
        link.send()

    def _send(self, data: bytes) -> None:
        request, outbox = self._request, self._outbox
        if request is None or outbox is None or not data:
            return
        payload = request.feed(data)
        trailers = split_lines(request.trailers.split(b"\r\n")) if request.done else ()
        outbox.put(payload, done=request.done, trailers=trailers)
        self.flush()
        self._link.send()

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
