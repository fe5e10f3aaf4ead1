"""Limits per client address: slow clients leave slots to others in both daemons; an activator limits requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from serving.core.settings.http import HttpSettings
from tests.eventually import until
from tests.integration.activator_stage import HOST, Stage, send_request, staged
from tests.integration.proxy.daemons import DAEMONS, Daemon, Running
from tests.integration.proxy.h2frames import END_HEADERS, ENDED, OPENING, Http2, Kind, fields, frame, settings
from tests.integration.proxy.peers import Link

TO = b"Host: %b\r\n" % HOST.encode()
GET = b"GET / HTTP/1.1\r\n%b\r\n" % TO
PIECE = bytes(65536)
BOTH = pytest.mark.parametrize("daemon", DAEMONS.values(), ids=DAEMONS)
# Timeouts so long that only the share per address frees a slot for others.
PATIENT = {"rate_grace_s": 3600.0, "body_wait_max_s": 3600.0}
CALL = (
    *((":method", "POST"), (":scheme", "http"), (":path", "/pkg.Service/Call"), (":authority", HOST)),
    *(("content-type", "application/grpc"), ("te", "trailers")),
)


async def reads(link: Link) -> None:
    """An app that reads the bodies of requests other than GET."""
    while True:
        head = await link.head()
        if head.startswith(b"PRI "):
            # The app accepts calls over HTTP/2 and responds to none.
            await link.rest()
        if not head.startswith(b"GET "):
            await link.chunks()
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@BOTH
async def test_incomplete_chunked_bodies_of_one_client_leave_a_slot_to_others(daemon: Daemon) -> None:
    async with daemon(reads, slots=4, **PATIENT) as running:
        attackers = [await running.client() for _ in range(8)]
        for attacker in attackers:
            attacker.send(b"POST /slow HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n" % TO)
        await until(lambda: running.level() == 8)
        client = await running.client()
        client.send(b"GET / HTTP/1.1\r\n%b\r\n" % TO)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")
        # Requests beyond the share are served in turn, each as soon as its body is complete.
        for attacker in reversed(attackers):
            attacker.send(b"0\r\n\r\n")
            assert (await attacker.message())[0].startswith(b"HTTP/1.1 200 ")


async def test_incomplete_grpc_calls_of_one_client_leave_a_slot_to_others() -> None:
    async with DAEMONS["activator"](reads, slots=4, **PATIENT) as running:
        attacker = Http2(await running.client(), opening=OPENING)
        for stream_id in range(1, 255, 2):
            attacker.send(frame(Kind.HEADERS, fields(*CALL), flags=END_HEADERS, stream_id=stream_id))
        await until(lambda: running.level() == 127)
        client = await running.client()
        client.send(b"GET / HTTP/1.1\r\n%b\r\n" % TO)
        assert (await client.message())[0].startswith(b"HTTP/1.1 200 ")


async def floods(link: Link) -> None:
    """An app that responds to DELETE with 32 MiB, more than kernels and buffers hold."""
    while True:
        if (await link.head()).startswith(b"GET "):
            link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            continue
        link.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (512 * len(PIECE)))
        for _ in range(512):
            link.send(PIECE)
            await link.writer.drain()


async def ignore(running: Running, count: int, *, headers: bytes = b"") -> list[Link]:
    """Clients that request a flood and read nothing."""
    links = [await running.client() for _ in range(count)]
    for link in links:
        link.pause()
        link.send(b"DELETE / HTTP/1.1\r\n%b%b\r\n" % (TO, headers))
    return links


@BOTH
async def test_clients_that_read_nothing_leave_a_slot_to_another_address(daemon: Daemon) -> None:
    async with daemon(floods, slots=4, **PATIENT) as running:
        # The first burst occupies all slots, and the rest of it is queued before the client's request.
        await ignore(running, 12)
        await until(lambda: running.level() == 12)
        client = await running.client_of("127.0.0.2")
        for _ in range(20):
            client.send(GET)
            assert (await client.message())[1] == b"ok"
        # One response was cut off for the client; the others continue.
        await until(lambda: running.level() == 11)


@BOTH
async def test_clients_that_read_nothing_do_not_occupy_the_only_slot(daemon: Daemon) -> None:
    async with daemon(floods, slots=1, **PATIENT) as running:
        await ignore(running, 5)
        await until(lambda: running.level() == 5)
        client = await running.client_of("127.0.0.2")
        for _ in range(5):
            client.send(GET)
            assert (await client.message())[1] == b"ok"


@BOTH
async def test_http2_streams_with_closed_windows_leave_a_slot_to_another_address(daemon: Daemon) -> None:
    async with daemon(floods, slots=4, **PATIENT) as running:
        attacker = Http2(await running.client(), opening=OPENING + settings((4, 0)))
        flood = (":method", "DELETE"), (":scheme", "http"), (":path", "/"), (":authority", HOST)
        for stream_id in range(1, 41, 2):
            attacker.send(frame(Kind.HEADERS, fields(*flood), flags=ENDED, stream_id=stream_id))
        await until(lambda: running.level() == 20)
        client = await running.client_of("127.0.0.2")
        client.send(GET)
        assert (await client.message())[1] == b"ok"


async def test_slots_are_shared_between_clients_named_by_trusted_proxy() -> None:
    async with DAEMONS["activator"](floods, slots=4, trusted_proxies="127.0.0.0/8", **PATIENT) as running:
        await ignore(running, 12, headers=b"X-Forwarded-For: 1.1.1.1\r\n")
        await until(lambda: running.level() == 12)
        client = await running.client()
        client.send(b"GET / HTTP/1.1\r\n%bX-Forwarded-For: 2.2.2.2\r\n\r\n" % TO)
        assert (await client.message())[1] == b"ok"


@contextlib.asynccontextmanager
async def busy(forwarded: list[str], *, trusted: str = "") -> AsyncIterator[tuple[Stage, list[asyncio.Task[int]]]]:
    """An activator with a bound of two, and requests with these X-Forwarded-For."""

    async def status(stage: Stage, line: str) -> int:
        return (await send_request(stage.public, headers=[f"X-Forwarded-For: {line}"])).status

    async with staged(requests_per_address_max=2, http=HttpSettings(trusted_proxies=trusted)) as stage:
        await stage.service(slots=10)
        pod = await stage.pod_seen("p")
        pod.gate.clear()
        tasks = [asyncio.create_task(status(stage, line)) for line in forwarded]
        await until(lambda: stage.level + stage.activator.ingress.counts["refused-address"] == len(tasks))
        yield stage, tasks
        pod.gate.set()
        await asyncio.gather(*tasks)


async def test_requests_per_address_are_limited() -> None:
    async with busy(["1.1.1.1", "2.2.2.2", "3.3.3.3"]) as (stage, tasks):
        # X-Forwarded-For of an untrusted client is ignored: all three requests are from one address.
        await until(lambda: any(task.done() for task in tasks))
        assert [task.result() for task in tasks if task.done()] == [429]
        stage.pods[0].gate.set()
        await asyncio.gather(*tasks)
        assert (await send_request(stage.public)).status == 200


@pytest.mark.parametrize(
    ("forwarded", "refused"),
    [
        (["1.1.1.1", "2.2.2.2", "3.3.3.3"], 0),
        (["1.1.1.1", "1.1.1.1", "1.1.1.1"], 1),
        (["7.7.7.7, 1.1.1.1", "8.8.8.8, 1.1.1.1", "9.9.9.9, 1.1.1.1"], 1),
    ],
)
async def test_request_limit_counts_clients_named_by_trusted_proxy(forwarded: list[str], refused: int) -> None:
    async with busy(forwarded, trusted="127.0.0.0/8") as (stage, _):
        assert stage.activator.ingress.counts["refused-address"] == refused
