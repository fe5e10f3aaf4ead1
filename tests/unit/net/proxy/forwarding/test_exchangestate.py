import pytest

from serving.net.proxy.forwarding.exchangestate import NO_BODY, RequestBody


def test_buffered_body_is_sent_once_and_resent_after_rewind() -> None:
    body = RequestBody()
    body.buffer(b"ab")
    body.buffer(b"c")
    assert body.buffered_bytes == 3
    assert body.send() == b"abc"
    assert (body.send(), body.buffered_bytes) == (b"", 0)
    body.rewind()
    assert body.buffered_bytes == 3
    body.buffer(b"d")
    assert body.send() == b"abcd"


def test_dropped_body_cannot_be_replayed() -> None:
    body = RequestBody()
    body.buffer(b"ab")
    body.send()
    body.drop()
    assert not body.can_replay
    with pytest.raises(AssertionError):
        body.rewind()


def test_restored_body_can_be_replayed() -> None:
    body = RequestBody()
    body.drop()
    body.restore(b"abc")
    body.buffer(b"d")
    assert (body.can_replay, body.buffered_bytes, body.send()) == (True, 4, b"abcd")


def test_empty_body_can_always_be_replayed() -> None:
    NO_BODY.drop()
    NO_BODY.rewind()
    assert NO_BODY.is_complete
    assert NO_BODY.can_replay
    assert NO_BODY.send() == b""
