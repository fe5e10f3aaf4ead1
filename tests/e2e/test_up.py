"""``serving up`` with real processes, requests and faults."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from serving.core.model.errors import NotFound, Unavailable
from serving.core.model.objects import Object
from serving.home.pods.diskbudget import is_evicted
from serving.home.state import StateFolder
from serving.home.supervisor.binding import PORTS
from serving.net.cluster.kinds import POD, REVISION, SERVING_SERVICE
from serving.net.cluster.kube import KubeCluster, KubeTimeouts
from tests.e2e.cli_stage import Stage, clear, left_of, parent_of, processes

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "serving" / "tools" / "samples" / "hello.py"
HOST = b"hello.default.localhost"

pytestmark = pytest.mark.timeout(300)


class Up:
    """A running system."""

    def __init__(self, pid: int, state: Path, port: int) -> None:
        self.pid, self.state, self.port = pid, state, port

    def children(self) -> dict[str, int]:
        """Process ids of the daemons by module."""
        result = {}
        for pid, command in processes():
            match = re.search(r"-m (serving\.\w+\.\w+)", command)
            if match and parent_of(pid) == self.pid:
                result[match[1]] = pid
        return result

    async def get(self, path: str = "/", host: bytes = HOST) -> tuple[int, str]:
        """Send one request on its own connection: status and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path.encode(), host))
            async with asyncio.timeout(60):
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        return int(head.split(b" ")[1]), body.decode()

    async def until_status(self, status: int, host: bytes = HOST) -> str:
        """Send requests until the response has this status, and return the body; activators know a service with a delay."""
        async with asyncio.timeout(60):
            while (results := await self.get(host=host))[0] != status:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.05)
        return results[1]


def start(state: Path, *options: str) -> subprocess.Popen[str]:
    ports = [f"--{port.name}-port=0" for port in PORTS]
    command = [sys.executable, "-m", "serving", "up", f"--state={state}", *ports, *options]
    # Processes of the system are identified by this variable, or by their HOME in the state folder.
    environment = {**os.environ, "SERVING_STARTED_FOR": str(state)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextlib.contextmanager
def running(state: Path, *options: str) -> Iterator[Up]:
    """A running system that must leave no process."""
    process = start(state, *options)
    assert process.stdout is not None
    match = re.search(r"localhost:(\d+)", process.stdout.readline())
    assert match, process.communicate()
    try:
        yield Up(process.pid, state, int(match[1]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=150)
        assert left_of(state) == []


def up_of(stage: Stage) -> Up:
    return Up(stage.pid, stage.state, StateFolder(stage.state).read_ports()["public"])


@pytest.fixture
def up(serving: Stage) -> Iterator[Up]:
    yield up_of(serving)
    clear(serving)


@contextlib.asynccontextmanager
async def cluster_of(up: Up) -> AsyncIterator[KubeCluster]:
    path = str(up.state / "kubeconfig")
    # The API's socket listens from the start; the first call waits until the API server accepts it.
    timeouts = KubeTimeouts(connect_s=120.0, call_s=120.0)
    async with KubeCluster(path, timeouts=timeouts) as cluster, asyncio.timeout(240):
        yield cluster


def hello(**annotations: str) -> Object:
    result = {
        "serving.dev/command": f"{sys.executable} {SAMPLE}",
        "autoscaling.knative.dev/window": "6s",
        **annotations,
    }
    template = {
        "metadata": {"annotations": result},
        "spec": {"containerConcurrency": 10, "containers": [{"image": "hello"}]},
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "hello", "namespace": "default"},
        "spec": {"template": template},
    }


def is_ready(service: Object) -> bool:
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


async def until_ready(cluster: KubeCluster, name: str = "hello") -> None:
    listing = await cluster.list(SERVING_SERVICE, "default")
    if any(item["metadata"]["name"] == name and is_ready(item) for item in listing.items):
        return
    async with cluster.watch(SERVING_SERVICE, "default", resource_version=listing.resource_version) as events:
        async for event in events:
            if event.object["metadata"]["name"] == name and is_ready(event.object):
                return


async def until_state(cluster: KubeCluster, wanted: str) -> None:
    listing = await cluster.list(REVISION, "default")
    if any(item["spec"]["servingState"] == wanted for item in listing.items):
        return
    async with cluster.watch(REVISION, "default", resource_version=listing.resource_version) as events:
        async for event in events:
            if event.object["spec"]["servingState"] == wanted:
                return


async def until_no_pods(cluster: KubeCluster) -> None:
    listing = await cluster.list(POD, "default")
    names = {item["metadata"]["name"] for item in listing.items}
    if not names:
        return
    async with cluster.watch(POD, "default", resource_version=listing.resource_version) as events:
        async for event in events:
            if event.type == "DELETED":
                names.discard(event.object["metadata"]["name"])
            if not names:
                return


async def test_service_scales_from_zero_to_many_and_back(up: Up) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, hello())
        await until_ready(cluster)
        await up.until_status(200)
        # 60 concurrent requests with a limit of 10 per pod and a target of 7 need several pods.
        pods: set[str] = set()
        while len(pods) < 2:
            responses = await asyncio.gather(*(up.get("/sleep/1") for _ in range(60)))
            assert {status for status, _ in responses} == {200}
            pods |= {body.split()[-1] for _, body in responses}
        await until_state(cluster, "Reserve")
        await until_no_pods(cluster)
        status, body = await up.get()
        assert (status, body.startswith("Hello world from hello-00001")) == (200, True)


async def pausing(cluster: KubeCluster, *, but: str = "") -> Object:
    """A pod, other than ``but``, that waits because its predecessors were evicted."""

    def waits(pod: Object) -> bool:
        is_other = pod["metadata"]["name"] != but
        return is_other and "evicted repeatedly" in (pod.get("status") or {}).get("message", "")

    listing = await cluster.list(POD, "default")
    if result := next(filter(waits, listing.items), None):
        return result
    async with cluster.watch(POD, "default", resource_version=listing.resource_version) as events:
        async for event in events:
            if event.type != "DELETED" and waits(event.object):
                return event.object
    raise AssertionError("the watch ended")


@pytest.mark.slow
async def test_evicted_pods_pause_after_control_restart(up: Up) -> None:
    writing = f"sh -c 'head -c 5242880 /dev/zero > $HOME/filled; exec {sys.executable} {SAMPLE}'"
    looping = hello(**{"serving.dev/command": writing, "autoscaling.knative.dev/min-scale": "1"})
    limits = {"limits": {"ephemeral-storage": "1Mi"}}
    looping["spec"]["template"]["spec"]["containers"][0]["resources"] = limits
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, looping)
        pod = await pausing(cluster)
        os.kill(up.children()["serving.home.main"], signal.SIGKILL)
        while True:
            with contextlib.suppress(Unavailable):
                await pausing(cluster, but=pod["metadata"]["name"])
                break
        # Without saved pauses, the new process would evict two pods before the first pause.
        assert sum(map(is_evicted, (await cluster.list(POD, "default")).items)) < 2


async def test_deleted_service_leaves_no_pods(up: Up) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, hello())
        await until_ready(cluster)
        await cluster.delete(SERVING_SERVICE, "default", "hello")
        await until_no_pods(cluster)
        with pytest.raises(NotFound):
            await cluster.get(SERVING_SERVICE, "default", "hello")
        await up.until_status(404)


async def failure(cluster: KubeCluster) -> str:
    """The message of a service that is not ready."""
    listing = await cluster.list(SERVING_SERVICE, "default")
    for item in listing.items:
        if text := failure_in(item):
            return text
    async with cluster.watch(SERVING_SERVICE, "default", resource_version=listing.resource_version) as events:
        async for event in events:
            if text := failure_in(event.object):
                return text
    raise AssertionError("the watch ended")


def failure_in(service: Object) -> str:
    conditions = (service.get("status") or {}).get("conditions") or ()
    return "".join(
        str(condition["message"])
        for condition in conditions
        if (condition["type"], condition["status"]) == ("Ready", "False")
    )


async def test_app_that_never_listens_is_reported_in_service_status(up: Up) -> None:
    never = f"{sys.executable} -c 'import time; time.sleep(1000)'"
    annotations = {"serving.dev/command": never, "serving.knative.dev/progress-deadline": "2s"}
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, hello(**annotations))
        message = await failure(cluster)
    assert message.startswith('Revision "hello-00001" failed with message: ')
    assert any(
        reason in message for reason in ("no pod was ready within 2 s", "does not listen yet; it was given PORT=")
    )


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "serving",
            "up",
            f"--state={tmp_path}",
            f"--public-port={port}",
            "--api-port=0",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert f"--public-port: port {port} cannot be taken: Address already in use; expected a free port" in done.stderr
