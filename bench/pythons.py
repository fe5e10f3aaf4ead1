"""What other versions of Python give: requests per core, starts from zero and idle memory, by turns in one run.

    python bench/pythons.py [NAME ...] [--roots FOLDER] [--rounds N] [--seconds S] [--samples N] [--quick] [--json]

Names are those of ``python -m tests.pythons --list``; without one, the oldest Python of the machine and Debian's in
roots, which are made if they are not there. Each round measures one Python after the other, each time another one
first; the median over rounds is printed, as a table for docs/performance.md. Requests are those of 64 connections
through a queue-proxy on a core of its own, as in ``data_path.py``; a start is that of ``cold_start.py``, memory that of
``idle.py``. Needs two cores, wrk and nginx; a root gets them from Debian.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.parts.program import options_of
from bench.peers.cast import LOAD_CORE, PROXY_CORE, casting
from bench.peers.wrk import Load
from tests.pythons import RELEASES, ROOT, Place, Unavailable, interpreters, places

ROWS: Mapping[str, str] = {
    "per_second": "requests a second on one core",
    "cpu_us": "CPU of a request, µs",
    "start_ms": "start from zero beyond the app's own, median, ms",
    "idle_mib": "idle memory of `serving up`, MiB",
}
CONNECTIONS = 64
_TOOLS = ("nginx-light", "wrk", "procps", "util-linux")
_MEASURED_WITHIN_S = 1800.0


def measured_here(options: argparse.Namespace) -> dict[str, float]:
    """Measure the Python that runs this."""
    with casting() as cast:
        cast.start("backend", core=LOAD_CORE)
        cast.start("queue-proxy", core=PROXY_CORE)
        # Once, so that the first run is not a cold one.
        Load(connections=16, seconds=1.0).run(cast.ports["queue-proxy"])
        run = Load(connections=CONNECTIONS, seconds=options.seconds).measured(cast, "queue-proxy")
    quick = ("--quick",) if options.quick else ()
    start = _printed("bench.cold_start", "--samples", str(options.samples), *quick)
    idle = _printed("bench.idle", *(quick or ("--seconds", "10")))
    return {
        "per_second": run.per_second,
        "cpu_us": run.cpu_us,
        "start_ms": start["overhead_median_ms"],
        "idle_mib": idle["pss_mib"],
    }


def _printed(module: str, *arguments: str) -> dict[str, Any]:
    """The figures of a benchmark, whether or not it meets its goal."""
    command = [sys.executable, "-m", module, "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{module} has measured nothing: exit code {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return document


def ready_places(names: Sequence[str], roots: Path) -> list[tuple[str, Place]]:
    """The places that can be had, each with its version, and with everything installed."""
    results = []
    for place in places(names, roots):
        if isinstance(place, Unavailable):
            print(f"left out: {place}", file=sys.stderr)
            continue
        place.set_up()
        if place.enter and place.run("sh", "-c", "command -v wrk nginx >/dev/null", within_s=60.0):
            # A mirror may be weeks behind, and its index out of date.
            place.output("apt-get", "update", "-q", "-o", "Acquire::Check-Valid-Until=false", within_s=600.0)
            place.output("apt-get", "install", "-qy", "--no-install-recommends", *_TOOLS, within_s=600.0)
        program = "import platform; print(platform.python_version())"
        results.append((place.output(place.python, "-c", program, within_s=60.0).strip(), place))
    return results


def measured(ready: Sequence[tuple[str, Place]], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The median of each figure over all rounds, by version."""
    runs: dict[str, list[dict[str, float]]] = {version: [] for version, _ in ready}
    flags = ["--inside", "--json", "--seconds", str(options.seconds), "--samples", str(options.samples)]
    for turn in range(options.rounds):
        first = turn % len(ready)
        for version, place in [*ready[first:], *ready[:first]]:
            command = [place.python, "-m", "bench.pythons", *flags, *(["--quick"] if options.quick else [])]
            runs[version].append(json.loads(place.output(*command, within_s=_MEASURED_WITHIN_S).splitlines()[-1]))
            print(f"round {turn + 1} of {options.rounds}, {version}: {runs[version][-1]}", file=sys.stderr)
    return {
        version: {row: round(statistics.median(run[row] for run in rounds), 1) for row in ROWS}
        for version, rounds in runs.items()
    }


def table(fields: Mapping[str, Mapping[str, float]]) -> str:
    """The figures as a table of Markdown."""
    lines = [["", *(f"Python {version}" for version in fields)], ["---"] * (len(fields) + 1)]
    lines += [[text, *(f"{figures[row]:,.5g}" for figures in fields.values())] for row, text in ROWS.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Measure and print."""
    quick = {"rounds": 1, "seconds": 1.0, "samples": 3}
    local = list(interpreters())
    options = options_of(
        __doc__,
        quick=quick,
        names=(*local, *RELEASES),
        roots=str(ROOT / "build" / "roots"),
        rounds=3,
        seconds=5.0,
        samples=50,
        inside=False,
    )
    if options.inside:
        print(json.dumps(measured_here(options)))
        return
    names = chosen(options.names, local)
    ready = ready_places(names, Path(options.roots))
    if not ready:
        raise SystemExit("no Python could be had")
    result = measured(ready, options)
    print(json.dumps(result) if options.json else table(result))


def chosen(names: Sequence[str], local: Sequence[str]) -> list[str]:
    """What was requested; of all, the machine's oldest and Debian's newer ones."""
    if set(names) == {*local, *RELEASES}:
        return [*local[:1], "debian-13", "debian-testing"]
    return list(names)


if __name__ == "__main__":
    main()
