"""More requests than a service can serve: some are queued, the rest is rejected immediately."""

import asyncio
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.net.cluster.kinds import SERVING_SERVICE
from tests.e2e.test_up import HOST, Up, cluster_of, hello, start

WAITING, REFUSED = 8_000, 12_000
# A connection takes a few kilobytes in the activator.
RESIDENT_BYTES_MAX = 400 * 2**20
REQUEST = b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % HOST
AT_ONCE = 500
SPARE = 2_000

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < WAITING + SPARE:
        pytest.skip(f"needs {WAITING + SPARE} open files, {hard} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    monkeypatch.setenv("SERVING_ACTIVATOR_QUEUE_DEPTH_MAX", str(WAITING))
    # Initial scale zero makes the route ready; with a revision that was never ready, requests get 404.
    monkeypatch.setenv("SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE", "true")
    process = start(tmp_path / "state")
    assert process.stdout is not None
    match = re.search(r"localhost:(\d+)", process.stdout.readline())
    assert match, process.communicate()
    try:
        yield Up(process.pid, tmp_path / "state", int(match[1]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=200)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def send_one(port: int, gate: asyncio.Semaphore) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        await writer.drain()
        return reader, writer


async def refusal(port: int, gate: asyncio.Semaphore, request: bytes = REQUEST) -> bytes:
    async with gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            return await reader.readline()
        finally:
            writer.close()


async def until_it_is_known(up: Up, waiting: list[asyncio.StreamWriter]) -> None:
    """Send requests until one is queued instead of rejected with 404; it remains queued."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
        writer.write(REQUEST)
        # After the response to a later request for an unknown host, a request without a response is queued.
        await refusal(up.port, asyncio.Semaphore(), request=b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n")
        try:
            await asyncio.wait_for(reader.readline(), 0.5)
        except TimeoutError:
            waiting.append(writer)
            return
        writer.close()


async def test_activator_queues_8000_requests_and_rejects_12000(up: Up) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    writers: list[asyncio.StreamWriter] = []
    async with cluster_of(up) as cluster:
        never = f"{sys.executable} -c 'import time; time.sleep(1000)'"
        annotations = {
            "serving.dev/command": never,
            "autoscaling.knative.dev/max-scale": "1",
            "autoscaling.knative.dev/initial-scale": "0",
        }
        await cluster.create(SERVING_SERVICE, hello(**annotations))
        await until_it_is_known(up, writers)
    waiting = await asyncio.gather(*(send_one(up.port, gate) for _ in range(WAITING - 1)))
    writers += [writer for _, writer in waiting]
    async with asyncio.timeout(200):
        responses = await asyncio.gather(*(refusal(up.port, gate) for _ in range(REFUSED)))
    assert {response.split(b" ")[1] for response in responses} == {b"503"}
    assert not any(reader.at_eof() for reader, _ in waiting)
    assert resident_bytes(up.children()["serving.activator.main"]) < RESIDENT_BYTES_MAX
    for writer in writers:
        writer.transport.abort()
