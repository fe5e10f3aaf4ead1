"""``serving up --reload`` under load: no request fails, also not queued ones, and streams continue in the old processes."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from serving.home.processes.process_lifetime import FORKED_NAMES
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    POD,
    POD_AUTOSCALER,
    REVISION,
    SERVERLESS_SERVICE,
    SERVICE,
)
from serving.net.cluster.kube import KubeCluster
from tests.e2e.cli_stage import SAMPLE, Stage, parent_of, processes, staged
from tests.eventually import until

APP = Path(__file__).with_name("client_app.py")
CLIENTS = 4
# An app that starts when the folder has a file.
GATED = """
import os, runpy, sys, time
while not os.listdir(sys.argv[1]):
    time.sleep(0.02)
runpy.run_path(sys.argv[2], run_name="__main__")
"""

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("reload") / "state", "--activators=2") as new_stage:
        yield new_stage


def daemons(stage: Stage) -> dict[str, set[int]]:
    """Process ids of the children of the supervisor, by module."""
    result: dict[str, set[int]] = {}
    for pid, command in processes():
        module = command.partition("-m ")[2].partition(" ")[0]
        # A queue-proxy has the command line of the template that forked it, but another comm.
        is_daemon = module.startswith("serving.") and Path(f"/proc/{pid}/comm").read_text().strip() not in FORKED_NAMES
        if is_daemon and parent_of(pid) == stage.pid:
            result.setdefault(module, set()).add(pid)
    return result


class KeptClient:
    """Sequential GETs on persistent connections; only a response may close a connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.response_count = 0
        self.connection_count = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            self.connection_count += 1
            is_kept = True
            while is_kept and not stop.is_set():
                writer.write(b"GET / HTTP/1.1\r\nHost: hello.default.localhost\r\n\r\n")
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert head.startswith(b"http/1.1 200 "), head
                (length,) = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length.partition(b":")[2]))
                self.response_count += 1
                is_kept = b"\r\nconnection: close\r\n" not in head
                await asyncio.sleep(0.02)
            writer.close()


@contextlib.asynccontextmanager
async def loaded(port: int) -> AsyncIterator[list[KeptClient]]:
    """Clients with continuous requests, none of which may fail."""
    clients, stop = [KeptClient(port) for _ in range(CLIENTS)], asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(stop))
        yield clients
        stop.set()


async def reload(stage: Stage, code: int = 0) -> str:
    return (await asyncio.to_thread(stage, "up", "--reload", code=code)).output


async def test_reload_fails_no_request_and_continues_streams(stage: Stage, tmp_path: Path) -> None:
    public = json.loads((stage.state / "ports.json").read_text())["public"]
    # Created before the pod starts, which sees only the files and folders that its command names.
    gate, program = tmp_path / "gate", tmp_path / "gated.py"
    gate.mkdir()
    program.write_text(GATED)
    stage("deploy", "hello", str(tmp_path), "--command", SAMPLE, "--annotate", "autoscaling.knative.dev/min-scale=1")
    stage("deploy", "app", str(tmp_path), "--command", f"{sys.executable} {APP}")
    held_command = f"{sys.executable} {program} {gate} {SAMPLE.split()[1]}"
    at_zero = "autoscaling.knative.dev/initial-scale=0"
    stage("deploy", "held", str(tmp_path), "--command", held_command, "--annotate", at_zero)
    stage("invoke", "hello")
    before = daemons(stage)
    async with (
        asyncio.timeout(240),
        KubeCluster(str(stage.state / "kubeconfig")) as cluster,
        aiohttp.ClientSession(headers={"Host": "app.default.localhost"}) as session,
        session.ws_connect(f"http://127.0.0.1:{public}/socket") as socket,
        session.get(f"http://127.0.0.1:{public}/events") as events,
    ):
        assert await events.content.readuntil(b"\n\n") == b"data: begun\n\n"
        request_count = session.get(f"http://127.0.0.1:{public}/", headers={"Host": "held.default.localhost"})
        task = asyncio.create_task(request_count.__aenter__())
        while not [pod async for pod in _pods_of(cluster, "held")]:  # noqa: ASYNC110 - a list, which has no event
            await asyncio.sleep(0.05)
        identities, modified = await _identities(cluster), await _modified(cluster)
        async with loaded(public) as clients:
            await until(lambda: all(client.response_count for client in clients))
            assert "serving is reloaded" in await reload(stage)
            counts = [client.response_count for client in clients]
            await until(lambda: all(client.response_count > old for client, old in zip(clients, counts, strict=True)))
        assert max(client.connection_count for client in clients) > 1
        assert await _identities(cluster) == identities
        assert await _modified(cluster) == modified
        after = daemons(stage)
        assert before.keys() == after.keys()
        assert all(after[module] - before[module] for module in before)
        # Old activators remain for the streams and the queued request.
        assert before["serving.activator.main"] & after["serving.activator.main"]
        assert not task.done()
        await socket.send_str("ab")
        assert await socket.receive_str() == "abab"
        async with session.post(f"http://127.0.0.1:{public}/events", data="two") as reported:
            assert reported.status == 204
        assert await events.content.readuntil(b"\n\n") == b"data: two\n\n"
        (gate / "open").touch()
        assert (await task).status == 200
        task.result().close()
    await until(lambda: not before["serving.activator.main"] & daemons(stage)["serving.activator.main"])


async def _identities(cluster: KubeCluster) -> dict[str, tuple[str, str]]:
    """The uid and creation time of pods and derived objects."""
    results = [
        (kind.name, item["metadata"])
        for kind in (POD, DEPLOYMENT, SERVICE, ENDPOINT_SLICE, POD_AUTOSCALER, SERVERLESS_SERVICE)
        for item in (await cluster.list(kind, "default")).items
    ]
    return {f"{kind} {entry['name']}": (entry["uid"], entry["creationTimestamp"]) for kind, entry in results}


async def _modified(cluster: KubeCluster) -> dict[str, str]:
    """The time at which each routed revision entered its routing state."""
    revisions = [revision["metadata"] for revision in (await cluster.list(REVISION, "default")).items]
    routed = [revision for revision in revisions if revision["labels"]["serving.knative.dev/routingState"] == "active"]
    return {entry["name"]: entry["annotations"]["serving.knative.dev/routingStateModified"] for entry in routed}


async def _pods_of(cluster: KubeCluster, service: str) -> AsyncIterator[str]:
    for pod in (await cluster.list(POD, "default")).items:
        if pod["metadata"]["name"].startswith(f"{service}-"):
            yield pod["metadata"]["name"]


async def test_reload_with_failing_daemon_replaces_no_daemon(stage: Stage) -> None:
    stage("deploy", "hello", str(stage.state), "--command", SAMPLE)
    stage("invoke", "hello")
    before = daemons(stage)
    (stage.state / "key").rename(stage.state / "away")
    try:
        message = await reload(stage, code=1)
    finally:
        (stage.state / "away").rename(stage.state / "key")
    assert "the new activator ended with 2" in message
    assert "No such file" in message
    assert daemons(stage) == before
    stage("invoke", "hello")
