"""The Huffman code, with the library of Python as its oracle."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_huffman import huffman_decode, huffman_encode


@given(text=st.binary(max_size=200))
def test_what_is_packed_is_unpacked(text: bytes) -> None:
    packed = huffman_encode(text)
    assert huffman_decode(packed) == text
    assert decode_huffman(packed) == text


@given(packed=st.binary(max_size=40))
def test_any_bytes_mean_what_the_oracle_says(packed: bytes) -> None:
    try:
        expected = decode_huffman(packed)
    except HPACKDecodingError:
        with pytest.raises(Violation):
            huffman_decode(packed)
    else:
        assert huffman_decode(packed) == expected


@pytest.mark.parametrize("packed", [b"\xff\xff\xff\xff", b"\xff", b"\x18", b"\x1f\xff"])
def test_an_end_within_and_a_wrong_padding_are_refused(packed: bytes) -> None:
    with pytest.raises(Violation) as caught:
        huffman_decode(packed)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_the_memory_of_strings_is_bounded() -> None:
    for number in range(5000):
        assert huffman_decode(huffman_encode(b"%d" % number)) == b"%d" % number
