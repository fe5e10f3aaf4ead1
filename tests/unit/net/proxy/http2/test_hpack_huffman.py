"""The Huffman code, compared with the library hpack."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.http2 import hpack_huffman
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


def test_huffman_cache_keeps_at_most_1024_strings() -> None:
    for number in range(5000):
        packed = huffman_encode(b"%d" % number)
        assert huffman_decode(packed) == huffman_decode(packed) == b"%d" % number
        assert packed in hpack_huffman._remembered
        assert len(hpack_huffman._remembered) <= 1024


def test_long_string_is_not_cached() -> None:
    packed = huffman_encode(b"0" * 200)
    assert huffman_decode(packed) == b"0" * 200
    assert packed not in hpack_huffman._remembered
