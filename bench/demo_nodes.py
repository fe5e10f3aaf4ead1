"""``make demo-nodes``: requests decide pods, and pods decide nodes, on virtual nodes.

    python bench/demo_nodes.py [--quick]

Load comes: pods come, some wait because no node has room, the node group adds nodes, the pods run. Load goes: pods go
to zero, nodes are drained and removed. Prints a timeline and a plot of nodes and pods, then what ``serving why`` says.
Exit 0 only if all holds.
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from bench.parts.load import loaded
from bench.parts.program import options_of
from bench.parts.story import PERIOD_S, Story, bars
from bench.parts.system import SERVICES, System, running_system, service_of
from serving.tools.samples import hello

SERVICE = "hello"
HOST = "hello.default.localhost"
APP = Path(hello.__file__)
NODES, NODES_MAX = 2, 4
# Three pods fit on a node: eight clients want eight pods, two nodes have room for six.
POD_CPU, CLIENTS = "300m", 8
BOOT_S = 6.0
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

    async def deploy(self, **more: str) -> None:
        """Deploy a service with a pod for each client; ``more`` are annotations."""
        annotations = {
            **{f"autoscaling.knative.dev/{name}": text for name, text in more.items()},
            "autoscaling.knative.dev/target-utilization-percentage": "100",
            "autoscaling.knative.dev/max-scale": str(CLIENTS),
            "serving.dev/command": f"{sys.executable} {APP}",
        }
        requests = {"requests": {"cpu": POD_CPU, "memory": "32Mi"}}
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
            if any(holds(look) for look in self.looks[start:]):
                return True
            await asyncio.sleep(PERIOD_S / 2)
        return False

    def show(self) -> None:
        """Print pods, pending pods and nodes over time, and ``serving why`` of the nodes."""
        counts = {
            "pods": [look.running for look in self.looks],
            "pending": [look.waiting for look in self.looks],
            "nodes": [look.nodes for look in self.looks],
        }
        most = max((count for row in counts.values() for count in row), default=0)
        print(f"\neach {PERIOD_S} s:")
        print("\n".join(f"{name:>8} {bars(row, most)}" for name, row in counts.items()), end="\n\n")
        print("serving why nodegroup/default\n" + self.system.serving("why", "nodegroup/default"))


async def report(story: NodeStory) -> None:
    """Load, pods, pending, nodes, and back."""
    await story.deploy(window="6s")
    looking = asyncio.create_task(story.read_nodes())
    try:
        story.check(
            f"{NODES} nodes are there", holds=await story.until(lambda look: look.nodes == NODES, GROWN_WITHIN_S)
        )
        story.print_part(f"{CLIENTS} clients come")
        async with loaded(story.system.port, HOST, clients=CLIENTS, path="/sleep/0.2") as load:
            waited = await story.until(lambda look: look.waiting > 0, GROWN_WITHIN_S)
            story.check("pods wait: no node has room for them", holds=waited)
            grown = await story.until(lambda look: look.nodes > NODES, GROWN_WITHIN_S)
            story.check("the node group adds a node for them", holds=grown)
            placed = await story.until(lambda look: look.waiting == 0 and look.running == CLIENTS, GROWN_WITHIN_S)
            story.check(f"{CLIENTS} pods run on {story.looks[-1].nodes} nodes", holds=placed)
        story.print_part("the clients go")
        quiet = await story.until(lambda look: look.running + look.waiting == 0, QUIET_WITHIN_S)
        story.check("pods go to zero", holds=quiet)
        shrunk = await story.until(lambda look: look.nodes == NODES and not look.going, QUIET_WITHIN_S)
        story.check(f"nodes are tainted, drained and removed, down to {NODES}", holds=shrunk)
        story.check(f"none of {load.succeeded} requests failed (failed: {load.failures()})", holds=not load.failed)
    finally:
        looking.cancel()


def main() -> int:
    """Run the demo on its own system."""
    options = options_of(__doc__, boot_s=BOOT_S, grace_s=30.0, quick={"boot_s": 1.0, "grace_s": 2.0})
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
