"""The Huffman code, compared with the library hpack."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_huffman import huffman_decode, huffman_encode


@given(text=st.binary(max_size=200))
def test_huffman_encoding_round_trips(text: bytes) -> None:
    packed = huffman_encode(text)
    assert huffman_decode(packed) == text
    assert decode_huffman(packed) == text


@given(packed=st.binary(max_size=40))
def test_huffman_decoder_agrees_with_reference_on_any_bytes(packed: bytes) -> None:
    try:
        expected = decode_huffman(packed)
    except HPACKDecodingError:
        with pytest.raises(Violation):
            huffman_decode(packed)
    else:
        assert huffman_decode(packed) == expected


@pytest.mark.parametrize("packed", [b"\xff\xff\xff\xff", b"\xff", b"\x18", b"\x1f\xff"])
def test_eos_symbol_and_wrong_padding_are_rejected(packed: bytes) -> None:
    with pytest.raises(Violation) as caught:
        huffman_decode(packed)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_many_strings_round_trip_through_huffman_cache() -> None:
    for number in range(5000):
        assert huffman_decode(huffman_encode(b"%d" % number)) == b"%d" % number
