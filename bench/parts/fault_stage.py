"""A running system with two activators and steady load, for the faults of the contract."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from bench.parts.faulty_machine import FakeClock, small_disk
from bench.parts.steady import Load, steady_load
from bench.parts.system import System, running_system

APP = Path(__file__).parents[1] / "apps" / "mixed.py"
SERVICE, COLD = "mixed", "cold"
PODS = 4
MEMORY_LIMIT = "300Mi"
READY_WITHIN_S = 60.0
# Requests inside a pod at once.
SLOTS = 100
# So that a service is at zero again some seconds after it was woken.
_GRACE_S = 2.0
_ENVIRONMENT = {
    "SERVING_ACTIVATOR_COUNT": "2",
    "SERVING_AUTOSCALER_SCALE_TO_ZERO_GRACE_PERIOD_S": f"{_GRACE_S:g}",
    "SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true",
}


class FaultStage:
    """The system and its load. ``disk`` has its state and can be filled; ``clock`` can jump."""

    def __init__(self, system: System, load: Load, *, disk: Path | None, clock: FakeClock) -> None:
        self.system, self.load, self.disk, self.clock = system, load, disk, clock

    async def call(self, *arguments: str) -> None:
        """A command of the CLI."""
        await asyncio.to_thread(self.system.serving, *arguments)

    async def send_request(self, path: str, body: object = None, *, method: str = "GET") -> object:
        """A call of the API."""
        return await asyncio.to_thread(self.system.send_request, path, body, method=method)

    async def app(self) -> int:
        """The process id of an app that answers."""
        return int((await self.load.send_request())[1])

    def signal(self, module: str, number: signal.Signals) -> int:
        """Signal a daemon; its process id."""
        pid = self.system.daemon(module)
        os.kill(pid, number)
        return pid

    async def until_replaced(self, module: str, pid: int) -> None:
        """Wait until a daemon runs again with another process id."""
        async with asyncio.timeout(READY_WITHIN_S):
            while True:
                with contextlib.suppress(LookupError):
                    if pid not in self.system.daemons(module) and self.system.daemon(module):
                        return
                await asyncio.sleep(0.05)


def deploy(
    system: System, *flags: str, name: str = SERVICE, pods: int = PODS, slots: int = SLOTS, work_s: float | None = None
) -> None:
    """Deploy the app."""
    scale = ["--concurrency", str(slots), "--min-scale", str(pods), "--window", "6s"]
    work = [] if work_s is None else ["-e", f"WORK_S={work_s}"]
    system.serving("deploy", name, str(APP.parent), "--command", f"{sys.executable} {APP}", *scale, *work, *flags)


def _limit_memory(system: System) -> None:
    """Give the app a memory limit, as a new revision."""
    path = f"/apis/serving.knative.dev/v1/namespaces/default/services/{SERVICE}"
    container = system.send_request(path)["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"memory": MEMORY_LIMIT}}
    system.send_request(path, {"spec": {"template": {"spec": {"containers": [container]}}}}, method="PATCH")
    system.serving("wait", SERVICE)


@contextlib.asynccontextmanager
async def stage(
    *,
    rate: float,
    pods: int = PODS,
    is_whole: bool = True,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[FaultStage]:
    """The system and its load. ``flags`` are of ``serving up``, ``environment`` is added to ours.

    ``is_whole`` adds what some faults need and what takes a while: a service at zero, and a memory limit.
    """
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk())
        clock = FakeClock(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        own = {**_ENVIRONMENT, **clock.environment, **(environment or {})}
        system = stack.enter_context(running_system(*flags, parent=disk, environment=own))
        await asyncio.to_thread(deploy, system, pods=pods)
        if is_whole:
            await asyncio.to_thread(deploy, system, "--initial-scale", "0", name=COLD, pods=0)
            await asyncio.to_thread(_limit_memory, system)
        load = steady_load(
            system.port, f"{SERVICE}.default.localhost", rate=rate, websockets=int(rate / 5), streams=int(rate / 20)
        )
        async with load as running:
            yield FaultStage(system, running, disk=disk, clock=clock)
