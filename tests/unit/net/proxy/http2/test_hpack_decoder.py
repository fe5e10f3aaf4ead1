"""HPACK decoding, compared with the library hpack."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_decoder import HeaderDecoder

names = st.sampled_from([b":path", b"accept", b"x", b"grpc-timeout", b"a-name-of-its-own"])
values = st.one_of(st.sampled_from([b"", b"/", b"application/grpc", b"y" * 300]), st.binary(max_size=20))
heads = st.lists(st.tuples(names, values), max_size=6)


def new_decoder() -> HeaderDecoder:
    return HeaderDecoder(list_bytes_max=65_536)


@given(sent=st.lists(heads, max_size=8), size=st.sampled_from([None, 0, 60, 4096]))
def test_decoder_reads_heads_of_reference_encoder(sent: list[list[tuple[bytes, bytes]]], size: int | None) -> None:
    encoder, header_decoder = hpack.Encoder(), new_decoder()
    if size is not None:
        encoder.header_table_size = size
    for head in sent:
        assert header_decoder.decode(encoder.encode(head)).fields == head


@given(blocks=st.lists(st.binary(max_size=30), max_size=4))
def test_decoder_agrees_with_reference_on_any_bytes(blocks: list[bytes]) -> None:
    oracle, header_decoder = hpack.Decoder(), new_decoder()
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in oracle.decode(block, raw=True)]
        except hpack.HPACKError:
            with pytest.raises(Violation):
                header_decoder.decode(block)
            return
        assert header_decoder.decode(block).fields == expected


def test_block_is_cached_until_dynamic_table_changes() -> None:
    encoder, header_decoder = hpack.Encoder(), new_decoder()
    header_decoder.decode(encoder.encode([(b"x", b"1")]))
    block = encoder.encode([(b"x", b"1")])
    assert header_decoder.decode(block) is header_decoder.decode(block)
    header_decoder.decode(encoder.encode([(b"x", b"2")]))
    assert header_decoder.decode(block).fields == [(b"x", b"2")]


def test_block_cache_is_bounded() -> None:
    header_decoder = new_decoder()
    for number in range(1000):
        header_decoder.decode(b"\x00\x01x\x03%03d" % number)
    assert len(header_decoder._remembered) <= 16


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\xff",
        b"\xff\xff\xff\xff\xff\x0f",
        b"\x40",
        b"\x40\x05abc",
        b"\x40\x01a\x83",
        b"\x00\x01a\x7f\xff\xff\xff\x7fx",
        b"\x82\x20",
        b"\x3f\xe2\x1f",
        b"\x20\x20\x20\x20\x20\x20\x20\x20\x82",
    ],
)
def test_malformed_block_is_a_compression_error(block: bytes) -> None:
    with pytest.raises(Violation) as caught:
        new_decoder().decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_dynamic_table_can_be_emptied_and_enlarged() -> None:
    header_decoder = new_decoder()
    header_decoder.decode(b"\x40\x01x\x01y")
    assert header_decoder.decode(b"\x20\x3f\xe1\x1f\x82").fields == [(b":method", b"GET")]
    with pytest.raises(Violation):
        header_decoder.decode(b"\xbe")
