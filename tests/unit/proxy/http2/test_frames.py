"""Frames before the library sees them."""

import itertools

import pytest
from h2.errors import ErrorCodes
from hypothesis import given
from hypothesis import strategies as st

from serving.proxy.http2.frames import FrameGate, GoAway, Violation
from serving.settings.http import HttpSettings
from tests.integration.proxy.h2frames import OPENING, PREFACE, Kind, fields, frame, request, settings

PING = frame(Kind.PING, b"12345678")
GOAWAY = frame(Kind.GOAWAY, (5).to_bytes(4) + (2).to_bytes(4) + b"why")
LEFT = GoAway(last_stream_id=5, code=2)


def gate(**limits: float) -> FrameGate:
    return FrameGate(HttpSettings(**limits), is_server=True, now_s=0.0)  # type: ignore[arg-type]  # counts are whole


def fed(one: FrameGate, *pieces: bytes, now_s: float = 0.0) -> bytes:
    return b"".join([one.feed(piece, now_s) for piece in pieces])


def test_frames_pass_as_they_are_and_goaway_is_taken_out() -> None:
    one = gate()
    assert fed(one, OPENING + GOAWAY + PING + GOAWAY) == OPENING + PING
    assert one.goaways() == [LEFT, LEFT]
    assert one.goaways() == []


def test_a_side_that_asks_is_sent_no_preface() -> None:
    one = FrameGate(HttpSettings(), is_server=False, now_s=0.0)
    assert fed(one, settings() + frame(Kind.RST, bytes(4), stream_id=7)) != b""


frames = st.sampled_from(
    [
        PING,
        GOAWAY,
        request(1),
        request(3, flags=0) + frame(Kind.CONTINUATION, flags=4, stream_id=3),
        frame(0xEE, b"xyz"),
    ]
)


@given(parts=st.lists(frames, max_size=8), cuts=st.lists(st.integers(min_value=0, max_value=400), max_size=12))
def test_it_says_the_same_of_every_split(parts: list[bytes], cuts: list[int]) -> None:
    wire = OPENING + b"".join(parts)
    places = sorted({0, len(wire), *[cut for cut in cuts if cut < len(wire)]})
    one = gate()
    passed = fed(one, *[wire[start:end] for start, end in itertools.pairwise(places)])
    assert passed == OPENING + b"".join([part for part in parts if part != GOAWAY])
    assert one.goaways() == [LEFT] * parts.count(GOAWAY)
    assert not one.is_amid_head


@pytest.mark.parametrize(
    "rest",
    [
        PREFACE[:3],
        PREFACE,
        OPENING,
        OPENING + PING[:3],
        OPENING + PING[:-1],
        OPENING + request(1, flags=0),
        OPENING + GOAWAY[:-1],
    ],
)
def test_a_head_that_is_not_complete_is_told(rest: bytes) -> None:
    one = gate()
    one.feed(rest, 0.0)
    assert one.is_amid_head is (rest not in (PREFACE, OPENING))


def test_a_body_that_is_not_complete_is_no_head() -> None:
    one = gate()
    fed(one, OPENING + request(1, flags=4) + frame(Kind.DATA, b"body", stream_id=1)[:-1])
    assert not one.is_amid_head


@pytest.mark.parametrize(
    ("limit", "costs"),
    [
        ("http2_resets_max", frame(Kind.RST, bytes(4), stream_id=1)),
        ("http2_pings_max", PING),
        ("http2_settings_max", settings()),
        ("http2_idle_frames_max", frame(Kind.DATA, stream_id=1)),
        ("http2_idle_frames_max", frame(0xEE)),
        ("http2_idle_frames_max", frame(Kind.PING, bytes(8), flags=1)),
    ],
)
def test_what_costs_nothing_is_counted_over_a_span(limit: str, costs: bytes) -> None:
    one = gate(**{limit: 3}, http2_count_period_s=10.0)
    fed(one, OPENING + request(1, flags=4))
    fed(one, *[costs] * 2, now_s=1.0)
    fed(one, *[costs] * 3, now_s=12.0)
    with pytest.raises(Violation) as caught:
        one.feed(costs, 13.0)
    assert caught.value.code is ErrorCodes.ENHANCE_YOUR_CALM


def test_whoever_is_answered_may_ping() -> None:
    one = gate(http2_pings_max=2)
    fed(one, OPENING)
    for _ in range(10):
        one.feed(PING * 2, 1.0)
        one.earned()


def test_a_window_that_opens_costs_nothing_that_counts() -> None:
    fed(gate(http2_idle_frames_max=1), OPENING + frame(Kind.WINDOW_UPDATE, b"\0\0\0\1") * 100)


@pytest.mark.parametrize(
    ("limits", "wire", "code"),
    [
        ({"http2_continuations_max": 1}, frame(Kind.CONTINUATION, stream_id=1) * 2, ErrorCodes.ENHANCE_YOUR_CALM),
        ({"head_bytes_max": 1024}, frame(Kind.CONTINUATION, bytes(8192), stream_id=1), ErrorCodes.ENHANCE_YOUR_CALM),
        ({}, frame(Kind.CONTINUATION, stream_id=3), ErrorCodes.PROTOCOL_ERROR),
        ({}, frame(Kind.DATA, stream_id=1), ErrorCodes.PROTOCOL_ERROR),
        ({}, GOAWAY, ErrorCodes.PROTOCOL_ERROR),
    ],
)
def test_a_head_in_pieces_is_bounded_and_not_cut_off(limits: dict[str, float], wire: bytes, code: ErrorCodes) -> None:
    one = gate(**limits)
    fed(one, OPENING + frame(Kind.HEADERS, fields(), stream_id=1))
    with pytest.raises(Violation) as caught:
        one.feed(wire, 0.0)
    assert caught.value.code is code


@pytest.mark.parametrize(
    "wire",
    [
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        PREFACE + PING,
        PREFACE + GOAWAY,
        PREFACE + frame(Kind.SETTINGS, flags=1),
        OPENING + frame(Kind.GOAWAY, bytes(8), stream_id=1),
        OPENING + frame(Kind.CONTINUATION, stream_id=1),
        OPENING + frame(Kind.RST, bytes(4), stream_id=1),
    ],
)
def test_what_may_not_be_is_refused(wire: bytes) -> None:
    with pytest.raises(Violation) as caught:
        gate().feed(wire, 0.0)
    assert caught.value.code is ErrorCodes.PROTOCOL_ERROR


@pytest.mark.parametrize("wire", [b"\x00\x40\x01\x00\x00\0\0\0\1", frame(Kind.GOAWAY, bytes(7))])
def test_a_wrong_size_is_refused_before_its_bytes_have_come(wire: bytes) -> None:
    with pytest.raises(Violation) as caught:
        gate().feed(OPENING + wire, 0.0)
    assert caught.value.code is ErrorCodes.FRAME_SIZE_ERROR
