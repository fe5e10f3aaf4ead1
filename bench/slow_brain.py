"""The learnt target against the fixed default of 100, on three apps of a running system: short of cpu, of memory, and of neither.

    python bench/slow_brain.py [cpu] [io] [memory]

Each app runs twice, with ``autoscaling.serving.dev/target: learnt`` and without; both get the same closed loop of clients at the
same time, which grows for a while. Then both are measured: requests a second, response times, pods, failed requests, and
containers that were killed for their memory. The learner's period and the stable window are shorter than by default, for both,
so that the three apps take three minutes. The last lines have the ratios of learnt to fixed.
"""

import argparse
import asyncio
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.system import System, running_system

APP = Path(__file__).with_name("apps") / "bounded.py"
SERVICES = "/apis/serving.knative.dev/v1/namespaces/default/services"
MEASURE_S = 12.0
READY_WITHIN_S = 120.0
FAILURE_PAUSE_S = 0.2
ANSWER_WITHIN_S = 30.0
SETTINGS = {
    "SERVING_AUTOSCALER_ADAPTIVE_LEARNT_TARGET_PERIOD_S": "2",
    "SERVING_AUTOSCALER_STABLE_WINDOW_S": "10",
    "SERVING_AUTOSCALER_TRIGGERS_USAGE_PERIOD_S": "1",
}


class App(msgspec.Struct, frozen=True, kw_only=True):
    """One app: its environment, its limits, and the clients at the end."""

    environment: dict[str, str]
    limits: dict[str, str]
    clients: int
    grow_s: float
    """Time until all clients are there."""

    learn_s: float
    """Time from then on until they are measured."""


APPS = {
    "cpu": App(
        environment={"CPU_S": "0.01", "CPU_LIMIT": "0.1"}, limits={"cpu": "100m"}, clients=12, grow_s=16, learn_s=16
    ),
    "io": App(environment={"WAIT_S": "1"}, limits={"cpu": "1"}, clients=240, grow_s=18, learn_s=26),
    "memory": App(
        environment={"WAIT_S": "1", "MIB": "12"}, limits={"memory": "160Mi"}, clients=20, grow_s=32, learn_s=8
    ),
}


class Measured(msgspec.Struct, kw_only=True):
    """What was seen of one service while it was measured; kills count from the start."""

    latencies_s: list[float] = msgspec.field(default_factory=list)
    pods: list[int] = msgspec.field(default_factory=list)
    failed: int = 0
    failed_before: int = 0
    kills: int = 0

    @property
    def throughput(self) -> float:
        """Right answers a second."""
        return len(self.latencies_s) / MEASURE_S

    def response_s(self, percentile: int) -> float:
        """A percentile of the response times; not a number without answers."""
        if len(self.latencies_s) < 2:
            return math.nan
        return statistics.quantiles(self.latencies_s, n=100, method="inclusive")[percentile - 1]

    @property
    def pod_count(self) -> float:
        """Mean number of pods."""
        return statistics.mean(self.pods) if self.pods else 0.0


def service(name: str, bound: str, *, is_learnt: bool) -> dict[str, Any]:
    """The manifest of one app. Both keep a pod, so that neither is measured with a start."""
    app = APPS[bound]
    annotations = {"serving.dev/command": f"{sys.executable} {APP}", "autoscaling.knative.dev/min-scale": "1"}
    if is_learnt:
        annotations["autoscaling.serving.dev/target"] = "learnt"
    environment = {"BOUND": bound, **app.environment}
    container = {
        "image": "bounded",
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "resources": {"limits": app.limits},
    }
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    kind = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": name}}
    return {**kind, "spec": {"template": template}}


def until_ready(system: System, count: int) -> None:
    """Wait until all services are ready. Raises ``SystemExit`` when they are not in time."""
    until_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until_s:
        items = system.ask(SERVICES)["items"]
        ready = [
            one
            for one in items
            if any(
                found.get("type") == "Ready" and found.get("status") == "True"
                for found in one.get("status", {}).get("conditions", ())
            )
        ]
        if len(ready) == count:
            return
        time.sleep(0.5)
    raise SystemExit("the services did not become ready")


class Client:
    """One client: asks again when it has been answered, on a connection that it keeps."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self._request = f"GET / HTTP/1.1\r\nHost: {name}.default.localhost\r\n\r\n".encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> bool:
        """Whether the answer was right."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(self._request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                await reader.readexactly(length)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            self.close()
            return False
        return b" 200 " in head.split(b"\r\n")[0]

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run_client(port: int, name: str, measured: Measured, *, measured_from_s: float, until_s: float) -> None:
    """Ask until the end; only what begins and ends in the measured time counts."""
    client = Client(port, name)
    while (began_s := time.monotonic()) < until_s:
        is_right = await client.ask()
        ended_s = time.monotonic()
        is_measured = ended_s >= measured_from_s and ended_s < until_s
        if is_right and is_measured:
            measured.latencies_s.append(ended_s - began_s)
        elif not is_right:
            measured.failed += is_measured
            measured.failed_before += not is_measured
            await asyncio.sleep(FAILURE_PAUSE_S)
    client.close()


async def load(system: System, bound: str, found: dict[str, Measured]) -> None:
    """The same clients for each service: one after another until all are there, then for a while to learn, then measured."""
    app, began_s = APPS[bound], time.monotonic()
    measured_from_s = began_s + app.grow_s + app.learn_s
    until_s = measured_from_s + MEASURE_S

    async def watch() -> None:
        while time.monotonic() < until_s:
            await asyncio.sleep(1.0)
            for name, measured in found.items():
                pods = await asyncio.to_thread(system.pods, name)
                measured.kills = max(measured.kills, _restarts(pods))
                if time.monotonic() >= measured_from_s:
                    measured.pods.append(len(pods))

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for index in range(app.clients):
            for name, measured in found.items():
                job = run_client(system.port, name, measured, measured_from_s=measured_from_s, until_s=until_s)
                group.create_task(job)
            await asyncio.sleep(max(0.0, began_s + app.grow_s * (index + 1) / app.clients - time.monotonic()))


def _restarts(pods: list[dict[str, Any]]) -> int:
    return sum(one.get("restartCount", 0) for pod in pods for one in pod.get("status", {}).get("containerStatuses", ()))


def learnt_of(system: System, name: str) -> str:
    """What ``serving why`` says of the learnt target."""
    said = [part for part in system.serving("why", name).split("; ") if "learnt target" in part]
    return said[-1].strip().splitlines()[0] if said else "nothing learnt"


def show(bound: str, found: dict[str, Measured], said: str) -> None:
    """A table of one app, and the ratios."""
    print(f"\n{bound}-bound, {APPS[bound].clients} clients ({said})")
    print(f"  {'':8} {'requests/s':>10} {'p50':>7} {'p99':>7} {'pods':>5} {'failed':>7} {'kills':>6}")
    for name, one in found.items():
        print(
            f"  {name.rpartition('-')[2]:8} {one.throughput:10.1f} {_seconds(one.response_s(50))} {_seconds(one.response_s(99))}"
            f" {one.pod_count:5.1f} {one.failed:7d} {one.kills:6d}"
        )
    fixed, learnt = found.values()
    print(
        f"  learnt to fixed: requests {_ratio(learnt.throughput, fixed.throughput)},"
        f" p99 {_ratio(learnt.response_s(99), fixed.response_s(99))}, pods {_ratio(learnt.pod_count, fixed.pod_count)}",
        flush=True,
    )


def _seconds(value_s: float) -> str:
    return f"{'-':>7}" if math.isnan(value_s) else f"{value_s:6.2f}s"


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}x" if other and not math.isnan(one / other) else "-"


def main() -> None:
    """Measure the apps that are named, all of them without a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("apps", nargs="*", choices=[*APPS, []], default=[])
    bounds = parser.parse_args().apps or list(APPS)
    with running_system(**SETTINGS) as system:
        for bound in bounds:
            for kind in ("fixed", "learnt"):
                name = f"{bound}-{kind}"
                system.ask(SERVICES, service(name, bound, is_learnt=kind == "learnt"), method="POST")
        until_ready(system, 2 * len(bounds))
        for bound in bounds:
            found = {f"{bound}-{kind}": Measured() for kind in ("fixed", "learnt")}
            asyncio.run(load(system, bound, found))
            show(bound, found, learnt_of(system, f"{bound}-learnt"))


if __name__ == "__main__":
    main()
