"""``make demo-nodes``: requests decide pods, and pods decide nodes, on virtual nodes.

    python bench/demo_nodes.py [--anticipation] [--quick]

Load comes: pods come, some wait because no node has room, the node group adds nodes, the pods run. Load goes: pods go to zero, nodes
are drained and removed. Prints a timeline and a plot of nodes and pods, then what ``serving why`` says. Exit 0 only if all holds.

``--anticipation`` (``make demo-anticipation``) shows the same climb of load twice. Clients come one after another. At first a pod is
pending until a node has booted for it. Then the autoscaler publishes how many pods it will want by then, and the node group
counts them. Exit 0 only if pods wait less with anticipation, and no request fails.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.parts.load import Load, loaded
from bench.parts.program import exit_code, options_of
from bench.parts.story import PERIOD_S, Story, bars
from bench.parts.system import SERVICES, System, running_system, service_of
from serving.tools.samples import hello

SERVICE = "hello"
HOST = "hello.default.localhost"
APP = Path(hello.__file__)
NODES, NODES_MAX = 2, 4
# Three pods fit on a node: eight clients want eight pods, two nodes have room for six.
POD_CPU, CLIENTS = "300m", 8
BOOT_S = 6
# Of a climb, two pods fit on a node.
CLIMB_POD_CPU, CLIMB_BOOT_S = "400m", 8
PLACED_WITHIN_S = 60.0
GROWN_WITHIN_S = 40.0
QUIET_WITHIN_S = 70.0


class Seen:
    """One look: pods running and pending, nodes up and tainted."""

    def __init__(self, pods: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> None:
        self.running = sum(1 for pod in pods if pod["spec"].get("nodeName"))
        self.waiting = len(pods) - self.running
        self.nodes = len(nodes)
        self.going = sum(1 for node in nodes if node["spec"].get("taints"))

    def __str__(self) -> str:
        waiting = f", {self.waiting} pending" if self.waiting else ""
        going = f", {self.going} to go" if self.going else ""
        return f"{self.running} pods{waiting} on {self.nodes} nodes{going}"


class NodeStory(Story):
    """The system and all looks at it."""

    def __init__(self, system: System) -> None:
        super().__init__(system)
        self.looks: list[Seen] = []
        self._last = ""

    async def deploy(self, *, pods_max: int, pod_cpu: str, **more: str) -> None:
        """Deploy a service with a pod for each client; ``more`` are annotations."""
        annotations = {
            **{f"autoscaling.knative.dev/{name}": text for name, text in more.items()},
            "autoscaling.knative.dev/target-utilization-percentage": "100",
            "autoscaling.knative.dev/max-scale": str(pods_max),
            "serving.dev/command": f"{sys.executable} {APP}",
        }
        requests = {"requests": {"cpu": pod_cpu, "memory": "32Mi"}}
        manifest = service_of(SERVICE, annotations=annotations, concurrency=1, resources=requests)
        await asyncio.to_thread(self.system.send_request, SERVICES, manifest, method="POST")
        await asyncio.to_thread(self.system.serving, "wait", SERVICE)

    async def read_nodes(self) -> None:
        """Look each half second, until cancelled; a line for each change."""
        while True:
            with contextlib.suppress(OSError):
                pods = await asyncio.to_thread(self.system.pods, SERVICE)
                nodes = (await asyncio.to_thread(self.system.send_request, "/api/v1/nodes"))["items"]
                seen = Seen(pods, nodes)
                self.looks.append(seen)
                if str(seen) != self._last:
                    self._last = str(seen)
                    self.print_part(self._last)
            await asyncio.sleep(PERIOD_S)

    async def until(self, holds: Any, within_s: float) -> bool:  # noqa: ANN401 - a function of a look
        """Whether it held at some look in time, from now on."""
        until_s, start = time.monotonic() + within_s, len(self.looks)
        while time.monotonic() < until_s:
            if any(holds(one) for one in self.looks[start:]):
                return True
            await asyncio.sleep(PERIOD_S / 2)
        return False

    def show(self) -> None:
        """Print pods, pending pods and nodes over time, and ``serving why`` of the nodes."""
        counts = {
            "pods": [one.running for one in self.looks],
            "pending": [one.waiting for one in self.looks],
            "nodes": [one.nodes for one in self.looks],
        }
        most = max((count for row in counts.values() for count in row), default=0)
        print(f"\neach {PERIOD_S} s:")
        print("\n".join(f"{name:>8} {bars(row, most)}" for name, row in counts.items()), end="\n\n")
        print("serving why nodegroup/default\n" + self.system.serving("why", "nodegroup/default"))


async def report(story: NodeStory) -> None:
    """Load, pods, pending, nodes, and back."""
    await story.deploy(pods_max=CLIENTS, pod_cpu=POD_CPU, window="6s")
    looking = asyncio.create_task(story.read_nodes())
    try:
        story.check(f"{NODES} nodes are there", holds=await story.until(lambda one: one.nodes == NODES, GROWN_WITHIN_S))
        story.print_part(f"{CLIENTS} clients come")
        async with loaded(story.system.port, HOST, clients=CLIENTS, path="/sleep/0.2") as load:
            waited = await story.until(lambda one: one.waiting > 0, GROWN_WITHIN_S)
            story.check("pods wait: no node has room for them", holds=waited)
            grown = await story.until(lambda one: one.nodes > NODES, GROWN_WITHIN_S)
            story.check("the node group adds a node for them", holds=grown)
            placed = await story.until(lambda one: one.waiting == 0 and one.running == CLIENTS, GROWN_WITHIN_S)
            story.check(f"{CLIENTS} pods run on {story.looks[-1].nodes} nodes", holds=placed)
        story.print_part("the clients go")
        quiet = await story.until(lambda one: one.running + one.waiting == 0, QUIET_WITHIN_S)
        story.check("pods go to zero", holds=quiet)
        shrunk = await story.until(lambda one: one.nodes == NODES and not one.going, QUIET_WITHIN_S)
        story.check(f"nodes are tainted, drained and removed, down to {NODES}", holds=shrunk)
        story.check(f"none of {load.succeeded} requests failed (failed: {load.failures()})", holds=not load.failed)
    finally:
        looking.cancel()


class Climb(msgspec.Struct, kw_only=True):
    """What was measured of one climb. ``pending_s`` is summed over pods."""

    pending_s: float
    pending_max: int
    slowest_s: float
    succeeded: int
    failed: int
    node_seconds: float


async def climb(story: NodeStory, options: argparse.Namespace) -> Climb:
    """Let the clients come, one after another, until as many pods run."""
    await story.deploy(pods_max=options.clients, pod_cpu=CLIMB_POD_CPU)
    looking = asyncio.create_task(story.read_nodes())
    loads: list[Load] = []
    begun_s = time.monotonic()
    try:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(options.clients):
                story.print_part(f"client {number + 1} comes")
                context = loaded(story.system.port, HOST, clients=1, path="/sleep/0.2")
                loads.append(await stack.enter_async_context(context))
                await asyncio.sleep(options.climb_s)
            placed = await story.until(lambda one: one.running == options.clients, PLACED_WITHIN_S)
            story.check(f"{options.clients} pods run", holds=placed)
            end_s = time.monotonic()
    finally:
        looking.cancel()
    looks = story.looks
    step_s = (end_s - begun_s) / max(1, len(looks))
    return Climb(
        pending_s=step_s * sum(one.waiting for one in looks),
        pending_max=max(one.waiting for one in looks),
        slowest_s=max(load.longest_s for load in loads),
        succeeded=sum(load.succeeded for load in loads),
        failed=sum(load.failed for load in loads),
        node_seconds=step_s * sum(one.nodes for one in looks),
    )


def climbed(options: argparse.Namespace, *more: str) -> Climb:
    """One climb on a system of its own."""
    print(f"\n{' '.join(('serving up', *more))}", flush=True)
    flags = (
        "--nodes",
        "1",
        "--nodes-max",
        str(NODES_MAX),
        "--node-cpu",
        "1",
        "--node-boot",
        f"{options.boot_s}s",
        *more,
    )
    with running_system(*flags) as system:
        story = NodeStory(system)
        found = asyncio.run(climb(story, options))
        story.show()
    return found


def compare(options: argparse.Namespace) -> int:
    """Both climbs, and the table."""
    without, with_it = climbed(options), climbed(options, "--node-anticipation")
    print(f"{'':28}{'without':>10}{'with':>10}")
    for name, text in (
        ("pod-seconds pending", "pending_s"),
        ("most pods pending at once", "pending_max"),
        ("slowest request (s)", "slowest_s"),
        ("node-seconds", "node_seconds"),
        ("requests answered", "succeeded"),
        ("requests failed", "failed"),
    ):
        print(f"{name:28}{getattr(without, text):10.1f}{getattr(with_it, text):10.1f}")
    if without.failed or with_it.failed:
        print("FAILED: requests")
        return 1
    return exit_code(options, is_met=with_it.pending_s < without.pending_s)


def main() -> int:
    """Tell the story, or both climbs."""
    sizes: dict[str, object] = {"boot_s": float, "clients": 7, "climb_s": 4.0, "grace_s": 30.0}
    quick = {"boot_s": 1.0, "clients": 3, "climb_s": 1.0, "grace_s": 2.0}
    options = options_of(__doc__, anticipation=False, quick=quick, **sizes)
    options.boot_s = options.boot_s or (CLIMB_BOOT_S if options.anticipation else BOOT_S)
    if options.anticipation:
        return compare(options)
    flags = (
        "--nodes",
        str(NODES),
        "--nodes-max",
        str(NODES_MAX),
        "--node-cpu",
        "1",
        "--node-boot",
        f"{options.boot_s}s",
    )
    grace = {"SERVING_AUTOSCALER_SCALE_TO_ZERO_GRACE_PERIOD_S": str(options.grace_s)}
    with running_system(*flags, environment=grace) as system:
        story = NodeStory(system)
        asyncio.run(report(story))
        story.show()
        lines = system.serving("why", SERVICE).splitlines()
        changes = [line for line in lines if "→" in line or "nodegroup/" in line]
        print("serving why hello, its changes", *changes, sep="\n")
    print("held: " + "; ".join(story.held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
