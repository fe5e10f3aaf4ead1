"""Bodies: bounds against a peer that sends framing instead of payload."""

import pytest

from serving.net.proxy.http1.body import BadBody, ChunkedBody, CloseBody, LengthBody, chunk, chunks


def test_length_body_returns_excess_bytes_as_rest() -> None:
    body = LengthBody(5)
    assert [body.feed(b"he"), body.done, body.feed(b"llo!"), body.done, body.rest] == [b"he", False, b"llo", True, b"!"]


def test_close_delimited_body_accepts_all_bytes() -> None:
    body = CloseBody()
    assert (body.feed(b"abc"), body.done) == (b"abc", False)


def test_chunks_are_encoded_with_last_chunk_and_trailers() -> None:
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
    assert chunks(b"", done=True) == b"0\r\n\r\n"
    assert chunks(b"a", done=True, trailers=b"A: b\r\n") == b"1\r\na\r\n0\r\nA: b\r\n\r\n"
    assert chunks(b"", done=False) == b""


def test_total_chunk_extension_bytes_are_bounded() -> None:
    body = ChunkedBody()
    with pytest.raises(BadBody, match="oversize"):
        body.feed(b"1;%b\r\nx\r\n" % (b"e" * 200) * 100)


@pytest.mark.parametrize("extension", [b"", b";a", b" ; a", b";a=b", b"; a = b;c", b';a="b \\" ;c"', b';a="";b'])
def test_valid_chunk_extensions_are_dropped(extension: bytes) -> None:
    body = ChunkedBody()
    assert (body.feed(b"5%b\r\nhello\r\n0%b\r\n\r\n" % (extension, extension)), body.done) == (b"hello", True)


@pytest.mark.parametrize(
    "line",
    [
        b"5;",
        b"5;bad[=x",
        b"5;a=",
        b"5;=b",
        b"5;a=b c",
        b'5;a="b',
        b'5;a="b"c',
        b"5;a;",
        b"5 ",
        b"5;a ",
        b"5;a\x01",
        b"5\rx",
        b"5\n",
    ],
)
def test_malformed_chunk_size_line_is_rejected(line: bytes) -> None:
    with pytest.raises(BadBody, match="malformed chunk size"):
        ChunkedBody().feed(line + b"\r\nhello\r\n")


@pytest.mark.parametrize("after", [b"\n", b"A: b\n", b"A: b\r\n\n", b"\rx", b"A: b\rB"])
def test_incomplete_line_end_in_trailers_is_rejected_immediately(after: bytes) -> None:
    """Otherwise the client would wait for a response while the parser waits for the other half."""
    for cut in range(len(after)):
        body = ChunkedBody()
        body.feed(b"0\r\n" + after[:cut])
        with pytest.raises(BadBody, match="malformed trailers"):
            body.feed(after[cut:])


@pytest.mark.parametrize(
    "trailers", [b"A: b\r\n" * 65 + b"\r\n", b"A: " + b"x" * 9000, b"A: " + b"x" * 8190 + b"\r\n\r\n"]
)
def test_trailers_are_bounded(trailers: bytes) -> None:
    with pytest.raises(BadBody, match="trailers"):
        ChunkedBody().feed(b"0\r\n" + trailers)


def test_framing_and_routing_trailers_are_removed() -> None:
    body = ChunkedBody()
    body.feed(b"0\r\nContent-Length: 5\r\nA: b\r\nHost: h\r\nK-Pod-Secret: x\r\n\r\nrest")
    assert (body.trailers, body.rest) == (b"A: b\r\n", b"rest")


def test_feed_decodes_at_most_chunks_max_and_next_continues() -> None:
    body = ChunkedBody(chunks_max=2)
    results = [body.feed(chunk(b"a") * 5 + b"0\r\n\r\nrest")]
    while body.has_more:
        results.append(body.feed(b""))
    assert results == [b"aa", b"aa", b"a"]
    assert (body.done, body.rest) == (True, b"rest")


@pytest.mark.parametrize(("size", "count", "is_costly"), [(1, 50, False), (1, 100, True), (1000, 100, False)])
def test_many_small_chunks_are_costly(size: int, count: int, is_costly: bool) -> None:
    body = ChunkedBody(chunks_max=200)
    body.feed(chunk(b"a" * size) * count)
    assert body.is_costly is is_costly
