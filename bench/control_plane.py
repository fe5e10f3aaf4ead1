"""Pods per second through the whole control plane, and the loop's lag.

    python bench/control_plane.py [--revisions N ...] [--port memory|http ...] [--delay-s S] [--quick] [--json]

It prints pods a second, CPU of this process a pod and who spends it, and how late the loop was: by the clock, and what
of that this process had computed meanwhile (``own``), which is what the code is to blame for on a machine that is
shared.

N services are made and come to rest at zero. Then each is woken at once: the revision is written Active, its load
reported to the autoscaler; that decides and writes the scale; the manager makes the pod, the simulated kubelet says
after its delay that it is ready, the manager puts it into its slice. The time is from the first write to the last ready
endpoint. On the memory port all run in one loop; over HTTP the autoscaler and who wakes are in a process of their own,
as in ``serving up``. Goals: 2,500 pods a second on the memory port (what Dirigent published), 150 over HTTP; Knative
has about 2.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench.parts.program import options_of, show
from serving.autoscaler.io.autoscaler import Autoscaler
from serving.controller.io.controller import Controller
from serving.core.model.objects import Object, is_true
from serving.core.model.stat import Stat
from serving.core.scaling.scaler.scaler import StatSource
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.controllers.manager import Manager
from serving.home.pods.podplan import ContainerState
from serving.home.pods.podstatus import pod_status
from serving.home.store.memory import MemoryCluster
from serving.net.aio.clock import now_s, stamp, steady_s
from serving.net.aio.daemon import collect_in_small_steps
from serving.net.cluster.kinds import ENDPOINT_SLICE, POD, REVISION, SERVING_SERVICE
from serving.net.cluster.kube import KubeCluster
from serving.net.cluster.port import Cluster, EventType
from tests.integration.api_server import served

SCALING = AutoscalerSettings(allow_zero_initial_scale=True, initial_scale=0)
NAMESPACE = "default"
LAG_PERIOD_S = 0.002
WAKERS = 8
KUBELET_WORKERS = 4
GIVE_UP_S = 900.0
# The first argument of the process on the other side of HTTP.
SERVE = "serve"


class Kubelet:
    """Says of each new pod that it is ready, after a delay."""

    def __init__(self, cluster: Cluster, *, delay_s: float) -> None:
        self._cluster, self._delay_s = cluster, delay_s

    async def run(self) -> None:
        """Until cancelled."""
        due: asyncio.Queue[Object] = asyncio.Queue()
        listing = await self._cluster.list(POD)
        async with asyncio.TaskGroup() as group:
            for _ in range(KUBELET_WORKERS):
                group.create_task(self._work(due))
            async with self._cluster.watch(POD, resource_version=listing.resource_version) as events:
                async for event in events:
                    if event.type is EventType.ADDED:
                        asyncio.get_running_loop().call_later(self._delay_s, due.put_nowait, event.object)

    async def _work(self, due: asyncio.Queue[Object]) -> None:
        while True:
            await self._ready(await due.get())
            await asyncio.sleep(0)

    async def _ready(self, pod: Object) -> None:
        life = {"user-container": ContainerState(is_running=True)}
        status = pod_status(pod, life, address="127.64.0.1", ready=True, stamp=stamp())
        await self._cluster.patch(
            POD, NAMESPACE, pod["metadata"]["name"], patch={"status": status}, subresource="status"
        )


class Lag:
    """How late the loop is, looked at again and again.

    ``late_s`` is what a clock says; ``own_s`` what of it this process has computed meanwhile: a machine that is shared
    makes everybody late, and says nothing of the code.
    """

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.own_s: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began_s, cpu_s = steady_s(), time.thread_time()
            await asyncio.sleep(LAG_PERIOD_S)
            late_s = steady_s() - began_s - LAG_PERIOD_S
            self.late_s.append(late_s)
            self.own_s.append(max(0.0, min(late_s, time.thread_time() - cpu_s - LAG_PERIOD_S)))

    def summary(self) -> dict[str, float | None]:
        """The worst, and the 99th percentile, in milliseconds."""
        return {
            f"{name}_{what}_ms": round(sorted(results)[int((len(results) - 1) * ratio)] * 1000, 1) if results else None
            for name, results in (("lag", self.late_s), ("own_lag", self.own_s))
            for what, ratio in (("p99", 0.99), ("max", 1.0))
        }


@contextlib.asynccontextmanager
async def home(*, delay_s: float) -> AsyncIterator[MemoryCluster]:
    """The store, with controller, manager and kubelet at work."""
    cluster = MemoryCluster(admit=partial(admit, scaling=SCALING))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(Manager(cluster).run()),
            group.create_task(Kubelet(cluster, delay_s=delay_s).run()),
        ]
        controller = Controller(cluster, settings=ControllerSettings(), scaling=SCALING)
        controlling = group.create_task(controller.run(stop))
        yield cluster
        stop.set()
        await controlling
        for task in tasks:
            task.cancel()


def service(number: int) -> dict[str, Any]:
    """A service that starts at zero."""
    annotations = {"autoscaling.knative.dev/initial-scale": "0"}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": "app"}]}}
    metadata = {"name": f"s-{number}", "namespace": NAMESPACE}
    return {"metadata": metadata, "spec": {"template": template}}


async def in_parallel(count: int, what: Any) -> None:  # noqa: ANN401 - a coroutine function of a number
    """Do something for each number, a few at a time."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await what(number)

    await asyncio.gather(*(work() for _ in range(WAKERS)))


async def until_services_ready(cluster: Cluster, count: int, version: str) -> None:
    """Wait for the Ready condition of so many services."""
    ready: set[str] = set()
    async with cluster.watch(SERVING_SERVICE, NAMESPACE, resource_version=version) as events:
        async for event in events:
            if is_true(event.object, "Ready"):
                ready.add(event.object["metadata"]["name"])
            if len(ready) == count:
                return


async def until_endpoints(cluster: Cluster, count: int, version: str) -> None:
    """Wait for so many ready endpoints in slices."""
    result: dict[str, int] = {}
    total = 0
    async with cluster.watch(ENDPOINT_SLICE, NAMESPACE, resource_version=version) as events:
        async for event in events:
            if event.type is EventType.BOOKMARK:
                continue
            ready = [endpoint for endpoint in event.object["endpoints"] if endpoint["conditions"]["ready"]]
            # The slices of pods, not those for ingresses.
            if event.object["metadata"]["labels"]["kubernetes.io/service-name"].endswith("-private"):
                name = event.object["metadata"]["name"]
                total += len(ready) - result.get(name, 0)
                result[name] = len(ready)
            if total >= count:
                return


async def measure(cluster: Cluster, count: int) -> dict[str, Any]:
    """Make services, wake all, and count."""
    lag = Lag()
    version = (await cluster.list(SERVING_SERVICE, NAMESPACE)).resource_version
    began_s = now_s()
    waiting = asyncio.create_task(until_services_ready(cluster, count, version))
    await in_parallel(count, lambda number: cluster.create(SERVING_SERVICE, service(number)))
    await waiting
    services_s = now_s() - began_s

    async def proved() -> bool:
        return True

    stop = asyncio.Event()
    autoscaler = Autoscaler(cluster, settings=SCALING, prove=proved)
    running = asyncio.create_task(autoscaler.run(stop))
    while autoscaler.numbers()["revisions"] < count:  # noqa: ASYNC110 - no event marks the end of the sync
        await asyncio.sleep(LAG_PERIOD_S)
    revisions = (await cluster.list(REVISION, NAMESPACE)).items
    version = (await cluster.list(ENDPOINT_SLICE, NAMESPACE)).resource_version
    lagging = asyncio.create_task(lag.run())
    waiting = asyncio.create_task(until_endpoints(cluster, count, version))

    async def wake(number: int) -> None:
        name = revisions[number]["metadata"]["name"]
        await cluster.patch(REVISION, NAMESPACE, name, patch={"spec": {"servingState": "Active"}})
        stat = Stat(pod="activator", at_s=now_s(), concurrency=1.0, request_count=1.0)
        autoscaler.record((NAMESPACE, name), stat, StatSource.ACTIVATOR)

    began_s, began_cpu_s = now_s(), time.process_time()
    await in_parallel(count, wake)
    await waiting
    took_s, cpu_s = now_s() - began_s, time.process_time() - began_cpu_s
    lagging.cancel()
    stop.set()
    await running
    return {
        "revisions": count,
        "services_per_second": round(count / services_s),
        "pods_per_second": round(count / took_s),
        "cpu_us_per_pod_here": round(cpu_s / count * 1e6),
        **lag.summary(),
    }


async def on_memory(count: int, *, delay_s: float) -> dict[str, Any]:
    """All in this loop."""
    async with asyncio.timeout(GIVE_UP_S), home(delay_s=delay_s) as cluster:
        return {"port": "memory", **await measure(cluster, count)}


async def serve(delay_s: float) -> None:
    """Run the process on the other side of HTTP until its standard input ends."""
    with tempfile.TemporaryDirectory() as folder:
        async with home(delay_s=delay_s) as cluster, served(cluster, Path(folder)) as server:
            lag = Lag()
            lagging = asyncio.create_task(lag.run())
            print(server.kubeconfig, flush=True)
            await asyncio.to_thread(sys.stdin.read)
            lagging.cancel()
            print(json.dumps(lag.summary()), flush=True)


async def over_http(count: int, *, delay_s: float) -> dict[str, Any]:
    """The store and what it runs in another process."""
    command = [sys.executable, __file__, SERVE, str(delay_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - before anything is measured
    assert process.stdout
    assert process.stdin
    path = process.stdout.readline().strip()
    try:
        async with asyncio.timeout(GIVE_UP_S), KubeCluster(path) as cluster:
            result = await measure(cluster, count)
    finally:
        process.stdin.close()
        printed = process.stdout.readline()
        process.wait()
    server = {f"server_{name}": value for name, value in json.loads(printed).items()}
    return {"port": "http", **result, **server}


def main() -> None:
    """Run, and print what was measured."""
    # As the control process has it.
    collect_in_small_steps()
    ports = {"memory": on_memory, "http": over_http}
    options = options_of(__doc__, revisions=(100, 1000), port=tuple(ports), delay_s=0.02, quick={"revisions": (5,)})
    for port in options.port:
        for count in options.revisions:
            show(uvloop.run(ports[port](count, delay_s=options.delay_s)), options)


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        collect_in_small_steps()
        uvloop.run(serve(float(sys.argv[2])))
    else:
        main()
