"""Any frames, valid or not, have the same effect in this engine and in h2, except for listed differences."""

from collections.abc import Sequence
from typing import Any

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from hypothesis import event, given, settings
from hypothesis import strategies as st

from serving.net.proxy.http2.frames import ErrorCode
from tests.integration.proxy.h2frames import GET, OPENING, PREFACE, Kind, fields, frame
from tests.integration.proxy.h2frames import settings as settings_frame
from tests.unit.net.proxy.http2.recorder import Recorder

STATUS = fields((":status", "200"))
IDS = [1, 1, 1, 3, 3, 5, 0, 2]
GOOD = {
    Kind.DATA: [b"", b"x", b"y" * 9000],
    Kind.HEADERS: [fields(*GET), fields(("a", "b")), STATUS, b"\x82\x86\x84\x41\x01h", b"\x40\x01x\x01y"],
    Kind.PRIORITY: [bytes(4) + b"\x10"],
    Kind.RST: [bytes(4), b"\0\0\0\x08"],
    Kind.SETTINGS: [b"", b"\0\4\0\0\0\0", b"\0\4\0\1\0\0", b"\0\1\0\0\0\0", b"\0\2\0\0\0\0", b"\0\3\0\0\0\1"],
    Kind.PING: [b"12345678"],
    Kind.GOAWAY: [bytes(8)],
    Kind.WINDOW_UPDATE: [b"\0\0\0\1", b"\0\1\0\0"],
    Kind.CONTINUATION: [b"", b"\x40\x01x\x01y"],
    0xEE: [b"", b"what"],
}
BAD = {
    Kind.DATA: [b"\xff"],
    Kind.HEADERS: [b"\xff\xff\xff\xff\xff", b"\xbe", b"\x40"],
    Kind.PRIORITY: [b"1234", b"\0\0\0\1\x10"],
    Kind.RST: [b"123"],
    Kind.SETTINGS: [b"12345", b"\0\4\x80\0\0\0", b"\0\5\0\0\0\1", b"\0\2\0\0\0\2"],
    Kind.PING: [b"1234567"],
    Kind.GOAWAY: [b"1"],
    Kind.WINDOW_UPDATE: [bytes(4), b"\x7f\xff\xff\xff", b"123"],
    Kind.PUSH_PROMISE: [bytes(4) + STATUS],
}
ON_CONNECTION = (Kind.SETTINGS, Kind.PING, Kind.GOAWAY)

Outcome = tuple[str, list[tuple[Any, ...]]]


@st.composite
def frames_of(draw: st.DrawFn, payloads: dict[int, list[bytes]]) -> bytes:
    kind = draw(st.sampled_from(sorted(payloads)))
    stream_id = draw(st.sampled_from([0] if kind in ON_CONNECTION else IDS))
    flags = draw(st.sampled_from([0, 0, 1, 4, 5, 5, 8, 0x25]))
    if kind in ON_CONNECTION:
        flags &= 1 if kind != Kind.SETTINGS else 0
    return frame(kind, draw(st.sampled_from(payloads[kind])), flags=flags, stream_id=stream_id)


any_frame = frames_of(GOOD) | frames_of(GOOD) | frames_of(GOOD) | frames_of(BAD)


class Oracle:
    """h2's reading of frames, without the content of heads."""

    def __init__(self, *, is_server: bool) -> None:
        config = H2Configuration(
            client_side=not is_server,
            header_encoding=None,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
            validate_outbound_headers=False,
        )
        self.h2 = H2Connection(config)
        self.h2.initiate_connection()
        self.h2.data_to_send()

    def feed(self, wire: bytes) -> Outcome:
        try:
            events = self.h2.receive_data(wire)
        except ProtocolError:
            return "connection", []
        results = [record for h2_event in events if (record := _record_of(h2_event)) is not None]
        # A frame that h2 answers with RST_STREAM.
        ours = [
            h2_event for h2_event in events if isinstance(h2_event, h2.events.StreamReset) and not h2_event.remote_reset
        ]
        for h2_event in events:
            if isinstance(h2_event, h2.events.DataReceived) and h2_event.flow_controlled_length:
                self.h2.acknowledge_received_data(h2_event.flow_controlled_length, h2_event.stream_id)
        is_reset = bool(ours) or _has_reset(self.h2.data_to_send())
        return ("stream" if is_reset else "ok"), [] if is_reset else results


def _record_of(h2_event: h2.events.Event) -> tuple[Any, ...] | None:
    if isinstance(h2_event, h2.events.RequestReceived | h2.events.ResponseReceived | h2.events.TrailersReceived):
        assert h2_event.headers is not None
        return ("head", h2_event.stream_id, [(bytes(name), bytes(value)) for name, value in h2_event.headers])
    if isinstance(h2_event, h2.events.DataReceived) and h2_event.data:
        return ("data", h2_event.stream_id, h2_event.data)
    if isinstance(h2_event, h2.events.StreamEnded):
        return ("end", h2_event.stream_id)
    if isinstance(h2_event, h2.events.StreamReset) and h2_event.remote_reset:
        return ("reset", h2_event.stream_id)
    return None


def _has_reset(wire: bytes) -> bool:
    while wire:
        end = 9 + int.from_bytes(wire[:3])
        if wire[3] == Kind.RST:
            return True
        wire = wire[end:]
    return False


def _ours(recorder: Recorder, wire: bytes) -> Outcome:
    notes = recorder.feed(wire)
    if recorder.violation is not None:
        return "connection", []
    if _has_reset(recorder.engine.output()):
        return "stream", []
    results: list[tuple[Any, ...]] = []
    for note in notes:
        if note[0] in ("open", "head"):
            results.append(("head", note[1], note[2]))
        elif note[0] == "data" and note[2]:
            results.append(("data", note[1], note[2]))
        elif note[0] == "reset":
            results.append(("reset", note[1]))
        if note[0] in ("open", "head", "data") and note[3]:
            results.append(("end", note[1]))
    return "ok", results


def may_differ(wire: bytes, ours: Outcome, theirs: Outcome, recorder: Recorder) -> str:
    """Why an outcome differs from h2's; empty if there is no reason."""
    kind, stream_id = wire[3], int.from_bytes(wire[5:9])
    reasons = {
        "a head on a closed stream ends the connection, as RFC 9113, 5.1 asks; h2 resets the stream": kind
        == Kind.HEADERS
        and recorder.violation is ErrorCode.STREAM_CLOSED,
        "a reset of a stream that was skipped is ignored; h2 knows none": kind == Kind.RST and ours[0] == "ok",
        "frames of a stream that we reset are passed over; h2 answers each with RST_STREAM": ours == ("ok", [])
        and theirs[0] == "stream",
        "a window that is too large ends the stream only (RFC 9113, 6.9.1); h2 ends the connection": kind
        == Kind.WINDOW_UPDATE
        and stream_id != 0
        and ours[0] == "stream",
        "a GOAWAY that is too short, and frames of an odd form, pass h2": ours[0] == "connection"
        and recorder.violation in (ErrorCode.FRAME_SIZE_ERROR, ErrorCode.PROTOCOL_ERROR)
        and theirs[0] in ("ok", "stream"),
        "a body before its head is refused by the stream, and not by the engine": kind == Kind.DATA
        and not recorder.engine.is_server
        and theirs[0] == "connection",
        "a table above the limit of the peer": kind == Kind.HEADERS
        and theirs[0] == "connection"
        and ours[0] == "stream",
        "h2 ends the connection at a head that is no trailers": kind in (Kind.HEADERS, Kind.CONTINUATION)
        and theirs[0] == "connection",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def compared(recorder: Recorder, oracle: Oracle, wires: Sequence[bytes]) -> None:
    for wire in wires:
        ours, theirs = _ours(recorder, wire), oracle.feed(wire)
        if ours == theirs:
            # In h2, a GOAWAY ends the connection.
            if ours[0] == "connection" or wire[3] == Kind.GOAWAY:
                return
            continue
        reason = may_differ(wire, ours, theirs, recorder)
        assert reason, (wire, ours, theirs, recorder.violation)
        event(reason)
        # After a difference both are in different states.
        return


@given(wires=st.lists(any_frame, max_size=14))
@settings(deadline=None)
def test_server_handles_frames_like_h2(wires: list[bytes]) -> None:
    recorder, oracle = Recorder(), Oracle(is_server=True)
    recorder.feed(OPENING)
    recorder.engine.out.clear()
    oracle.feed(PREFACE)
    oracle.feed(settings_frame())
    compared(recorder, oracle, wires)


@given(wires=st.lists(any_frame, max_size=14))
@settings(deadline=None)
def test_client_handles_frames_like_h2(wires: list[bytes]) -> None:
    recorder, oracle = Recorder(is_server=False), Oracle(is_server=False)
    recorder.feed(settings_frame())
    for stream_id in (1, 3):
        stream = recorder.request()
        recorder.engine.send_head(stream, None, lambda: [(b":method", b"GET")], ended=stream_id == 3)
        oracle.h2.send_headers(stream_id, [(b":method", b"GET")], end_stream=stream_id == 3)
    recorder.engine.out.clear()
    oracle.h2.data_to_send()
    oracle.feed(settings_frame())
    compared(recorder, oracle, wires)
