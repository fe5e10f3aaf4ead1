"""An engine whose owner records events and accepts every stream."""

from typing import Any

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.flow import EngineStream
from serving.net.proxy.http2.frames import ErrorCode, Violation
from serving.net.proxy.http2.hpack_decoder import FieldSection


class RecordingStream(EngineStream):
    """A stream that records its input."""

    __slots__ = ("_owner", "is_paused")

    def __init__(self, owner: "Recorder", stream_id: int, *, ended: bool) -> None:
        super().__init__(stream_id, send_left=owner.engine.peer_window, peer_ended=ended)
        self._owner = owner
        self.is_paused = owner.is_paused

    def receive_head(self, section: FieldSection, *, ended: bool) -> None:
        self._owner.record("head", self.stream_id, [*section.fields], ended)

    def receive_data(self, payload: bytes) -> None:
        self._owner.record("data", self.stream_id, payload, False)
        if not self.is_paused:
            self._owner.engine.replenish(self)

    def receive_last(self, payload: bytes) -> None:
        self._owner.record("data", self.stream_id, payload, True)

    def receive_reset(self, code: int) -> None:
        self._owner.record("reset", self.stream_id, code)

    def sent(self, byte_count: int) -> None:
        del byte_count
        self._owner.record("sent", self.stream_id)


class Recorder:
    """Owns an engine and records its events. ``is_paused`` streams do not replenish their windows."""

    def __init__(
        self, *, is_server: bool = True, is_paused: bool = False, settings: HttpSettings | None = None
    ) -> None:
        self.engine = Http2Engine(self, settings or HttpSettings(), is_server=is_server, now_s=0.0)
        self.is_paused = is_paused
        self.notes: list[tuple[Any, ...]] = []
        self.violation: ErrorCode | None = None

    def record(self, *what: object) -> None:
        self.notes.append(what)

    def feed(self, *pieces: bytes, now_s: float = 0.0) -> list[tuple[Any, ...]]:
        """Feed bytes to the engine. Returns the events that they cause."""
        before = len(self.notes)
        for piece in pieces:
            if self.violation is None:
                try:
                    self.engine.receive(piece, now_s)
                    while self.engine.has_more:
                        self.engine.receive(b"", now_s)
                except Violation as violation:
                    self.violation = violation.code
        return self.notes[before:]

    def stream(self, stream_id: int) -> EngineStream:
        return self.engine.streams[stream_id]

    def request(self) -> EngineStream:
        """Begin a stream as a client."""
        stream = RecordingStream(self, self.engine.next_id(), ended=False)
        self.engine.streams[stream.stream_id] = stream
        return stream

    def open_stream(self, stream_id: int, section: FieldSection, *, ended: bool) -> None:
        if len(self.engine.streams) >= self.engine.settings.http2_streams_max:
            self.engine.refuse(stream_id, ErrorCode.REFUSED_STREAM)
            return
        self.engine.streams[stream_id] = RecordingStream(self, stream_id, ended=ended)
        self.record("open", stream_id, [*section.fields], ended)

    def write_now(self) -> None:
        self.record("write")

    def emptied(self) -> None:
        self.record("emptied")

    def peer_leaves(self, last_stream_id: int) -> None:
        self.record("leaves", last_stream_id)

    def on_ping_ack(self, payload: bytes) -> None:
        self.record("pong", payload)
