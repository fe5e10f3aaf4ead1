import pytest

from serving.net.proxy.forwarding.attempt import NO_BODY, RequestBuffer


def test_what_is_held_is_sent_once_and_can_be_sent_again() -> None:
    buffer = RequestBuffer()
    buffer.hold(b"ab")
    buffer.hold(b"c")
    assert buffer.held_bytes == 3
    assert buffer.send() == b"abc"
    assert (buffer.send(), buffer.held_bytes) == (b"", 0)
    buffer.rewind()
    assert buffer.held_bytes == 3
    buffer.hold(b"d")
    assert buffer.send() == b"abcd"


def test_what_was_streamed_past_the_buffer_cannot_be_sent_again() -> None:
    buffer = RequestBuffer()
    buffer.hold(b"ab")
    buffer.send()
    buffer.drop()
    assert not buffer.can_replay
    with pytest.raises(AssertionError):
        buffer.rewind()


def test_what_an_upstream_did_not_look_at_is_held_for_the_next() -> None:
    buffer = RequestBuffer()
    buffer.drop()
    buffer.restore(b"abc")
    buffer.hold(b"d")
    assert (buffer.can_replay, buffer.held_bytes, buffer.send()) == (True, 4, b"abcd")


def test_a_request_without_a_body_can_always_be_sent_again() -> None:
    NO_BODY.drop()
    NO_BODY.rewind()
    assert NO_BODY.can_replay
    assert NO_BODY.send() == b""
