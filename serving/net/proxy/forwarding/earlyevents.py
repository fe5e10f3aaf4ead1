"""Starts an event stream before a pod exists: immediate status 200 and comments, then the app's stream.

``EarlyEvents`` replaces an exchange's client. The proxy has already sent the head, so the app's response must be an
event stream with status 200. Any other response, or a refusal of the proxy, cannot change the status. It becomes one
event named ``error``, with an object in OpenAI's form, and the stream ends.
"""

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.net.proxy.forwarding.client import Client, Pause, ResponseSink
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.proxy.http1.body import LAST_CHUNK, chunk
from serving.net.proxy.http1.rendering import render_date
from serving.net.proxy.http1.requesthead import RequestHead
from serving.net.proxy.http1.responsehead import ResponseHead, read_response_head

EVENTS_PERIOD_S = 5.0
"""Time between two comments, in seconds: proxies and browsers close a silent connection after 30 s or more."""

_COMMENT = b": starting\n\n"
_EVENTS = b"text/event-stream"
_HEAD = read_response_head(
    b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-store\r\nX-Accel-Buffering: no" % _EVENTS,
    method=b"GET",
    header_count_max=10,
)
_TYPE = re.compile(rb"^content-type:[ \t]*text/event-stream[ \t]*(?:;|\r?$)", re.IGNORECASE | re.MULTILINE)
# A key of the body itself; within a text its quotes would be escaped.
_STREAM = re.compile(rb'"stream"[ \t\r\n]*:[ \t\r\n]*true\b')
_OK = 200
# An error is a sentence or an object, never a page.
_ERROR_BYTES_MAX = 4096


def wants_events(head: RequestHead, body: bytes) -> bool:
    """Whether a client expects events, by its Accept header or ``"stream": true`` in the received part of its body."""
    if head.minor != 1 or head.upgrade is not None or head.method not in (b"GET", b"POST"):
        return False
    accepted = (head.get(b"accept") or b"").split(b",")
    is_accepted = any(part.partition(b";")[0].strip().lower() == _EVENTS for part in accepted)
    return is_accepted or (head.method == b"POST" and _STREAM.search(body) is not None)


class EarlyEvents:
    """Wraps a client whose response has begun as an event stream before a pod is ready.

    ``extra`` are further header lines of this response.
    """

    def __init__(self, client: Client, *, extra: bytes) -> None:
        self._client = client
        self._sink = client.sink
        self._has_begun = False
        self._refusal: _Refusal | None = None
        if self._sink is not None:
            self._sink.begin_response(_HEAD, extra, b"", done=False, trailers=b"")
        else:
            client.write(b"%b%b%bTransfer-Encoding: chunked\r\n\r\n" % (_HEAD.status_wire, _HEAD.wire, extra))
        self.comment()

    def comment(self) -> None:
        """Send a comment, unless the app's stream has begun."""
        if not self._has_begun:
            self.send_piece(_COMMENT)

    @property
    def sink(self) -> ResponseSink:
        """The receiver of the app's response: this object."""
        return self

    # Called with the app's response.

    def begin_response(self, head: ResponseHead, extra: bytes, payload: bytes, *, done: bool, trailers: bytes) -> None:
        """Forward the app's event stream, or buffer a response of another kind."""
        del extra
        self._has_begun = True
        if head.status != _OK or _TYPE.search(head.wire) is None:
            self._refusal = _Refusal(head.status)
        if done:
            self.send_last(payload, trailers)
        else:
            self.send_piece(payload)

    def send_piece(self, payload: bytes) -> None:
        """Send a piece of the stream; more follows."""
        if self._refusal is not None:
            self._refusal.add(payload)
        elif self._sink is not None:
            self._sink.send_piece(payload)
        elif payload:
            self._client.write(chunk(payload))

    def send_last(self, payload: bytes, trailers: bytes) -> None:
        """End the stream. Trailers are dropped, because they were not announced."""
        del trailers
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            refusal.add(payload)
            payload = refusal.event()
        if self._sink is not None:
            self._sink.send_last(payload, b"")
        else:
            self._client.write((chunk(payload) if payload else b"") + LAST_CHUNK)

    # Called by the exchange.

    def write(self, data: bytes) -> None:
        """Send a response of the proxy as an event. A 1xx response is ignored."""
        status, (_, _, body) = int(data[9:12]), data.partition(b"\r\n\r\n")
        if status >= _OK:
            self._has_begun = True
            self._refusal = _Refusal(status)
            self.send_last(body, b"")

    def write_eof(self) -> None:
        """Close the sending direction."""
        self._client.write_eof()

    def pause(self, why: Pause) -> None:
        """Add a reason to pause reading."""
        self._client.pause(why)

    def resume(self, why: Pause) -> None:
        """Remove a reason to pause reading."""
        self._client.resume(why)

    def has_room(self) -> bool:
        """Count the bytes buffered for the client; return whether more may be written."""
        return self._client.has_room()

    def unread_bytes(self) -> int:
        """Return the number of written bytes that the client has not read."""
        return self._client.unread_bytes()

    def open_tunnel(self) -> bytes:
        """Never called: upgrade requests get no events."""
        raise AssertionError

    def exchange_done(self, *, keep: bool) -> None:
        """Finish the exchange."""
        self._client.exchange_done(keep=keep)

    def truncate(self) -> None:
        """Close the connection in the middle of the stream."""
        self._client.truncate()

    def abort(self) -> None:
        """Reset the connection."""
        self._client.abort()


class _Refusal:
    """A response other than an event stream, buffered until it is complete."""

    __slots__ = ("_body", "_status")

    def __init__(self, status: int) -> None:
        self._status = status
        self._body = b""

    def add(self, payload: bytes) -> None:
        """Buffer a piece, up to the limit."""
        self._body += payload[: _ERROR_BYTES_MAX - len(self._body)]

    def event(self) -> bytes:
        """The event: the app's error if it is in OpenAI's form, else its text with the status."""
        try:
            document: Any = msgspec.json.decode(self._body)
        except UNREADABLE:
            document = None
        if not (isinstance(document, dict) and isinstance(document.get("error"), dict)):
            text = self._body.decode(errors="replace").strip()
            message = text if self._status != _OK else f"the response is no event stream: {text}"
            document = {"error": {"message": message, "type": "serving_error", "code": self._status}}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(document)


def begin_events(exchange: Exchange, *, later: Callable[[float, Callable[[], None]], object]) -> None:
    """Begin the stream of a waiting exchange, and send comments until its response begins.

    ``later`` schedules a call after a number of seconds.
    """
    events = EarlyEvents(exchange.client, extra=exchange.response_headers + render_date(time.time()))
    exchange.client = events

    def beat() -> None:
        if not exchange.response.status and exchange.outcome is None:
            events.comment()
            later(EVENTS_PERIOD_S, beat)

    later(EVENTS_PERIOD_S, beat)
