"""From 0 to 1000 concurrent requests: how long until a service at zero serves 1000 at once, and with how many errors.

    python bench/from_zero.py [--clients N] [--json]

Starts the whole system with state of its own, deploys ``bench/apps/sleeper`` (each answer takes a second and says between
which times it was worked on), waits until it is at zero, then lets N clients ask again and again, each on its own
connection. The time is from the first connection to the moment at which N requests were being worked on at once. The
seed's goal is 30 s; ours is at most 15 s on 2 cores.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.system import running_system

__all__ = ["main"]

SLEEPER = Path(__file__).with_name("apps") / "sleeper.py"
HOST = b"sleeper.default.localhost"
GIVE_UP_S = 60.0

Worked = list[tuple[float, float]]
"""Between which times each request was worked on, in seconds since the epoch."""


async def client(port: int, until_s: float, worked: Worked, errors: list[str]) -> None:
    """Ask, and ask again, until told to stop."""
    while time.time() < until_s:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % HOST)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            if b" 200 " not in head.split(b"\r\n")[0]:
                errors.append(head.split(b"\r\n")[0].decode() or "no answer")
                continue
            begin_s, end_s = map(float, body.split())
            worked.append((begin_s, end_s))
        except OSError as error:
            errors.append(type(error).__name__)


def reached_at(worked: Worked, wanted: int) -> float | None:
    """When first so many were worked on at once; None if never."""
    edges = sorted([(begin_s, 1) for begin_s, _ in worked] + [(end_s, -1) for _, end_s in worked])
    level = 0
    for at_s, step in edges:
        level += step
        if level >= wanted:
            return at_s
    return None


async def measure(port: int, clients: int) -> dict[str, object]:
    """Let all clients go at once; stop when the goal is reached, or in vain."""
    worked: Worked = []
    errors: list[str] = []
    began_s = time.time()
    tasks = [asyncio.create_task(client(port, began_s + GIVE_UP_S, worked, errors)) for _ in range(clients)]
    reached_s = None
    while reached_s is None and time.time() < began_s + GIVE_UP_S:
        await asyncio.sleep(1)
        reached_s = reached_at(worked, clients)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "clients": clients,
        "seconds_to_all_at_once": None if reached_s is None else round(reached_s - began_s, 2),
        "answered": len(worked),
        "errors": len(errors),
        "first_error": errors[0] if errors else "",
    }


def main() -> int:
    """Run, and print what was measured."""
    parser = argparse.ArgumentParser(description="From 0 to 1000 concurrent requests.")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with running_system() as system:
        command = ["--command", f"{sys.executable} {SLEEPER}", "--concurrency", "10"]
        window = ["--annotate", "autoscaling.knative.dev/window=6s"]
        system.serving("deploy", "sleeper", str(SLEEPER.parent), *command, *window)
        if not system.until_zero("sleeper", GIVE_UP_S):
            raise SystemExit("the service did not come to zero")
        found = asyncio.run(measure(system.port, options.clients))
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0 if found["seconds_to_all_at_once"] is not None and not found["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
