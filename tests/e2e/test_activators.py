"""Two activator processes on the same sockets: they respect a pod's limit together, and one may be killed."""

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.core.model.objects import Object
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.net.cluster.kube import KubeCluster
from tests.e2e.cli_stage import parent_of, processes
from tests.e2e.test_up import Up, cluster_of, running, until_no_pods, until_ready

CLIENTS = 16
REQUESTS = 3_000
APP = Path(__file__).with_name("lone_app.py")
LONE = "lone.default.localhost"

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running(tmp_path / "state", "--activators=2") as up:
        yield up


def lone(**annotations: str) -> Object:
    """A service whose pods accept one request at a time."""
    result = {"serving.dev/command": f"{sys.executable} {APP}", "autoscaling.knative.dev/window": "6s"}
    spec = {"containerConcurrency": 1, "containers": [{"image": "none"}]}
    template = {"metadata": {"annotations": {**result, **annotations}}, "spec": spec}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "lone", "namespace": "default"},
        "spec": {"template": template},
    }


def pods(least: int, most: int) -> dict[str, str]:
    return {"autoscaling.knative.dev/min-scale": str(least), "autoscaling.knative.dev/max-scale": str(most)}


async def until_known(up: Up, cluster: KubeCluster) -> None:
    """Wait until the service is ready, and both activators know it."""
    await until_ready(cluster, "lone")
    async with asyncio.timeout(60):
        while not all(count > 0 for count in response_counts(up)):
            await asyncio.gather(*(up.until_status(200, LONE.encode()) for _ in range(CLIENTS)))


def activators(up: Up) -> dict[str, int]:
    """Process ids by index."""
    result = {}
    for pid, command in processes():
        if "serving.activator.main" in command and parent_of(pid) == up.pid:
            index = re.search(rb"\0SERVING_ACTIVATOR_INDEX=(\d+)\0", Path(f"/proc/{pid}/environ").read_bytes())
            assert index
            result[index[1].decode()] = pid
    return result


def response_counts(up: Up) -> list[int]:
    """Requests served by each activator, from both metrics pages."""
    ports = json.loads((up.state / "ports.json").read_text())
    token, results = (up.state / "query-token").read_text(), []
    for name in ("activator-metrics", "activator-1-metrics"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{ports[name]}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as page:  # noqa: S310 - a local URL
            counts = re.findall(rb"^http_server_request_duration_seconds_count\{.*\} (\S+)$", page.read(), re.MULTILINE)
            results.append(sum(int(float(count)) for count in counts))
    return results


class Clients:
    """CLIENTS concurrent clients, with one connection per request, and their results."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.statuses: Counter[int] = Counter()
        self.most: set[str] = set()
        self.cut_count = 0
        self.left_count = 0
        self.until_status = asyncio.Semaphore(0)

    async def run(self, count: int) -> None:
        self.left_count = count
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        while self.left_count > 0:
            self.left_count -= 1
            try:
                status, body = await self.up.get(host=LONE.encode())
            except (OSError, IndexError):
                # No response, or an incomplete one.
                self.cut_count += 1
                continue
            self.statuses[status] += 1
            self.most.add(body)
            self.until_status.release()


async def test_two_activators_respect_the_concurrency_limit_of_pods(up: Up) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, lone(**pods(2, 2)))
        await until_known(up, cluster)
        clients = Clients(up)
        await clients.run(REQUESTS)
        assert clients.statuses == {200: REQUESTS}
        assert clients.most == {"1"}
        assert min(response_counts(up)) > REQUESTS / 10


async def test_killed_activator_fails_only_its_own_requests(up: Up) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, lone(**pods(2, 2)))
        await until_known(up, cluster)
        clients = Clients(up)
        load = asyncio.create_task(clients.run(REQUESTS))
        for _ in range(REQUESTS // 4):
            await clients.until_status.acquire()
        os.kill(activators(up)["1"], signal.SIGKILL)
        await load
        # Connections in the backlog of the shared listening socket are not lost.
        assert clients.cut_count <= CLIENTS
        assert clients.statuses == {200: REQUESTS - clients.cut_count}
        assert clients.most == {"1"}


async def test_requests_at_both_activators_wake_a_service_from_zero(up: Up) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, lone(**pods(0, 2)))
        await until_known(up, cluster)
        await until_no_pods(cluster)
        before = response_counts(up)
        clients = Clients(up)
        await clients.run(CLIENTS * 20)
        assert clients.statuses == {200: CLIENTS * 20}
        assert clients.most == {"1"}
        assert all(now > then for now, then in zip(response_counts(up), before, strict=True))
