"""What a request from zero costs beyond the app's own start: overhead = total - (exec to first accept) - handler.

    python bench/cold_start.py [--samples N] [--per-second N] [--app sockets|binary] [--runtimes | --frameworks |
    --sweep | --life] [--quick] [--json]

Starts the whole system, makes N services that have never had a pod, and asks each of them once, at a steady pace. The
app says when it was executed (by the clock of the shell that executes it, so that this shell's own start counts as
overhead), when it accepted its first connection, and how long it took to answer; the client adds the total. The goal is
a median of 15 ms and a 99th percentile of 30 ms.

``--app binary`` starts a compiled program instead, whose own start is short. ``--concurrency`` is the
containerConcurrency of the services: with 1 a request starts two pods (at most 1 a pod, target 70 %), with Knative's
default 0 one.

With ``--runtimes`` the services are by turns processes, containers, and containers with users of their own
(``hostUsers: false``), of the same compiled program: N of each in one run. The goal is a median of the containers at
most 25 ms over that of the processes. ``--sweep`` measures the compiled program at rates from 1 to 50 a second, one
after the other in one system, each for 10 seconds or ``--samples`` requests, if that is less, and prints a table: the
published sweeps of Knative and Dirigent do the same. ``--life`` prints what a pod of the compiled program costs until
its end, and the steps of its start (``bench/parts/life.py``). ``--frameworks`` measures FastAPI, Flask and Django
(``bench/parts/frameworks.py``).
"""

import argparse
import asyncio
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.parts.frameworks import measure_frameworks
from bench.parts.life import UsageOfLives, report_notes, tracing_environment
from bench.parts.load import send_request
from bench.parts.program import exit_code, options_of, show
from bench.parts.system import SERVICES, System, running_system, service_of
from tests.integration.image_stage import oci_archive, tar_of


class TracedStart(msgspec.Struct, frozen=True, kw_only=True):
    """One cold start, in seconds since the epoch: what the client and the app saw of it."""

    asked_s: float
    executed_s: float
    accepted_s: float
    responded_s: float


APPS = Path(__file__).with_name("apps")
READY_WITHIN_S = 300.0
REST_S = 3.0
GOAL_MEDIAN_MS, GOAL_P99_MS = 15.0, 30.0
GOAL_CONTAINER_MS = 25.0
IMAGE = "bench.local/cold:1"
SWEPT_PER_SECOND = (1, 2, 5, 10, 20, 30, 50)
SWEEP_S = 10.0
GONE_S = 20.0

StartResults = list[tuple[float, float, TracedStart] | BaseException]
"""Overhead and total of each request in seconds, and its times; or what it failed with."""


def compiled(folder: Path) -> list[str]:
    """Compile the app; its command."""
    for name in ("stamp", "binary"):
        subprocess.run(
            ["cc", "-O2", "-static", "-o", str(folder / name), str(APPS / f"{name}.c")],  # noqa: S607
            check=True,
        )
    return [str(folder / "stamp"), str(folder / "binary")]


def compiled_for_both(folder: Path, system: System) -> list[str]:
    """Compile the app and import an image of it; its command as a process."""
    command = compiled(folder)
    layer = tar_of([(name, (folder / name).read_bytes(), 0o755) for name in ("stamp", "binary")])
    oci_archive(folder / "image.tar", [layer], name=IMAGE, config={"Entrypoint": ["/stamp", "/binary"]})
    system.serving("image", "import", str(folder / "image.tar"))
    return command


def manifest(name: str, command: list[str] | None, *, concurrency: int = 1) -> dict[str, object]:
    """A service at zero; without a command it runs the image, for None with users of its own."""
    annotations = {
        "autoscaling.knative.dev/initial-scale": "0",
        "autoscaling.knative.dev/window": "6s",
        **({"serving.dev/command": shlex.join(command)} if command else {}),
    }
    service = service_of(name, annotations=annotations, concurrency=concurrency, image=IMAGE)
    if command is None:
        service["spec"]["template"]["spec"]["hostUsers"] = False
    return service


def names_of(numbers: Iterable[int]) -> list[str]:
    """The names of services."""
    return [f"cold-{number}" for number in numbers]


def deploy(system: System, count: int, commands: Sequence[list[str] | None], *, concurrency: int) -> None:
    """Make all services, of the commands by turns, and wait until they are ready."""
    for number in range(count):
        result = manifest(f"cold-{number}", commands[number % len(commands)], concurrency=concurrency)
        system.send_request(SERVICES, result, method="POST")
    system.until_ready(count, READY_WITHIN_S)


async def sample(port: int, name: str) -> tuple[float, float, TracedStart]:
    """Overhead and total of the one request of a service in seconds, and its steps."""
    began_s = time.time()
    status, body = await send_request(port, f"{name}.default.localhost")
    total_s = time.time() - began_s
    if " 200 " not in status:
        raise OSError(status)
    exec_s, accepted_s, handler_s = map(float, body.split())
    start = TracedStart(asked_s=began_s, executed_s=exec_s, accepted_s=accepted_s, responded_s=began_s + total_s)
    return total_s - (accepted_s - exec_s) - handler_s, total_s, start


async def measure(port: int, names: Iterable[str], per_second: float) -> StartResults:
    """One request each 1 / ``per_second`` seconds, whatever became of those before."""
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(sample(port, name)))
        await asyncio.sleep(1 / per_second)
    return await asyncio.gather(*tasks, return_exceptions=True)


def report(results: StartResults) -> dict[str, float | str]:
    """Percentiles in milliseconds, and what failed."""
    good = [result for result in results if not isinstance(result, BaseException)]
    errors = [result for result in results if isinstance(result, BaseException)]
    if not good:
        raise SystemExit(f"no request was answered: {errors[0]!r}")
    overheads = [overhead_s * 1000 for overhead_s, *_ in good]
    # Quantiles need two numbers.
    cuts = statistics.quantiles(overheads * 2 if len(good) == 1 else overheads, n=100, method="inclusive")
    return {
        "samples": len(good),
        "overhead_median_ms": round(cuts[49], 1),
        "overhead_p90_ms": round(cuts[89], 1),
        "overhead_p99_ms": round(cuts[98], 1),
        "overhead_max_ms": round(max(overheads), 1),
        "total_median_ms": round(statistics.median(total_s * 1000 for _, total_s, _ in good), 1),
        "errors": len(errors),
        "first_error": repr(errors[0]) if errors else "",
    }


def main() -> int:
    """Run, and print what was measured; exit 0 only if the goal is met."""
    sizes = {"samples": 500, "per_second": 1.0, "app": "sockets", "concurrency": 1}
    ways = {"runtimes": False, "frameworks": False, "sweep": False, "life": False}
    options = options_of(__doc__, quick={"samples": 1}, **sizes, **ways)
    if options.frameworks:
        return measure_frameworks(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if options.sweep:
            return sweep(options, folder)
        if options.life:
            return lives(options, folder)
        results = measured(options, folder)
    kinds = [report(results[index::3]) for index in range(3)] if options.runtimes else [report(results)]
    medians_ms = [float(kind["overhead_median_ms"]) for kind in kinds]
    if options.runtimes:
        over_ms = medians_ms[1] - medians_ms[0]
        own_ms = medians_ms[2] - medians_ms[1]
        shown = {"container_over_process_ms": round(over_ms, 1), "own_users_over_container_ms": round(own_ms, 1)}
        show({**shown, **dict(zip(("process", "container", "own_users"), kinds, strict=True))}, options)
        is_met = over_ms <= GOAL_CONTAINER_MS
    else:
        show(kinds[0], options)
        is_met = medians_ms[0] <= GOAL_MEDIAN_MS and float(kinds[0]["overhead_p99_ms"]) <= GOAL_P99_MS
    return 1 if any(kind["errors"] for kind in kinds) else exit_code(options, is_met=is_met)


def measured(options: argparse.Namespace, folder: Path) -> StartResults:
    """What became of each request."""
    with running_system(environment={"SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true"}) as system:
        commands: Sequence[list[str] | None]
        if options.runtimes:
            commands = [compiled_for_both(folder, system), [], None]
        elif options.app == "binary":
            commands = [compiled(folder)]
        else:
            app = [sys.executable, str(APPS / "sockets.py")]
            commands = [["bash", "-c", 'EXEC_S=$EPOCHREALTIME exec "$0" "$@"', *app]]
        count = options.samples * len(commands)
        deploy(system, count, commands, concurrency=options.concurrency)
        time.sleep(REST_S)
        return asyncio.run(measure(system.port, names_of(range(count)), options.per_second))


def sweep(options: argparse.Namespace, folder: Path) -> int:
    """Print a line for each rate; exit 0 if no request failed."""
    counts = [min(options.samples, int(rate * SWEEP_S)) for rate in SWEPT_PER_SECOND]
    errors_count = 0
    print("| a second | requests | p50, ms | p99, ms | errors | load average |\n|---|---|---|---|---|---|")
    with running_system(environment={"SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true"}) as system:
        deploy(system, sum(counts), [compiled(folder)], concurrency=options.concurrency)
        begin = 0
        for rate, count in zip(SWEPT_PER_SECOND, counts, strict=True):
            # The pods of the rate before are gone by then.
            time.sleep(REST_S if options.quick else GONE_S)
            results = asyncio.run(measure(system.port, names_of(range(begin, begin + count)), rate))
            begin += count
            shown = report(results)
            errors_count += int(shown["errors"])
            totals_ms = [response[1] * 1000 for response in results if not isinstance(response, BaseException)]
            cuts = statistics.quantiles(totals_ms * 2, n=100, method="inclusive")
            print(
                f"| {rate} | {count} | {cuts[49]:.0f} | {cuts[98]:.0f} | {shown['errors']} | {os.getloadavg()[0]:.0f} |",
                flush=True,
            )
    return 1 if errors_count else 0


def lives(options: argparse.Namespace, folder: Path) -> int:
    """Print what a pod's life costs; exit 0 if no request failed."""
    responses, notes, count = StartResults(), folder / "notes", options.samples
    for environment in ({}, tracing_environment(notes)):
        with running_system(
            environment={"SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true", **environment}
        ) as system:
            deploy(system, count, [compiled(folder)], concurrency=0)
            time.sleep(REST_S)
            usage = UsageOfLives(system)
            responses += asyncio.run(measure(system.port, names_of(range(count)), options.per_second))
            usage.until_zero()
            if not environment:
                print("\n".join(usage.report(count)), flush=True)
    starts = [response[2] for response in responses[count:] if not isinstance(response, BaseException)]
    print("\n".join(report_notes(notes, [(start.asked_s, start.responded_s) for start in starts])))
    return 1 if report(responses)["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
