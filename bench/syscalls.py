"""System calls of a request through the queue-proxy, the activator, nginx and a bare Go proxy.

    python bench/syscalls.py [--connections N ...] [--rounds N] [--seconds S] [--write] [--quick] [--json]

The players of ``bench/data_path.py`` take turns under its load, and perf counts their calls as the kernel enters them, which slows them
less than strace does: a slow proxy would find more connections ready in each of its epoll_wait. Calls below 0.005 a request are not
listed. ``--write`` puts the table into docs/performance.md. Needs perf with access to the kernel's tracepoints (root), wrk and nginx.
"""

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.parts.page import fill
from bench.parts.program import options_of
from bench.peers.cast import KNATIVE, LOAD_CORE, PROXY_CORE, Cast, casting
from bench.peers.wrk import Load

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
PLAYERS = ("queue-proxy", "activator", "nginx", "go", *(["knative"] if KNATIVE else []))
LEAST = 0.005
ALL = "raw_syscalls:sys_enter"
CALLS = (
    *("read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg", "close", "accept4"),
    *("epoll_wait", "epoll_pwait", "epoll_ctl", "getsockopt", "setsockopt", "futex", "getpid", "nanosleep"),
    *("sched_yield", "io_uring_enter"),
)
_PREFIX = "syscalls:sys_enter_"

Calls = Mapping[str, float]
"""Calls of a request by name."""


def counted(cast: Cast, name: str, load: Load) -> Calls:
    """One turn of a player."""
    events = ",".join([ALL, *(f"{_PREFIX}{call}" for call in CALLS)])
    with tempfile.NamedTemporaryFile("r") as file:
        perf = ["perf", "stat", "-x", ",", "-o", file.name, "-e", events, "-p", str(cast.pid(name)), "--"]
        run = load.run(cast.ports[name], watcher=perf)
        lines = [line.split(",") for line in file]
    counts = {words[2].removeprefix(_PREFIX): int(words[0]) for words in lines if words[0].isdecimal()}
    return {call: count / max(1, run.count) for call, count in counts.items()}


def measure(cast: Cast, load: Load, *, rounds: int) -> dict[str, Calls]:
    """Medians over rounds, by player."""
    found: dict[str, list[Calls]] = {name: [] for name in PLAYERS}
    for _ in range(rounds):
        for name, turns in found.items():
            turns.append(counted(cast, name, load))
    return {
        name: {call: statistics.median(turn[call] for turn in turns) for call in turns[0]}
        for name, turns in found.items()
    }


def table(found: Mapping[int, Mapping[str, Calls]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| connections | proxy | calls of a request | of which |", "|---|---|---|---|"]
    for connections, players in found.items():
        for name, calls in players.items():
            often = sorted((count, call) for call, count in calls.items() if count >= LEAST and call != ALL)[::-1]
            parts = ", ".join(f"{call} {count:.2f}" for count, call in often)
            lines.append(f"| {connections} | {name} | {calls[ALL]:.2f} | {parts} |")
    return lines


def main() -> None:
    """Count and tell."""
    quick = {"rounds": 1, "seconds": 1.0, "connections": (16,)}
    options = options_of(__doc__, connections=(16, 64), rounds=3, seconds=2.0, write=False, quick=quick)
    with casting() as cast:
        cast.start("backend", core=LOAD_CORE)
        for name in PLAYERS:
            cast.start(name, core=PROXY_CORE)
            Load(connections=16, seconds=1.0).run(cast.ports[name])
        found = {
            count: measure(cast, Load(connections=count, seconds=options.seconds), rounds=options.rounds)
            for count in options.connections
        }
    if options.write:
        fill(PAGE, {"system calls": table(found)})
    print(json.dumps(found) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
