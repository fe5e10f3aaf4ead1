"""The engine without a socket: input, output and counts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.frames import ErrorCode
from tests.integration.proxy.h2frames import GET, OPENING, PREFACE, Kind, fields, frame, request, settings
from tests.unit.net.proxy.http2.recorder import Recorder

PING = frame(Kind.PING, b"12345678")
GOAWAY = frame(Kind.GOAWAY, (5).to_bytes(4) + (2).to_bytes(4) + b"why")
OPEN = request(1, flags=4)
FRAME_MAX = 16_384


def opened(**limits: float) -> Recorder:
    recorder = Recorder(settings=HttpSettings(**limits))  # type: ignore[arg-type]  # counts are whole
    recorder.feed(OPENING)
    recorder.engine.out.clear()
    return recorder


def data(payload: bytes, *, flags: int = 0, stream_id: int = 1) -> bytes:
    return frame(Kind.DATA, payload, flags=flags, stream_id=stream_id)


def window(increment: int, stream_id: int = 0) -> bytes:
    return frame(Kind.WINDOW_UPDATE, increment.to_bytes(4), stream_id=stream_id)


def sent(recorder: Recorder) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of pending frames."""
    wire, results = recorder.engine.output(), []
    while wire:
        end = 9 + int.from_bytes(wire[:3])
        results.append((wire[3], wire[4], int.from_bytes(wire[5:9]), wire[9:end]))
        wire = wire[end:]
    return results


frames = st.sampled_from(
    [
        PING,
        GOAWAY,
        request(1),
        request(3, flags=0) + frame(Kind.CONTINUATION, flags=4, stream_id=3),
        request(5, flags=4) + data(b"xyz", stream_id=5) + data(b"", flags=1, stream_id=5),
        frame(0xEE, b"xyz"),
    ]
)


@given(parts=st.lists(frames, max_size=8, unique=True), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_input_split_does_not_change_events(parts: list[bytes], cuts: list[int]) -> None:
    parts.sort(key=lambda part: part[5:9])
    wire = OPENING + b"".join(parts)
    places = sorted({0, len(wire), *[cut for cut in cuts if cut < len(wire)]})
    recorder, other = Recorder(), Recorder()
    recorder.feed(*[wire[start:end] for start, end in itertools.pairwise(places)])
    other.feed(wire)
    assert recorder.notes == other.notes
    assert recorder.violation is None
    assert not recorder.engine.is_amid_head


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
def test_incomplete_head_is_reported_as_amid_head(rest: bytes) -> None:
    recorder = Recorder()
    recorder.feed(rest)
    assert recorder.engine.is_amid_head is (rest not in (PREFACE, OPENING))


def test_incomplete_body_is_not_amid_head() -> None:
    recorder = opened()
    recorder.feed(OPEN, data(b"body")[:-1])
    assert not recorder.engine.is_amid_head


@pytest.mark.parametrize(
    ("limit", "costs"),
    [
        ("http2_pings_max", PING),
        ("http2_settings_max", settings()),
        ("http2_idle_frames_max", data(b"")),
        ("http2_idle_frames_max", frame(0xEE)),
        ("http2_idle_frames_max", frame(Kind.PING, bytes(8), flags=1)),
        ("http2_idle_frames_max", frame(Kind.SETTINGS, flags=1)),
        ("http2_idle_frames_max", GOAWAY),
    ],
)
def test_idle_frames_are_limited_per_period(limit: str, costs: bytes) -> None:
    recorder = opened(**{limit: 3}, http2_count_period_s=10.0)
    # The client's first settings count.
    recorder.feed(OPEN, *[costs] * (3 - ("settings" in limit)), now_s=1.0)
    recorder.feed(*[costs] * 3, now_s=12.0)
    assert recorder.violation is None
    recorder.feed(costs, now_s=13.0)
    assert recorder.violation is ErrorCode.ENHANCE_YOUR_CALM


def test_pings_are_not_limited_while_responses_are_sent() -> None:
    recorder = opened(http2_pings_max=2)
    for _ in range(10):
        recorder.feed(PING * 2)
        recorder.engine.budget.earn_pings()
    assert recorder.violation is None


@pytest.mark.parametrize("answered", [0, 5])
def test_each_completed_response_allows_one_more_reset(answered: int) -> None:
    recorder = opened(http2_resets_max=3)
    ids = itertools.count(1, 2)
    for number in itertools.islice(ids, answered):
        recorder.feed(request(number))
        recorder.engine.send_head(recorder.stream(number), None, lambda: [(b":status", b"200")], ended=True)
    resets = 0
    while recorder.violation is None:
        number = next(ids)
        recorder.feed(request(number), frame(Kind.RST, bytes(4), stream_id=number))
        resets += 1
    assert (resets, recorder.violation) == (4 + answered, ErrorCode.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize(
    "fault",
    [
        data(b"x", flags=1) + data(b"x"),
        frame(Kind.HEADERS, fields(("a", "b")), flags=5, stream_id=1) * 2,
        window(2**31 - 1, 1),
    ],
)
def test_resets_provoked_by_client_count_as_its_resets(fault: bytes) -> None:
    recorder = opened(http2_resets_max=3)
    for number in range(1, 9, 2):
        mine = fault.replace(b"\0\0\0\1", number.to_bytes(4))
        recorder.feed(request(number, flags=4), mine)
        assert (Kind.RST, number) in {(kind, stream_id) for kind, _, stream_id, _ in sent(recorder)}
    assert recorder.violation is ErrorCode.ENHANCE_YOUR_CALM


def test_window_updates_are_limited_relative_to_sent_frames() -> None:
    recorder = opened(http2_idle_frames_max=1)
    recorder.feed(window(1) * 100)
    for number in range(1, 21, 2):
        recorder.feed(request(number))
        recorder.engine.send_last(recorder.stream(number), b"x")
    recorder.feed(window(1) * 100)
    assert recorder.violation is None
    recorder.feed(window(1) * 2)
    assert recorder.violation is ErrorCode.ENHANCE_YOUR_CALM


def test_window_updates_of_ended_stream_are_counted() -> None:
    recorder = opened(http2_idle_frames_max=1)
    for number in range(1, 401, 2):
        recorder.feed(request(number))
        recorder.engine.send_last(recorder.stream(number), b"x")
        recorder.feed(window(1, number))
    assert recorder.violation is None
    recorder.feed(window(1, 399) * (100 + 200 * 10 - 200))
    assert recorder.violation is None
    recorder.feed(window(1, 399) * 2)
    assert recorder.violation is ErrorCode.ENHANCE_YOUR_CALM


def test_padding_only_frames_replenish_the_window() -> None:
    recorder = opened()
    recorder.feed(OPEN, data(b"\xfe" + bytes(254), flags=8) * 400)
    assert recorder.violation is None
    assert recorder.stream(1).window_left > 0


@pytest.mark.parametrize(
    ("limits", "wire", "code"),
    [
        ({"http2_continuations_max": 1}, frame(Kind.CONTINUATION, stream_id=1) * 2, ErrorCode.ENHANCE_YOUR_CALM),
        ({"head_bytes_max": 1024}, frame(Kind.CONTINUATION, bytes(8192), stream_id=1), ErrorCode.ENHANCE_YOUR_CALM),
        ({}, frame(Kind.CONTINUATION, stream_id=3), ErrorCode.PROTOCOL_ERROR),
        ({}, data(b""), ErrorCode.PROTOCOL_ERROR),
        ({}, GOAWAY, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_continued_head_is_bounded_and_not_interruptible(
    limits: dict[str, float], wire: bytes, code: ErrorCode
) -> None:
    recorder = opened(**limits)
    recorder.feed(frame(Kind.HEADERS, fields(), stream_id=1), wire)
    assert recorder.violation is code


def test_head_that_decompresses_beyond_limit_ends_connection() -> None:
    # One entry of 4 KB in the table, and 100 bytes that repeat it 100 times.
    bomb = b"\x40\x01x\x7f\xa1\x1e" + bytes([97]) * 4000 + b"\xbe" * 100
    recorder = opened(head_bytes_max=8192)
    recorder.feed(frame(Kind.HEADERS, bomb, flags=5, stream_id=1))
    assert recorder.violation is ErrorCode.ENHANCE_YOUR_CALM


def test_body_waits_for_window_and_streams_continue_in_turns() -> None:
    recorder = opened()
    recorder.feed(request(1), request(3))
    for number in (1, 3):
        recorder.engine.send_last(recorder.stream(number), bytes(5 * FRAME_MAX))
    assert sum(len(payload) for *_, payload in sent(recorder)) == 65_535
    assert recorder.stream(3).is_full
    recorder.feed(window(2 * FRAME_MAX))
    ids = [stream_id for kind, _, stream_id, _ in sent(recorder) if kind == Kind.DATA]
    assert set(ids) == {3}
    recorder.feed(window(2 * FRAME_MAX, 1), window(2 * FRAME_MAX, 3), window(10 * FRAME_MAX))
    assert [flags for kind, flags, *_ in sent(recorder) if kind == Kind.DATA][-1] == 1
    assert recorder.engine.streams == {}


def test_trailers_wait_for_the_body_before_them() -> None:
    recorder = opened()
    recorder.feed(settings((4, 5)), request(1))
    recorder.engine.out.clear()
    recorder.engine.send_last(recorder.stream(1), b"0123456789", trailers=b"a: b\r\n")
    assert [payload for *_, payload in sent(recorder)] == [b"01234"]
    recorder.feed(window(5, 1))
    assert [(kind, flags) for kind, flags, *_ in sent(recorder)] == [(Kind.DATA, 0), (Kind.HEADERS, 5)]


def test_body_and_trailers_are_sent_after_full_socket_drains() -> None:
    recorder = opened()
    recorder.feed(request(1))
    recorder.engine.is_full = True
    recorder.engine.send_last(recorder.stream(1), b"body", trailers=b"a: b\r\n")
    assert sent(recorder) == []
    recorder.engine.is_full = False
    recorder.engine.flush()
    assert [kind for kind, *_ in sent(recorder)] == [Kind.DATA, Kind.HEADERS]


def test_window_of_fast_stream_grows_and_next_stream_starts_small() -> None:
    recorder = opened()
    recorder.feed(OPEN)
    for _ in range(100):
        recorder.feed(data(bytes(FRAME_MAX)))
    grown = recorder.stream(1).window_bytes
    assert 500_000 < grown <= 2**20
    recorder.feed(data(b"", flags=1), request(3, flags=4))
    assert recorder.stream(3).window_bytes == 65_535


def test_total_growth_of_windows_is_bounded() -> None:
    recorder = opened()
    for number in range(1, 100, 2):
        recorder.feed(request(number, flags=4), *[data(bytes(FRAME_MAX), stream_id=number)] * 70)
    assert sum(stream.window_bytes - 65_535 for stream in recorder.engine.streams.values()) <= 4 * 2**20


def test_paused_stream_receives_at_most_one_window() -> None:
    recorder = Recorder(is_paused=True)
    recorder.feed(OPENING, OPEN, *[data(bytes(FRAME_MAX))] * 5)
    assert recorder.violation is ErrorCode.FLOW_CONTROL_ERROR
    assert sum(len(note[2]) for note in recorder.notes if note[0] == "data") <= 65_535


def test_large_head_is_sent_in_continuations_and_decoded() -> None:
    recorder, client = opened(), Recorder(is_server=False)
    client.request()
    recorder.feed(request(1))
    lines = [(b":status", b"200"), *[(b"x%d" % number, b"\xff" * 3000) for number in range(9)]]
    recorder.engine.send_head(recorder.stream(1), None, lambda: lines, ended=True)
    client.feed(settings(), recorder.engine.output())
    assert client.notes[0] == ("head", 1, lines, True)


def test_client_rejects_push_and_unrequested_streams() -> None:
    for wire in (
        frame(Kind.PUSH_PROMISE, bytes(4) + fields(*GET), flags=4, stream_id=1),
        request(1),
        request(2),
        settings((2, 1)),
    ):
        recorder = Recorder(is_server=False)
        recorder.feed(settings(), wire)
        assert recorder.violation is ErrorCode.PROTOCOL_ERROR


def test_recently_ended_streams_are_remembered() -> None:
    recorder = opened()
    for number in range(1, 2001, 2):
        recorder.feed(request(number))
        recorder.engine.send_head(recorder.stream(number), None, lambda: [(b":status", b"200")], ended=True)
    recorder.engine.out.clear()
    # The end of stream 1 is no longer remembered: the stream is reset, and the connection remains open.
    recorder.feed(request(1), window(1, 1), frame(Kind.RST, bytes(4), stream_id=1), data(b"x", stream_id=3))
    assert [(kind, stream_id) for kind, _, stream_id, _ in sent(recorder)] == [(Kind.RST, 1)]
    assert recorder.violation is None
    recorder.feed(request(1999))
    assert recorder.violation is ErrorCode.STREAM_CLOSED


def test_pending_bytes_remain_while_transport_is_full() -> None:
    batches: list[int] = []

    class Full(Recorder):
        def write_now(self) -> None:
            batches.append(sum(len(payload) for *_, payload in sent(self)))
            self.engine.is_full = True

    full = Full()
    full.feed(OPENING, OPEN)
    full.engine.out.clear()
    stream = full.stream(1)
    stream.send_left = full.engine.send_left = 2**30
    full.engine.send_data(stream, bytes(1_000_000))
    for count in (1, 2, 3):
        assert batches == [4 * FRAME_MAX] * count
        assert len(stream.pending or b"") == 1_000_000 - sum(batches)
        full.engine.flush()
        assert (len(batches), full.engine.out) == (count, []), "a full transport gets no frames"
        full.engine.is_full = False
        full.engine.flush()


def test_receive_processes_at_most_256_frames_per_call() -> None:
    recorder = opened(http2_idle_frames_max=10_000)
    recorder.feed(OPEN)
    counts = []
    recorder.engine.receive(data(b"x") * 1_000, 0.0)
    counts.append(len(recorder.notes))
    while recorder.engine.has_more:
        assert recorder.engine.is_costly
        recorder.engine.receive(b"", 0.0)
        counts.append(len(recorder.notes))
    assert [after - before for before, after in itertools.pairwise(counts)] == [256, 256, 1_000 - 3 * 256]


def test_frames_of_normal_size_are_not_costly() -> None:
    recorder = opened()
    recorder.feed(OPEN)
    recorder.engine.receive(data(b"x" * 500) * 100, 0.0)
    assert (recorder.engine.is_costly, recorder.engine.has_more) == (False, False)
