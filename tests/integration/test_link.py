"""A reconnecting websocket link over real sockets: queued frames, dropped frames, and the log of a lost connection."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from serving.net.wire.link import Link, LinkSettings
from tests.eventually import until

QUICK = LinkSettings(pause_min_s=0.001, pause_max_s=0.01, frames_max=1, wait=True)


class RecordingServer:
    """A server that records received frames."""

    def __init__(self) -> None:
        self.frames: list[str | bytes] = []

    async def handle(self, connection: ServerConnection) -> None:
        async for frame in connection:
            self.frames.append(frame)


@contextlib.asynccontextmanager
async def running_link(link: Link) -> AsyncIterator[None]:
    running = asyncio.create_task(link.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


def link_to(server: Server, settings: LinkSettings = QUICK, *, on_connected: Callable[[], None] = lambda: None) -> Link:
    url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/stats"
    return Link(url, token=lambda: "t", draw=lambda: 0.0, settings=settings, on_connected=on_connected)


async def test_link_sends_newest_queued_frame_once_connected_and_flush_waits_for_it() -> None:
    other = RecordingServer()
    async with serve(other.handle, "127.0.0.1", 0) as server:
        link = link_to(server)
        await link.flush(60)
        assert [link.send(b"old"), link.send(b"new")] == [True, True]
        assert repr(link).endswith("/stats, not connected, 1 to send, 0 sent, 1 dropped)")
        async with running_link(link):
            await link.flush(60)
            await until(lambda: other.frames)
    assert (other.frames, link.sent_count, link.dropped_count) == ([b"new"], 1, 1)


async def test_flush_returns_after_its_timeout() -> None:
    async with serve(RecordingServer().handle, "127.0.0.1", 0) as server:
        link = link_to(server)
        link.send(b"x")
        await link.flush(0.001)
        assert link.sent_count == 0


async def test_connection_loss_is_logged_once_and_each_attempt_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "serving.net.wire.link")
    async with serve(RecordingServer().handle, "127.0.0.1", 0) as server:
        link = link_to(server)
        async with running_link(link):
            await until(lambda: link.is_connected)
            assert link.failure_count == 0
            server.close(close_connections=False)
            for connection in list(server.connections):
                await connection.close(4008, "go away")
            await until(lambda: link.failure_count > 3)
    records = [record for record in caplog.records if record.name == "serving.net.wire.link"]
    assert records[0].message == "link.connected"
    assert [record.message for record in records].count("link.lost") == 1
    assert "4008" in getattr(records[1], "error", "")
    assert "go away" in getattr(records[1], "error", "")


async def test_link_reconnects_after_normal_closure() -> None:
    async with serve(RecordingServer().handle, "127.0.0.1", 0) as server:
        connected: list[str] = []
        link = link_to(server, on_connected=lambda: connected.append("yes"))
        async with running_link(link):
            for count in (1, 2):

                def is_back(count: int = count) -> bool:
                    return len(connected) == count and bool(server.connections)

                # The time without a connection is too short to be observed reliably.
                await until(is_back)
                for connection in list(server.connections):
                    await connection.close()
            await until(lambda: len(connected) == 3)


async def test_frames_are_dropped_without_connection_unless_waiting_is_enabled() -> None:
    async with serve(RecordingServer().handle, "127.0.0.1", 0) as server:
        link = link_to(server, LinkSettings(frames_max=4))
        assert not link.send(b"x")
        async with running_link(link):
            await until(lambda: link.is_connected)
            for _ in range(6):
                link.send(b"x")
        assert link.dropped_count + link.sent_count == 7
        assert link.dropped_count >= 3
