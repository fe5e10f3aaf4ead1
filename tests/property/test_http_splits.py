"""The proxy parses bytes equally in any chunks, and like llhttp."""

import itertools
import re
from typing import Any

import httptools
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.net.proxy.http1.body import BadBody, ChunkedBody
from serving.net.proxy.http1.lines import BadHeaderLine
from serving.net.proxy.http1.requesthead import RequestRefusal, read_request_head
from tests.unit.net.proxy.wires import Bench, messages

TOKEN = st.text("abcXYZ019-_.!~", min_size=1, max_size=8).map(str.encode)
VALUE = st.text('abc XYZ09;,=/"\x80\xff\t', max_size=20).map(lambda text: text.encode("latin-1"))
HEADER = st.tuples(TOKEN.map(lambda name: b"X-" + name), VALUE).map(lambda pair: b"%b: %b\r\n" % pair)
HEADERS = st.lists(HEADER, max_size=4).map(b"".join)
TARGET = st.text("abc/?=&%20.;", max_size=12).map(lambda text: b"/" + text.encode())
PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=4)

DATE = re.compile(rb"\r\nDate: [^\r]*")
PLACES = st.lists(st.integers(0, 5000), max_size=12)
MUTATION = st.tuples(
    st.integers(0, 5000),
    st.sampled_from(
        [b"", b"\r", b"\n", b"\r\n", b"\x00", b" ", b"\t", b":", b"0", b"f", b";", b",", b"\r\n\r\n", b"chunked"]
    ),
    st.integers(0, 2),
)
ANSWERS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\nhello",
        b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["none", "length", "chunks"]))
    first = b"%b %b HTTP/1.1\r\nHost: h\r\n%b" % (
        b"GET" if kind == "none" else b"PUT",
        draw(TARGET),
        draw(HEADERS),
    )
    if kind == "none":
        return first + b"\r\n"
    payloads = draw(PAYLOADS)
    if kind == "length":
        payload = b"".join(payloads)
        return first + b"Content-Length: %d\r\n\r\n%b" % (len(payload), payload)
    extension = draw(st.sampled_from([b"", b";a=b", b" ; x"]))
    body = b"".join([b"%x%b\r\n%b\r\n" % (len(payload), extension, payload) for payload in payloads])
    return first + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + draw(HEADERS) + b"\r\n"


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    return [wire[start:end] for start, end in itertools.pairwise(edges)]


def run(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """The complete requests received by upstreams, and the client's responses."""
    bench = Bench()
    bench.send(pieces)
    running = [exchange for exchange in bench.exchanges[-1:] if exchange.outcome is None]
    assert len(bench.finished) + len(running) == len([exchange for exchange in bench.exchanges if exchange.begun])
    return bench.seen(), [head.split(b"\r\n")[0] for head, _ in messages(bench.client.written)]


@given(st.lists(requests(), min_size=1, max_size=4), PLACES)
def test_requests_are_forwarded_equally_for_any_chunks(wires: list[bytes], places: list[int]) -> None:
    wire = b"".join(wires)
    seen, reported = run([wire])
    assert len(seen) == len(wires)
    assert reported == [b"HTTP/1.1 200 OK"] * len(wires)
    assert run(cut(wire, places)) == (seen, reported)
    assert run([bytes([byte]) for byte in wire]) == (seen, reported)


def mutated(wire: bytes, mutations: list[tuple[int, bytes, int]]) -> bytes:
    for place, new, drop in mutations:
        at = place % (len(wire) + 1)
        wire = wire[:at] + new + wire[at + drop :]
    return wire


@given(st.lists(requests(), min_size=1, max_size=3), st.lists(MUTATION, min_size=1, max_size=4), PLACES)
def test_malformed_requests_are_handled_equally_for_any_chunks(
    wires: list[bytes], mutations: list[tuple[int, bytes, int]], places: list[int]
) -> None:
    wire = mutated(b"".join(wires), mutations)
    assert run([wire]) == run(cut(wire, places))


@given(st.binary(max_size=200), PLACES)
def test_arbitrary_bytes_are_handled_equally_for_any_chunks(wire: bytes, places: list[int]) -> None:
    assert run([wire]) == run(cut(wire, places))


@given(ANSWERS, PLACES)
def test_response_is_forwarded_equally_for_any_chunks(response: bytes, places: list[int]) -> None:
    def reported(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
        bench = Bench()
        bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        for piece in pieces:
            if piece:
                bench.upstreams[0].data_received(piece)
        assert bench.exchanges[0].outcome is not None
        assert bench.pool.idle_count == 1
        # The Date header may differ by a second.
        return [(DATE.sub(b"", head), body) for head, body in messages(bench.client.written)]

    assert reported(cut(response, places)) == reported([response])


@given(ANSWERS, st.lists(MUTATION, min_size=1, max_size=3), PLACES)
def test_malformed_response_ends_the_request_once(
    response: bytes, mutations: list[tuple[int, bytes, int]], places: list[int]
) -> None:
    bench = Bench()
    bench.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    for piece in cut(mutated(response, mutations), places):
        if piece and not bench.apps[0].is_closed:
            bench.upstreams[0].data_received(piece)
    bench.upstreams[0].connection_lost(None)
    assert bench.exchanges[0].outcome is not None
    assert len(bench.finished) == 1


@given(st.binary(max_size=100), PLACES)
def test_chunked_body_is_decoded_equally_for_any_chunks(wire: bytes, places: list[int]) -> None:
    def read(pieces: list[bytes]) -> tuple[bytes, bool] | str:
        reader, payload = ChunkedBody(), b""
        for piece in pieces:
            try:
                payload += reader.feed(piece)
            except BadBody:
                return "bad"
            if reader.done:
                break
        return payload, reader.done

    assert read([wire]) == read(cut(wire, places))


class _Received:
    """The callbacks of httptools for a request."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))


@given(requests(), st.lists(MUTATION, max_size=3))
def test_accepted_request_head_is_parsed_equally_by_llhttp(
    wire: bytes, mutations: list[tuple[int, bytes, int]]
) -> None:
    head = mutated(wire[: wire.index(b"\r\n\r\n")], mutations)
    assume(b"\r\n\r\n" not in head and not head.startswith(b"\r\n") and not head.endswith(b"\r"))
    try:
        ours = read_request_head(head, header_count_max=100, keeps_underscores=True)
    except (RequestRefusal, BadHeaderLine):
        return
    received = _Received()
    parser: Any = httptools.HttpRequestParser(received)
    try:
        parser.feed_data(head + b"\r\n\r\n")
    except httptools.HttpParserInvalidMethodError:
        return  # llhttp knows a list of methods; the proxy accepts any token
    except httptools.HttpParserError:
        # llhttp accepts spaces around the value of Transfer-Encoding, but no tabs.
        assert b"\t" in head
        return
    assert parser.get_method() == ours.method
    assert parser.get_http_version() == f"1.{ours.minor}"
    assert received.target == ours.target
    assert received.headers == [(line.name, line.value) for line in ours.lines]
