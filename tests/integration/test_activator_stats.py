"""The activator's websocket to the autoscaler: reports, drops, and reconnecting."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from websockets.asyncio.server import serve

from serving.activator.io.reports import StatsClient
from serving.activator.queueing.wake import RevisionLoad
from serving.core.settings.activator import ActivatorSettings
from tests.eventually import until
from tests.integration.activator_stage import KEY, Autoscaler, send_request, staged

LOAD = RevisionLoad(concurrency=1.5, request_count=2.0)


@contextlib.asynccontextmanager
async def running_client(port: int) -> AsyncIterator[StatsClient]:
    """A client that sends stats to a port, with or without an autoscaler."""
    settings = ActivatorSettings(stats_url=f"ws://127.0.0.1:{port}/stats")
    client = StatsClient(settings, key=KEY, draw=lambda: 0.0)
    running = asyncio.create_task(client.link.run())
    try:
        yield client
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
def bound_socket() -> Iterator[socket.socket]:
    """A socket that is bound to a port of 127.0.0.1 and does not listen yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def port_of(bound_socket: socket.socket) -> int:
    port: int = bound_socket.getsockname()[1]
    return port


async def test_load_is_reported_each_period() -> None:
    async with staged(report_period_s=0.1) as stage:
        await stage.service(slots=0)
        pod = await stage.pod_seen("p")
        pod.gate.clear()
        tasks = [asyncio.create_task(send_request(stage.public)) for _ in range(3)]
        await until(lambda: [stat for stat in stage.autoscaler.stats if stat.concurrency == 3.0])
        pod.gate.set()
        await asyncio.gather(*tasks)
        await until(lambda: stage.level == 0)
    request_count = sum(stat.request_count * 0.1 for stat in stage.autoscaler.stats)
    assert round(request_count, 6) == 3


async def test_undeliverable_report_is_dropped_and_counted(bound_socket: socket.socket) -> None:
    async with running_client(port_of(bound_socket)) as client:
        client.report([(("default", "r"), LOAD)])
        assert (client.link.dropped_count, client.link.is_connected) == (1, False)
        assert repr(client.link).endswith("/stats?activator=activator, not connected, 0 to send, 0 sent, 1 dropped)")


async def test_empty_report_sends_no_frame(bound_socket: socket.socket) -> None:
    async with running_client(port_of(bound_socket)) as client:
        client.report([])
        assert client.link.dropped_count == 0


async def test_client_connects_to_autoscaler_that_starts_later(bound_socket: socket.socket) -> None:
    autoscaler = Autoscaler()
    async with running_client(port_of(bound_socket)) as client:
        await until(lambda: client.link.failure_count)
        async with serve(autoscaler.handle, sock=bound_socket):
            await until(lambda: client.link.is_connected)
            client.report([(("default", "r"), LOAD)])
            await until(lambda: autoscaler.stats)
    assert [(stat.revision, stat.concurrency, stat.request_count) for stat in autoscaler.stats] == [("r", 1.5, 2.0)]


async def test_full_send_queue_drops_oldest_reports(bound_socket: socket.socket) -> None:
    autoscaler = Autoscaler()
    async with serve(autoscaler.handle, sock=bound_socket), running_client(port_of(bound_socket)) as client:
        await until(lambda: client.link.is_connected)
        # The event loop does not run in between, so nothing is sent.
        for place in range(70):
            client.report([(("default", f"r{place}"), LOAD)])
        await until(lambda: len(autoscaler.stats) == 64)
    assert (client.link.dropped_count, autoscaler.stats[0].revision) == (6, "r6")


async def test_reports_of_many_revisions_are_split_into_frames(bound_socket: socket.socket) -> None:
    autoscaler = Autoscaler()
    async with serve(autoscaler.handle, sock=bound_socket), running_client(port_of(bound_socket)) as client:
        await until(lambda: client.link.is_connected)
        client.report([(("default", f"r{place}"), LOAD) for place in range(4500)])
        await until(lambda: len(autoscaler.stats) == 4500)
    assert autoscaler.frame_count == 3
