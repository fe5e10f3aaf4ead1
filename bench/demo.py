"""``make demo``: a service from zero to many pods and back with real requests, and what happens when parts are killed.

Starts the whole system on ports of its own, with state in a folder of its own, and prints a timeline and how many pods
there were. Exit 0 only if all holds; the last line says what held. About a minute and a half.
"""

import asyncio
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.load import Load, ask, loaded
from bench.system import System, running_system
from serving.samples import hello

__all__ = ["main"]

SERVICE = "hello"
HOST = "hello.default.localhost"
APP = Path(hello.__file__)
MANY_CLIENTS, FEW_CLIENTS = 60, 16
LOAD_S = 8.0
SETTLE_S = 2.0
ZERO_WITHIN_S = 60.0
SPLIT_REQUESTS = 2000
NEW_PERCENT = 10
# A right split lies outside of four standard deviations once in 16,000 times.
DEVIATIONS = 4
BARS = " ▁▂▃▄▅▆▇█"
PERIOD_S = 0.5


class Story:
    """The system, what is told of it, and what held."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.held: list[str] = []
        self.pods: list[int] = []
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        """A line of the timeline."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    def check(self, what: str, *, holds: bool) -> None:
        """Note that something holds; end at once if it does not."""
        self.say(f"{'holds' if holds else 'FAILED'}: {what}")
        if not holds:
            raise SystemExit(1)
        self.held.append(what)

    def deploy(self, target: str) -> str:
        """A new revision that greets somebody; its name, once it is ready."""
        command = ["--command", f"{sys.executable} {APP}", "--concurrency", "10", "--env", f"TARGET={target}"]
        window = ["--annotate", "autoscaling.knative.dev/window=6s"]
        self.system.serving("deploy", SERVICE, str(APP.parent), *command, *window)
        name: str = self.system.revisions()[-1]["metadata"]["name"]
        return name

    def split(self, **percents: int) -> None:
        """Divide the traffic between revisions."""
        traffic = [{"revisionName": name, "percent": percent} for name, percent in percents.items()]
        path = f"/apis/serving.knative.dev/v1/namespaces/default/services/{SERVICE}"
        generation = self.system.ask(path, {"spec": {"traffic": traffic}}, method="PATCH")["metadata"]["generation"]
        while True:
            status = self.system.ask(path).get("status", {})
            ready = [one["status"] for one in status.get("conditions", ()) if one["type"] == "Ready"]
            if status.get("observedGeneration") == generation and ready == ["True"]:
                return
            time.sleep(0.1)

    def is_there(self) -> set[str]:
        """The names of all pods that are ready."""
        return {
            pod["metadata"]["name"]
            for pod in self.system.pods(SERVICE)
            for one in pod.get("status", {}).get("conditions", ())
            if (one["type"], one["status"]) == ("Ready", "True")
        }

    async def count_pods(self) -> None:
        """Note how many there are, until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                self.pods.append(len(await asyncio.to_thread(self.system.pods, SERVICE)))
            await asyncio.sleep(PERIOD_S)

    def plot(self) -> str:
        """How many pods there were, each half second."""
        most = max(self.pods, default=1) or 1
        return "".join(BARS[math.ceil(count / most * (len(BARS) - 1))] for count in self.pods)

    @contextlib.asynccontextmanager
    async def under_load(self, clients: int = FEW_CLIENTS) -> AsyncIterator[Load]:
        """Load for the block, with time to settle before and after."""
        async with loaded(self.system.port, HOST, clients=clients, path="/sleep/0.1") as load:
            await asyncio.sleep(SETTLE_S)
            yield load
            await asyncio.sleep(SETTLE_S)


async def grow_and_shrink(story: Story) -> None:
    """Zero, one, many, zero."""
    revision = await asyncio.to_thread(story.deploy, "world")
    story.say(f"deployed {revision}")
    status, body = await ask(story.system.port, HOST)
    story.check(f"a request is answered: {body.strip()}", holds=" 200 " in status)
    async with loaded(story.system.port, HOST, clients=MANY_CLIENTS, path="/sleep/0.3") as load:
        until_s = time.monotonic() + LOAD_S
        while time.monotonic() < until_s:
            await asyncio.sleep(1)
            story.say(f"{load.answered:6} answered, {story.pods[-1]:3} pods {'#' * story.pods[-1]}")
    story.check(f"under {MANY_CLIENTS} clients it grew to {max(story.pods)} pods", holds=max(story.pods) > 1)
    story.check(f"none of {load.answered} requests failed (failed: {load.failures()})", holds=not load.failed)
    came = await asyncio.to_thread(story.system.until_zero, SERVICE, ZERO_WITHIN_S)
    story.check("silence brings it back to zero", holds=came)
    began_s = time.monotonic()
    status, _ = await ask(story.system.port, HOST)
    waited_ms = (time.monotonic() - began_s) * 1000
    story.check(f"a request from zero is answered within {waited_ms:.0f} ms", holds=" 200 " in status)


async def roll_out(story: Story) -> None:
    """A split by percent, and a new revision under load."""
    async with story.under_load() as load:
        old, new = story.system.revisions()[-1]["metadata"]["name"], await asyncio.to_thread(story.deploy, "again")
        await asyncio.sleep(SETTLE_S)
        rolled = load.answered_by[new]
    story.check(f"a new revision took over under load, {load.answered} answered", holds=rolled > 0)
    story.check(f"none failed meanwhile (failed: {load.failures()})", holds=not load.failed)
    await asyncio.to_thread(story.split, **{old: 100 - NEW_PERCENT, new: NEW_PERCENT})
    async with loaded(story.system.port, HOST, clients=FEW_CLIENTS) as load:
        await load.until_answered(SPLIT_REQUESTS)
    ratio, count = NEW_PERCENT / 100, load.answered
    off = abs(load.answered_by[new] - count * ratio) / math.sqrt(count * ratio * (1 - ratio))
    what = (
        f"of {count} requests {load.answered_by[new]} went to the {NEW_PERCENT} % ({off:.1f} standard deviations off)"
    )
    story.check(what, holds=off < DEVIATIONS and not load.failed)
    await asyncio.to_thread(story.split, **{old: 100})


async def lose_a_pod(story: Story) -> None:
    """Kill -9 on an app while it works."""
    async with story.under_load() as load:
        _, body = await ask(story.system.port, HOST)
        os.kill(int(body.split()[-1]), signal.SIGKILL)
        story.say("killed an app with -9")
        await asyncio.sleep(SETTLE_S)
    story.check(
        f"a killed app: {load.failed} of {load.answered + load.failed} failed ({load.failures()})",
        holds=not load.failed,
    )


async def lose_daemons(story: Story) -> None:
    """Kill -9 on each daemon, under load."""
    for module in (
        "serving.autoscaler.main",
        "serving.home.main",
        "serving.home.processes.template",
        "serving.activator.main",
    ):
        before = await asyncio.to_thread(story.is_there)
        async with story.under_load() as load:
            story.system.kill(module)
            story.say(f"killed {module} with -9")
            await asyncio.sleep(SETTLE_S)
        after = await asyncio.to_thread(story.is_there)
        # What was inside a killed ingress is cut off, and no more than that.
        allowed = FEW_CLIENTS if module == "serving.activator.main" else 0
        what = f"{module} killed: {load.failed} of {load.answered + load.failed} failed ({load.failures()})"
        story.check(what, holds=load.failed <= allowed and load.answered > 0)
        # The load is light: the autoscaler may have taken some meanwhile.
        kept = len(before & after)
        story.check(f"no service lost, {kept} of {len(before)} pods are the same, {len(after)} now", holds=kept > 0)


async def tell(story: Story) -> None:
    """All of it, in order."""
    counting = asyncio.create_task(story.count_pods())
    try:
        for chapter in (grow_and_shrink, roll_out, lose_a_pod, lose_daemons):
            await chapter(story)
    finally:
        counting.cancel()
    came = await asyncio.to_thread(story.system.until_zero, SERVICE, ZERO_WITHIN_S)
    story.check("and silence brings it back to zero again", holds=came)


def main() -> int:
    """Tell the story and end the system."""
    with running_system() as system:
        story = Story(system)
        try:
            asyncio.run(tell(story))
        finally:
            print(f"pods, each {PERIOD_S} s, at most {max(story.pods, default=0)}:\n{story.plot()}")
    print("held: " + "; ".join(story.held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
