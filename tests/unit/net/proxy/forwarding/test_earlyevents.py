"""Requests for event streams, and the early stream to an HTTP/1.1 client."""

from unittest.mock import Mock

import pytest

from serving.net.proxy.forwarding.client import Pause
from serving.net.proxy.forwarding.earlyevents import EarlyEvents, wants_events
from serving.net.proxy.http1.requesthead import read_request_head

COMMENT = b"c\r\n: starting\n\n\r\n"


@pytest.mark.parametrize(
    ("start", "lines", "body", "wanted"),
    [
        (b"GET / HTTP/1.1", b"Accept: a/b, Text/Event-Stream;q=0.9\r\n", b"", True),
        (b"GET / HTTP/1.1", b"Accept: text/html\r\n", b"", False),
        (b"GET / HTTP/1.0", b"Accept: text/event-stream\r\n", b"", False),
        (b"HEAD / HTTP/1.1", b"Accept: text/event-stream\r\n", b"", False),
        (b"GET / HTTP/1.1", b"Accept: text/event-stream\r\nConnection: upgrade\r\nUpgrade: websocket\r\n", b"", False),
        (b"POST / HTTP/1.1", b"", b'{"stream" :\n true, "mess', True),
        (b"POST / HTTP/1.1", b"", b'{"stream": false}', False),
        (b"POST / HTTP/1.1", b"", b'{"content": "\\"stream\\": true"}', False),
        (b"GET / HTTP/1.1", b"", b'{"stream": true}', False),
    ],
)
def test_event_stream_requests_are_recognized(start: bytes, lines: bytes, body: bytes, wanted: bool) -> None:
    head = read_request_head(b"%b\r\n%bHost: h" % (start, lines), header_count_max=20)
    assert wants_events(head, body) is wanted


def test_early_stream_sends_head_comments_and_one_end_to_http1_client() -> None:
    client = Mock(sink=None)
    events = EarlyEvents(client, extra=b"X-A: b\r\n")
    head, first = (call.args[0] for call in client.write.call_args_list)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n" in head
    assert first == COMMENT
    events.comment()
    events.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
    assert client.write.call_count == 3
    events.write(b"HTTP/1.1 504 x\r\nContent-Length: 4\r\n\r\nlate")
    events.comment()
    assert client.write.call_count == 4
    assert client.write.call_args.args[0].endswith(b"\n\n\r\n0\r\n\r\n")
    events.pause(Pause.HELD)
    events.resume(Pause.HELD)
    events.write_eof()
    events.truncate()
    events.abort()
    events.exchange_done(keep=True)
    client.exchange_done.assert_called_once_with(keep=True)
    with pytest.raises(AssertionError):
        events.open_tunnel()
