"""Bodies: bounds that keep a peer from sending framing in the place of payload."""

import pytest

from serving.proxy.body import BadBody, ChunkedBody, CloseBody, LengthBody, chunk, chunks


def test_a_length_body_gives_back_what_is_not_its_own() -> None:
    body = LengthBody(5)
    assert [body.feed(b"he"), body.done, body.feed(b"llo!"), body.done, body.rest] == [b"he", False, b"llo", True, b"!"]


def test_a_body_until_the_end_takes_all() -> None:
    body = CloseBody()
    assert (body.feed(b"abc"), body.done) == (b"abc", False)


def test_chunks_are_written_with_their_end_and_trailers() -> None:
    assert chunk(b"x" * 17) == b"11\r\n" + b"x" * 17 + b"\r\n"
    assert chunks(b"", done=True) == b"0\r\n\r\n"
    assert chunks(b"a", done=True, trailers=b"A: b\r\n") == b"1\r\na\r\n0\r\nA: b\r\n\r\n"
    assert chunks(b"", done=False) == b""


def test_extensions_of_a_body_are_bounded_together() -> None:
    body = ChunkedBody()
    with pytest.raises(BadBody, match="oversize"):
        body.feed(b"1;%b\r\nx\r\n" % (b"e" * 200) * 100)


@pytest.mark.parametrize(
    "trailers", [b"A: b\r\n" * 65 + b"\r\n", b"A: " + b"x" * 9000, b"A: " + b"x" * 8190 + b"\r\n\r\n"]
)
def test_trailers_are_bounded(trailers: bytes) -> None:
    with pytest.raises(BadBody, match="trailers"):
        ChunkedBody().feed(b"0\r\n" + trailers)


def test_trailers_that_frame_or_route_do_not_pass() -> None:
    body = ChunkedBody()
    body.feed(b"0\r\nContent-Length: 5\r\nA: b\r\nHost: h\r\nK-Pod-Secret: x\r\n\r\nrest")
    assert (body.trailers, body.rest) == (b"A: b\r\n", b"rest")
