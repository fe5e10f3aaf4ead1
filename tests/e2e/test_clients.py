"""HTTP and websocket clients through activator and queue-proxy. gRPC: test_grpc.py."""

import asyncio
import hashlib
import io
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest
import websockets.asyncio.client

from serving.net.cluster.kinds import SERVING_SERVICE
from tests.e2e import client_app
from tests.e2e.test_up import Up, cluster_of, running, until_ready

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

HOST = "clients.default.localhost"
BIG = bytes(range(256)) * 4096 * 8
PIECES = 128
DIGEST = hashlib.sha256(BIG).hexdigest()
DOWN = hashlib.sha256(bytes(range(256)) * 256 * PIECES).hexdigest()


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running system with client_app."""
    command = f"{sys.executable} {client_app.__file__}"
    template = {
        "metadata": {"annotations": {"serving.dev/command": command, "autoscaling.knative.dev/min-scale": "1"}},
        "spec": {"containers": [{"image": "clients"}]},
    }
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "clients", "namespace": "default"},
        "spec": {"template": template},
    }

    async def deploy(up: Up) -> None:
        async with cluster_of(up) as cluster:
            await cluster.create(SERVING_SERVICE, service)
            await until_ready(cluster, "clients")
        # The app responds 404 to this path; the activator's message would name the host.
        while "no service has the host" in (await up.get(host=HOST.encode()))[1]:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)

    with running(tmp_path_factory.mktemp("clients") / "state") as up:
        asyncio.run(deploy(up))
        yield up


def url(at: Up, path: str = "") -> str:
    return f"http://127.0.0.1:{at.port}{path}"


def curl(*arguments: str) -> bytes:
    command = ["curl", "-sS", "--max-time", "30", "-H", f"Host: {HOST}", *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def has_http2() -> bool:
    program = shutil.which("curl")
    return program is not None and b"HTTP2" in subprocess.run([program, "-V"], check=True, capture_output=True).stdout


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_curl_transfers_large_bodies(at: Up, tmp_path: Path, version: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    if version.startswith("--http2") and not has_http2():
        pytest.skip("this curl has no HTTP/2")
    big = tmp_path / "big"
    big.write_bytes(BIG)
    assert curl(version, "--data-binary", f"@{big}", url(at, "/digest")).decode() == DIGEST
    reported = curl(version, "-w", "\n%{http_version} %{http_code}", url(at, f"/big?pieces={PIECES}"))
    body, _, after = reported.rpartition(b"\n")
    assert hashlib.sha256(body).hexdigest() == DOWN
    assert after == (b"2 200" if version.startswith("--http2") else b"1.1 200")


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_httpx_transfers_large_bodies_and_event_streams(at: Up, http2: bool) -> None:
    async with httpx.AsyncClient(http1=not http2, http2=http2, headers={"Host": HOST}, timeout=30) as client:

        async def slowly() -> AsyncIterator[bytes]:
            for at_byte in range(0, len(BIG), 1 << 20):
                yield BIG[at_byte : at_byte + (1 << 20)]

        # Sequential, because httpcore 1.0 loses HTTP/2 window updates with concurrent requests.
        responses = [
            await client.post(url(at, "/digest"), content=BIG),
            await client.post(url(at, "/digest"), content=slowly()),
            await client.get(url(at, f"/big?pieces={PIECES}")),
        ]
        assert {response.http_version for response in responses} == {"HTTP/2" if http2 else "HTTP/1.1"}
        assert [response.text for response in responses[:2]] == [DIGEST] * 2
        assert hashlib.sha256(responses[2].content).hexdigest() == DOWN
        async with client.stream("GET", url(at, "/events")) as stream:
            lines = stream.aiter_lines()
            # Each event arrives before the next one is sent.
            for text in ("begun", "one", "two"):
                if text != "begun":
                    await client.post(url(at, "/events"), content=text)
                assert await anext(lines) == f"data: {text}"
                assert await anext(lines) == ""
            await client.post(url(at, "/events"), content="end")
            assert [line async for line in lines] == []


async def test_aiohttp_transfers_bodies_events_and_websocket_messages(at: Up) -> None:
    async with aiohttp.ClientSession(headers={"Host": HOST}) as client:
        async with client.post(url(at, "/digest"), data=io.BytesIO(BIG)) as response:
            assert await response.text() == DIGEST
        async with client.get(url(at, f"/big?pieces={PIECES}")) as response:
            assert hashlib.sha256(await response.read()).hexdigest() == DOWN
        async with client.get(url(at, "/events")) as events:
            assert await events.content.readuntil(b"\n\n") == b"data: begun\n\n"
            await client.post(url(at, "/events"), data="one")
            assert await events.content.readuntil(b"\n\n") == b"data: one\n\n"
            await client.post(url(at, "/events"), data="end")
            assert await events.content.read() == b""
        async with client.ws_connect(url(at, "/socket")) as socket:
            await socket.send_str("ab")
            assert await socket.receive_str() == "abab"


async def test_websockets_client_exchanges_messages_and_pings(at: Up) -> None:
    connection = websockets.asyncio.client.connect(f"ws://{HOST}/socket", host="127.0.0.1", port=at.port)
    async with connection as socket:
        for message in ("ab", b"\0" * 300_000, ""):
            await socket.send(message)
            assert await socket.recv() == message * 2
        await (await socket.ping())
