"""The answer of one stream: what an exchange writes as HTTP/1.1 is read here, as an upstream's would be, and sent as frames."""

import contextlib

from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from serving.proxy.answerhead import AnswerHead, Framing, read_answer_head
from serving.proxy.body import ChunkedBody, CloseBody, LengthBody
from serving.proxy.http2.grpc import GrpcRefusal, is_grpc
from serving.proxy.http2.heads import Fields, answer_fields, split_lines
from serving.proxy.http2.outbox import StreamOutbox
from serving.proxy.requesthead import RequestHead, RequestRefusal

__all__ = ["StreamAnswer"]

_TEXT = (b"content-type", b"text/plain; charset=utf-8")
# The answer's own limits were checked where it came from.
_UNBOUNDED = 1_000_000


class StreamAnswer:
    """One answer. ``outbox`` holds what may not be sent yet."""

    __slots__ = ("_h2", "_id", "_reader", "_refusal", "has_begun", "outbox")

    def __init__(self, h2: H2Connection, stream_id: int) -> None:
        self.outbox = StreamOutbox(h2, stream_id)
        self.has_begun = False
        """Whether the final head was sent."""
        self._h2 = h2
        self._id = stream_id
        self._reader: LengthBody | ChunkedBody | CloseBody | None = None
        # A refusal in HTTP's terms for a client of gRPC, until it is here in whole.
        self._refusal: GrpcRefusal | None = None

    def write(self, data: bytes, head: RequestHead) -> None:
        """Take a part of the answer to the request with this head.

        Raises:
            ProtocolError: when the client has reset the stream, and what says so is still on its way.
        """
        if not self.has_begun:
            end = data.index(b"\r\n\r\n")
            self._send_head(read_answer_head(data[:end], method=head.method, header_count_max=_UNBOUNDED), head)
            data = data[end + 4 :]
        reader = self._reader
        if reader is None or not data:
            return
        payload = reader.feed(data)
        if self._refusal is None:
            trailers = split_lines(reader.trailers.split(b"\r\n")) if reader.done else ()
            self.outbox.put(payload, done=reader.done, trailers=trailers)
        else:
            self._refusal.take(payload)
            if reader.done:
                self._send_whole(self._refusal.fields())

    def refuse(self, refusal: RequestRefusal) -> None:
        """Answer a request that never became an exchange."""
        body = str(refusal).encode()
        length = (b"content-length", b"%d" % len(body))
        self._h2.send_headers(self._id, [(b":status", b"%d" % refusal.status), _TEXT, length])
        self.outbox.put(body, done=True)

    def _send_head(self, head: AnswerHead, request: RequestHead) -> None:
        fields = answer_fields(head.status, head.wire.splitlines(keepends=True), length=head.content_length)
        if head.status < 200:
            self._h2.send_headers(self._id, fields)
            return
        self.has_begun = True
        if is_grpc(request):
            self._refusal = GrpcRefusal.of(head.status, fields)
        if head.framing is Framing.NONE:
            self._send_whole(fields if self._refusal is None else self._refusal.fields())
            return
        if self._refusal is None:
            self._h2.send_headers(self._id, fields)
        if head.framing is Framing.LENGTH:
            self._reader = LengthBody(head.content_length or 0)
        else:
            self._reader = ChunkedBody() if head.framing is Framing.CHUNKED else CloseBody()

    def _send_whole(self, fields: Fields) -> None:
        """Send an answer that has no body."""
        with contextlib.suppress(ProtocolError):
            # Reset by the client, which is still on its way.
            self._h2.send_headers(self._id, fields, end_stream=True)
        self.outbox.put(b"", done=True)
        self.outbox.is_done = True
