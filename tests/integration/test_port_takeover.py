"""Another process listens at an app's port before its start or during its restart: it receives no request."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.core.model.objects import Object, condition_of
from serving.home.controllers.workloads import is_ready
from serving.home.kubelet.pod import PodRun
from tests.eventually import until
from tests.integration.local_stage import HELLO, Machine, controlled, manifest, template_process

SECRET = b"Bearer of-a-client"
# The app starts to listen when the file "go" exists in the pod's folder.
GATED = f"until [ -e go ]; do sleep 0.02; done; exec {sys.executable} {HELLO}"


@contextlib.asynccontextmanager
async def attacked(port: int) -> AsyncIterator[list[bytes]]:
    """Listen at a port, as any user of the machine can, and respond like an app; yields the received bytes."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65536):
                received.append(piece)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen")
        writer.close()

    async def listening() -> asyncio.Server | None:
        with contextlib.suppress(OSError):
            return await asyncio.start_server(serve, "127.0.0.1", port)
        return None

    # Retry until the killed app has released the port.
    server = await until(listening)
    try:
        yield received
    finally:
        if server is not None:
            server.close()


def is_port_taken(pod: Object) -> bool:
    """Whether the status of a pod has the reason PortTaken."""
    return condition_of(pod, "Ready").get("reason") == "PortTaken"


async def response(pod: Object) -> bytes:
    """The response to a request with a secret."""
    reader, writer = await asyncio.open_connection(pod["status"]["podIP"], 8012)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: %b\r\nConnection: close\r\n\r\n" % SECRET)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


async def started(machine: Machine) -> tuple[PodRun, Path]:
    """Start a pod; return its run and the path of the file for which its app waits."""
    await machine.start(manifest(command=GATED))
    await machine.until(lambda pod: "startedAt" in str(pod.get("status")))
    run = machine.kubelet.find("default", "p")
    return run, machine.state.pods / run.id / "go"


def end_app(run: PodRun, go: Path) -> None:
    """Kill the app; its restart waits for the file."""
    go.unlink()
    os.kill(run.sessions["user-container"], signal.SIGKILL)


@pytest.mark.parametrize("isolation", ["default", "none"])
async def test_foreign_listener_at_app_port_receives_no_request(tmp_path: Path, isolation: str) -> None:
    """By default, as root, each pod has its own user; without isolation, the owner of a listener is found by its process."""
    with template_process(tmp_path / "state", isolation=isolation) as template:
        async with controlled(template.state, isolation=isolation) as machine:
            run, go = await started(machine)
            async with attacked(run.location.port) as received:
                pod = await machine.until(is_port_taken)
                assert not is_ready(pod)
            assert received == []
            go.touch()
            pod = await machine.ready()
            assert (await response(pod)).startswith(b"HTTP/1.1 200")
            end_app(run, go)
            async with attacked(run.location.port) as received:
                await machine.until(is_port_taken)
            assert received == []
            go.touch()
            await machine.ready()


async def test_foreign_listener_receives_no_request_while_app_is_still_ready(tmp_path: Path) -> None:
    with template_process(tmp_path / "state") as template:
        async with controlled(template.state) as machine:
            run, go = await started(machine)
            go.touch()
            pod = await machine.ready()
            assert (await response(pod)).startswith(b"HTTP/1.1 200")
            end_app(run, go)
            async with attacked(run.location.port) as received:
                # The queue-proxy probes a ready app each ten seconds.
                for _ in range(5):
                    assert (await response(pod)).startswith(b"HTTP/1.1 502")
            assert received == []
