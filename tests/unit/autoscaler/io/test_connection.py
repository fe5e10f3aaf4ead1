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
def test_the_payload_is_found_whatever_its_length(length: int, begin: int) -> None:
    assert cut(frame(bytes(length)), 0) == Cut(begin, begin + length, True)


def test_a_frame_is_found_behind_another() -> None:
    first = frame(b"abc")
    assert cut(first + frame(b"de"), len(first)) == Cut(15, 17, True)


@pytest.mark.parametrize("length", [0, 125, 126, 65_536])
def test_a_head_that_is_cut_anywhere_waits_for_the_rest(length: int) -> None:
    whole = frame(bytes(length))
    needed = 2 + {125: 0, 0: 0, 126: 2, 65_536: 8}[length]
    assert [cut(whole[:end], 0) is None for end in range(needed + 1)] == [True] * needed + [False]


def test_an_end_may_lie_beyond_what_is_there() -> None:
    assert cut(frame(b"abc")[:4], 0) == Cut(6, 9, True)


@pytest.mark.parametrize("first", [0x02, 0x00, 0x80, 0x81, 0x88, 0x89, 0x8A, 0xC2])
def test_what_is_no_whole_binary_message_is_not_plain(first: int) -> None:
    assert cut(frame(b"abc", first=first), 0) == Cut(6, 9, False)


def test_a_frame_without_a_mask_is_not_plain() -> None:
    assert cut(frame(b"abc", mask=b""), 0) == Cut(2, 5, False)
