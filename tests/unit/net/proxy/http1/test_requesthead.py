"""Request heads: cases beyond the integration tests."""

import pytest

from serving.net.proxy.http1.requesthead import (
    HeadMemory,
    RequestHead,
    RequestRefusal,
    is_grpc_call,
    read_request_head,
    refused_start,
    with_traceparent,
)

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-00000000000000aa-01"


def read(raw: bytes) -> RequestHead:
    return read_request_head(raw, header_count_max=10)


@pytest.mark.parametrize(
    ("first", "target"),
    [
        (b"OPTIONS *", b"*"),
        (b"OPTIONS http://h", b"*"),
        (b"GET http://h", b"/"),
        (b"GET HTTP://H/a?b", b"/a?b"),
        (b"GET http://h?b", b"/?b"),
        (b"GET https://h/", b"/"),
        (b"GET //h/a", b"//h/a"),
        (b"GET /%c3%a4|{a}", b"/%c3%a4|{a}"),
        (b"BREW /", b"/"),
    ],
)
def test_request_targets_are_normalized_to_paths(first: bytes, target: bytes) -> None:
    assert read(first + b" HTTP/1.1\r\nHost: h").target == target


@pytest.mark.parametrize(
    "first", [b"GET ftp://h/", b"GET http://", b"GET http:///a", b"POST *", b"GET http://h/#a", b"GET /\xc3\xa4"]
)
def test_invalid_request_targets_are_rejected(first: bytes) -> None:
    with pytest.raises(RequestRefusal) as caught:
        read(first + b" HTTP/1.1\r\nHost: h")
    assert caught.value.status == 400


def test_keep_alive_requires_http_1_1_without_connection_close() -> None:
    assert read(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Keep-Alive").keep_alive
    assert not read(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: x, CLOSE").keep_alive
    assert not read(b"GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive").keep_alive


def test_upgrade_requires_connection_token_and_http_1_1() -> None:
    assert read(b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade").upgrade == b"websocket"
    assert read(b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket").upgrade is None
    assert read(b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade").upgrade is None
    assert read(b"GET / HTTP/1.0\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade").upgrade is None


def test_idempotent_methods_and_idempotency_key_may_be_repeated() -> None:
    assert read(b"DELETE / HTTP/1.1\r\nHost: h").may_be_repeated
    assert not read(b"POST / HTTP/1.1\r\nHost: h").may_be_repeated
    assert read(b"POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: 1").may_be_repeated


def test_headers_are_found_by_name() -> None:
    head = read(b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\na: 2")
    assert (head.get(b"a"), head.get(b"b"), list(head.values(b"a"))) == (b"1", None, [b"1", b"2"])


def test_header_names_with_underscore_are_dropped_unless_configured() -> None:
    raw = b"GET /a_b HTTP/1.1\r\nHost: h\r\nX_Forwarded_For: 1.2.3.4\r\nX-A: b_c\r\nContent_Length: 5"
    dropped, request_head = read(raw), read_request_head(raw, header_count_max=10, keeps_underscores=True)
    assert (dropped.target, dropped.wire) == (b"/a_b", b"X-A: b_c\r\n")
    assert dropped.get(b"x_forwarded_for") is None
    assert request_head.wire == b"X_Forwarded_For: 1.2.3.4\r\nX-A: b_c\r\nContent_Length: 5\r\n"
    assert not request_head.has_body


def test_with_traceparent_replaces_every_traceparent() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: h\r\nTraceparent: 00-1\r\nA: 1\r\ntraceparent: 00-2\r\ntracestate: x=1"
    head = with_traceparent(read_request_head(raw, header_count_max=100), TRACEPARENT)
    assert list(head.values(b"traceparent")) == [TRACEPARENT]
    assert head.wire == b"A: 1\r\ntracestate: x=1\r\ntraceparent: %b\r\n" % TRACEPARENT


def test_with_traceparent_adds_header_despite_connection_token() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: traceparent"
    head = with_traceparent(read_request_head(raw, header_count_max=100), TRACEPARENT)
    assert head.wire.endswith(b"traceparent: %b\r\n" % TRACEPARENT)


def test_grpc_call_is_recognized_by_content_type() -> None:
    raw = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc+proto"
    assert is_grpc_call(read_request_head(raw, header_count_max=9))
    assert not is_grpc_call(read_request_head(b"GET / HTTP/1.1\r\nHost: h", header_count_max=9))


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET / HTTP/1.1\r\nA: b", None),
        (b"GET / HTTP/1.1\r\nA: b\nC", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 100, 431),
        (b"GET /" + b"a" * 100, 414),
        (b"A" * 100 + b" / HTTP/1.1", 400),
        (b"", None),
    ],
)
def test_incomplete_head_is_rejected_once_it_cannot_become_valid(start: bytes, status: int | None) -> None:
    refusal = refused_start(start, head_bytes_max=60)
    assert (refusal and refusal.status) == status


def test_connect_is_rejected_for_every_target_form() -> None:
    memory = HeadMemory(keeps_underscores=False)
    memory.read(b"GET /x HTTP/1.1\r\nHost: a", header_count_max=10)
    for target in (b"/x", b"a:443", b"http://a/", b"*"):
        with pytest.raises(RequestRefusal) as refused:
            memory.read(b"CONNECT %b HTTP/1.1\r\nHost: a" % target, header_count_max=10)
        assert refused.value.status == 405
