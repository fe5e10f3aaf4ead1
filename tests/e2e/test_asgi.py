"""A Python app with the queue-proxy in its process: no request fails when processes are killed."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from serving.home.state import StateFolder
from tests.e2e.cli_stage import Stage, staged

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

HOST = "inside.default.localhost"
_APP = """
import asyncio, os, sys

async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})
        return
    assert scope["type"] == "http"
    if scope["path"] == "/slow":
        print("slow", flush=True)
        await asyncio.sleep(2)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (str(os.getpid()).encode(), b" ", b"done"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
"""


@pytest.fixture(scope="module", params=["Disabled", "Enabled"])
def mode(request: pytest.FixtureRequest) -> str:
    """The mode of inner TLS."""
    return str(request.param)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, mode: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("asgi")
    (folder / "inside.py").write_text(_APP)
    with staged(folder / "state", SERVING_INNER_TLS_DEFAULT=mode) as stage, pytest.MonkeyPatch.context() as patch:
        patch.delenv("VIRTUAL_ENV", raising=False)
        done = stage("deploy", "inside", str(folder), "--asgi", "inside:app", "--concurrency", "20", "--window", "6s")
        assert done.stdout.startswith(f"http://{HOST}:")
        yield stage


def client_of(serving: Stage) -> httpx.AsyncClient:
    port = StateFolder(serving.state).read_ports()["public"]
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"Host": HOST}, timeout=60, trust_env=False)


def logs_of(serving: Stage) -> Path:
    return serving.state / "logs" / "pods" / "default"


async def test_in_process_pod_survives_killed_template_and_control(serving: Stage) -> None:
    async with client_of(serving) as client:
        first = await client.get("/")
        assert first.text.endswith(" done")
        names = {log.name for log in logs_of(serving).glob("inside-*/*.log")}
        assert "user-container.log" in names
        assert "queue-proxy.log" not in names
        for daemon in ("serving.home.processes.template", "serving.home.main"):
            os.kill(pid_of(serving, daemon), signal.SIGKILL)
            for _ in range(5):
                assert (await client.get("/")).text == first.text
                await asyncio.sleep(0.05)
        # The next control process adopts the pod: it is ready, and no other pod starts.
        until_s = time.monotonic() + 60
        while "1/1" not in (pods := serving("get", "pods").stdout):
            assert time.monotonic() < until_s, pods
        assert (await client.get("/")).text == first.text


async def test_pod_rejects_plain_requests_with_inner_tls(serving: Stage, mode: str) -> None:
    async with client_of(serving) as client:
        assert (await client.get("/")).status_code == 200
    pods = json.loads(serving("get", "pods", "-o", "json").stdout)["items"]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as direct:
        statuses = {(await direct.get(f"http://{pod['status']['podIP']}:8012/")).status_code for pod in pods}
    assert statuses == {403 if mode == "Enabled" else 200}


async def test_request_of_a_killed_app_is_retried_by_the_next(serving: Stage) -> None:
    async with client_of(serving) as client:
        before = (await client.get("/")).text.split()[0]
        slow = asyncio.create_task(client.get("/slow"))
        await logged(serving, "slow")
        os.kill(int(before), signal.SIGKILL)
        after = (await slow).text.split()
        assert after[1] == "done"
        assert after[0] != before


async def test_deleted_pod_drains_its_requests(serving: Stage) -> None:
    async with client_of(serving) as client:
        pid = (await client.get("/")).text.split()[0]
        slow = asyncio.create_task(client.post("/slow"))
        log = await logged(serving, "slow")
        await asyncio.to_thread(serving, "delete", f"pod/{log.parent.name}", "--no-wait")
        response = await slow
        assert (response.status_code, response.text) == (200, f"{pid} done")


async def test_websocket_reaches_the_asgi_app(serving: Stage) -> None:
    port = StateFolder(serving.state).read_ports()["public"]
    async with connect(f"ws://{HOST}:{port}/", host="127.0.0.1", port=port) as socket:
        await socket.send("hello")
        assert await socket.recv() == "HELLO"


async def logged(serving: Stage, line: str) -> Path:
    """Wait for another such line; returns the latest log with one."""
    logs = logs_of(serving)
    before = sum(log.read_text().count(line) for log in logs.glob("inside-*/user-container.log"))
    until_s = time.monotonic() + 60
    while True:
        paths = [log for log in logs.glob("inside-*/user-container.log") if log.read_text().count(line)]
        if sum(log.read_text().count(line) for log in paths) > before:
            return max(paths, key=lambda log: log.stat().st_mtime)
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


def pid_of(serving: Stage, module: str) -> int:
    """The child of the supervisor that runs a module."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if module.encode() in words and parent == serving.pid:
            return int(entry.name)
    raise AssertionError(module)
