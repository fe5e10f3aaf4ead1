"""Many services on a real control plane, beside as many bare Deployments.

    python bench/real_cluster.py [--services N] [--settle-s S] [--rest-s S] [--keep] [--quick]
    python bench/real_cluster.py --cold [--samples N] [--image IMAGE] [--containerd-log FILE] [--label TEXT]

``SERVING_TEST_KUBECONFIG`` names the API server, with a scheduler and a controller-manager that has its node-lifecycle controller, which
takes the taint off the bench's node; without the variable there is our own server.
Daemons are processes of their own that reach the server directly, and so is a kubelet that reports pods as ready. Printed are, at
scale 0 and with a pod each, the times until all are ready and their ratio, writes, CPU time and memory of each daemon, and both while
nothing changes. ``--keep`` leaves the objects.

``--cold`` measures cold starts on a node with the system installed, in turns with bare pods of the same image, and prints each step.
``SERVING_TEST_NODE_KUBECONFIG`` names the cluster; run it where pods are reached. The image answers with ``up=NNms``, its own time since
its start; ``allow-zero-initial-scale`` of config-autoscaler is true. Compare kubelets with and without the feature PLEGOnDemandRelist by two runs; ``--label`` says which one it was.
"""

import argparse
import asyncio
import contextlib
import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from bench.parts.node_starts import measure
from bench.parts.processes import cpu_s, resident_mib
from bench.parts.program import options_of
from serving.cli.client.api import ApiCall, ApiClient
from serving.cluster.kinds import CONFIG_MAP, DEPLOYMENT, SERVING_SERVICE, Kind
from serving.model.objects import Object
from tests.cluster_e2e import stage
from tests.cluster_e2e.server import SPACE, is_real, only_here
from tests.cluster_e2e.stage import SYSTEM, Stage, is_ready, service, staged
from tests.tidy.sources import ROOT

_NODE_VARIABLE = "SERVING_TEST_NODE_KUBECONFIG"
DAEMONS = ("controller", "autoscaler", "activator")
_AT_ONCE = 20
_WRITE = re.compile(r'verb="(POST|PUT|PATCH|APPLY|DELETE)"')
_PATIENCE_S = 3600.0


def bare(name: str, replicas: int) -> Object:
    """A Deployment with the container of the services."""
    pod = service(name)["spec"]["template"]["spec"]
    labels = {"app": name}
    containers = [{"name": "app", **pod["containers"][0]}]
    spec = {**only_here(), "containers": containers, "enableServiceLinks": False}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def is_available(one: Object, *, scale: int) -> bool:
    """Whether a Deployment was observed with its pods ready."""
    status = one.get("status") or {}
    return bool(
        status.get("observedGeneration") == one["metadata"]["generation"] and status.get("readyReplicas", 0) == scale
    )


async def made(one: Stage, kind: Kind, bodies: Sequence[Object], holds: Callable[[Object], bool]) -> float:
    """Seconds from the first create until all objects are as they should be."""
    begun_s = time.monotonic()
    left = iter(bodies)
    watching = asyncio.create_task(until_all(one, kind, {body["metadata"]["name"] for body in bodies}, holds))

    async def worker() -> None:
        for body in left:
            await one.cluster.create(kind, body)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(worker())
    created_s = time.monotonic() - begun_s
    await watching
    took_s = time.monotonic() - begun_s
    print(f"  {len(bodies)} {kind.name}: created after {created_s:.1f} s, all ready after {took_s:.1f} s", flush=True)
    return took_s


async def until_all(one: Stage, kind: Kind, names: set[str], holds: Callable[[Object], bool]) -> None:
    """Return when something holds of all objects of some names."""
    listing = await one.cluster.list(kind, SPACE)
    async with asyncio.timeout(_PATIENCE_S):
        while names:
            names.difference_update(found["metadata"]["name"] for found in listing.items if holds(found))
            async with one.cluster.watch(kind, SPACE, resource_version=listing.resource_version) as events:
                async for event in stage.of_objects(events):
                    if holds(event.object):
                        names.discard(event.object["metadata"]["name"])
                    if not names:
                        return
            listing = await one.cluster.list(kind, SPACE)


class Measures:
    """CPU time and memory of each daemon, and the writes that the API server has counted."""

    def __init__(self, one: Stage, counters: ApiClient | None) -> None:
        self._pids = {name: one.daemons[name].process.pid for name in DAEMONS}
        self._counters = counters
        self.restart()

    def restart(self) -> None:
        """Measure from now on."""
        self._cpu_s = {name: cpu_s(pid) for name, pid in self._pids.items()}
        self._mib = {name: resident_mib(pid) for name, pid in self._pids.items()}
        self._writes = self._write_count()

    def used(self) -> str:
        """CPU seconds of each daemon."""
        return ", ".join(f"{name} {cpu_s(pid) - self._cpu_s[name]:.2f} s" for name, pid in self._pids.items())

    def grown(self, count: int) -> str:
        """Memory of each daemon for each of ``count`` services, in MiB."""
        return ", ".join(
            f"{name} {(resident_mib(pid) - self._mib[name]) / count:.3f}" for name, pid in self._pids.items()
        )

    def writes(self) -> int | None:
        """Writes of all clients, without leases; None where the server counts none."""
        before, now = self._writes, self._write_count()
        return None if before is None or now is None else now - before

    def _write_count(self) -> int | None:
        if self._counters is None:
            return None
        with self._counters.stream(ApiCall(method="GET", path="/metrics")) as response:
            text = b"".join(response.pieces()).decode()
        lines = (line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in lines
            if 'resource="leases"' not in line and _WRITE.search(line)
        )


@contextlib.asynccontextmanager
async def kubelet_of(one: Stage) -> AsyncIterator[None]:
    """A kubelet that reports pods as ready, in a process of its own."""
    command = (sys.executable, "-m", "tests.cluster_e2e.status_kubelet", str(one.server.kubeconfig), one.server.node)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def measure_services(options: argparse.Namespace) -> None:
    """Print the lines of services at scale 0 and with a pod each."""
    # Windows of the product, not those of tests.
    settings = {"SERVING_AUTOSCALER_STABLE_WINDOW_S": "60", "SERVING_AUTOSCALER_DECISION_PERIOD_S": "2"}
    with tempfile.TemporaryDirectory() as folder:
        async with staged(Path(folder), daemons=(), settings=settings, runs_nothing=False) as one:
            assert one.server.host in ("127.0.0.1", "localhost"), (
                "daemons reach the server directly: it has to be on 127.0.0.1"
            )
            one.gate.port = one.server.port
            counters = ApiClient(kubeconfig=one.server.kubeconfig) if is_real() else None
            async with kubelet_of(one):
                for name in DAEMONS:
                    await one.start(name)
                measures = Measures(one, counters)
                if is_real():
                    data = {"data": {"allow-zero-initial-scale": "true"}}
                    await one.cluster.patch(CONFIG_MAP, SYSTEM, "config-autoscaler", patch=data)
                # Our own server refuses services that begin at zero.
                for scale in (0, 1) if is_real() else (1,):
                    await compared(one, measures, options, scale=scale)
            for daemon in one.daemons.values():
                await daemon.stop()
            if options.keep:
                os._exit(0)


async def compared(one: Stage, measures: Measures, options: argparse.Namespace, *, scale: int) -> None:
    """Services beside as many bare Deployments of one scale."""
    count, named = options.services, f"{options.services} at scale {scale}"
    print(f"{named}: load average {os.getloadavg()[0]:.1f}", flush=True)
    bodies = [bare(f"bare-{scale}-{number}", scale) for number in range(count)]
    measures.restart()
    bare_s = await made(one, DEPLOYMENT, bodies, functools.partial(is_available, scale=scale))
    bare_writes = measures.writes()
    initial = (
        {"autoscaling.knative.dev/initial-scale": "0"} if not scale else {"autoscaling.knative.dev/min-scale": "1"}
    )
    measures.restart()
    ours = [service(f"many-{scale}-{number}", annotations=initial) for number in range(count)]
    ours_s = await made(one, SERVING_SERVICE, ours, is_ready)
    print(f"  ratio {ours_s / bare_s:.2f}; load average {os.getloadavg()[0]:.1f}")
    if (writes := measures.writes()) is not None and bare_writes is not None:
        print(f"  writes of all clients: {writes / count:.1f} a service, {bare_writes / count:.1f} a Deployment")
    print(f"  CPU: {measures.used()}")
    print(f"  MiB a service: {measures.grown(count)}")
    await asyncio.sleep(options.settle_s)
    measures.restart()
    await asyncio.sleep(options.rest_s)
    writes = measures.writes()
    print(
        f"  at rest for {options.rest_s:.0f} s: {'-' if writes is None else writes} writes, CPU: {measures.used()}",
        flush=True,
    )
    for body in bodies:
        await one.cluster.delete(DEPLOYMENT, SPACE, body["metadata"]["name"])


async def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    if not options.cold:
        await measure_services(options)
        return
    log, label = options.containerd_log, options.label
    kubeconfig = os.environ.get(_NODE_VARIABLE, "")
    assert kubeconfig, f"{_NODE_VARIABLE} names no cluster"
    await measure(kubeconfig, samples=options.samples, image=options.image, log=log, label=label)


if __name__ == "__main__":
    quick = {"services": 2, "settle_s": 1.0, "rest_s": 1.0, "samples": 1}
    cold = {"cold": False, "samples": 24, "image": "localhost/app:v1", "containerd_log": "", "label": ""}
    asyncio.run(main(options_of(__doc__, services=100, settle_s=90.0, rest_s=60.0, keep=False, quick=quick, **cold)))
