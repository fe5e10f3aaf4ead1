"""How long a queue-proxy takes as a container, from exec to ready.

    python bench/sidecar_start.py [--rounds N] [--quick] [--json]

Wall time and CPU time of the process, beside those of an interpreter that imports asyncio and uvloop and nothing else,
in turns. On a machine that has other work the CPU time is the one to look at.
"""

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.parts.program import options_of, show

ROOT = Path(__file__).resolve().parent.parent
PEER = "import asyncio, uvloop, os; os.write({descriptor}, b'ready\\n')"


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """An app that takes connections; the kernel does, and nothing is read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def started(arguments: list[str], environment: dict[str, str], descriptor: int) -> tuple[float, float]:
    """Milliseconds of wall and CPU time from exec to the first line in a pipe."""
    reader, writer = os.pipe()
    os.dup2(writer, descriptor, inheritable=True)
    os.close(writer)
    begun_s = time.perf_counter()
    process = subprocess.Popen(arguments, env=environment, cwd=ROOT, pass_fds=[descriptor], stderr=subprocess.DEVNULL)
    os.close(descriptor)
    assert os.read(reader, 100), "it ended before it was ready"
    wall_ms = 1000 * (time.perf_counter() - begun_s)
    cpu_ms = cpu_of(process.pid)
    process.kill()
    process.wait()
    os.close(reader)
    return wall_ms, cpu_ms


def cpu_of(pid: int) -> float:
    """CPU time of a process in milliseconds, from the scheduler's nanoseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


def main() -> None:
    """Measure and print."""
    arguments = options_of(__doc__, rounds=20, quick={"rounds": 1})
    descriptor = 50
    numbers: dict[str, dict[str, float]] = {}
    found: dict[str, list[tuple[float, float]]] = {"queue-proxy": [], "import asyncio, uvloop": []}
    with listening() as app, listening() as requests, listening() as admin:
        free = [one.getsockname()[1] for one in (requests, admin)]
        app_port = app.getsockname()[1]
        requests.close()
        admin.close()
        environment = {
            "PATH": os.environ["PATH"],
            "SERVING_POD_NAMESPACE": "default",
            "SERVING_POD_REVISION": "hello-00001",
            "SERVING_POD_NAME": "hello-1",
            "SERVING_POD_APP": f"127.0.0.1:{app_port}",
            "SERVING_POD_LISTEN": f"127.0.0.1:{free[0]}",
            "SERVING_POD_ADMIN_LISTEN": f"127.0.0.1:{free[1]}",
            "SERVING_POD_STATS_URL": "ws://127.0.0.1:1/stats",
            "SERVING_READY_FD": str(descriptor),
        }
        proxy = [sys.executable, "-m", "serving.queueproxy.main"]
        peer = [sys.executable, "-c", PEER.format(descriptor=descriptor)]
        for _ in range(arguments.rounds):
            found["queue-proxy"].append(started(proxy, environment, descriptor))
            found["import asyncio, uvloop"].append(started(peer, environment, descriptor))
    for name, times in found.items():
        for number, kind in enumerate(("wall", "CPU")):
            taken_ms = [one[number] for one in times]
            numbers[f"{name}, {kind}"] = {"least_ms": min(taken_ms), "median_ms": statistics.median(taken_ms)}
    show(numbers, arguments)


if __name__ == "__main__":
    main()
