"""Pods killed under load: requests that clients marked as repeatable are sent to other pods."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from serving.activator.main import Activator
from serving.activator.routing.sites import Listener
from serving.core.settings.activator import ActivatorSettings
from serving.home.store.memory import MemoryCluster
from tests.eventually import until
from tests.integration.activator_stage import KEY, PodServer, Stage, send_request, staged

MARK = ("Idempotency-Key: 1",)

# A pod in a separate process, which responds to each head after 5 ms, so that requests are always in flight.
_POD = """
import asyncio
async def serve(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        await asyncio.sleep(0.005)
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class _Process(PodServer):
    """A pod in another process."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name)
        self._port = port

    @property
    def port(self) -> int:
        """The port of its listener."""
        return self._port


@contextlib.asynccontextmanager
async def process(stage: Stage, name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A pod in a separate process, in the activator's directory."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", _POD, stdout=asyncio.subprocess.PIPE, stderr=-3)
    try:
        assert child.stdout is not None
        port = int(await child.stdout.readline())
        before = len(stage.activator.ingress.router.directory.pods_of(("default", "hello-00001")))
        await stage.pod(name, server=_Process(name, port))
        await until(lambda: len(stage.activator.ingress.router.directory.pods_of(("default", "hello-00001"))) > before)
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def test_marked_requests_succeed_when_a_pod_is_killed_under_load() -> None:
    async with staged() as stage:
        await stage.service(slots=20)
        async with process(stage, "p") as killed:
            statuses: list[int] = []

            async def client() -> None:
                for _ in range(40):
                    response = await send_request(stage.public, headers=MARK)
                    statuses.append(response.status)

            clients = [asyncio.create_task(client()) for _ in range(16)]
            await until(lambda: len(statuses) > 100)
            # The stopped pod has one request of each client when it is killed.
            killed.send_signal(signal.SIGSTOP)
            await until(lambda: stage.level == len(clients))
            async with process(stage, "q"):
                killed.send_signal(signal.SIGKILL)
                await asyncio.gather(*clients)
        lost_count = stage.activator.ingress.counts["pod-lost"]
        page = stage.activator.ingress.metrics.page.text("")
    assert statuses == [200] * 640
    assert lost_count
    assert f"serving_pods_lost_total {lost_count}.0" in page


async def test_marked_request_waits_for_next_pod_after_its_only_pod_dies() -> None:
    # The request can be sent to the dying pod again until the pod is removed.
    async with staged(pod_tries_max=100) as stage:
        await stage.service()
        dying = await stage.pod_seen("p")
        dying.dies_at_once = True
        task = asyncio.create_task(send_request(stage.public, headers=MARK))
        await until(lambda: dying.heads)
        await stage.pod("q")
        await stage.remove_pod("p")
        response = await task
    assert (response.status, response.body) == (200, "q")


async def test_dying_pod_receives_a_marked_request_a_limited_number_of_times() -> None:
    async with staged(pod_tries_max=2) as stage:
        await stage.service()
        dying = await stage.pod_seen("p")
        dying.dies_at_once = True
        response = await send_request(stage.public, headers=MARK)
    assert (response.status, len(dying.heads)) == (502, 2)


@pytest.mark.parametrize(("method", "headers", "count"), [("GET", (), 1), ("POST", (), 1), ("GET", MARK, 2)])
async def test_marked_request_is_sent_to_at_most_two_dying_pods_and_unmarked_to_one(
    method: str, headers: tuple[str, ...], count: int
) -> None:
    """Each try can kill a pod, for example by its memory use, so the remaining pods are reserved for other requests."""
    async with staged() as stage:
        await stage.service()
        pods = []
        for name in ("p", "q", "r"):
            pod = await stage.pod_seen(name)
            pod.dies_at_once = True
            pods.append(pod)
        response = await send_request(stage.public, method=method, headers=headers)
    assert (response.status, sum(len(pod.heads) for pod in pods)) == (502, count)


async def test_undelivered_request_is_forwarded_to_another_pod_whatever_its_method() -> None:
    async with staged() as stage:
        await stage.service()
        for name in ("p", "q", "r"):
            (await stage.pod_seen(name)).has_no_app = True
        task = asyncio.create_task(send_request(stage.public, method="POST", body="once"))
        await until(lambda: stage.activator.ingress.counts["pod-unreachable"] == 3)
        await stage.pod("s")
        response = await task
    assert (response.status, response.body) == (200, "s")


@pytest.mark.parametrize("reported", [True, False])
async def test_response_headers_on_revision_and_timing_follow_settings(reported: bool) -> None:
    async with staged(tell_revision=reported, tell_cold_start=reported, tell_timing=reported) as stage:
        await stage.service()
        task = asyncio.create_task(send_request(stage.public))
        await until(lambda: stage.level)
        await stage.pod("p")
        cold, warm = await task, await send_request(stage.public)
    assert cold.status == warm.status == 200
    assert cold.headers.get("x-serving-revision") == ("hello-00001" if reported else None)
    assert cold.headers.get("x-serving-cold-start") == ("true" if reported else None)
    assert "x-serving-cold-start" not in warm.headers
    if reported:
        queue, upstream = (float(part.rpartition("=")[2]) for part in warm.headers["server-timing"].split(", "))
        assert 0 <= queue < 5000 > upstream > 0
    else:
        assert "server-timing" not in warm.headers


async def test_stopping_activator_accepts_requests_during_drain_lag() -> None:
    stop = asyncio.Event()
    cluster = MemoryCluster()
    settings = ActivatorSettings(
        public_address="127.0.0.1:0", inner_address="127.0.0.1:0", drain_lag_s=3, stats_url="ws://127.0.0.1:1/stats"
    )
    activator = Activator(settings, cluster, key=KEY)
    task = asyncio.create_task(activator.run(stop))
    await activator.is_serving.wait()
    address = activator.addresses[Listener.PUBLIC]
    stop.set()
    await until(lambda: activator.ingress.is_draining)
    probe = await send_request(address, "/healthz")
    response = await send_request(address)
    await task
    assert (probe.status, response.status) == (503, 404)
    assert response.headers["connection"] == "close"
    with pytest.raises(ConnectionRefusedError):
        await send_request(address)
