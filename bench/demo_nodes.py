"""``make demo-nodes``: requests decide pods, pods decide places, places decide nodes, on virtual nodes of this machine.

Load comes: pods come, some wait because no node has room, the node group adds nodes, the pods run. Load goes: pods go to zero, nodes
are drained and removed. Prints a timeline and a plot of nodes and pods, then what ``serving why`` says. Exit 0 only if all holds.
"""

import asyncio
import contextlib
import math
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.load import loaded
from bench.system import System, running_system
from serving.samples import hello

__all__ = ["main"]

SERVICE = "hello"
HOST = "hello.default.localhost"
APP = Path(hello.__file__)
NODES, NODES_MAX, BOOT_S = 2, 4, 6
FLAGS = ("--nodes", str(NODES), "--nodes-max", str(NODES_MAX), "--node-cpu", "1", "--node-boot", f"{BOOT_S}s")
# Three pods fit on a node: eight clients want eight pods, two nodes have room for six.
POD_CPU = "300m"
CLIENTS = 8
GROWN_WITHIN_S = 40.0
QUIET_WITHIN_S = 70.0
PERIOD_S = 0.5
BARS = " ▁▂▃▄▅▆▇█"


class Seen:
    """One look: pods that run and that wait, nodes that are up and that are to go."""

    def __init__(self, pods: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> None:
        self.running = sum(1 for pod in pods if pod["spec"].get("nodeName"))
        self.waiting = len(pods) - self.running
        self.nodes = len(nodes)
        self.going = sum(1 for node in nodes if node["spec"].get("taints"))

    def __str__(self) -> str:
        waiting = f", {self.waiting} pending" if self.waiting else ""
        going = f", {self.going} to go" if self.going else ""
        return f"{self.running} pods{waiting} on {self.nodes} nodes{going}"


class NodeStory:
    """The system and all looks at it; ``held`` is what held."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.looks: list[Seen] = []
        self.held: list[str] = []
        self._began_s = time.monotonic()
        self._last = ""

    def say(self, text: str) -> None:
        """A line of the timeline."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def check(self, what: str, *, holds: bool) -> None:
        """Note that something holds; end at once if it does not."""
        self.say(f"{'holds' if holds else 'FAILED'}: {what}")
        if not holds:
            raise SystemExit(1)
        self.held.append(what)

    async def look(self) -> None:
        """Look each half second, until cancelled; a line for each change."""
        while True:
            with contextlib.suppress(OSError):
                pods = await asyncio.to_thread(self.system.pods, SERVICE)
                nodes = (await asyncio.to_thread(self.system.ask, "/api/v1/nodes"))["items"]
                seen = Seen(pods, nodes)
                self.looks.append(seen)
                if str(seen) != self._last:
                    self._last = str(seen)
                    self.say(self._last)
            await asyncio.sleep(PERIOD_S)

    async def until(self, holds: Any, within_s: float) -> bool:  # noqa: ANN401 - a function of a look
        """Whether it held at some look in time, from now on."""
        until_s, start = time.monotonic() + within_s, len(self.looks)
        while time.monotonic() < until_s:
            if any(holds(one) for one in self.looks[start:]):
                return True
            await asyncio.sleep(PERIOD_S / 2)
        return False

    def plot(self) -> str:
        """Pods, pods that wait, and nodes, each half second."""
        rows = (
            ("pods", [one.running for one in self.looks]),
            ("pending", [one.waiting for one in self.looks]),
            ("nodes", [one.nodes for one in self.looks]),
        )
        most = max((max(counts, default=1) for _, counts in rows), default=1) or 1
        return "\n".join(f"{name:>8} {''.join(_bar(count, most) for count in counts)}" for name, counts in rows)


def _bar(count: int, most: int) -> str:
    return BARS[math.ceil(count / most * (len(BARS) - 1))]


def manifest(*, pods_max: int, pod_cpu: str, **more: str) -> dict[str, Any]:
    """One request at a time for each pod, so that pods follow clients; ``more`` are annotations of autoscaling."""
    annotations = {
        **{f"autoscaling.knative.dev/{name}": text for name, text in more.items()},
        "autoscaling.knative.dev/target-utilization-percentage": "100",
        "autoscaling.knative.dev/max-scale": str(pods_max),
        "serving.dev/command": f"{sys.executable} {APP}",
    }
    container = {"image": "dev.local/hello", "resources": {"requests": {"cpu": pod_cpu, "memory": "32Mi"}}}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"containerConcurrency": 1, "containers": [container]},
    }
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": "default"},
        "spec": {"template": template},
    }


async def tell(story: NodeStory) -> None:
    """Load, pods, pending, nodes, and back."""
    path = "/apis/serving.knative.dev/v1/namespaces/default/services"
    await asyncio.to_thread(
        story.system.ask, path, manifest(pods_max=CLIENTS, pod_cpu=POD_CPU, window="6s"), method="POST"
    )
    await asyncio.to_thread(story.system.serving, "wait", SERVICE)
    looking = asyncio.create_task(story.look())
    try:
        story.check(f"{NODES} nodes are there", holds=await story.until(lambda one: one.nodes == NODES, GROWN_WITHIN_S))
        story.say(f"{CLIENTS} clients come")
        async with loaded(story.system.port, HOST, clients=CLIENTS, path="/sleep/0.2") as load:
            waited = await story.until(lambda one: one.waiting > 0, GROWN_WITHIN_S)
            story.check("pods wait: no node has room for them", holds=waited)
            grown = await story.until(lambda one: one.nodes > NODES, GROWN_WITHIN_S)
            story.check("the node group adds a node for them", holds=grown)
            placed = await story.until(lambda one: one.waiting == 0 and one.running == CLIENTS, GROWN_WITHIN_S)
            story.check(f"{CLIENTS} pods run on {story.looks[-1].nodes} nodes", holds=placed)
        story.say("the clients go")
        quiet = await story.until(lambda one: one.running + one.waiting == 0, QUIET_WITHIN_S)
        story.check("pods go to zero", holds=quiet)
        shrunk = await story.until(lambda one: one.nodes == NODES and not one.going, QUIET_WITHIN_S)
        story.check(f"nodes are tainted, drained and removed, down to {NODES}", holds=shrunk)
        story.check(f"none of {load.answered} requests failed (failed: {load.failures()})", holds=not load.failed)
    finally:
        looking.cancel()


def main() -> int:
    """Tell the story, and have ``serving why`` tell it again."""
    with running_system(*FLAGS) as system:
        story = NodeStory(system)
        try:
            asyncio.run(tell(story))
        finally:
            print(f"\neach {PERIOD_S} s:\n{story.plot()}\n")
        print("serving why nodegroup/default\n" + system.serving("why", "nodegroup/default"))
        lines = system.serving("why", SERVICE).splitlines()
        print(
            "serving why hello, its changes\n"
            + "\n".join(line for line in lines if "→" in line or "nodegroup/" in line)
        )
    print("held: " + "; ".join(story.held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
