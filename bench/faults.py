"""``make faults``: the fault contract of docs/faults.md on ``serving up --activators 2``, fault by fault, under steady load.

    python bench/faults.py [--rate N] [--seconds N] [--only NAME]... [--json]

Requests at a fixed rate, a fifth as many open websockets and a twentieth as many event streams run all the time. Each fault
is observed for some seconds: failed requests, streams that were cut, the 99th percentile against that before, the time until no
request fails and the percentile is back, and the memory of the daemons. Exit 0 only if no fault fails more than it may.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench.parts.faulty_machine import FakeClock, fill, small_disk
from bench.parts.overload import overload
from bench.parts.steady import Load, Observed, percentile_ms, steady_load
from bench.system import System, running_system_within

__all__ = ["FAULTS", "FaultStage", "Observation", "main", "observe", "stage"]

APP = Path(__file__).with_name("apps") / "mixed.py"
SERVICE = "mixed"
HOST = f"{SERVICE}.default.localhost"
PODS = 4
MEMORY_LIMIT = "300Mi"
BEFORE_S = 4.0
WINDOW_S = 1.0
# In the steady state requests take some 20 ms; a second with a higher 99th percentile than this has not recovered.
RECOVERED_FACTOR, RECOVERED_MIN_MS = 3.0, 150.0
READY_WITHIN_S = 60.0
# How many requests of a revision may wait in each activator.
QUEUE_DEPTH = 100
OVERLOAD = "10 x overload"
AWAY_S, JUMP_S = 60.0, 3600.0
DISK = "disk full"


class FaultStage:
    """The system and its load. ``disk`` is where its state is, if that can be filled; ``clock`` is the wall clock of its processes."""

    def __init__(self, system: System, load: Load, *, disk: Path | None, clock: FakeClock) -> None:
        self.system, self.load, self.disk, self.clock = system, load, disk, clock

    async def call(self, *arguments: str) -> None:
        """A command of the CLI."""
        await asyncio.to_thread(self.system.serving, *arguments)

    async def app(self) -> int:
        """The process id of an app that answers."""
        return int((await self.load.ask())[1])

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


Fault = Callable[[FaultStage, float], Awaitable[None]]


async def app_killed(stage: FaultStage, _: float) -> None:
    """Kill the app of one pod."""
    os.kill(await stage.app(), signal.SIGKILL)


async def app_hangs(stage: FaultStage, seconds: float) -> None:
    """Stop the app of one pod for so many seconds."""
    pid = await stage.app()
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def app_exits(stage: FaultStage, _: float) -> None:
    """Let the app end by itself after an answer."""
    with contextlib.suppress(OSError):
        await stage.load.ask("/end", method="POST")


async def app_grows(stage: FaultStage, _: float) -> None:
    """Let the app take more memory than its limit."""
    with contextlib.suppress(OSError):
        await stage.load.ask("/grow?mib=400", method="POST")


async def pod_deleted(stage: FaultStage, _: float) -> None:
    """Delete a pod through the API."""
    pod = (await asyncio.to_thread(stage.system.pods, SERVICE))[0]["metadata"]["name"]
    await asyncio.to_thread(stage.system.ask, f"/api/v1/namespaces/default/pods/{pod}", method="DELETE")


async def rollout(stage: FaultStage, _: float) -> None:
    """Deploy a new revision."""
    await asyncio.to_thread(deploy, stage.system, f"AT={time.time()}")


async def rollback(stage: FaultStage, _: float) -> None:
    """Send all traffic back to the revision before."""
    await stage.call("traffic", SERVICE, "--rollback")


def killed(module: str) -> Fault:
    """A daemon is killed with SIGKILL."""

    async def fault(stage: FaultStage, _: float) -> None:
        await stage.until_replaced(module, stage.signal(module, signal.SIGKILL))

    return fault


async def control_stopped(stage: FaultStage, seconds: float) -> None:
    """Stop control, with API and store, for so many seconds."""
    pid = stage.signal("serving.local.control", signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


async def activators_restarted(stage: FaultStage, _: float) -> None:
    """Restart each activator gracefully, one after the other."""
    for pid in stage.system.daemons("serving.activator.main"):
        os.kill(pid, signal.SIGTERM)
        await stage.until_replaced("serving.activator.main", pid)
        # The supervisor holds the socket of each page: it answers when the new process serves.
        for port in stage.system.activator_pages():
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/healthz")


async def reloaded(stage: FaultStage, _: float) -> None:
    """Replace all processes."""
    await stage.call("up", "--reload")


async def control_away(stage: FaultStage, _: float) -> None:
    """Stop control, with API and store, for a minute."""
    await control_stopped(stage, AWAY_S)


async def disk_full(stage: FaultStage, seconds: float) -> None:
    """Fill the disk of the state folder for so many seconds, and wake a service from zero meanwhile."""
    assert stage.disk is not None
    with fill(stage.disk):
        await zero_and_back(stage, 0.0)
        await asyncio.sleep(seconds)


async def clock_jumps(stage: FaultStage, seconds: float) -> None:
    """Let the wall clock jump an hour ahead, and two hours back."""
    for offset_s in (JUMP_S, -JUMP_S):
        stage.clock.jump_to(offset_s)
        await asyncio.sleep(seconds / 2)
        await zero_and_back(stage, 0.0)
    stage.clock.jump_to(0.0)


async def zero_and_back(stage: FaultStage, _: float) -> None:
    """A burst of requests for another service, which is at zero."""
    other = Load(stage.load.port, "cold.default.localhost")
    await asyncio.gather(*(other.request(time.monotonic()) for _ in range(50)))
    await other.close()
    stage.load.observed += other.observed


FAULTS: dict[str, tuple[Fault, int]] = {
    # How many requests may fail: those that were inside a process that was killed.
    "app killed -9": (app_killed, 0),
    "app hangs": (app_hangs, 0),
    "app exits": (app_exits, 0),
    "app grows to its memory limit": (app_grows, 0),
    "scale-down under load": (pod_deleted, 0),
    "scale from zero": (zero_and_back, 0),
    "rollout": (rollout, 0),
    "rollback": (rollback, 0),
    "autoscaler killed -9": (killed("serving.autoscaler.main"), 0),
    "control killed -9 (API, store)": (killed("serving.local.control"), 0),
    "control stopped (API away)": (control_stopped, 0),
    "template killed -9": (killed("serving.local.template"), 0),
    "one activator killed -9": (killed("serving.activator.main"), 30),
    "all activators restarted": (activators_restarted, 0),
    "serving up --reload": (reloaded, 0),
    DISK: (disk_full, 0),
    "clock jumps by an hour": (clock_jumps, 0),
    "control stopped for 60 s (API away)": (control_away, 0),
}


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one fault did. Times in milliseconds and seconds; ``recovered_s`` is None if it had not by the end."""

    fault: str
    sent: int
    failed: int
    kinds: dict[str, int]
    cut: dict[str, int]
    before_p99_ms: float
    p99_ms: float
    recovered_s: float | None
    daemons_mib: int


async def observe(stage: FaultStage, name: str, *, seconds: float) -> Observation:
    """Let the load settle, make the fault happen, and observe."""
    load = stage.load
    await asyncio.sleep(BEFORE_S)
    before = percentile_ms(load.since(time.monotonic() - BEFORE_S), 99)
    cut, begin_s = load.cut.copy(), time.monotonic()
    await FAULTS[name][0](stage, seconds / 2)
    await asyncio.sleep(max(0.0, begin_s + seconds - time.monotonic()))
    end_s = time.monotonic()
    await asyncio.sleep(WINDOW_S)
    observed = [one for one in load.since(begin_s) if one.due_s < end_s]
    kinds = collections.Counter(one.status for one in observed if one.status != "200")
    return Observation(
        fault=name,
        sent=len(observed),
        failed=sum(kinds.values()),
        kinds=dict(kinds),
        cut=dict(load.cut - cut),
        before_p99_ms=round(before),
        p99_ms=round(percentile_ms(observed, 99)),
        recovered_s=_recovered_s(observed, begin_s, end_s, before),
        daemons_mib=stage.system.daemons_mib(),
    )


def _recovered_s(observed: list[Observed], begin_s: float, end_s: float, before_ms: float) -> float | None:
    """After how many seconds there was no window with a failure or a slow percentile any more; None if that never came."""
    slow_ms = max(RECOVERED_MIN_MS, before_ms * RECOVERED_FACTOR)
    last = 0.0
    for at in range(int((end_s - begin_s) / WINDOW_S)):
        window = [one for one in observed if at * WINDOW_S <= one.due_s - begin_s < (at + 1) * WINDOW_S]
        if any(one.status != "200" for one in window) or percentile_ms(window, 99) > slow_ms:
            last = (at + 1) * WINDOW_S
    return last if last < end_s - begin_s - WINDOW_S else None


def deploy(system: System, *environment: str, name: str = SERVICE, pods: int = PODS) -> None:
    """Deploy the app."""
    more = [word for pair in environment for word in ("-e", pair)]
    scale = ["--concurrency", "100", "--min-scale", str(pods), "--window", "6s"]
    system.serving("deploy", name, str(APP.parent), "--command", f"{sys.executable} {APP}", *scale, *more)


def limit_memory(system: System) -> None:
    """Give the app a memory limit, as a new revision."""
    path = f"/apis/serving.knative.dev/v1/namespaces/default/services/{SERVICE}"
    container = system.ask(path)["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"memory": MEMORY_LIMIT}}
    system.ask(path, {"spec": {"template": {"spec": {"containers": [container]}}}}, method="PATCH")
    system.serving("wait", SERVICE)


@contextlib.asynccontextmanager
async def stage(*, rate: float) -> AsyncIterator[FaultStage]:
    """The system with both services and its load."""
    own = {"SERVING_ACTIVATOR_COUNT": "2", "SERVING_ACTIVATOR_QUEUE_DEPTH_MAX": str(QUEUE_DEPTH)}
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk())
        clock = FakeClock(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        system = stack.enter_context(running_system_within(disk, {**own, **clock.environment}))
        await asyncio.to_thread(deploy, system, name="cold", pods=0)
        await asyncio.to_thread(deploy, system)
        await asyncio.to_thread(limit_memory, system)
        load = steady_load(system.port, HOST, rate=rate, websockets=int(rate / 5), streams=int(rate / 20))
        async with load as running:
            yield FaultStage(system, running, disk=disk, clock=clock)


async def run(names: list[str], *, rate: float, seconds: float, as_json: bool) -> bool:
    """All faults; whether each kept to what it may."""
    is_kept = True
    async with stage(rate=rate) as made:
        await asyncio.sleep(BEFORE_S)
        for name in names:
            if name == DISK and made.disk is None:
                print(f"{name}: only root can mount a file system to fill", file=sys.stderr)
                continue
            if name == OVERLOAD:
                much = await overload(made.system, APP, seconds=seconds)
                is_kept = is_kept and much.is_bounded
                print(msgspec.json.encode(much).decode(), flush=True)
                continue
            found = await observe(made, name, seconds=seconds)
            is_kept = is_kept and found.failed <= FAULTS[name][1] and found.recovered_s is not None
            print(msgspec.json.encode(found).decode() if as_json else line_of(found), flush=True)
    return is_kept


def line_of(one: Observation) -> str:
    """For people, as a row of a table."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in one.kinds.items())
    cut = ", ".join(f"{count} {kind}" for kind, count in one.cut.items()) or "none"
    recovered = "not" if one.recovered_s is None else f"{one.recovered_s:g} s"
    failed = f"{one.failed} of {one.sent}" + (f" ({kinds})" if kinds else "")
    times = f"{one.before_p99_ms:.0f} -> {one.p99_ms:.0f} ms"
    return f"| {one.fault} | {failed} | {cut} | {times} | {recovered} | {one.daemons_mib} MiB |"


def main() -> int:
    """Run, and print a table; exit 0 only if the contract holds."""
    parser = argparse.ArgumentParser(description="The fault contract.")
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", action="append", choices=[*FAULTS, OVERLOAD])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(
            "| fault | failed requests | cut streams | p99 before -> with it | recovered after | memory of the daemons |"
        )
        print("|---|---|---|---|---|---|")
    names = options.only or [*FAULTS, OVERLOAD]
    is_kept = asyncio.run(run(names, rate=options.rate, seconds=options.seconds, as_json=options.json))
    if not is_kept:
        print(json.dumps({"held": False}) if options.json else "the contract was not held", file=sys.stderr)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
