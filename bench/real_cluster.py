"""Many services on a real control plane, beside as many bare Deployments.

    python bench/real_cluster.py [--services N ...] [--scales N ...] [--settle-s S] [--rest-s S] [--audit-log FILE]
    [--keep] [--quick] python bench/real_cluster.py --cold [--samples N] [--image IMAGE] [--containerd-log FILE]
    [--label TEXT]

``SERVING_TEST_KUBECONFIG`` names the API server, with a scheduler and a controller-manager that has its node-lifecycle
controller, which takes the taint off the bench's node; without the variable there is our own server. Daemons are
processes of their own that reach the server directly, and so is a kubelet that reports pods as ready. Printed are, at
scale 0 and with a pod each, the times until all are ready and their ratio, writes of all clients, the growth of etcd's
file, CPU time and memory of each daemon, and both while nothing changes. Several numbers of services are steps:
``--services 100 400`` makes 100 and then 300 more, and the figures of a step are those of what it added.
``--audit-log`` names the server's audit log (level Metadata, stage ResponseComplete): then the calls of each daemon are
counted. ``--keep`` leaves the objects.

``--cold`` measures cold starts on a node with the system installed, in turns with bare pods of the same image, and
prints each step. ``SERVING_TEST_NODE_KUBECONFIG`` names the cluster; run it where pods are reached. The image answers
with ``up=NNms``, its own time since its start; ``allow-zero-initial-scale`` of config-autoscaler is true. Compare
kubelets with and without the feature PLEGOnDemandRelist by two runs; ``--label`` says which one it was.
"""

import argparse
import asyncio
import collections
import contextlib
import functools
import itertools
import json
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
from serving.core.model.errors import AlreadyExists
from serving.core.model.objects import Object
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, SERVING_SERVICE, Kind
from serving.tools.cli.client.api import ApiCall, ApiClient
from tests.cluster_e2e.server import SPACE, is_real, only_here
from tests.cluster_e2e.stage import SIDECAR, SYSTEM, Stage, is_ready, service, staged
from tests.cluster_e2e.status_kubelet import repeated
from tests.tidy.sources import ROOT

_WRITE = re.compile(r'verb="(POST|PUT|PATCH|APPLY|DELETE)"')
_READS = {"get", "list", "watch"}
# How our daemons are named in an audit log.
_OURS = "system:serviceaccount:knative-serving:"


class ServerCounts:
    """Counts since ``restart``. ``audit_log`` is the file of the server's audit log, None without one."""

    def __init__(self, client: ApiClient, audit_log: Path | None) -> None:
        self._client, self._audit_log = client, audit_log
        self._position = 0
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        text = self._metrics()
        self._writes, self._stored_bytes = _writes(text), _stored_bytes(text)
        self._position = self._audit_log.stat().st_size if self._audit_log else 0

    def lines(self, count: int) -> list[str]:
        """Writes, the growth of the store and calls of the daemons, each for one of ``count`` objects."""
        text = self._metrics()
        grown_kib, stored_mib = (_stored_bytes(text) - self._stored_bytes) / count / 1024, _stored_bytes(text) / 2**20
        lines = [
            f"writes of all clients: {(_writes(text) - self._writes) / count:.1f} each",
            f"etcd: {grown_kib:.1f} KiB each with former versions, {stored_mib:.1f} MiB in all",
        ]
        for client, calls in sorted(self._calls().items()):
            writes = {kind: count_of_kind for kind, count_of_kind in calls.items() if kind != "read"}
            parts = ", ".join(f"{kind} {count_of_kind / count:.1f}" for kind, count_of_kind in sorted(writes.items()))
            lines.append(
                f"{client}: {sum(calls.values()) / count:.1f} calls, {sum(writes.values()) / count:.1f} writes ({parts})"
            )
        return lines

    def written(self) -> int:
        """Writes of all clients, without leases."""
        return _writes(self._metrics()) - self._writes

    def _metrics(self) -> str:
        with self._client.stream(ApiCall(method="GET", path="/metrics")) as response:
            return b"".join(response.pieces()).decode()

    def _calls(self) -> dict[str, collections.Counter[str]]:
        """Calls of our daemons by kind, without leases."""
        calls: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        if self._audit_log is None:
            return calls
        with self._audit_log.open("rb") as log:
            log.seek(self._position)
            for line in log:
                event = json.loads(line)
                client, verb, place = event["user"]["username"], event["verb"], event.get("objectRef") or {}
                if client.startswith(_OURS) and place.get("resource") != "leases":
                    kind = "read" if verb in _READS else place.get("subresource") or verb
                    calls[client.removeprefix(_OURS)][kind] += 1
        return calls


def _writes(text: str) -> int:
    lines = (line for line in text.splitlines() if line.startswith("apiserver_request_total{"))
    return sum(
        int(float(line.rpartition(" ")[2])) for line in lines if 'resource="leases"' not in line and _WRITE.search(line)
    )


def _stored_bytes(text: str) -> float:
    """The size of etcd's file; not a number while a busy etcd does not tell it."""
    size_line = next((line for line in text.splitlines() if line.startswith("apiserver_storage_size_bytes{")), " nan")
    return float(size_line.rpartition(" ")[2])


_NODE_VARIABLE = "SERVING_TEST_NODE_KUBECONFIG"
DAEMONS = ("controller", "autoscaler", "activator")
_AT_ONCE = 20


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


def is_available(deployment: Object, *, scale: int) -> bool:
    """Whether a Deployment was observed with its pods ready."""
    status = deployment.get("status") or {}
    return bool(
        status.get("observedGeneration") == deployment["metadata"]["generation"]
        and status.get("readyReplicas", 0) == scale
    )


async def created(cluster_stage: Stage, kind: Kind, bodies: Sequence[Object], holds: Callable[[Object], bool]) -> float:
    """Seconds from the first create until all objects are as they should be."""
    begun_s = time.monotonic()
    remaining = iter(bodies)

    async def worker() -> None:
        for body in remaining:
            with contextlib.suppress(AlreadyExists):
                await repeated(functools.partial(cluster_stage.cluster.create, kind, body))

    async with asyncio.TaskGroup() as watching:
        watching.create_task(cluster_stage.until_all(kind, {body["metadata"]["name"] for body in bodies}, holds))
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(worker())
        created_s = time.monotonic() - begun_s
    took_s = time.monotonic() - begun_s
    print(f"  {len(bodies)} {kind.name}: created after {created_s:.1f} s, all ready after {took_s:.1f} s", flush=True)
    return took_s


class Measures:
    """CPU time and memory of each daemon, and what the API server has counted."""

    def __init__(self, cluster_stage: Stage, counts: ServerCounts | None) -> None:
        self._pids = {name: cluster_stage.daemons[name].process.pid for name in DAEMONS}
        self.counts = counts
        self.restart()

    def restart(self) -> None:
        """Measure from now on."""
        self._cpu_s = {name: cpu_s(pid) for name, pid in self._pids.items()}
        self._mib = {name: resident_mib(pid) for name, pid in self._pids.items()}
        if self.counts:
            self.counts.restart()

    def used(self) -> str:
        """CPU seconds of each daemon."""
        return ", ".join(f"{name} {cpu_s(pid) - self._cpu_s[name]:.2f} s" for name, pid in self._pids.items())

    def memory(self, count: int) -> str:
        """Memory of each daemon in MiB: its growth for each of ``count`` services, and all of it."""
        used_mib = {name: resident_mib(pid) for name, pid in self._pids.items()}
        return ", ".join(f"{name} {(mib - self._mib[name]) / count:.3f} ({mib:.0f})" for name, mib in used_mib.items())

    def show_counts(self, count: int) -> None:
        """Print what the server counted for each of ``count`` objects."""
        for line in self.counts.lines(count) if self.counts else ():
            print(f"    {line}", flush=True)


@contextlib.asynccontextmanager
async def kubelet_of(cluster_stage: Stage) -> AsyncIterator[None]:
    """A kubelet that reports pods as ready, in a process of its own."""
    command = (
        sys.executable,
        "-m",
        "tests.cluster_e2e.status_kubelet",
        str(cluster_stage.server.kubeconfig),
        cluster_stage.server.node,
    )
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def measure_services(options: argparse.Namespace) -> None:
    """Print the lines of services at scale 0 and with a pod each."""
    # Windows of the product, not those of tests.
    windows = {"SERVING_AUTOSCALER_STABLE_WINDOW_S": "60", "SERVING_AUTOSCALER_DECISION_PERIOD_S": "2"}
    settings = {**SIDECAR, **windows}
    with tempfile.TemporaryDirectory() as folder:
        async with staged(Path(folder), daemons=(), settings=settings, runs_nothing=False) as cluster_stage:
            assert cluster_stage.server.host in ("127.0.0.1", "localhost"), (
                "daemons reach the server directly: it has to be on 127.0.0.1"
            )
            cluster_stage.gate.port = cluster_stage.server.port
            log = Path(options.audit_log) if options.audit_log else None
            counts = ServerCounts(ApiClient(kubeconfig=cluster_stage.server.kubeconfig), log) if is_real() else None
            async with kubelet_of(cluster_stage):
                for name in DAEMONS:
                    await cluster_stage.start(name)
                measures = Measures(cluster_stage, counts)
                if is_real():
                    data = {"data": {"allow-zero-initial-scale": "true"}}
                    await cluster_stage.cluster.patch(CONFIG_MAP, SYSTEM, "config-autoscaler", patch=data)
                # Our own server refuses services that begin at zero.
                for scale in options.scales if is_real() else (1,):
                    for before, count in itertools.pairwise((0, *sorted(options.services))):
                        await compared(cluster_stage, measures, options, scale=scale, numbers=range(before, count))
                if not options.keep:
                    # Deleted pods stay until the kubelet has ended them.
                    await cluster_stage.clear()
            if options.keep:
                for daemon in cluster_stage.daemons.values():
                    await daemon.stop()
                os._exit(0)


async def compared(
    cluster_stage: Stage, measures: Measures, options: argparse.Namespace, *, scale: int, numbers: range
) -> None:
    """Services beside as many bare Deployments of one scale, with those of smaller numbers there."""
    print(f"{numbers.stop} at scale {scale}: load average {os.getloadavg()[0]:.1f}", flush=True)
    bodies = [bare(f"bare-{scale}-{number}", scale) for number in numbers]
    measures.restart()
    bare_s = await created(cluster_stage, DEPLOYMENT, bodies, functools.partial(is_available, scale=scale))
    measures.show_counts(len(numbers))
    initial = {f"autoscaling.knative.dev/{'min' if scale else 'initial'}-scale": str(scale)}
    before = await cluster_stage.own_writes()
    measures.restart()
    ours = [service(f"many-{scale}-{number}", annotations=initial) for number in numbers]
    ours_s = await created(cluster_stage, SERVING_SERVICE, ours, is_ready)
    print(f"  ratio {ours_s / bare_s:.2f}; load average {os.getloadavg()[0]:.1f}")
    print(f"  writes of our daemons: {(await cluster_stage.own_writes() - before) / len(numbers):.1f} each")
    measures.show_counts(len(numbers))
    print(f"  CPU: {measures.used()}")
    print(f"  MiB a service (in all): {measures.memory(len(numbers))}", flush=True)
    await asyncio.sleep(options.settle_s)
    measures.restart()
    await asyncio.sleep(options.rest_s)
    writes = measures.counts.written() if measures.counts else "-"
    print(f"  at rest for {options.rest_s:.0f} s: {writes} writes, CPU: {measures.used()}", flush=True)


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
    quick = {"services": (2,), "settle_s": 1.0, "rest_s": 1.0, "samples": 1}
    cold = {"cold": False, "samples": 24, "image": "localhost/app:v1", "containerd_log": "", "label": ""}
    many = {"services": (100,), "scales": (0, 1), "settle_s": 90.0, "rest_s": 60.0, "keep": False, "audit_log": ""}
    asyncio.run(main(options_of(__doc__, quick=quick, **many, **cold)))
