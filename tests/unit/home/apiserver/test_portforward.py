"""SPDY/3.1 frames of port-forward, encoded as a client encodes them."""

import itertools
import struct
import zlib

import pytest

from serving.home.apiserver import portforward
from serving.home.apiserver.portforward import SpdyCodec, SpdyError


class Client:
    """A SPDY client that encodes SYN_STREAM frames."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=portforward._DICTIONARY)

    def opened(self, stream: int, headers: dict[str, str], *, is_last: bool = False) -> bytes:
        plain = struct.pack(">I", len(headers))
        for text in itertools.chain.from_iterable(headers.items()):
            plain += struct.pack(">I", len(text)) + text.encode()
        block = self._deflate.compress(plain) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        body = struct.pack(">IIH", stream, 0, 0) + block
        return struct.pack(">HHI", 0x8003, 1, int(is_last) << 24 | len(body)) + body


def test_spdy_frames_are_read_byte_by_byte() -> None:
    client, codec = Client(), SpdyCodec()
    sent = client.opened(1, {"streamtype": "error", "port": "80"}, is_last=True)
    sent += client.opened(3, {"streamtype": "data", "port": "80"})
    sent += codec.data(3, b"hello") + codec.data(3, b"", is_last=True) + codec.pong(7) + codec.reset(3)
    frames = [frame for byte in sent for frame in codec.feed(bytes([byte]))]
    assert [(frame.kind, frame.stream, frame.is_last) for frame in frames] == [
        ("open", 1, True),
        ("open", 3, False),
        ("data", 3, False),
        ("data", 3, True),
        ("ping", 7, False),
        ("reset", 3, False),
    ]
    assert frames[1].headers == {"streamtype": "data", "port": "80"}
    assert frames[2].data == b"hello"


def test_spdy_dictionary_equals_the_drafts() -> None:
    assert len(portforward._DICTIONARY) == 1423
    assert zlib.adler32(portforward._DICTIONARY) == 0xE3C6A7C2


def test_spdy_syn_reply_has_no_headers() -> None:
    reply = SpdyCodec().accept(5)
    assert struct.unpack_from(">HHII", reply)[0:2] == (0x8003, 2)
    assert zlib.decompressobj(zdict=portforward._DICTIONARY).decompress(reply[12:]) == struct.pack(">I", 0)


@pytest.mark.parametrize(
    "wrong",
    [
        struct.pack(">HHI", 0x8002, 1, 0),
        struct.pack(">HHI", 0x8003, 1, 3) + b"abc",
        struct.pack(">HHI", 0x8003, 1, 14) + b"\0" * 14,
        struct.pack(">II", 1, 2**21),
    ],
)
def test_invalid_spdy_frames_are_rejected(wrong: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdyCodec().feed(wrong))


def test_unknown_spdy_control_frames_are_skipped() -> None:
    assert list(SpdyCodec().feed(struct.pack(">HHI", 0x8003, 9, 4) + b"abcd")) == []
    assert [frame.kind for frame in SpdyCodec().feed(struct.pack(">HHI", 0x8003, 7, 4) + b"abcd")] == ["goaway"]
