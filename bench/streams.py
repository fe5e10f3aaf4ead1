"""What does not fit wrk: gRPC calls, messages of a websocket and server-sent events through the queue-proxy.

    python bench/streams.py [--quick] [--json]

The queue-proxy has one core; the client (in this process) and the app the other. Each is measured straight at the app and
through the proxy, in turns; medians over rounds. ``cpu_us`` is what the proxy spends on one call, message or event.
``bench/data_path.py`` calls ``streams`` and has its lines in its own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # it has no types

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers.cast import cpu_s, free_port
from serving.samples import grpc_echo

__all__ = ["lines", "main", "streams"]

ROOT = Path(__file__).resolve().parents[1]
PROXY_CORE, LOAD_CORE = 0, 1
CALLS_AT_ONCE = 16
_START_WITHIN_S = 20.0
_HOST = "hello.default.localhost"
_PAYLOAD = b"x" * 100
# What is done over and over until time is up; each turn tells how many things it did.
Turns = AsyncGenerator[int, None]


async def _calls(port: int) -> Turns:
    """Unary calls of gRPC, 16 at once on one connection."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        say = channel.unary_unary(f"/{grpc_echo.SERVICE}/Say")
        while True:
            await asyncio.gather(*[say(_PAYLOAD) for _ in range(CALLS_AT_ONCE)])
            yield CALLS_AT_ONCE


async def _messages(port: int) -> Turns:
    """Messages of 100 bytes over one websocket, each after the answer to the one before."""
    async with (
        aiohttp.ClientSession(headers={"Host": _HOST}) as session,
        session.ws_connect(f"http://127.0.0.1:{port}/ws") as client,
    ):
        while True:
            await client.send_bytes(_PAYLOAD)
            await client.receive_bytes()
            yield 1


async def _events(port: int) -> Turns:
    """Server-sent events, as fast as they come."""
    async with (
        aiohttp.ClientSession(headers={"Host": _HOST}) as session,
        session.get(f"http://127.0.0.1:{port}/events?pause=0") as answer,
    ):
        # A line with the event, and an empty one.
        while await answer.content.readline():
            await answer.content.readline()
            yield 1


KINDS: dict[str, tuple[Callable[[int], Turns], str]] = {
    "grpc unary": (_calls, "h2c"),
    "websocket echo": (_messages, "http1"),
    "server-sent events": (_events, "http1"),
}


async def _measured(turns: Turns, *, seconds: float, pid: int) -> dict[str, float]:
    """How many a second, how long a turn took at the median, and what the process spent on one."""
    took_s: list[float] = []
    count = 0
    async with contextlib.aclosing(turns):
        await anext(turns)
        spent_s, began_s = cpu_s(pid), time.perf_counter()
        before_s = began_s
        async for done in turns:
            now_s = time.perf_counter()
            took_s.append(now_s - before_s)
            before_s = now_s
            count += done
            if now_s - began_s > seconds:
                break
        spent_s = cpu_s(pid) - spent_s
    return {
        "per_second": count / (before_s - began_s),
        "p50_ms": 1000 * statistics.median(took_s),
        "cpu_us": 1e6 * spent_s / count,
    }


@contextlib.contextmanager
def _process(arguments: list[str], *, core: int, port: int, **environment: str) -> Iterator[int]:
    """A process that listens; its number."""
    process = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, *arguments],  # noqa: S607
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + _START_WITHIN_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{arguments} does not listen")
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _stage(protocol: str) -> Iterator[tuple[int, int, int]]:
    """An app and a queue-proxy before it: the ports of both, and the proxy's process."""
    app, proxy = free_port(), free_port()
    command = [str(ROOT / "bench" / "peers" / "mixed.py"), str(app)]
    if protocol == "h2c":
        command = ["-m", "serving.samples.grpc_echo"]
    pod = {
        "SERVING_POD_NAMESPACE": "default",
        "SERVING_POD_REVISION": "hello-00001",
        "SERVING_POD_NAME": "hello-1",
        "SERVING_POD_APP": f"127.0.0.1:{app}",
        "SERVING_POD_LISTEN": f"127.0.0.1:{proxy}",
        "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:0",
        "SERVING_POD_PROTOCOL": protocol,
    }
    with (
        _process(command, core=LOAD_CORE, port=app, PORT=str(app)),
        _process(["-m", "serving.queueproxy.main"], core=PROXY_CORE, port=proxy, **pod) as pid,
    ):
        yield app, proxy, pid


def streams(*, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """By kind: ``per_second``, ``p50_ms`` and ``cpu_us`` through the proxy, and ``direct_per_second``, ``direct_p50_ms``."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CORE})
    try:
        return {kind: _one_kind(*how, rounds=rounds, seconds=seconds) for kind, how in KINDS.items()}
    finally:
        os.sched_setaffinity(0, cores)


def _one_kind(turns: Callable[[int], Turns], protocol: str, *, rounds: int, seconds: float) -> dict[str, float]:
    through: list[dict[str, float]] = []
    direct: list[dict[str, float]] = []
    with _stage(protocol) as (app, proxy, pid):
        for _ in range(rounds):
            for port, found in ((app, direct), (proxy, through)):
                found.append(asyncio.run(_measured(turns(port), seconds=seconds, pid=pid)))
    return {
        **{key: statistics.median(one[key] for one in through) for key in ("per_second", "p50_ms", "cpu_us")},
        **{f"direct_{key}": statistics.median(one[key] for one in direct) for key in ("per_second", "p50_ms")},
    }


def lines(found: dict[str, dict[str, float]]) -> list[str]:
    """A table."""
    rows = ["| what | through the queue-proxy /s | straight /s | turn p50 ms | straight p50 ms | CPU µs each |"]
    rows.append("|---|---|---|---|---|---|")
    for kind, one in found.items():
        cells = f"{one['per_second']:,.0f} | {one['direct_per_second']:,.0f} | {one['p50_ms']:.2f}"
        rows.append(f"| {kind} | {cells} | {one['direct_p50_ms']:.2f} | {one['cpu_us']:.0f} |")
    return rows


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, not how fast")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    found = streams(rounds=1 if options.quick else 5, seconds=1.0 if options.quick else 2.0)
    print(json.dumps(found) if options.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
