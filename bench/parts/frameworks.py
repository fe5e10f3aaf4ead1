"""Cold starts of FastAPI, Flask and Django, ordinary and from a warm process in turns.

Installs the frameworks into a virtual environment in a temporary folder. Each service goes to zero before each request;
the total is what the client waits. The goal with a warm process is a median of 50 ms and a 99th percentile of 100 ms.
"""

import argparse
import asyncio
import statistics
import subprocess
import tempfile
import time
import venv
from pathlib import Path

from bench.parts.load import send_request
from bench.parts.program import exit_code, show
from bench.parts.system import System, running_system

APPS = Path(__file__).parents[1] / "apps" / "frameworks"
PACKAGES = ("fastapi", "uvicorn", "flask", "waitress", "django")
COMMANDS = {
    "fastapi": "uvicorn fastapi_app:app --host 127.0.0.1 --port $PORT",
    "flask": "waitress-serve --listen=127.0.0.1:$PORT flask_app:app",
    "django": "uvicorn django_app:app --host 127.0.0.1 --port $PORT",
}
WAYS = {"plain": (), "warm": ("--preload",)}
ZERO_WITHIN_S = 120.0
REST_S = 0.5
GOAL_MEDIAN_MS, GOAL_P99_MS = 50, 100


def install(folder: Path) -> Path:
    """A virtual environment with the frameworks; its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    subprocess.run([str(programs / "pip"), "install", "--quiet", *PACKAGES], check=True)
    return programs


def deploy(system: System, programs: Path) -> None:
    """Each app both ways."""
    for app, command in COMMANDS.items():
        for way, more in WAYS.items():
            window = ("--window", "6s", "--concurrency", "10")
            system.serving("deploy", f"{app}-{way}", str(APPS), "--command", f"{programs}/{command}", *window, *more)


def measure(system: System, samples: int) -> dict[str, list[float]]:
    """The totals of each service, in milliseconds."""
    result: dict[str, list[float]] = {f"{app}-{way}": [] for app in COMMANDS for way in WAYS}
    for _ in range(samples):
        for name in result:
            if not system.until_zero(name, ZERO_WITHIN_S):
                raise SystemExit(f"{name} did not come to zero")
        time.sleep(REST_S)
        for name, totals in result.items():
            began_s = time.monotonic()
            status, body = asyncio.run(send_request(system.port, f"{name}.default.localhost"))
            if " 200 " not in status:
                raise SystemExit(f"{name}: {status}: {body}")
            totals.append((time.monotonic() - began_s) * 1000)
            time.sleep(REST_S)
    return result


def measure_frameworks(options: argparse.Namespace) -> int:
    """Run, and print medians and 99th percentiles; 0 if the goal is met by all that start warm."""
    with tempfile.TemporaryDirectory() as folder, running_system() as system:
        # The temporary folder is closed to the users of pods, which see a virtual environment inside of it, but not one
        # that is it.
        deploy(system, install(Path(folder) / "venv"))
        result = measure(system, options.samples)
    rows = {
        name: {
            "median_ms": round(statistics.median(totals)),
            # Quantiles need two numbers.
            "p99_ms": round(statistics.quantiles([*totals, max(totals)], n=100, method="inclusive")[98]),
        }
        for name, totals in result.items()
    }
    show(rows, options)
    warm = [row for name, row in rows.items() if name.endswith("-warm")]
    is_met = all(row["median_ms"] <= GOAL_MEDIAN_MS and row["p99_ms"] <= GOAL_P99_MS for row in warm)
    return exit_code(options, is_met=is_met)
