"""``make demo``: a service from zero to many pods and back, and a rollout under load.

    python bench/demo.py [--quick]

Starts the whole system on ports of its own, with state in a folder of its own, and prints a timeline and how many pods
there were. Exit 0 only if all holds; the last line says what held. About a minute. ``make faults`` kills its parts.
"""

import argparse
import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.parts.load import Load, loaded, send_request
from bench.parts.program import options_of
from bench.parts.story import PERIOD_S, Story, bars
from bench.parts.system import SERVICES, System, running_system
from serving.core.model.objects import is_true
from serving.tools.samples import hello

SERVICE = "hello"
HOST = "hello.default.localhost"
APP = Path(hello.__file__)
FEW_CLIENTS = 16
ZERO_WITHIN_S = 60.0
NEW_PERCENT = 10
# A right split lies outside of four standard deviations once in 16,000 times.
DEVIATIONS = 4


class Demo(Story):
    """The system with one service. ``sizes`` are the options of the command line."""

    def __init__(self, system: System, sizes: argparse.Namespace) -> None:
        super().__init__(system)
        self.sizes = sizes
        self.pods: list[int] = []

    def deploy(self, target: str) -> str:
        """Deploy a revision with its own greeting; its name, once it is ready."""
        command = ["--command", f"{sys.executable} {APP}", "--concurrency", "10", "--env", f"TARGET={target}"]
        window = ["--annotate", "autoscaling.knative.dev/window=6s"]
        self.system.serving("deploy", SERVICE, str(APP.parent), *command, *window)
        name: str = self.system.revisions()[-1]["metadata"]["name"]
        return name

    def split(self, **percents: int) -> None:
        """Divide the traffic between revisions."""
        traffic = [{"revisionName": name, "percent": percent} for name, percent in percents.items()]
        path = f"{SERVICES}/{SERVICE}"
        generation = self.system.send_request(path, {"spec": {"traffic": traffic}}, method="PATCH")["metadata"][
            "generation"
        ]
        while True:
            entry = self.system.send_request(path)
            if entry.get("status", {}).get("observedGeneration") == generation and is_true(entry, "Ready"):
                return
            time.sleep(0.1)

    async def count_pods(self) -> None:
        """Note how many there are, until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                self.pods.append(len(await asyncio.to_thread(self.system.pods, SERVICE)))
            await asyncio.sleep(PERIOD_S)

    @contextlib.asynccontextmanager
    async def under_load(self, clients: int = FEW_CLIENTS) -> AsyncIterator[Load]:
        """Load for the block, with time to settle before and after."""
        async with loaded(self.system.port, HOST, clients=clients, path="/sleep/0.1") as load:
            await asyncio.sleep(self.sizes.settle_s)
            yield load
            await asyncio.sleep(self.sizes.settle_s)


async def grow_and_shrink(story: Demo) -> None:
    """Zero, one, many, zero."""
    revision = await asyncio.to_thread(story.deploy, "world")
    story.print_part(f"deployed {revision}")
    status, body = await send_request(story.system.port, HOST)
    story.check(f"a request is answered: {body.strip()}", holds=" 200 " in status)
    async with loaded(story.system.port, HOST, clients=story.sizes.clients, path="/sleep/0.3") as load:
        until_s = time.monotonic() + story.sizes.load_s
        while time.monotonic() < until_s:
            await asyncio.sleep(1)
            story.print_part(f"{load.succeeded:6} answered, {story.pods[-1]:3} pods {'#' * story.pods[-1]}")
    story.check(f"under {story.sizes.clients} clients it grew to {max(story.pods)} pods", holds=max(story.pods) > 1)
    story.check(f"none of {load.succeeded} requests failed (failed: {load.failures()})", holds=not load.failed)
    came = await asyncio.to_thread(story.system.until_zero, SERVICE, ZERO_WITHIN_S)
    story.check("silence brings it back to zero", holds=came)
    began_s = time.monotonic()
    status, _ = await send_request(story.system.port, HOST)
    waited_ms = (time.monotonic() - began_s) * 1000
    story.check(f"a request from zero is answered within {waited_ms:.0f} ms", holds=" 200 " in status)


async def roll_out(story: Demo) -> None:
    """A split by percent, and a new revision under load."""
    async with story.under_load() as load:
        old, new = story.system.revisions()[-1]["metadata"]["name"], await asyncio.to_thread(story.deploy, "again")
        await asyncio.sleep(story.sizes.settle_s)
        rolled = load.response_of[new]
    story.check(f"a new revision took over under load, {load.succeeded} answered", holds=rolled > 0)
    story.check(f"none failed meanwhile (failed: {load.failures()})", holds=not load.failed)
    await asyncio.to_thread(story.split, **{old: 100 - NEW_PERCENT, new: NEW_PERCENT})
    async with loaded(story.system.port, HOST, clients=FEW_CLIENTS) as load:
        while load.succeeded < story.sizes.requests:  # noqa: ASYNC110 - once
            await asyncio.sleep(PERIOD_S / 10)
    ratio, count = NEW_PERCENT / 100, load.succeeded
    off = abs(load.response_of[new] - count * ratio) / math.sqrt(count * ratio * (1 - ratio))
    what = (
        f"of {count} requests {load.response_of[new]} went to the {NEW_PERCENT} % ({off:.1f} standard deviations off)"
    )
    story.check(what, holds=off < DEVIATIONS and not load.failed)
    await asyncio.to_thread(story.split, **{old: 100})


async def report(story: Demo) -> None:
    """All of it, in order."""
    counting = asyncio.create_task(story.count_pods())
    try:
        for chapter in (grow_and_shrink, roll_out):
            await chapter(story)
    finally:
        counting.cancel()
    came = await asyncio.to_thread(story.system.until_zero, SERVICE, ZERO_WITHIN_S)
    story.check("and silence brings it back to zero again", holds=came)


def main() -> None:
    """Tell the story and end the system."""
    quick = {"load_s": 3.0, "settle_s": 1.0, "requests": 200, "grace_s": 2.0}
    sizes = options_of(__doc__, clients=60, load_s=8.0, settle_s=2.0, requests=2000, grace_s=30.0, quick=quick)
    with running_system(environment={"SERVING_AUTOSCALER_SCALE_TO_ZERO_GRACE_PERIOD_S": str(sizes.grace_s)}) as system:
        story = Demo(system, sizes)
        try:
            asyncio.run(report(story))
        finally:
            print(f"pods, each {PERIOD_S} s, at most {max(story.pods, default=0)}:\n{bars(story.pods)}")
    print("held: " + "; ".join(story.held))


if __name__ == "__main__":
    main()
