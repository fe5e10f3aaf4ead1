"""``make demo-anticipation``: the same climb of load twice, with nodes that boot when pods wait, and with nodes that boot before.

Clients come one after another. Without anticipation a pod is pending until a node has booted for it. With it the autoscaler
publishes how many pods it will want by then, and the node group counts them. Prints both timelines and a table. Exit 0 only if
pods wait less with anticipation, and no request fails.
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.demo_nodes import HOST, PERIOD_S, SERVICE, NodeStory, manifest
from bench.load import Load, loaded
from bench.system import running_system

__all__ = ["main"]

BOOT_S = 8
FLAGS = ("--nodes", "1", "--nodes-max", "4", "--node-cpu", "1", "--node-boot", f"{BOOT_S}s")
# Two pods fit on a node.
POD_CPU = "400m"
CLIENTS = 7
# Time between two clients, in seconds: a node is full after two of them.
CLIMB_S = 4.0
PLACED_WITHIN_S = 60.0


class Climb(msgspec.Struct, kw_only=True):
    """What was measured of one climb. ``pending_s`` is summed over pods."""

    pending_s: float
    pending_max: int
    slowest_s: float
    answered: int
    failed: int
    node_seconds: float


async def climb(story: NodeStory) -> Climb:
    """Let the clients come, one after another, until as many pods run."""
    path = "/apis/serving.knative.dev/v1/namespaces/default/services"
    await asyncio.to_thread(story.system.ask, path, manifest(pods_max=CLIENTS, pod_cpu=POD_CPU), method="POST")
    await asyncio.to_thread(story.system.serving, "wait", SERVICE)
    looking = asyncio.create_task(story.look())
    loads: list[Load] = []
    begun_s = time.monotonic()
    try:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(CLIENTS):
                story.say(f"client {number + 1} comes")
                context = loaded(story.system.port, HOST, clients=1, path="/sleep/0.2")
                loads.append(await stack.enter_async_context(context))
                await asyncio.sleep(CLIMB_S)
            placed = await story.until(lambda one: one.running == CLIENTS, PLACED_WITHIN_S)
            story.check(f"{CLIENTS} pods run", holds=placed)
            end_s = time.monotonic()
    finally:
        looking.cancel()
    looks = story.looks
    step_s = (end_s - begun_s) / max(1, len(looks))
    return Climb(
        pending_s=step_s * sum(one.waiting for one in looks),
        pending_max=max(one.waiting for one in looks),
        slowest_s=max(load.longest_s for load in loads),
        answered=sum(load.answered for load in loads),
        failed=sum(load.failed for load in loads),
        node_seconds=step_s * sum(one.nodes for one in looks),
    )


def measured(title: str, *flags: str) -> Climb:
    """One climb on a system of its own."""
    print(f"\n{title}", flush=True)
    with running_system(*FLAGS, *flags) as system:
        story = NodeStory(system)
        found = asyncio.run(climb(story))
        print(f"\neach {PERIOD_S} s:\n{story.plot()}\n")
        print(system.serving("why", "nodegroup/default"))
    return found


def main() -> int:
    """Both climbs, and the table."""
    without = measured("without anticipation")
    with_it = measured("with anticipation", "--node-anticipation")
    print(f"{'':28}{'without':>10}{'with':>10}")
    for name, text in (
        ("pod-seconds pending", "pending_s"),
        ("most pods pending at once", "pending_max"),
        ("slowest request (s)", "slowest_s"),
        ("node-seconds", "node_seconds"),
        ("requests answered", "answered"),
        ("requests failed", "failed"),
    ):
        print(f"{name:28}{getattr(without, text):10.1f}{getattr(with_it, text):10.1f}")
    holds = with_it.pending_s < without.pending_s and not (without.failed or with_it.failed)
    print("pods wait less with anticipation, and no request failed" if holds else "FAILED")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
