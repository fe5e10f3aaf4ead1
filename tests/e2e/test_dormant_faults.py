"""Faults of dormant pods in a whole system: no request fails.

Each request has a timeout of a minute, because it may wait for a start.
"""

import asyncio
import collections
import os
import resource
import signal
import sys
from collections.abc import Iterator

import pytest

from bench.dormant import app_pids, proxy_pids, until_dormant
from bench.parts.system import System, running_system
from tests.integration.local_stage import HELLO

POD_COUNT = 20
MANY, LONE = "many", "lone"

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """A system with 20 dormant pods of one service, and one of another. Takes about ten seconds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with running_system() as new_system:
        for name, count in ((MANY, POD_COUNT), (LONE, 1)):
            new_system.serving(
                *("deploy", name, ".", "--command", f"{sys.executable} {HELLO}"),
                *("--annotate", "serving.dev/dormant=after=500ms"),
                *("--annotate", f"autoscaling.knative.dev/min-scale={count}"),
                *("--annotate", f"autoscaling.knative.dev/max-scale={count}"),
            )
        yield new_system
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def status_of(port: int, service: str) -> str:
    """The status line of one request, or the connection error."""
    try:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(
                    f"GET / HTTP/1.1\r\nHost: {service}.default.localhost\r\nConnection: close\r\n\r\n".encode()
                )
                return (await reader.readline()).decode().strip()
            finally:
                writer.close()
    except OSError as error:
        return repr(error)


async def request_statuses(system: System, service: str, count: int) -> collections.Counter[str]:
    """The status lines of ``count`` concurrent requests."""
    return collections.Counter(await asyncio.gather(*(status_of(system.port, service) for _ in range(count))))


def uids(system: System, service: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in system.pods(service)}


async def test_reload_retains_dormant_pods_and_fails_no_request(system: System) -> None:
    until_dormant(system, MANY, POD_COUNT)
    before = uids(system, MANY)
    template = system.daemon("serving.home.processes.template")
    system.process.send_signal(signal.SIGHUP)
    statuses: collections.Counter[str] = collections.Counter()
    # Requests wake pods while the template and control are replaced, and pods become dormant again.
    async with asyncio.timeout(300):
        while system.daemons("serving.home.processes.template") in ([template], []) or statuses.total() < 400:
            statuses += await request_statuses(system, MANY, 10)
    assert set(statuses) == {"HTTP/1.1 200 OK"}
    await asyncio.to_thread(until_dormant, system, MANY, POD_COUNT)
    assert uids(system, MANY) == before
    assert "Traceback" not in (system.state / "logs" / "template.log").read_text()


async def test_killed_dormant_app_fails_no_request(system: System) -> None:
    until_dormant(system, LONE, 1)
    (pid,) = app_pids(system, LONE)
    os.kill(pid, signal.SIGKILL)
    assert await request_statuses(system, LONE, 20) == {"HTTP/1.1 200 OK": 20}


async def test_killed_queue_proxy_of_a_dormant_app_fails_no_request(system: System) -> None:
    until_dormant(system, LONE, 1)
    (pid,) = proxy_pids(system, LONE)
    os.kill(pid, signal.SIGKILL)
    assert await request_statuses(system, LONE, 20) == {"HTTP/1.1 200 OK": 20}


async def test_dormant_pod_serves_a_thousand_concurrent_requests(system: System) -> None:
    until_dormant(system, LONE, 1)
    assert await request_statuses(system, LONE, 1000) == {"HTTP/1.1 200 OK": 1000}
