"""Many services on a real control plane, beside as many bare Deployments.

    python bench/real_cluster.py [--services N] [--settle-s S] [--rest-s S] [--quick]
    python bench/real_cluster.py --cold [--samples N] [--image IMAGE] [--containerd-log FILE] [--label TEXT]

``SERVING_TEST_KUBECONFIG`` names the API server, with its controller-manager and a scheduler; without it there is our own.
The suite of ``tests/cluster_e2e`` is the node, and reports pods as ready. Printed are the times until all are ready and their ratio, the
controller's CPU time and memory, and what the daemons send to the API server while nothing changes. The objects stay.

``--cold`` measures cold starts on a node with the system installed, in turns with bare pods of the same image, and prints each step.
``SERVING_TEST_NODE_KUBECONFIG`` names the cluster; run it where pods are reached. The image answers with ``up=NNms``, its own time since
its start; ``allow-zero-initial-scale`` of config-autoscaler is true. Compare kubelets with and without the feature PLEGOnDemandRelist by two runs; ``--label`` says which one it was.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from bench.parts.node_starts import measure
from bench.parts.processes import cpu_s, resident_mib
from bench.parts.program import options_of
from serving.cluster.kinds import DEPLOYMENT, SERVING_SERVICE, Kind
from serving.model.objects import Object
from tests.cluster_e2e import gate, stage
from tests.cluster_e2e.server import SPACE, only_here
from tests.cluster_e2e.stage import Stage, is_ready, service, staged

_NODE_VARIABLE = "SERVING_TEST_NODE_KUBECONFIG"
_AT_ONCE = 20
_PATIENCE_S = 3600.0


def bare(name: str) -> Object:
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
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def is_available(one: Object) -> bool:
    """Whether a Deployment has its pod ready."""
    return bool((one.get("status") or {}).get("readyReplicas"))


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


class Counted:
    """Counts the pieces that pass a gate towards its server."""

    def __init__(self, pump: Callable[[Any, Any], Awaitable[None]]) -> None:
        self.count = 0
        self._pump = pump

    async def __call__(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Pump, and count what goes to the server."""
        if sink.get_extra_info("peername")[1] == self.port:
            write = sink.write

            def counted(data: bytes | bytearray | memoryview) -> None:
                self.count += 1
                write(data)

            sink.write = counted  # type: ignore[method-assign]
        await self._pump(source, sink)

    port = 0


async def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    if options.cold:
        log, label = options.containerd_log, options.label
        kubeconfig = os.environ.get(_NODE_VARIABLE, "")
        assert kubeconfig, f"{_NODE_VARIABLE} names no cluster"
        await measure(kubeconfig, samples=options.samples, image=options.image, log=log, label=label)
        return
    count = options.services
    counted = Counted(gate._pump)  # noqa: SLF001 - the measure is put around it
    gate._pump = counted  # noqa: SLF001 - as above
    with tempfile.TemporaryDirectory() as folder:
        running = staged(Path(folder))
        one = await running.__aenter__()
        counted.port = one.server.port
        controller = one.daemons["controller"].process.pid
        print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
        bare_s = await made(one, DEPLOYMENT, [bare(f"bare-{number}") for number in range(count)], is_available)
        before_s, begun_count = cpu_s(controller), counted.count
        ours = [
            service(f"many-{number}", annotations={"autoscaling.knative.dev/min-scale": "1"}) for number in range(count)
        ]
        ours_s = await made(one, SERVING_SERVICE, ours, is_ready)
        print(f"  ratio {ours_s / bare_s:.2f}; load average {os.getloadavg()[0]:.1f}")
        print(f"  controller: {cpu_s(controller) - before_s:.1f} s of CPU, {resident_mib(controller):.0f} MiB")
        print(f"  pieces to the API server: {counted.count - begun_count}")
        for name in ("autoscaler", "activator"):
            print(f"  {name}: {resident_mib(one.daemons[name].process.pid):.0f} MiB")
        await asyncio.sleep(options.settle_s)
        begun_count, begun_cpu_s = counted.count, cpu_s(controller)
        await asyncio.sleep(options.rest_s)
        print(f"  at rest for {options.rest_s:.0f} s: {counted.count - begun_count} pieces to the API server,", end=" ")
        print(f"{cpu_s(controller) - begun_cpu_s:.2f} s of the controller's CPU", flush=True)
        for daemon in one.daemons.values():
            await daemon.stop()
    os._exit(0)


if __name__ == "__main__":
    quick = {"services": 2, "settle_s": 1.0, "rest_s": 1.0, "samples": 1}
    cold = {"cold": False, "samples": 24, "image": "localhost/app:v1", "containerd_log": "", "label": ""}
    asyncio.run(main(options_of(__doc__, services=1000, settle_s=30.0, rest_s=60.0, quick=quick, **cold)))
