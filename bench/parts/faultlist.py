"""The faults of the contract, and how many requests each may fail."""

import asyncio
import contextlib
import os
import signal
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from bench.parts.fault_stage import COLD, SERVICE, SLOTS, FaultStage, deploy
from bench.parts.faulty_machine import fill
from bench.parts.steady import Load

JUMP_S = 3600.0
ZERO_WITHIN_S = 60.0
CONTROL, ACTIVATOR = "serving.home.main", "serving.activator.main"
TEMPLATE = "serving.home.processes.template"
DISK = "disk full"
# Two nodes of which each has room for all pods.
NODES = ("--nodes", "2", "--node-cpu", "8", "--node-memory", "8Gi")


Happening = Callable[[FaultStage, float], Awaitable[None]]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. ``happen`` gets half of the seconds for which it is observed.

    ``failed_max`` is how many requests may fail: those that were inside a process that was killed. ``flags`` are those of
    ``serving up`` that it needs.
    """

    happen: Happening
    failed_max: int = 0
    flags: tuple[str, ...] = ()


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
        await stage.load.send_request("/end", method="POST")


async def app_grows(stage: FaultStage, _: float) -> None:
    """Let the app take more memory than its limit."""
    with contextlib.suppress(OSError):
        await stage.load.send_request("/grow?mib=400", method="POST")


async def pod_deleted(stage: FaultStage, _: float) -> None:
    """Delete a pod through the API."""
    pod = (await asyncio.to_thread(stage.system.pods, SERVICE))[0]["metadata"]["name"]
    await asyncio.to_thread(stage.system.send_request, f"/api/v1/namespaces/default/pods/{pod}", method="DELETE")


async def rollout(stage: FaultStage, _: float) -> None:
    """Deploy a new revision."""
    await asyncio.to_thread(deploy, stage.system, "-e", f"AT={time.time()}")


async def rollback(stage: FaultStage, _: float) -> None:
    """Send all traffic back to the revision before."""
    await stage.call("traffic", SERVICE, "--rollback")


def killed(module: str) -> Happening:
    """A daemon is killed with SIGKILL."""

    async def fault(stage: FaultStage, _: float) -> None:
        await stage.until_replaced(module, stage.signal(module, signal.SIGKILL))

    return fault


def hangs(module: str) -> Happening:
    """A daemon is stopped, as by a deadlock: the supervisor replaces it."""

    async def fault(stage: FaultStage, _: float) -> None:
        await stage.until_replaced(module, stage.signal(module, signal.SIGSTOP))

    return fault


async def activators_restarted(stage: FaultStage, _: float) -> None:
    """Restart each activator gracefully, one after the other."""
    for pid in stage.system.daemons(ACTIVATOR):
        os.kill(pid, signal.SIGTERM)
        await stage.until_replaced(ACTIVATOR, pid)
        # The supervisor holds the socket of each page: it answers when the new process serves.
        for port in stage.system.activator_pages():
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/healthz")


async def reloaded(stage: FaultStage, _: float) -> None:
    """Replace all processes."""
    await stage.call("up", "--reload")


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
    if not await asyncio.to_thread(stage.system.until_zero, COLD, ZERO_WITHIN_S):
        raise TimeoutError(f"{COLD} does not come to zero")
    await _burst(stage)


async def _burst(stage: FaultStage) -> None:
    other = Load(stage.load.port, f"{COLD}.default.localhost")
    await asyncio.gather(*(other.request(time.monotonic()) for _ in range(50)))
    await other.close()
    stage.load.observed += other.observed


async def store_restarted(stage: FaultStage, _: float) -> None:
    """Restart control, with API and store, and ask at once for a service that is at zero: the next control starts it."""
    if not await asyncio.to_thread(stage.system.until_zero, COLD, ZERO_WITHIN_S):
        raise TimeoutError(f"{COLD} does not come to zero")
    pid = stage.signal(CONTROL, signal.SIGTERM)
    await _burst(stage)
    await stage.until_replaced(CONTROL, pid)


async def node_drained(stage: FaultStage, _: float) -> None:
    """Cordon a node and evict its pods, as `kubectl drain` does; uncordon it when they are gone."""
    pods: list[dict[str, Any]] = await asyncio.to_thread(stage.system.pods, SERVICE)
    node = pods[0]["spec"]["nodeName"]
    await stage.send_request(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}, method="PATCH")
    going = {pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == node}
    for name in going:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "default"},
        }
        await stage.send_request(f"/api/v1/namespaces/default/pods/{name}/eviction", eviction, method="POST")
    until_s = time.monotonic() + ZERO_WITHIN_S
    while going & {one["metadata"]["name"] for one in await asyncio.to_thread(stage.system.pods, SERVICE)}:
        if time.monotonic() > until_s:
            raise TimeoutError(f"pods stay on {node}")
        await asyncio.sleep(0.2)
    await stage.send_request(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": False}}, method="PATCH")


FAULTS: dict[str, Fault] = {
    # A request that was alone in the app when it died is not sent again: it may be what ended it.
    "app killed -9": Fault(happen=app_killed, failed_max=1),
    "app hangs": Fault(happen=app_hangs),
    "app exits": Fault(happen=app_exits, failed_max=1),
    # Requests of an app that ran out of memory are not sent again: each may be what took it. The app answers nothing while it
    # fills its memory, which takes longer on a slow machine: all its slots may be in use.
    "app grows to its memory limit": Fault(happen=app_grows, failed_max=SLOTS),
    "scale-down under load": Fault(happen=pod_deleted),
    "scale from zero": Fault(happen=zero_and_back),
    "rollout": Fault(happen=rollout),
    "rollback": Fault(happen=rollback),
    "autoscaler killed -9": Fault(happen=killed("serving.autoscaler.main")),
    "control killed -9 (API, store)": Fault(happen=killed(CONTROL)),
    "control restarted (API, store), a service woken meanwhile": Fault(happen=store_restarted),
    "autoscaler hangs": Fault(happen=hangs("serving.autoscaler.main")),
    "control hangs (API, store)": Fault(happen=hangs(CONTROL)),
    "template hangs": Fault(happen=hangs(TEMPLATE)),
    # Requests inside it end with their connections, as of one that is killed.
    "one activator hangs": Fault(happen=hangs(ACTIVATOR), failed_max=30),
    "template killed -9": Fault(happen=killed(TEMPLATE)),
    "one activator killed -9": Fault(happen=killed(ACTIVATOR), failed_max=30),
    "all activators restarted": Fault(happen=activators_restarted),
    "serving up --reload": Fault(happen=reloaded),
    DISK: Fault(happen=disk_full),
    "clock jumps by an hour": Fault(happen=clock_jumps),
    "node drained": Fault(happen=node_drained, flags=NODES),
}
