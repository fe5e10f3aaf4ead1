"""The verdict on each frame in each stream state, and the engine that follows it."""

import itertools

import pytest

from serving.net.proxy.http2.frames import (
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    VERDICTS,
    WINDOW_UPDATE,
    ErrorCode,
    FrameVerdict,
    StreamState,
)
from tests.integration.proxy.h2frames import OPENING, Kind, fields, frame, request
from tests.unit.net.proxy.http2.recorder import Recorder

KINDS = (DATA, HEADERS, PRIORITY, RST_STREAM, WINDOW_UPDATE)
PAYLOADS = {
    DATA: b"x",
    HEADERS: fields(("a", "b")),
    PRIORITY: bytes(5),
    RST_STREAM: bytes(4),
    WINDOW_UPDATE: b"\0\0\0\1",
}
STATUS = [(b":status", b"200")]


def in_state(state: StreamState) -> tuple[Recorder, int]:
    """A server with a stream in this state, and the stream's id."""
    recorder = Recorder()
    recorder.feed(OPENING)
    if state is StreamState.IDLE:
        return recorder, 1
    if state is StreamState.SKIPPED:
        recorder.feed(request(3))
        return recorder, 1
    if state is StreamState.FORGOTTEN:
        for number in range(1, 1001, 2):
            recorder.feed(request(number))
            recorder.engine.send_head(recorder.stream(number), None, lambda: STATUS, ended=True)
        return recorder, 1
    has_ended = state in (StreamState.HALF_CLOSED_REMOTE, StreamState.CLOSED)
    recorder.feed(request(1, flags=5 if has_ended else 4))
    if state in (StreamState.HALF_CLOSED_LOCAL, StreamState.CLOSED):
        recorder.engine.send_head(recorder.stream(1), None, lambda: STATUS, ended=True)
    elif state is StreamState.RESET:
        recorder.engine.reset(recorder.stream(1), ErrorCode.CANCEL)
    return recorder, 1


def test_every_frame_has_a_verdict_in_every_state() -> None:
    assert {kind: set(verdicts) for kind, verdicts in VERDICTS.items()} == {kind: set(StreamState) for kind in KINDS}


@pytest.mark.parametrize(("kind", "state"), [*itertools.product(KINDS, StreamState)])
def test_engine_follows_verdict_table(kind: int, state: StreamState) -> None:
    recorder, number = in_state(state)
    recorder.engine.out.clear()
    feeds = recorder.feed(frame(kind, PAYLOADS[kind], flags=5 if kind == HEADERS else 0, stream_id=number))
    wire = recorder.engine.output()
    was_reset = frame(Kind.RST, ErrorCode.STREAM_CLOSED.to_bytes(4), stream_id=number) in wire
    verdict = VERDICTS[kind][state]
    if verdict is FrameVerdict.BROKEN_CONNECTION:
        assert recorder.violation is ErrorCode.PROTOCOL_ERROR
    elif verdict is FrameVerdict.CLOSED_CONNECTION:
        assert recorder.violation is ErrorCode.STREAM_CLOSED
    else:
        assert recorder.violation is None
        assert was_reset is (verdict is FrameVerdict.CLOSED_STREAM)
        is_noted = kind != WINDOW_UPDATE and verdict is FrameVerdict.TAKE
        assert bool([note for note in feeds if note[0] in ("open", "head", "data", "reset")]) is (
            is_noted or (was_reset and state is StreamState.HALF_CLOSED_REMOTE)
        )
