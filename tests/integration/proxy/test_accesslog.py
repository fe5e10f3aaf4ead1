"""The access log: sampled lines of requests, which never block a request."""

import asyncio
import threading

import msgspec

from serving.core.settings.http import HttpSettings
from serving.net.proxy.forwarding.accesslog import _WAITING_MAX, AccessLog, AccessLogEntry, stdout_log
from serving.net.proxy.server.listener import HttpServer
from tests.integration.proxy.peers import Forwarder, Link, backed, get, ok


async def asked(log: AccessLog, count: int) -> None:
    """Send so many requests to a proxy with this log."""
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


async def test_each_request_has_a_line_that_reports_what_became_of_it() -> None:
    written: list[bytes] = []
    log = AccessLog(ratio=1.0, write=written.append, wall=lambda: 5.0)
    await asked(log, 2)
    await log.close()
    first, second = lines(written)
    assert (first.method, first.host, first.target, first.status, first.outcome) == ("GET", "h", "/0", 200, "answered")
    assert (first.at_s, first.listener, first.client, first.agent) == (5.0, "public", "127.0.0.1", "me")
    assert first.upstream.startswith("127.0.0.1:")
    assert 0 < first.duration_s < 5
    assert second.target == "/1"


async def test_a_quarter_of_all_is_every_fourth() -> None:
    written: list[bytes] = []
    log = AccessLog(ratio=0.25, write=written.append, wall=lambda: 5.0)
    await asked(log, 8)
    await log.close()
    assert [line.target for line in lines(written)] == ["/3", "/7"]


async def test_an_unread_log_blocks_no_writer() -> None:
    read, begun = threading.Event(), threading.Event()

    def write(data: bytes) -> None:
        begun.set()
        read.wait(100)
        written.append(data)

    written: list[bytes] = []
    log = AccessLog(ratio=1.0, write=write, wall=lambda: 5.0)
    await asked(log, 1)
    await asyncio.to_thread(begun.wait, 60)
    await asked(log, 50)
    assert not written
    read.set()
    await log.close()
    assert len(lines(written)) == 51


async def test_a_value_that_does_not_fit_is_dropped_and_reported() -> None:
    written: list[bytes] = []
    log = AccessLog(ratio=1.0, write=written.append, wall=lambda: 5.0)
    log._waiting = [AccessLogEntry] * _WAITING_MAX  # type: ignore[list-item]
    await asked(log, 3)
    log._waiting = []
    await asked(log, 1)
    await log.close()
    (line,) = lines(written)
    assert (line.dropped_count, log.dropped_count) == (3, 3)


def test_there_is_no_log_unless_it_is_asked_for() -> None:
    assert stdout_log(HttpSettings()) is None
    assert stdout_log(HttpSettings(access_log_ratio=0.5)) is not None
