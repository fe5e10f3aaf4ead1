import pytest

from serving.autoscaler.io.connection import Cut, cut

MASK = b"mask"


def frame(payload: bytes, *, first: int = 0x82, mask: bytes = MASK) -> bytes:
    masked = 0x80 if mask else 0
    if len(payload) < 126:
        return bytes([first, masked | len(payload)]) + mask + payload
    if len(payload) < 2**16:
        return bytes([first, masked | 126]) + len(payload).to_bytes(2) + mask + payload
    return bytes([first, masked | 127]) + len(payload).to_bytes(8) + mask + payload


@pytest.mark.parametrize(("length", "begin"), [(0, 6), (125, 6), (126, 8), (65_535, 8), (65_536, 14)])
def test_payload_is_located_for_each_length_encoding(length: int, begin: int) -> None:
    assert cut(frame(bytes(length)), 0) == Cut(begin, begin + length, True)


def test_second_frame_in_a_buffer_is_located() -> None:
    first = frame(b"abc")
    assert cut(first + frame(b"de"), len(first)) == Cut(15, 17, True)


@pytest.mark.parametrize("length", [0, 125, 126, 65_536])
def test_incomplete_frame_head_yields_no_frame(length: int) -> None:
    whole = frame(bytes(length))
    needed = 2 + {125: 0, 0: 0, 126: 2, 65_536: 8}[length]
    assert [cut(whole[:end], 0) is None for end in range(needed + 1)] == [True] * needed + [False]


def test_payload_end_may_exceed_the_buffer() -> None:
    assert cut(frame(b"abc")[:4], 0) == Cut(6, 9, True)


@pytest.mark.parametrize("first", [0x02, 0x00, 0x80, 0x81, 0x88, 0x89, 0x8A, 0xC2])
def test_frame_other_than_a_whole_binary_message_is_not_plain(first: int) -> None:
    assert cut(frame(b"abc", first=first), 0) == Cut(6, 9, False)


def test_unmasked_frame_is_not_plain() -> None:
    assert cut(frame(b"abc", mask=b""), 0) == Cut(2, 5, False)
