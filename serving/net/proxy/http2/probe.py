"""Sends one GET over HTTP/2 with prior knowledge, to probe h2c apps."""

import asyncio
from collections.abc import Iterable

from serving.core.settings.http import HttpSettings
from serving.net.proxy.http2.engine import Http2Engine
from serving.net.proxy.http2.flow import EngineStream
from serving.net.proxy.http2.frames import Violation
from serving.net.proxy.http2.hpack_decoder import FieldSection

_READ_BYTES = 65_536


class _ProbeStream(EngineStream):
    """Receives the status of a response. ``status`` is None while it is pending, and 0 if there is none."""

    __slots__ = ("status",)

    def __init__(self, engine: Http2Engine) -> None:
        super().__init__(engine.next_id(), send_left=0, peer_ended=False)
        self.status: int | None = None

    def receive_head(self, section: FieldSection, *, ended: bool) -> None:
        """Store the status of a response head."""
        del ended
        status = dict(section.fields).get(b":status", b"")
        if self.status is None and not status.startswith(b"1"):
            self.status = int(status) if status.isdigit() else 0

    def receive_data(self, payload: bytes) -> None:
        """Ignore the body."""

    receive_last = receive_data

    def receive_reset(self, code: int) -> None:
        """Record that there is no response."""
        del code
        self.status = self.status or 0

    def sent(self, byte_count: int) -> None:
        """Do nothing: no bytes are buffered."""
        del byte_count


class _StatusRequest:
    """The connection of one probe."""

    def __init__(self) -> None:
        self.engine = Http2Engine(self, HttpSettings(), is_server=False, now_s=0.0)
        self.stream = _ProbeStream(self.engine)
        self.engine.streams[self.stream.stream_id] = self.stream

    def open_stream(self, stream_id: int, section: FieldSection, *, ended: bool) -> None:
        """Never called: a server opens no streams."""
        raise AssertionError(stream_id, section, ended)

    def write_now(self) -> None:
        """Do nothing: the request has no body."""

    def emptied(self) -> None:
        """Do nothing: the connection ends with the probe."""

    def peer_leaves(self, last_stream_id: int) -> None:
        """Record that the app accepts no new streams, perhaps including this one."""
        if last_stream_id < self.stream.stream_id:
            self.stream.receive_reset(0)

    def on_ping_ack(self, payload: bytes) -> None:
        """Do nothing: this side sends no pings."""


async def get_status(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    path: str,
    host: str,
    headers: Iterable[tuple[str, str]],
) -> int:
    """The status of the response; 0 if there is no response. The connection cannot be reused."""
    probe = _StatusRequest()
    engine, stream = probe.engine, probe.stream
    named = {name.lower(): value for name, value in headers}
    pseudo = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", named.pop("host", host))]
    fields = [(name.encode(), value.encode()) for name, value in [*pseudo, *named.items()]]
    engine.send_head(stream, None, lambda: fields, ended=True)
    while True:
        writer.write(engine.output())
        data = await reader.read(_READ_BYTES)
        if not data:
            return 0
        try:
            engine.receive(data, 0.0)
        except Violation:
            return 0
        if stream.status is not None:
            return stream.status
