"""The answer of an app, as it comes in a stream's events, for the attempt that waits for it.

A body that is longer or shorter than its head says is a ``BadAnswer``: the library is not asked to count (``engine``).
"""

from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    TrailersReceived,
)

from serving.proxy.answerhead import AnswerHead, BadAnswer, Framing
from serving.proxy.http2.heads import Fields, read_answer_fields, read_trailer_fields
from serving.proxy.upstream import Taker

__all__ = ["AnswerReader"]


class AnswerReader:
    """Reads one answer."""

    __slots__ = ("_has_begun", "_header_count_max", "_left_bytes")

    def __init__(self, *, header_count_max: int) -> None:
        self._header_count_max = header_count_max
        self._has_begun = False
        # What is to come of a body of known length; None for any other.
        self._left_bytes: int | None = None

    def read(self, event: Event, taker: Taker) -> bool:
        """Pass on what an event brings; True when the answer is complete.

        Raises:
            BadAnswer: when its length is wrong.
            Malformed: when a head or trailers are against the protocol.
        """
        if isinstance(event, InformationalResponseReceived):
            taker.on_interim(self._head(taker, event.headers, ended=False))
        elif isinstance(event, ResponseReceived):
            return self._begin(taker, event)
        elif isinstance(event, DataReceived):
            self._take_data(taker, event.data)
        elif isinstance(event, TrailersReceived):
            return self._finish(taker, read_trailer_fields(event.headers))
        elif isinstance(event, StreamEnded):
            return self._finish(taker, b"")
        return False

    def _head(self, taker: Taker, fields: Fields, *, ended: bool) -> AnswerHead:
        return read_answer_fields(
            fields, ended=ended, method=taker.head.method, header_count_max=self._header_count_max
        )

    def _begin(self, taker: Taker, event: ResponseReceived) -> bool:
        ended = event.stream_ended is not None
        head = self._head(taker, event.headers, ended=ended)
        self._has_begun = True
        if head.framing is not Framing.CHUNKED:
            self._left_bytes = head.content_length or 0 if head.framing is Framing.LENGTH else 0
        taker.on_answer(head, b"", done=ended)
        return ended

    def _take_data(self, taker: Taker, data: bytes) -> None:
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                raise BadAnswer("a body that is longer than it says")
        if data:
            taker.on_piece(data, done=False)

    def _finish(self, taker: Taker, trailers: bytes) -> bool:
        if not self._has_begun:
            return False
        if self._left_bytes:
            raise BadAnswer("a body that is shorter than it says")
        taker.on_piece(b"", done=True, trailers=trailers)
        return True
