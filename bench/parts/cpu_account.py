"""Who has used how much CPU between two moments: the daemons of a system, its pods, and the bench itself.

Reads /proc, so it costs the system nothing. What a process used that ended in between counts for its parent, as the kernel has it.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.system import System

__all__ = ["cpu_seconds", "used_between"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_QUEUE_PROXY = "queue-proxy"


def cpu_seconds(system: System) -> Mapping[str, float]:
    """CPU seconds so far by part: "app", "queue-proxy", each daemon by its module, "supervisor" and "bench"."""
    found: defaultdict[str, float] = defaultdict(float)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
            fields = rest.split()
            pid, parent = int(entry.name), int(fields[1])
            if pid == os.getpid():
                part = "bench"
            elif pid == system.process.pid:
                part = "supervisor"
            elif parent == system.process.pid:
                command = (entry / "cmdline").read_bytes().decode().split("\0")
                part = _part_of(name, command)
            else:
                continue
            found[part] += sum(map(int, fields[11:13])) / _TICKS_PER_S
    return found


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each part has used, the largest first."""
    used = {part: round(after[part] - before.get(part, 0.0), 2) for part in after}
    return dict(sorted(used.items(), key=lambda one: -one[1]))


def _part_of(name: str, command: list[str]) -> str:
    if name == _QUEUE_PROXY:
        return _QUEUE_PROXY
    modules = [one for one in command if one.startswith("serving.")]
    return modules[0] if modules else "app"
