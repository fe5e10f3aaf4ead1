"""What a request from zero costs beyond the app's own start: overhead = total - (exec to first accept) - handler.

    python bench/cold_start.py [--app sockets|framework|binary] [--samples N] [--per-second N] [--trace] [--json]
    python bench/cold_start.py --runtimes [--samples N] [--per-second N] [--json]
    python bench/cold_start.py --apps frameworks [--samples N] [--json]

Starts the whole system, makes N services that have never had a pod, and asks each of them once, at a steady pace. The app
says when it was executed (by the clock of the shell that executes it, so that this shell's own start counts as
overhead), when it accepted its first connection, and how long it took to answer; the client adds the total. The goal is
a median of 15 ms and a 99th percentile of 30 ms. ``--trace`` prints the steps of a start with their milliseconds, which costs a
start two or three itself. ``--apps frameworks`` measures what ``bench/frameworks.py`` does.

With ``--runtimes`` the services are by turns processes and containers of the same compiled program: N of each in one run. The goal is
a median of the containers at most 30 ms over that of the processes.
"""

import argparse
import asyncio
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.frameworks import measure_frameworks
from bench.load import ask
from bench.parts.start_steps import TracedStart, report_steps, tracing_environment
from bench.system import System, running_system
from tests.integration.image_stage import oci_archive, tar_of

__all__ = ["main"]

APPS = Path(__file__).with_name("apps")
SERVICES = "/apis/serving.knative.dev/v1/namespaces/default/services"
READY_WITHIN_S = 300.0
REST_S = 3.0
SAMPLES, FRAMEWORK_SAMPLES = 500, 20
GOAL_MEDIAN_MS, GOAL_P99_MS = 15.0, 30.0
GOAL_CONTAINER_MS = 30.0
IMAGE = "bench.local/cold:1"

Found = list[tuple[float, float, TracedStart] | BaseException]
"""Overhead and total of each request in seconds, and its times; or what it failed with."""


def command_of(app: str, folder: Path) -> list[str]:
    """How an app is executed. The binary is compiled, and started by a script."""
    if app != "binary":
        return [sys.executable, str(APPS / f"{app}.py")]
    binary, script = folder / "app", folder / "run.sh"
    subprocess.run(["cc", "-O2", "-o", str(binary), str(APPS / "binary.c")], check=True)  # noqa: S607
    script.write_text(f"#!/bin/sh\nexec {shlex.quote(str(binary))}\n")
    script.chmod(0o700)
    return [str(script)]


def timed(command: list[str]) -> list[str]:
    """A command that knows when it was executed."""
    return ["bash", "-c", 'EXEC_S=$EPOCHREALTIME exec "$0" "$@"', *command]


def compiled_for_both(folder: Path, system: System) -> list[str]:
    """The command of the compiled app; the same is in an image that the system has."""
    for name in ("stamp", "binary"):
        subprocess.run(
            ["cc", "-O2", "-static", "-o", str(folder / name), str(APPS / f"{name}.c")],  # noqa: S607
            check=True,
        )
    layer = tar_of([(name, (folder / name).read_bytes(), 0o755) for name in ("stamp", "binary")])
    oci_archive(folder / "image.tar", [layer], name=IMAGE, config={"Entrypoint": ["/stamp", "/binary"]})
    system.serving("image", "import", str(folder / "image.tar"))
    return [str(folder / "stamp"), str(folder / "binary")]


def manifest(name: str, command: list[str]) -> dict[str, object]:
    """A service that starts at zero and goes back to it soon; without a command it runs the image."""
    annotations = {
        "autoscaling.knative.dev/initial-scale": "0",
        "autoscaling.knative.dev/window": "6s",
        **({"serving.dev/command": shlex.join(command)} if command else {}),
    }
    spec = {"containerConcurrency": 1, "containers": [{"image": IMAGE}]}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


def deploy(system: System, count: int, commands: list[list[str]]) -> None:
    """Make all services, of the commands by turns, and wait until all are ready, at zero."""
    for number in range(count):
        system.ask(SERVICES, manifest(f"cold-{number}", commands[number % len(commands)]), method="POST")
    until_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until_s:
        conditions = [one.get("status", {}).get("conditions", ()) for one in system.ask(SERVICES)["items"]]
        ready = sum(any((one["type"], one["status"]) == ("Ready", "True") for one in these) for these in conditions)
        if ready == count:
            return
        time.sleep(0.5)
    raise SystemExit("the services did not become ready")


async def sample(port: int, number: int) -> tuple[float, float, TracedStart]:
    """Overhead and total of the one request of a service, in seconds, and when it was what."""
    began_s = time.time()
    status, body = await ask(port, f"cold-{number}.default.localhost")
    total_s = time.time() - began_s
    if " 200 " not in status:
        raise OSError(status)
    exec_s, accepted_s, handler_s = map(float, body.split())
    start = TracedStart(asked_s=began_s, executed_s=exec_s, accepted_s=accepted_s, answered_s=began_s + total_s)
    return total_s - (accepted_s - exec_s) - handler_s, total_s, start


async def measure(port: int, count: int, per_second: float) -> Found:
    """One request each 1 / ``per_second`` seconds, whatever became of those before."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(sample(port, number)))
        await asyncio.sleep(1 / per_second)
    return await asyncio.gather(*tasks, return_exceptions=True)


def report(found: Found) -> dict[str, object]:
    """Percentiles in milliseconds, and what failed."""
    good = [one for one in found if not isinstance(one, BaseException)]
    overheads = sorted(overhead_s * 1000 for overhead_s, *_ in good)
    cuts = statistics.quantiles(overheads, n=100, method="inclusive")
    errors = [one for one in found if isinstance(one, BaseException)]
    return {
        "samples": len(good),
        "overhead_median_ms": round(cuts[49], 1),
        "overhead_p90_ms": round(cuts[89], 1),
        "overhead_p99_ms": round(cuts[98], 1),
        "overhead_max_ms": round(overheads[-1], 1),
        "total_median_ms": round(statistics.median(total_s * 1000 for _, total_s, _ in good), 1),
        "errors": len(errors),
        "first_error": repr(errors[0]) if errors else "",
    }


def main() -> int:
    """Run, and print what was measured; exit 0 only if the goal is met."""
    parser = argparse.ArgumentParser(description="What a request from zero costs beyond the app's own start.")
    parser.add_argument("--app", choices=["sockets", "framework", "binary"], default="sockets")
    parser.add_argument("--runtimes", action="store_true", help="the compiled app, by turns as process and container")
    parser.add_argument("--apps", choices=["frameworks"])
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--per-second", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.apps:
        return measure_frameworks(options.samples or FRAMEWORK_SAMPLES, as_json=options.json)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        found = measured(options, folder)
    kinds = {"process": report(found[0::2]), "container": report(found[1::2])} if options.runtimes else {}
    if kinds:
        over_ms = _median_ms(kinds["container"]) - _median_ms(kinds["process"])
        shown = {"per_second": options.per_second, "container_over_process_ms": round(over_ms, 1), **kinds}
        is_met = over_ms <= GOAL_CONTAINER_MS and not any(one["errors"] for one in kinds.values())
    else:
        one = report(found)
        shown = {"app": options.app, "per_second": options.per_second, **one}
        is_met = _median_ms(one) <= GOAL_MEDIAN_MS and float(str(one["overhead_p99_ms"])) <= GOAL_P99_MS
        is_met = is_met and not one["errors"]
    print(json.dumps(shown) if options.json else "\n".join(f"{key}: {value}" for key, value in shown.items()))
    return 0 if is_met else 1


def measured(options: argparse.Namespace, folder: Path) -> Found:
    """What became of each request; with ``--trace`` its steps are printed."""
    notes = folder / "notes"
    traced = tracing_environment(notes) if options.trace else {}
    with running_system(SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE="true", **traced) as system:
        if options.runtimes:
            commands = [compiled_for_both(folder, system), []]
        else:
            commands = [timed(command_of(options.app, folder))]
        count = (options.samples or SAMPLES) * len(commands)
        deploy(system, count, commands)
        time.sleep(REST_S)
        found = asyncio.run(measure(system.port, count, options.per_second))
    if options.trace:
        starts = [one[2] for one in found if not isinstance(one, BaseException)]
        print("\n".join(report_steps(notes, starts)), file=sys.stderr)
    return found


def _median_ms(found: dict[str, object]) -> float:
    return float(str(found["overhead_median_ms"]))


if __name__ == "__main__":
    sys.exit(main())
