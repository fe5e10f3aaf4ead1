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
from bench.parts.steady import Load, percentile_ms
from bench.parts.system import System

_SERVICE, _PODS, _STORM_SLOTS = "storm", 10, 10
_ZERO_WITHIN_S = 60.0
FIRST_RESPONSE_MAX_S, PODS_WITHIN_S, OTHERS_P99_MAX_MS = 0.7, 5.0, 250.0
"""The bounds of the contract: the first response, the pods that the load needs, and the requests of other services."""
_LONE_STARTS_MAX = 2.0

# A request that takes longer than this waits.
_WAITED_S = 0.5


class StartStorm(msgspec.Struct, frozen=True, kw_only=True):
    """One storm, in seconds from its first request. ``pods_s`` is when each pod gave its first answer.

    ``lone_start_s`` is the time of one request from zero without a storm. ``backlog_gone_s`` is when the last request
    came that had to wait. ``others_p99_ms`` is of the requests for another service meanwhile.
    """

    rate: float
    sent: int
    failed: int
    lone_start_s: float
    first_response_s: float
    waited_max_s: float
    backlog_gone_s: float
    pods_s: tuple[float, ...]
    others_p99_ms: float

    def broken_bounds(self) -> list[str]:
        """The bounds that were broken, each with the measurement."""
        broken = []
        if self.failed:
            broken.append(f"{self.failed} of {self.sent} requests failed; none may")
        first_max_s = max(FIRST_RESPONSE_MAX_S, _LONE_STARTS_MAX * self.lone_start_s)
        if self.first_response_s > first_max_s:
            bound = f"at most {FIRST_RESPONSE_MAX_S:g} s, or {_LONE_STARTS_MAX:g} times the {self.lone_start_s:g} s of a start alone"
            broken.append(f"the first response came after {self.first_response_s:g} s; {bound}")
        # Pods that the load needs respond; the others are removed before they start.
        if self.backlog_gone_s > PODS_WITHIN_S:
            broken.append(f"requests waited for pods until {self.backlog_gone_s:g} s; at most {PODS_WITHIN_S:g} s")
        if not self.others_p99_ms <= OTHERS_P99_MAX_MS:
            broken.append(f"other services had a p99 of {self.others_p99_ms:g} ms; at most {OTHERS_P99_MAX_MS:g} ms")
        return broken


class _StormLoad(Load):
    """Requests with the process of each answer."""

    def __init__(self, port: int, host: str) -> None:
        super().__init__(port, host)
        self.first_responses_s: dict[str, float] = {}

    async def send_request(self, path: str = "/", *, method: str = "GET") -> tuple[str, str]:
        """As the base class."""
        status, body = await super().send_request(path, method=method)
        if status == "200":
            self.first_responses_s.setdefault(body, time.monotonic())
        return status, body


async def start_storm(stage: FaultStage, *, rate: float, seconds: float) -> StartStorm:
    """Let the storm come, and look until it is over."""
    system = stage.system
    scaling = ("--initial-scale", "0", "--annotate", f"autoscaling.knative.dev/activation-scale={_PODS}")
    await asyncio.to_thread(deploy, system, *scaling, name=_SERVICE, pods=0, slots=_STORM_SLOTS)
    await asyncio.to_thread(system.until_zero, COLD, _ZERO_WITHIN_S)
    lone = Load(system.port, f"{COLD}.default.localhost")
    await lone.request(time.monotonic())
    load, begin_s = _StormLoad(system.port, f"{_SERVICE}.default.localhost"), time.monotonic()
    sending = asyncio.create_task(load.requests(rate))
    await asyncio.sleep(seconds)
    sending.cancel()
    await load.finish()
    others = [observed for observed in stage.load.since(begin_s) if observed.due_s < begin_s + seconds]
    await asyncio.gather(lone.close(), load.close())
    waited = [observed for observed in load.observed if observed.took_s > _WAITED_S]
    responses_s = sorted(at_s - begin_s for at_s in load.first_responses_s.values())
    return StartStorm(
        rate=rate,
        sent=len(load.observed),
        failed=sum(observed.status != "200" for observed in load.observed),
        lone_start_s=round(lone.observed[0].took_s, 2),
        first_response_s=round(min(responses_s, default=seconds), 2),
        waited_max_s=round(max(observed.took_s for observed in load.observed), 2),
        backlog_gone_s=round(max((observed.due_s - begin_s for observed in waited), default=0.0), 2),
        pods_s=tuple(round(at_s, 2) for at_s in responses_s),
        others_p99_ms=round(percentile_ms(others, 99)),
    )


# The service that is overloaded.
_SLOTS, _WORK_S = 4, 0.1
_CAPACITY_S = 4.0
_RECOVERED_FACTOR, _RECOVERY_MAX_S, _GIVE_UP_S = 3.0, 10.0, 60.0
_REFUSAL_MAX_MS, _GOODPUT_MIN_RATIO = 100.0, 0.9


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a second of the capacity, refusals, and the time until it was normal again."""

    capacity_per_s: float
    responses_per_s: float
    refused: int
    other: int
    refusal_p99_ms: float
    recovered_s: float
    daemons_mib: int

    def broken_bounds(self) -> list[str]:
        """The bounds that were broken, each with the measurement."""
        broken = []
        responses_min = _GOODPUT_MIN_RATIO * self.capacity_per_s
        if self.responses_per_s < responses_min:
            broken.append(f"{self.responses_per_s:g} responses a second; at least {responses_min:g}")
        if not self.refusal_p99_ms <= _REFUSAL_MAX_MS:
            broken.append(f"refusals had a p99 of {self.refusal_p99_ms:g} ms; at most {_REFUSAL_MAX_MS:g} ms")
        if self.recovered_s > _RECOVERY_MAX_S:
            broken.append(f"normal again after {self.recovered_s:g} s; at most {_RECOVERY_MAX_S:g} s")
        if self.other:
            broken.append(f"{self.other} requests failed otherwise than by 503; none may")
        return broken


async def _capacity(load: Load) -> float:
    """Answers a second to twice as many clients as there are slots."""
    begin_s = time.monotonic()

    async def client() -> None:
        while time.monotonic() < begin_s + _CAPACITY_S:
            await load.request(time.monotonic())

    await asyncio.gather(*(client() for _ in range(_SLOTS * 2)))
    capacity = round(len(load.observed) / (time.monotonic() - begin_s), 1)
    load.observed.clear()
    return capacity


async def overload(system: System, *, seconds: float) -> Overload:
    """Send ten times what one small service can take."""
    results = ("--max-scale", "1")
    await asyncio.to_thread(deploy, system, *results, name="small", pods=1, slots=_SLOTS, work_s=_WORK_S)
    load = Load(system.port, "small.default.localhost")
    capacity = await _capacity(load)
    begin_s = time.monotonic()
    sending = asyncio.create_task(load.requests(capacity * 10))
    await asyncio.sleep(seconds)
    sending.cancel()
    end_s = time.monotonic()
    while True:
        probe_s = time.monotonic()
        await load.request(probe_s)
        last = load.observed[-1]
        if (last.status == "200" and last.took_s < _WORK_S * _RECOVERED_FACTOR) or probe_s > end_s + _GIVE_UP_S:
            break
    await load.close()
    observed = load.observed
    refused = [request for request in observed if request.status == "503"]
    answered = [request for request in observed if request.status == "200" and request.due_s + request.took_s < end_s]
    return Overload(
        capacity_per_s=capacity,
        responses_per_s=round(len(answered) / (end_s - begin_s), 1),
        refused=len(refused),
        other=sum(request.status not in {"200", "503"} for request in observed),
        # A machine that sends too slowly to be overloaded refuses nothing.
        refusal_p99_ms=round(percentile_ms(refused, 99)) if refused else 0.0,
        recovered_s=round(probe_s - end_s, 1),
        daemons_mib=system.daemons_mib(),
    )


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

    ``failed_max`` is how many requests may fail, and ``ends_streams`` whether streams may end: those inside a process that
    was killed. ``flags`` are those of ``serving up`` that it needs.
    """

    happen: Happening
    failed_max: int = 0
    ends_streams: bool = False
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
    stage.load.bursts += other.observed


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
    while going & {resource["metadata"]["name"] for resource in await asyncio.to_thread(stage.system.pods, SERVICE)}:
        if time.monotonic() > until_s:
            raise TimeoutError(f"pods stay on {node}")
        await asyncio.sleep(0.2)
    await stage.send_request(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": False}}, method="PATCH")


FAULTS: dict[str, Fault] = {
    # A request that was alone in the app when it died is not sent again: it may be what ended it.
    "app killed -9": Fault(happen=app_killed, failed_max=1, ends_streams=True),
    "app hangs": Fault(happen=app_hangs, ends_streams=True),
    "app exits": Fault(happen=app_exits, failed_max=1, ends_streams=True),
    # Requests of an app that ran out of memory are not sent again: each may be what took it. The app answers nothing while it
    # fills its memory, which takes longer on a slow machine: all its slots may be in use.
    "app grows to its memory limit": Fault(happen=app_grows, failed_max=SLOTS, ends_streams=True),
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
    "one activator hangs": Fault(happen=hangs(ACTIVATOR), failed_max=30, ends_streams=True),
    "template killed -9": Fault(happen=killed(TEMPLATE)),
    "one activator killed -9": Fault(happen=killed(ACTIVATOR), failed_max=30, ends_streams=True),
    "all activators restarted": Fault(happen=activators_restarted, ends_streams=True),
    "serving up --reload": Fault(happen=reloaded),
    DISK: Fault(happen=disk_full),
    "clock jumps by an hour": Fault(happen=clock_jumps),
    "node drained": Fault(happen=node_drained, flags=NODES),
}
