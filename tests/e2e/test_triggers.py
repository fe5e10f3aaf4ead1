"""ScalingPolicies and metrics under ``serving up``, with real pods and CPU usage, and a killed autoscaler."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.core.model.objects import Object
from serving.net.aio.clock import wall_s
from serving.net.cluster.kinds import POD, SCALING_POLICY, SERVING_SERVICE, Kind
from serving.net.cluster.kube import KubeCluster
from tests.e2e.test_up import HOST, Up, cluster_of, hello, running, until_ready

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

CPU = {
    "max": 2,
    "up": {
        "triggers": [
            {"type": "cpu", "usagePercent": 50, "timeSeconds": 3, "limitPercent": 1000},
            # Its points are retained longer than an autoscaler takes to start.
            {"type": "cpu", "usagePercent": 100, "timeSeconds": 120, "limitPercent": 1000},
        ]
    },
}
ROOM = {
    "up": {"triggers": [{"type": "occupancy", "usagePercent": 50, "timeSeconds": 1, "limitPercent": 50}]},
    "down": {"triggers": [{"type": "occupancy", "usagePercent": 30, "timeSeconds": 2}], "cooldownSeconds": 1},
}


REPORTER = """
import http.server, os
class Queue(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("endpoint-load-metrics", "TEXT named_metrics.queue_length=25")
        self.send_header("content-length", "0")
        self.end_headers()
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Queue).serve_forever()
"""


STREAMS = """
import http.server, os, time
class Model(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        time.sleep(600)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Model).serve_forever()
"""


PAGED = """
import http.server, os
class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"ok"
        if self.path == "/numbers":
            body = ('vllm:num_requests_waiting{engine="0"} 4\\nvllm:num_requests_waiting{engine="1"} %d\\n' % WAITING).encode()
        elif self.path == "/metrics":
            raise SystemExit("the wrong page")
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
WAITING = int(os.environ["WAITING"])
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), App).serve_forever()
"""


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.setenv("SERVING_AUTOSCALER_TRIGGERS_PERIOD_S", "1")
    monkeypatch.setenv("SERVING_AUTOSCALER_TRIGGERS_USAGE_PERIOD_S", "0.5")
    with running(tmp_path / "state") as up:
        yield up


async def attach(cluster: KubeCluster, spec: dict[str, Any]) -> None:
    body = {
        "apiVersion": "serving.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "hello", "namespace": "default"},
        "spec": {"targetRef": {"kind": "Service", "name": "hello"}, **spec},
    }
    await cluster.create(SCALING_POLICY, body)


async def states(cluster: KubeCluster, kind: Kind) -> AsyncIterator[list[Object]]:
    """All objects of a kind, now and after each change."""
    listing = await cluster.list(kind, "default")
    result = {item["metadata"]["name"]: item for item in listing.items}
    yield list(result.values())
    async with cluster.watch(kind, "default", resource_version=listing.resource_version) as events:
        async for event in events:
            result[event.object["metadata"]["name"]] = event.object
            if event.type == "DELETED":
                del result[event.object["metadata"]["name"]]
            yield list(result.values())


async def until(cluster: KubeCluster, kind: Kind, is_so: Callable[[list[Object]], bool]) -> list[Object]:
    async with asyncio.timeout(100):
        async for each_states in states(cluster, kind):
            if is_so(each_states):
                return each_states
    raise AssertionError("the watch ended")


def ready_count(pods: list[Object]) -> int:
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        for condition in (pod.get("status") or {}).get("conditions") or ()
    )


def point_times(policies: list[Object]) -> set[int]:
    """The times of the points in the policy's status."""
    revisions = (policies[0].get("status") or {}).get("revisions") or ()
    return {at_ms for entry in revisions for at_ms, _ in entry.get("points", {}).get("cpu", ())}


async def test_cpu_trigger_scales_up_and_its_points_survive_the_autoscaler(up: Up) -> None:
    async with cluster_of(up) as cluster:
        service = hello()
        service["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        await cluster.create(SERVING_SERVICE, service)
        await until_ready(cluster)
        await up.until_status(200)
        await attach(cluster, CPU)
        # One request; a pod accepts ten.
        burning = asyncio.create_task(up.get("/burn/12"))
        await until(cluster, POD, lambda pods: ready_count(pods) == 2)
        await until(cluster, SCALING_POLICY, lambda policies: len(point_times(policies)) >= 3)
        killed_ms = wall_s() * 1000
        os.kill(up.children()["serving.autoscaler.main"], signal.SIGKILL)
        # The next autoscaler adds points to the previous ones.
        scaling_policies = await until(
            cluster, SCALING_POLICY, lambda policies: max(point_times(policies), default=0) > killed_ms
        )
        assert min(point_times(scaling_policies)) < killed_ms
        assert (await burning)[0] == 200


async def test_occupancy_trigger_scales_up_and_down(up: Up) -> None:
    async with cluster_of(up) as cluster:
        await cluster.create(SERVING_SERVICE, hello())
        await until_ready(cluster)
        await up.until_status(200)
        await attach(cluster, ROOM)
        sleeping = asyncio.create_task(up.get("/sleep/6"))
        await until(cluster, POD, lambda pods: ready_count(pods) == 2)
        assert (await sleeping)[0] == 200
        await until(cluster, POD, lambda pods: ready_count(pods) <= 1)


async def test_reported_queue_length_scales_up(up: Up, tmp_path: Path) -> None:
    """The length passes from a response header through the queue-proxy and stats to the decision."""
    program = tmp_path / "queue_app.py"
    program.write_text(REPORTER)
    scaling = {"autoscaling.knative.dev/metric": "queue-length", "autoscaling.knative.dev/target": "10"}
    async with cluster_of(up) as cluster:
        service = hello(**scaling, **{"serving.dev/command": f"{sys.executable} {program}"})
        await cluster.create(SERVING_SERVICE, service)
        await until_ready(cluster)
        await up.until_status(200)
        # 25 queued at a target of 10 with 70 % utilization: 25 / 7, so 4 pods.
        await until(cluster, POD, lambda pods: ready_count(pods) >= 4)


async def test_metrics_page_gauges_scale_up_without_requests(up: Up, tmp_path: Path) -> None:
    """Without requests: the queue-proxy reads the page every second and sends the gauges in its stats."""
    program = tmp_path / "paged_app.py"
    program.write_text(PAGED)
    annotations = {
        "autoscaling.serving.dev/metric": "gauge:vllm:num_requests_waiting=5, concurrency=20",
        "prometheus.io/path": "/numbers",
        "serving.dev/command": f"{sys.executable} {program}",
    }
    async with cluster_of(up) as cluster:
        service = hello(**annotations)
        container = service["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": "WAITING", "value": "8"}]
        service["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/max-scale"] = "3"
        await cluster.create(SERVING_SERVICE, service)
        # 4 + 8 on the page of the first pod: 12 / 5, so 3 pods.
        await until(cluster, POD, lambda pods: ready_count(pods) == 3)
    command = [sys.executable, "-m", "serving", "why", "hello", "--state", str(up.state)]
    completed = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    assert "vllm:num_requests_waiting over" in completed.stdout


async def test_tokens_in_flight_scale_a_model_server(up: Up, tmp_path: Path) -> None:
    """The responses take minutes, so the pods start during both requests, after the panic window of 6 s."""
    program = tmp_path / "model_server.py"
    program.write_text(STREAMS)
    annotations = {
        "autoscaling.serving.dev/metric": "tokens=20000",
        "autoscaling.knative.dev/max-scale": "3",
        "serving.dev/command": f"{sys.executable} {program}",
    }
    chat = {"messages": [{"role": "user", "content": "x" * 40_000}], "max_tokens": 20_000, "stream": True}
    async with cluster_of(up) as cluster:
        service = hello(**annotations)
        service["spec"]["template"]["metadata"]["annotations"].pop("autoscaling.knative.dev/window")
        await cluster.create(SERVING_SERVICE, service)
        await until_ready(cluster)
        async with asyncio.timeout(60):
            while (await up.get("/health"))[0] != 200:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.05)
        address = f"http://127.0.0.1:{up.port}"
        async with httpx.AsyncClient(base_url=address, timeout=60) as client, contextlib.AsyncExitStack() as streams:
            for _ in range(2):
                asking = client.stream("POST", "/v1/chat/completions", json=chat, headers={"Host": HOST.decode()})
                assert (await streams.enter_async_context(asking)).status_code == 200
            # Twice 10,000 prompt tokens and 20,000 response tokens: 60,000 / 20,000.
            await until(cluster, POD, lambda pods: ready_count(pods) == 3)
    command = [sys.executable, "-m", "serving", "why", "hello", "--state", str(up.state)]
    completed = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    assert "tokens in flight over 1 ready pod, target 20000 each" in completed.stdout
