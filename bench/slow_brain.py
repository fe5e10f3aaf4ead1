"""The learnt target against the fixed default, on apps short of cpu, memory or neither.

    python bench/slow_brain.py [--part RATIO] [--mode learnt|protect|default] [--quick] [cpu] [io] [memory]

Each app runs twice, with ``autoscaling.serving.dev/target: learnt`` (or protect) and in shadow; both get the same
closed loop of clients at the same time, which grows for a while. Then both are measured: requests a second, response
times, pods, failed requests, and containers that were killed for their memory. ``--mode default`` protects by the
setting, without the annotation, so that usage is measured each 15 s. The learner's period and the stable window are
shorter than by default, for both, so that the three apps take three minutes; ``--part`` shortens all of it. The last
lines have the ratios of learnt to fixed.
"""

import asyncio
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.parts.program import options_of
from bench.parts.steady import Load, Observed, percentile_ms
from bench.parts.system import SERVICES, System, running_system, service_of

APP = Path(__file__).with_name("apps") / "bounded.py"
MEASURE_S = 12.0
READY_WITHIN_S = 120.0
FAILURE_PAUSE_S = 0.2
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


class Measured:
    """One service: its requests, its pods while measured, and its kills."""

    def __init__(self, system: System, name: str) -> None:
        self.load = Load(system.port, f"{name}.default.localhost")
        self.pods: list[int] = []
        self.kills = 0

    async def run_client(self, until_s: float) -> None:
        """One client of a closed loop."""
        while (due_s := time.monotonic()) < until_s:
            await self.load.request(due_s)
            if self.load.observed[-1].status != "200":
                await asyncio.sleep(FAILURE_PAUSE_S)

    def cut(self, from_s: float, until_s: float) -> None:
        """Forget the requests that did not end in a time."""
        observed = self.load.observed
        self.load.observed = [one for one in observed if from_s <= one.due_s + one.took_s < until_s]

    @property
    def succeeded(self) -> list[Observed]:
        """Right answers."""
        return [response for response in self.load.observed if response.status == "200"]

    @property
    def failed(self) -> int:
        """Requests without one."""
        return len(self.load.observed) - len(self.succeeded)

    @property
    def pod_count(self) -> float:
        """Mean number of pods."""
        return statistics.mean(self.pods) if self.pods else 0.0


def service(name: str, bound: str, *, mode: str) -> dict[str, Any]:
    """The manifest of one app. Both keep a pod, so that neither is measured with a start."""
    app = APPS[bound]
    annotations = {"serving.dev/command": f"{sys.executable} {APP}", "autoscaling.knative.dev/min-scale": "1"}
    if mode != "default":
        annotations["autoscaling.serving.dev/target"] = mode
    environment = [{"name": key, "value": value} for key, value in {"BOUND": bound, **app.environment}.items()]
    return service_of(name, annotations=annotations, env=environment, resources={"limits": app.limits})


async def load(system: System, bound: str, part: float) -> dict[str, Measured]:
    """Send the same load to both services while it grows, is learnt and is measured."""
    app, began_s = APPS[bound], time.monotonic()
    measured_from_s = began_s + (app.grow_s + app.learn_s) * part
    until_s = measured_from_s + MEASURE_S * part
    measurements = {f"{bound}-{kind}": Measured(system, f"{bound}-{kind}") for kind in ("fixed", "learnt")}

    async def watch() -> None:
        while time.monotonic() < until_s:
            await asyncio.sleep(1.0)
            for name, measured in measurements.items():
                pods = await asyncio.to_thread(system.pods, name)
                measured.kills = max(measured.kills, _restarts(pods))
                if time.monotonic() >= measured_from_s:
                    measured.pods.append(len(pods))

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for index in range(app.clients):
            for measured in measurements.values():
                group.create_task(measured.run_client(until_s))
            await asyncio.sleep(max(0.0, began_s + app.grow_s * part * (index + 1) / app.clients - time.monotonic()))
    for measured in measurements.values():
        await measured.load.close()
        measured.cut(measured_from_s, until_s)
    return measurements


def _restarts(pods: list[dict[str, Any]]) -> int:
    return sum(
        container_status.get("restartCount", 0)
        for pod in pods
        for container_status in pod.get("status", {}).get("containerStatuses", ())
    )


def learnt_of(system: System, name: str) -> str:
    """What ``serving why`` says of the learnt target."""
    learnt_parts = [part for part in system.serving("why", name).split("; ") if "learnt target" in part]
    return learnt_parts[-1].strip().splitlines()[0] if learnt_parts else "nothing learnt"


def table(bound: str, measurements: dict[str, Measured], learnt_text: str, *, part: float) -> None:
    """Print a table of one app, and the ratios."""
    print(f"\n{bound}-bound, {APPS[bound].clients} clients ({learnt_text})")
    print(f"  {'':8} {'requests/s':>10} {'p50 ms':>7} {'p99 ms':>7} {'pods':>5} {'failed':>7} {'kills':>6}")
    for name, measured in measurements.items():
        rate, p50_ms, p99_ms = _numbers(measured, part)
        print(f"  {name.rpartition('-')[2]:8} {rate:10.1f} {p50_ms:7.0f} {p99_ms:7.0f}", end=" ")
        print(f"{measured.pod_count:5.1f} {measured.failed:7d} {measured.kills:6d}")
    fixed, learnt = (_numbers(measured, part) for measured in measurements.values())
    pods = [measured.pod_count for measured in measurements.values()]
    ratios = (_ratio(learnt[0], fixed[0]), _ratio(learnt[2], fixed[2]), _ratio(pods[1], pods[0]))
    print("  learnt to fixed: requests {}, p99 {}, pods {}".format(*ratios), flush=True)


def _numbers(measured: Measured, part: float) -> tuple[float, float, float]:
    """Right answers a second, and two percentiles of their times in milliseconds."""
    succeeded = measured.succeeded
    return len(succeeded) / (MEASURE_S * part), percentile_ms(succeeded, 50), percentile_ms(succeeded, 99)


def _ratio(first: float, other: float) -> str:
    return f"{first / other:.2f}x" if other and not math.isnan(first / other) else "-"


def main() -> None:
    """Measure the apps that are named, all of them without a name."""
    options = options_of(__doc__, names=tuple(APPS), part=1.0, mode="learnt", quick={"names": ("io",), "part": 0.2})
    protects = {"SERVING_AUTOSCALER_ADAPTIVE_LEARNT_TARGET": "protect"} if options.mode == "default" else {}
    with running_system(environment=SETTINGS | protects) as system:
        for bound in options.names:
            for kind in ("fixed", "learnt"):
                name = f"{bound}-{kind}"
                system.send_request(
                    SERVICES, service(name, bound, mode=options.mode if kind == "learnt" else "shadow"), method="POST"
                )
        system.until_ready(2 * len(options.names), READY_WITHIN_S)
        for bound in options.names:
            measurements = asyncio.run(load(system, bound, options.part))
            table(bound, measurements, learnt_of(system, f"{bound}-learnt"), part=options.part)


if __name__ == "__main__":
    main()
