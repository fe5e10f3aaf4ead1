"""Ten applications as their Helm charts render them, adopted on a control plane: to zero and back, and how long that takes.

    python bench/adopt.py [--cycles N] [--requests N] [--start-s S] [--json] [--quick]

``SERVING_TEST_KUBECONFIG`` names the API server, with a scheduler and a controller-manager; without it there is our own
server, which has no StatefulSets. Daemons are processes with their own accounts. A container is a server of this
process at each of its ports, which listens ``--start-s`` after its pod is bound. The manifests of ``bench/charts`` are
applied and adopted as they are.

Printed are: applications adopted and released; requests of all cycles and those that failed; seconds from the readiness
of the first pod to the response of the request that started it, and from a load of four pods to a scale above one.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import yaml

from bench.parts.load import send_request
from bench.parts.program import exit_code, options_of, show
from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.objects import Object, name_of, nested
from serving.net.cluster.kinds import DEPLOYMENT, POD, STATEFUL_SET, Kind, kind_of
from serving.tools.cli.client.api import ApiClient
from serving.tools.cli.client.resources import path_of
from tests.cluster_e2e.app_kubelet import OVERRIDE, AppKubelet
from tests.cluster_e2e.server import SPACE, is_real
from tests.cluster_e2e.stage import Stage, staged

CHARTS = Path(__file__).parent / "charts"
TARGET, PODS_MAX, CLIENTS = 5, 4, 10
SETTINGS = {**OVERRIDE, "SERVING_AUTOSCALER_DECISION_PERIOD_S": "2"}


class App(msgspec.Struct, frozen=True, kw_only=True):
    """One chart."""

    host: str
    objects: tuple[Object, ...]

    @property
    def target(self) -> Object:
        """The Deployment or StatefulSet."""
        return next(resource for resource in self.objects if resource["kind"] in {DEPLOYMENT.name, STATEFUL_SET.name})

    @property
    def kind(self) -> Kind:
        """Its kind."""
        return DEPLOYMENT if self.target["kind"] == DEPLOYMENT.name else STATEFUL_SET

    @property
    def workload(self) -> str:
        """As the command line names it."""
        return f"{self.kind.name.lower()}/{name_of(self.target)}"


class Run:
    """What happens to the applications on a stage."""

    def __init__(self, stage: Stage, kubelet: AppKubelet, sizes: argparse.Namespace) -> None:
        self.stage, self.kubelet, self.sizes = stage, kubelet, sizes
        self.statuses: Counter[str] = Counter()
        self.beyond_ready_s: list[float] = []
        self.decided_s: list[float] = []

    def command(self, *words: str) -> bool:
        """Run a command of the CLI; whether it succeeded."""
        place = ("--kubeconfig", str(self.stage.server.kubeconfig), "-n", SPACE)
        line = [sys.executable, "-m", "serving", *words, *place]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"serving {' '.join(words)}: {done.stdout}{done.stderr}", file=sys.stderr)
        return done.returncode == 0

    async def until_replicas(self, app: App, holds: Callable[[int], bool]) -> None:
        """Wait for a replica count that ``holds``."""

        def is_so(target: Object) -> bool:
            count = target["spec"].get("replicas", 1)
            return holds(count) and bool(count or not nested(target, "status", "replicas"))

        await self.stage.until(app.kind, name_of(app.target), is_so)

    async def send(self, app: App, path: str = "/") -> None:
        """One request."""
        try:
            status = (await send_request(self.stage.port("public"), app.host, path))[0]
        except (OSError, TimeoutError) as error:
            status = type(error).__name__
        self.statuses[status] += 1

    async def wake(self, app: App) -> None:
        """From zero by one request, which is repeated if a pod of before answers it."""
        name, started_s, ended_s = f"{name_of(app.target)}-", list[float](), 0.0
        while not started_s:
            await self.until_replicas(app, lambda count: count == 0)
            begun_s = time.monotonic()
            await self.send(app)
            ended_s, ready = time.monotonic(), self.kubelet.ready_s.items()
            started_s = [at_s for pod, at_s in ready if pod.startswith(name) and at_s > begun_s]
        self.beyond_ready_s.append(ended_s - min(started_s))

    async def serve(self, app: App) -> None:
        """Many more requests, in a closed loop."""

        async def client(remaining: Iterator[int]) -> None:
            for _ in remaining:
                await self.send(app)

        await asyncio.gather(*map(client, [iter(range(self.sizes.requests - 1))] * CLIENTS))

    async def grow(self, app: App) -> None:
        """A load of all pods, at a scale of one."""
        await self.send(app)
        await self.until_replicas(app, lambda count: count == 1)
        begun_s = time.monotonic()
        load = [asyncio.create_task(self.send(app, "/sleep/3")) for _ in range(TARGET * PODS_MAX)]
        await self.until_replicas(app, lambda count: count > 1)
        self.decided_s.append(time.monotonic() - begun_s)
        await asyncio.gather(*load)

    def figures(self) -> dict[str, object]:
        """The figures for people."""
        return {
            "requests": self.statuses.total(),
            "failed": sum(count for status, count in self.statuses.items() if " 200 " not in status),
            "statuses": dict(self.statuses),
            "beyond_ready_s": _quantiles(self.beyond_ready_s),
            "decided_s": _quantiles(self.decided_s),
        }


def _quantiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "max": round(max(values), 3)}


def apps() -> Iterator[App]:
    """The charts that the server can run."""
    for path in sorted(CHARTS.glob("*.yaml")):
        app = App(host=f"{path.stem}.example.com", objects=tuple(filter(None, yaml.safe_load_all(path.read_text()))))
        if is_real() or app.kind == DEPLOYMENT:
            yield app


def write_objects(api: ApiClient, charts: list[App], method: str) -> None:
    """Create or delete all objects of the charts."""
    for app in charts:
        for body in app.objects:
            kind = kind_of(body["apiVersion"], body["kind"])
            assert kind is not None, body["kind"]
            name = None if method == "POST" else name_of(body)
            status, reply = api.call(method, path_of(kind, SPACE, name), body if method == "POST" else None)
            assert status < 400 or status in {AlreadyExists.status, NotFound.status}, reply


async def measured(sizes: argparse.Namespace, folder: Path) -> dict[str, object]:
    """All of it, on one stage."""
    charts = list(apps())[: sizes.apps]
    async with staged(folder, runs_nothing=False, settings=SETTINGS) as stage:
        kubelet = AppKubelet(stage, start_s=sizes.start_s)
        # Foreign pods tolerate no taint.
        kubelet.taints = []
        run, node = Run(stage, kubelet, sizes), asyncio.create_task(kubelet.run())
        api = ApiClient(kubeconfig=stage.server.kubeconfig)
        try:
            await asyncio.to_thread(write_objects, api, charts, "POST")
            options = ("--value", str(TARGET), "--max", str(PODS_MAX), "--window", "6s")
            words = [("adopt", app.workload, "--host", app.host, *options) for app in charts]
            adopted = [await asyncio.to_thread(run.command, *line) for line in words]
            for _ in range(sizes.cycles):
                # Not at once: a closed loop takes all of the machine.
                for part in (run.wake, run.serve):
                    await asyncio.gather(*map(part, charts))
            for app in charts:
                await run.grow(app)
            released = [await asyncio.to_thread(run.command, "release", app.workload) for app in charts]
            for app in charts:
                await run.until_replicas(app, app.target["spec"].get("replicas", 1).__eq__)
        finally:
            await asyncio.to_thread(write_objects, api, charts, "DELETE")
            await stage.until_none(POD)
            node.cancel()
    return {"apps": len(charts), "adopted": sum(adopted), "released": sum(released), **run.figures()}


def main() -> int:
    """Measure and print."""
    quick = {"apps": 2, "cycles": 1, "requests": 10}
    sizes = options_of(__doc__, apps=10, cycles=10, requests=100, start_s=0.3, quick=quick)
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measured(sizes, Path(folder)))
    show(figures, sizes)
    is_whole = figures["apps"] == figures["adopted"] == figures["released"]
    return exit_code(sizes, is_met=not figures["failed"] and is_whole)


if __name__ == "__main__":
    sys.exit(main())
