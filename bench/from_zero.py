"""From 0 to 1000 concurrent requests: how long until a service at zero serves 1000 at once, and with how many errors.

    python bench/from_zero.py [--clients N] [--json]

Starts the whole system with state of its own, deploys ``bench/apps/sleeper`` (each answer takes a second and says between
which times it was worked on) without a pod, and lets N clients ask again and again, each on its own connection. The time is from
the first connection to the moment at which N requests were being worked on at once. The seed's goal is 30 s; ours is 7 s on
2 cores. ``cpu_seconds`` says who used the cores meanwhile; ``floor_seconds`` is what the pods alone needed of them.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import uvloop

from bench.parts.cpu_account import cpu_seconds, used_between
from bench.system import System, running_system

__all__ = ["main"]

SLEEPER = Path(__file__).with_name("apps") / "sleeper.py"
REQUEST = b"GET / HTTP/1.1\r\nHost: sleeper.default.localhost\r\n\r\n"
GIVE_UP_S = 60.0
LOOK_PERIOD_S = 0.5

Worked = list[tuple[float, float]]
"""Between which times each request was worked on, in seconds since the epoch."""


class Client(asyncio.Protocol):
    """Sends a request, and the next on the same connection, until it is stopped; its CPU is what the system does not get."""

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


async def measure(system: System, clients: int) -> dict[str, object]:
    """Let all clients go at once; stop when the goal is reached, or in vain."""
    run, loop = Run(), asyncio.get_running_loop()
    before, began_s = cpu_seconds(system), time.time()
    transports = [
        (await loop.create_connection(lambda: Client(run), "127.0.0.1", system.port))[0] for _ in range(clients)
    ]
    reached_s = None
    while reached_s is None and time.time() < began_s + GIVE_UP_S:
        await asyncio.sleep(LOOK_PERIOD_S)
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
    parser = argparse.ArgumentParser(description="From 0 to 1000 concurrent requests.")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with running_system(SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE="true") as system:
        scale = ["--concurrency", "10", "--initial-scale", "0", "--policy", "adaptive"]
        system.serving("deploy", "sleeper", str(SLEEPER.parent), "--command", f"{sys.executable} {SLEEPER}", *scale)
        if not system.until_zero("sleeper", GIVE_UP_S):
            raise SystemExit("the service did not come to zero")
        found = uvloop.run(measure(system, options.clients))
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0 if found["seconds_to_all_at_once"] is not None and not found["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
