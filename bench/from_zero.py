"""How long until a service at zero serves 1000 requests at once.

    python bench/from_zero.py [--clients N] [--quick] [--json]

Starts the whole system with state of its own, deploys ``bench/apps/sleeper`` (each answer takes a second and says
between which times it was worked on) without a pod, and lets N clients ask again and again, each on its own connection.
The time is from the first connection to the moment at which N requests were being worked on at once. The seed's goal is
30 s; ours is 7 s on 2 cores. ``cpu_seconds`` says who used the cores meanwhile; ``floor_seconds`` is what the pods
alone needed of them.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import uvloop

from bench.parts.program import options_of, show
from bench.parts.system import System, running_system

SLEEPER = Path(__file__).with_name("apps") / "sleeper.py"
REQUEST = b"GET / HTTP/1.1\r\nHost: sleeper.default.localhost\r\n\r\n"
GIVE_UP_S = 60.0
CHECK_PERIOD_S = 0.5

Worked = list[tuple[float, float]]
"""Between which times each request was worked on, in seconds since the epoch."""


class Client(asyncio.Protocol):
    """Sends one request after the other until stopped, with little CPU time."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        """Note an answer that is whole, and ask again."""
        assert self._transport is not None
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator or not body.endswith(b"\n"):
            return
        self._received = b""
        if b" 200 " in head.split(b"\r\n")[0]:
            begin_s, end_s = map(float, body.split())
            self._run.worked.append((begin_s, end_s))
        else:
            self._run.errors.append(head.split(b"\r\n")[0].decode())
        if self._run.is_over:
            self._transport.abort()
        else:
            self._transport.write(REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends early is an error."""
        if not self._run.is_over:
            self._run.errors.append(type(exc).__name__ if exc else "closed")


class Run:
    """What the clients have seen."""

    def __init__(self) -> None:
        self.worked: Worked = []
        self.errors: list[str] = []
        self.is_over = False


def reached_at(worked: Worked, wanted: int) -> float | None:
    """When first so many were worked on at once; None if never."""
    edges = sorted([(begin_s, 1) for begin_s, _ in worked] + [(end_s, -1) for _, end_s in worked])
    level = 0
    for at_s, step in edges:
        level += step
        if level >= wanted:
            return at_s
    return None


def cpu_seconds(system: System) -> Mapping[str, float]:
    """CPU seconds so far by part: "app", "queue-proxy", each daemon by its module, "supervisor" and "bench".

    What a process used that has ended counts for its parent, as the kernel has it.
    """
    result: defaultdict[str, float] = defaultdict(float)
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
                modules = [text for text in command if text.startswith("serving.")]
                part = name if name == "queue-proxy" else (*modules, "app")[0]
            else:
                continue
            result[part] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return result


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each part has used, the largest first."""
    used = {part: round(after[part] - before.get(part, 0.0), 2) for part in after}
    return dict(sorted(used.items(), key=lambda entry: -entry[1]))


async def measure(system: System, clients: int) -> dict[str, object]:
    """Let all clients go at once; stop when the goal is reached, or in vain."""
    run, loop = Run(), asyncio.get_running_loop()
    before, began_s = cpu_seconds(system), time.time()
    transports = [
        (await loop.create_connection(lambda: Client(run), "127.0.0.1", system.port))[0] for _ in range(clients)
    ]
    reached_s = None
    while reached_s is None and time.time() < began_s + GIVE_UP_S:
        await asyncio.sleep(CHECK_PERIOD_S)
        reached_s = reached_at(run.worked, clients)
    used = used_between(before, cpu_seconds(system))
    run.is_over = True
    for transport in transports:
        transport.abort()
    return {
        "clients": clients,
        "seconds_to_all_at_once": None if reached_s is None else round(reached_s - began_s, 2),
        "seconds_to_first": round(min((begin_s for begin_s, _ in run.worked), default=began_s) - began_s, 2),
        "pods": len(system.pods("sleeper")),
        "cpu_seconds": used,
        "floor_seconds": round((used["app"] + used["queue-proxy"]) / len(os.sched_getaffinity(0)), 2),
        "answered": len(run.worked),
        "errors": len(run.errors),
        "first_error": run.errors[0] if run.errors else "",
    }


def main() -> int:
    """Run, and print what was measured."""
    options = options_of(__doc__, clients=1000, quick={"clients": 20})
    environment = {"SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE": "true"}
    with running_system(environment=environment) as system:
        scale = ["--concurrency", "10", "--initial-scale", "0", "--policy", "adaptive"]
        system.serving("deploy", "sleeper", str(SLEEPER.parent), "--command", f"{sys.executable} {SLEEPER}", *scale)
        if not system.until_zero("sleeper", GIVE_UP_S):
            raise SystemExit("the service did not come to zero")
        entry = uvloop.run(measure(system, options.clients))
    show(entry, options)
    return 0 if entry["seconds_to_all_at_once"] is not None and not entry["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
