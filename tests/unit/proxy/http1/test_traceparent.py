from serving.proxy.http1.requesthead import read_request_head
from serving.proxy.http1.traceparent import with_traceparent

OURS = b"00-0af7651916cd43dd8448eb211c80319c-00000000000000aa-01"


def test_every_traceparent_is_replaced_and_the_rest_goes_on() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: h\r\nTraceparent: 00-1\r\nA: 1\r\ntraceparent: 00-2\r\ntracestate: x=1"
    head = with_traceparent(read_request_head(raw, header_count_max=100), OURS)
    assert list(head.values(b"traceparent")) == [OURS]
    assert head.wire == b"A: 1\r\ntracestate: x=1\r\ntraceparent: %b\r\n" % OURS


def test_a_head_without_one_gets_one_even_if_connection_takes_such_out() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: traceparent"
    head = with_traceparent(read_request_head(raw, header_count_max=100), OURS)
    assert head.wire.endswith(b"traceparent: %b\r\n" % OURS)
