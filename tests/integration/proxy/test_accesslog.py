"""The access log: sampled lines of requests, which never block a request."""

import asyncio
import threading

import msgspec

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.accesslog import _WAITING_MAX, AccessLog, AccessLogEntry, stdout_log
from serving.net.proxy.server.listener import HttpServer
from tests.integration.proxy.peers import Forwarder, Link, backed, get, ok


async def send_requests(log: AccessLog, count: int) -> None:
    """Send `count` requests to a proxy that writes this log."""
    async with backed(ok) as backend:
        server = HttpServer(HttpSettings(), access_log=log)
        address = await server.listen(("127.0.0.1", 0), Forwarder(backend.address), listener="public")
        client = await Link.to(address)
        for place in range(count):
            client.send(get(b"/%d" % place, b"User-Agent: me\r\n"))
            await client.message()
        await client.closed()
        await server.finish(grace_s=1)


def lines(written: list[bytes]) -> list[AccessLogEntry]:
    return [msgspec.json.decode(line, type=AccessLogEntry) for line in b"".join(written).splitlines()]


async def test_access_log_writes_one_line_per_request_with_its_outcome() -> None:
    written: list[bytes] = []
    log = AccessLog(ratio=1.0, write=written.append, wall=lambda: 5.0)
    await send_requests(log, 2)
    await log.close()
    first, second = lines(written)
    assert (first.method, first.host, first.target, first.status, first.outcome) == ("GET", "h", "/0", 200, "answered")
    assert (first.at_s, first.listener, first.client, first.agent) == (5.0, "public", "127.0.0.1", "me")
    assert first.upstream.startswith("127.0.0.1:")
    assert 0 < first.duration_s < 5
    assert second.target == "/1"


async def test_access_log_with_ratio_of_a_quarter_logs_every_fourth_request() -> None:
    written: list[bytes] = []
    log = AccessLog(ratio=0.25, write=written.append, wall=lambda: 5.0)
    await send_requests(log, 8)
    await log.close()
    assert [line.target for line in lines(written)] == ["/3", "/7"]


async def test_blocked_log_writer_does_not_block_requests() -> None:
    read, begun = threading.Event(), threading.Event()

    def write(data: bytes) -> None:
        begun.set()
        read.wait(100)
        written.append(data)

    written: list[bytes] = []
    log = AccessLog(ratio=1.0, write=write, wall=lambda: 5.0)
    await send_requests(log, 1)
    await asyncio.to_thread(begun.wait, 60)
    await send_requests(log, 50)
    assert not written
    read.set()
    await log.close()
    assert len(lines(written)) == 51


async def test_line_beyond_buffer_limit_is_dropped_and_counted_in_next_line() -> None:
    written: list[bytes] = []
    log = AccessLog(ratio=1.0, write=written.append, wall=lambda: 5.0)
    log._waiting = [AccessLogEntry] * _WAITING_MAX  # type: ignore[list-item]
    await send_requests(log, 3)
    log._waiting = []
    await send_requests(log, 1)
    await log.close()
    (line,) = lines(written)
    assert (line.dropped_count, log.dropped_count) == (3, 3)


def test_access_log_is_off_by_default() -> None:
    assert stdout_log(HttpSettings()) is None
    assert stdout_log(HttpSettings(access_log_ratio=0.5)) is not None
