"""A connection with a cached head parses each head like a new connection."""

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from serving.net.proxy.http1.requesthead import HeadMemory, RequestHead, RequestRefusal, read_request_head
from serving.net.proxy.http1.responsehead import BadResponse, ResponseHead, ResponseMemory, read_response_head

FIRST = st.sampled_from(
    [
        *(b"GET / HTTP/1.1", b"GET /a?b HTTP/1.1", b"PUT /a HTTP/1.1", b"HEAD / HTTP/1.1", b"GET / HTTP/1.0"),
        *(b"CONNECT h HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET http://h/ HTTP/1.1", b"GET http://o/ HTTP/1.1"),
        *(b"GET / HTTP/2.0", b"GET /  HTTP/1.1", b" GET / HTTP/1.1", b"", b"Host: h"),
    ]
)
LINE = st.sampled_from(
    [
        *(b"Host: h", b"Host: o", b"Accept: */*", b"Cookie: secret", b"User-Agent: x", b"Content-Length: 3"),
        *(b"Transfer-Encoding: chunked", b"Connection: close", b"Connection: x-a", b"X-A: 1", b"Expect: 100-continue"),
        *(b"Upgrade: websocket", b"Connection: Upgrade", b"K-Pod-Secret: s", b"Forwarded: for=a", b"Bad : 1", b" fold"),
        *(b"X_A: 1", b"X_A: 2", b"X-Forwarded_For: a", b"User-Agent: x86_64", b"traceparent: 1", b"traceparent: 2"),
        b"X-Long: " + 2048 * b"l",
    ]
)
HEADS = st.lists(st.tuples(FIRST, st.lists(LINE, max_size=4)), min_size=1, max_size=8)
STATUS = st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 304 Not Modified", b"HTTP/1.0 200 OK", b"HTTP/1.1 99", b""])
RESPONSE_LINE = st.sampled_from(
    [b"Content-Length: 3", b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Date: now", b"Date: then", b"Bad : 1"]
)
ANSWERS = st.lists(
    st.tuples(STATUS, st.lists(RESPONSE_LINE, max_size=3), st.sampled_from([b"GET", b"HEAD"])), min_size=1, max_size=8
)


def outcome_of(
    read: Callable[..., RequestHead | ResponseHead], raw: bytes, **named: bytes
) -> RequestHead | ResponseHead | tuple[str, str]:
    try:
        return read(raw, header_count_max=3, **named)
    except (RequestRefusal, BadResponse) as error:
        return type(error).__name__, str(error)


@given(HEADS)
@example([(b"GET / HTTP/1.1", [b"Host: h"]), (b"GET http://o/ HTTP/1.1", [b"Host: h"])])
@example([(b"GET / HTTP/1.1", [b"Host: h"]), (b"GET / HTTP/1.0", [b"Host: h"])])
@example([(b"GET / HTTP/1.1", [b"Host: h", f"traceparent: {n}".encode(), b"Cookie: secret"]) for n in (1, 2)])
@example([(b"GET / HTTP/1.1", [b"Host: h", b"X_A: %d" % n]) for n in (1, 2)])
def test_cached_request_head_reads_like_an_uncached_one(heads: list[tuple[bytes, list[bytes]]]) -> None:
    memory = HeadMemory()
    for first, lines in heads:
        raw = b"\r\n".join([first, *lines])
        for _ in range(2):
            assert outcome_of(memory.read, raw) == outcome_of(read_request_head, raw)


@given(ANSWERS)
@example([(b"HTTP/1.1 200 OK", [b"Content-Length: 3"], b"GET"), (b"HTTP/1.1 200 OK", [b"Content-Length: 3"], b"HEAD")])
def test_cached_response_head_reads_like_an_uncached_one(responses: list[tuple[bytes, list[bytes], bytes]]) -> None:
    memory = ResponseMemory()
    for first, lines, method in responses:
        raw = b"\r\n".join([first, *lines])
        for _ in range(2):
            assert outcome_of(memory.read, raw, method=method) == outcome_of(read_response_head, raw, method=method)


def test_repeated_head_is_cached_and_a_long_head_is_not() -> None:
    memory = HeadMemory()
    raw = b"GET / HTTP/1.1\r\nHost: h"
    known = memory.read(raw, header_count_max=3)
    assert memory.read(bytes(bytearray(raw)), header_count_max=3) is known
    other = memory.read(b"GET /other HTTP/1.1\r\nHost: h", header_count_max=3)
    assert other.target == b"/other"
    assert other.lines is known.lines
    long = raw + b"\r\nX-Long: " + 2048 * b"l"
    assert memory.read(long, header_count_max=3) is not memory.read(long, header_count_max=3)
