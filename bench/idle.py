"""What ``serving up`` costs while nothing happens: memory and CPU of its processes, with one service at zero.

    python bench/idle.py [--seconds N] [--quick] [--json]

Memory is the sum of ``Pss:`` of all processes; CPU is the time that their threads ran, and that of the supervisor, by
the kernel's count in nanoseconds. The service has had a request and is back at zero. Goals: 180 MiB, 0.3 % of a core.
"""

import contextlib
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import serving.tools.samples
from bench.parts.processes import pss_mib
from bench.parts.program import exit_code, options_of, show
from bench.parts.system import System, running_system
from serving.home.processes.process_lifetime import children_of

GOAL_MIB, GOAL_CORE_PERCENT = 180.0, 0.3
WITHIN_S = 120.0
REST_S = 20.0
SERVICE = "idle"
SAMPLE = (str(Path(serving.tools.samples.__file__).parent), "--command", f"{sys.executable} hello.py")


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(below for child in children_of(pid) for below in tree_of(child))]


def name_of(pid: int) -> str:
    """A process's name, and its module where it has one."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    module = words[words.index("-m") + 1] if "-m" in words else ""
    return f"{Path(f'/proc/{pid}/comm').read_text().strip()} {module}".strip()


def threads_of(pid: int) -> dict[str, tuple[int, int]]:
    """The nanoseconds that each thread of a process has run, and how often it was given the CPU."""
    result = {}
    # A pod that was ending may be gone.
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                ran_ns, _, turns = map(int, (task / "schedstat").read_text().split())
                result[task.name] = (ran_ns, turns)
    return result


def growth(pid: int, before: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """What ``threads_of`` has grown by."""
    now = threads_of(pid)
    return tuple(sum(values[part] - before.get(name, (0, 0))[part] for name, values in now.items()) for part in (0, 1))  # type: ignore[return-value] # two


def rest(system: System) -> list[int]:
    """Deploy the service, ask it once, wait until it is at zero and its pods are gone; the processes."""
    system.serving("deploy", SERVICE, *SAMPLE, "--annotate", "autoscaling.knative.dev/window=6s")
    request = urllib.request.Request(
        f"http://127.0.0.1:{system.port}/", headers={"Host": f"{SERVICE}.default.localhost"}
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as response:  # noqa: S310 - as above
        response.read()
    if not system.until_zero(SERVICE, WITHIN_S):
        raise TimeoutError("the service does not come to zero")
    return tree_of(system.process.pid)


def measured(system: System, options: Any) -> dict[str, Any]:  # noqa: ANN401 - argparse's
    """Memory and CPU of the system."""
    rest(system)
    time.sleep(0 if options.quick else REST_S)
    tree = tree_of(system.process.pid)
    before = {pid: threads_of(pid) for pid in tree}
    began_s = time.monotonic()
    time.sleep(options.seconds)
    took_ns = (time.monotonic() - began_s) * 1e9
    rows = []
    for pid in tree:
        # A pod that was ending may be gone, or wait to be collected.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            mib, (ran_ns, turns) = round(pss_mib(pid), 1), growth(pid, before[pid])
            rows.append((mib, round(100 * ran_ns / took_ns, 3), turns * 1e9 / took_ns, name_of(pid)))
    return {
        "processes": len(rows),
        "pss_mib": round(sum(row[0] for row in rows), 1),
        "core_percent": round(sum(row[1] for row in rows), 3),
        "wakeups_per_second": round(sum(row[2] for row in rows), 1),
        "each": [f"{mib} MiB, {percent} %, {per_s:.1f}/s, {what}" for mib, percent, per_s, what in rows],
    }


def main() -> int:
    """Run, and print what was measured; exit 0 only if the goals are met."""
    options = options_of(__doc__, quick={"seconds": 1.0}, seconds=60.0)
    with running_system() as system:
        entry = measured(system, options)
    show(entry, options)
    return exit_code(options, is_met=entry["pss_mib"] <= GOAL_MIB and entry["core_percent"] <= GOAL_CORE_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
