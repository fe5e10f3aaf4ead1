"""Compares a request to a dormant pod with one to a running pod and one from zero; and measures many dormant pods.

    python bench/dormant.py [--samples N] [--zeros N] [--pods N] [--watch-s S] [--quick] [--json]

Each app is three services: one never sleeps, one is dormant after 200 ms, both with a pod from the start, and one goes
to zero. The first two are asked by turns, after half a second of silence each. ``over_running`` are differences of
percentiles, in milliseconds. ``pss`` is the memory of the app's processes, shared pages divided among those that share
them, before and after it went dormant.

Then ``--pods`` pods of a small program sleep: ``pods_core_percent`` is the cpu of their apps and queue-proxies,
``daemons_core_percent`` that of the system beside them. Goals: p50 at most 3 ms, p99 at most 15 ms over running, 0.5 %
of a core for the pods.
"""

import asyncio
import json
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from bench.cold_start import IMAGE, compiled_for_both
from bench.parts.frameworks import APPS, COMMANDS, install
from bench.parts.load import send_request
from bench.parts.processes import cpu_s, pss_mib
from bench.parts.program import exit_code, options_of, show
from bench.parts.system import SERVICES, System, running_system, service_of
from serving.core.model.knative import CONDITION_DORMANT
from serving.queueproxy.io.processes import AppProcesses

SILENCE_S = 0.5
WITHIN_S = 300.0
GOAL_P50_MS, GOAL_P99_MS, GOAL_CORE_PERCENT = 3.0, 15.0, 0.5
WAYS = {
    "run": {"autoscaling.knative.dev/min-scale": "1"},
    "sleep": {"autoscaling.knative.dev/min-scale": "1", "serving.dev/dormant": "after=200ms"},
    "zero": {"autoscaling.knative.dev/window": "6s"},
}
NODE = """
const http = require('http');
http.createServer((request, response) => response.end('hello')).listen(process.env.PORT, '127.0.0.1');
"""


class Failures:
    """Counts requests without a right response, and keeps the first."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def add(self, text: str) -> None:
        """Count one."""
        self.count += 1
        self.first = self.first or text


def deploy(system: System, folder: Path) -> list[str]:
    """Deploy each app in each way; the names of the apps."""
    programs = install(folder / "venv")
    (folder / "app.js").write_text(NODE)
    commands = {app: f"{programs}/{command}" for app, command in COMMANDS.items()}
    if shutil.which("node"):
        commands["node"] = shlex.join(["node", str(folder / "app.js")])
    for app, command in commands.items():
        for way, annotations in WAYS.items():
            flags = [flag for name, text in annotations.items() for flag in ("--annotate", f"{name}={text}")]
            system.serving("deploy", f"{app}-{way}", str(APPS), "--command", command, *flags)
    if not shutil.which("crun"):
        return list(commands)
    compiled_for_both(folder, system)
    for way, annotations in WAYS.items():
        system.send_request(
            SERVICES, service_of(f"container-{way}", annotations=annotations, image=IMAGE), method="POST"
        )
    system.until_ready(len(WAYS) * (len(commands) + 1), WITHIN_S)
    return [*commands, "container"]


def asked_ms(system: System, service: str, failures: Failures) -> float:
    """The time of one request; a failed one is counted."""
    began_s = time.monotonic()
    try:
        status, body = asyncio.run(send_request(system.port, f"{service}.default.localhost"))
    except OSError as error:
        status, body = repr(error), ""
    if " 200 " not in status:
        failures.add(f"{service}: {status}: {body[:200]}")
    return (time.monotonic() - began_s) * 1000


def is_dormant(pod: dict[str, object]) -> bool:
    """Whether the status of a pod says that it sleeps."""
    status = pod.get("status")
    conditions = status.get("conditions", ()) if isinstance(status, dict) else ()
    return any((condition["type"], condition["status"]) == (CONDITION_DORMANT, "True") for condition in conditions)


def until_dormant(system: System, service: str, count: int) -> None:
    """Wait until so many pods of a service sleep. Raises ``TimeoutError``."""
    until_s = time.monotonic() + WITHIN_S
    while sum(map(is_dormant, system.pods(service))) < count:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{sum(map(is_dormant, system.pods(service)))} of {count} pods of {service} sleep")
        time.sleep(SILENCE_S)


def app_pids(system: System, service: str) -> list[int]:
    """The processes of the apps of a service's pods."""
    pids = []
    for pod in system.pods(service):
        prefix = f"{system.state}/processes/{pod['metadata']['uid']}."
        pids += [process.pid for process in AppProcesses(prefix, runner=system.process.pid).find()[0]]
    return pids


def memory_mib(pids: Iterable[int]) -> float:
    """The memory of processes."""
    return round(sum(map(pss_mib, pids)), 1)


def measure(system: System, app: str, samples: int, zeros: int, failures: Failures) -> dict[str, float]:
    """The figures of one app."""
    for way in ("run", "sleep"):
        asked_ms(system, f"{app}-{way}", failures)
    times: dict[str, list[float]] = {"run": [], "sleep": []}
    for _ in range(samples):
        for way, times_ms in times.items():
            time.sleep(SILENCE_S)
            times_ms.append(asked_ms(system, f"{app}-{way}", failures))
    from_zero = []
    for _ in range(zeros):
        if not system.until_zero(f"{app}-zero", WITHIN_S):
            failures.add(f"{app}-zero did not come to zero")
        from_zero.append(asked_ms(system, f"{app}-zero", failures))
    running_mib = memory_mib(app_pids(system, f"{app}-run"))
    until_dormant(system, f"{app}-sleep", 1)
    cuts = {
        way: statistics.quantiles([*times_ms, max(times_ms)], n=100, method="inclusive")
        for way, times_ms in times.items()
    }
    return {
        "over_running_p50_ms": round(cuts["sleep"][49] - cuts["run"][49], 2),
        "over_running_p99_ms": round(cuts["sleep"][98] - cuts["run"][98], 2),
        "running_p50_ms": round(cuts["run"][49], 2),
        "from_zero_p50_ms": round(statistics.median(from_zero), 1),
        "pss_running_mib": running_mib,
        "pss_dormant_mib": memory_mib(app_pids(system, f"{app}-sleep")),
    }


def measure_crowd(system: System, command: str, count: int, watch_s: float) -> dict[str, float]:
    """The cpu of many dormant pods, and of the daemons meanwhile, in percent of a core."""
    annotations = {
        "serving.dev/command": command,
        "serving.dev/dormant": "after=200ms",
        "autoscaling.knative.dev/min-scale": str(count),
    }
    system.send_request(SERVICES, service_of("crowd", annotations=annotations), method="POST")
    until_dormant(system, "crowd", count)
    pods = [*app_pids(system, "crowd"), *proxy_pids(system, "crowd")]
    modules = ("home.processes.template", "home.main", "autoscaler.main", "activator.main", "tools.dashboard.main")
    daemons = [pid for module in modules for pid in system.daemons(f"serving.{module}")]
    # What follows from the freeze itself is over.
    time.sleep(SILENCE_S)
    before = [sum(map(cpu_s, group)) for group in (pods, daemons)]
    time.sleep(watch_s)
    used = [sum(map(cpu_s, group)) - then for group, then in zip((pods, daemons), before, strict=True)]
    return {
        "pods": count,
        "pods_core_percent": round(100 * used[0] / watch_s, 2),
        "daemons_core_percent": round(100 * used[1] / watch_s, 2),
    }


def proxy_pids(system: System, service: str) -> list[int]:
    """The queue-proxies of a service's pods."""
    files = (
        system.state / "processes" / f"{pod['metadata']['uid']}.queue-proxy.process" for pod in system.pods(service)
    )
    return [json.loads(file.read_bytes())["pid"] for file in files]


def main() -> int:
    """Run, and print the figures; exit 0 only if the goals are met."""
    sizes = {"samples": 100, "zeros": 3, "pods": 200, "watch_s": 30.0}
    options = options_of(__doc__, quick={"samples": 2, "zeros": 1, "pods": 2, "watch_s": 1.0}, **sizes)
    failures = Failures()
    with tempfile.TemporaryDirectory() as name, running_system() as system:
        folder = Path(name)
        folder.chmod(0o755)
        apps = {app: measure(system, app, options.samples, options.zeros, failures) for app in deploy(system, folder)}
        small = folder / "binary"
        command = str(small) if small.exists() else shlex.join(["node", str(folder / "app.js")])
        crowd = measure_crowd(system, command, options.pods, options.watch_s)
    show({"errors": failures.count, "first_error": failures.first, "apps": apps, "crowd": crowd}, options)
    is_met = all(
        figures["over_running_p50_ms"] <= GOAL_P50_MS and figures["over_running_p99_ms"] <= GOAL_P99_MS
        for figures in apps.values()
    )
    if failures.count:
        return 1
    return exit_code(options, is_met=is_met and crowd["pods_core_percent"] <= GOAL_CORE_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
