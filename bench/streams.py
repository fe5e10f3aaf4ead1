"""gRPC, websockets and server-sent events through the queue-proxy, Go and nginx.

    python bench/streams.py [--rounds N] [--seconds S] [--only KIND] [--write] [--quick] [--json]

The proxy has one core; the client (in this process) and the app the other. Each proxy and the app itself are measured
in turns, with the same client and app; medians over rounds. ``cpu_us`` is what the queue-proxy spends on one call,
message or event, ``go_cpu_us`` what a bare Go reverse proxy spends (h2c for gRPC), ``nginx_cpu_us`` what nginx spends,
and ``bare_cpu_us`` what a forwarder of bytes on uvloop spends, which understands nothing: the kernel's part, below
which no proxy of this kind comes. ``--write`` puts the table into docs/performance.md. KNATIVE_QUEUE=PROGRAM adds
Knative's queue-proxy (``bench/peers/cast.py``).
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # it has no types

from bench.parts.page import fill
from bench.parts.processes import cpu_s
from bench.parts.program import options_of
from bench.peers.cast import KNATIVE, LOAD_CORE, PROXY_CORE, casting, go_program
from bench.peers.tables import stream_lines
from serving.tools.samples import grpc_echo

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
# Players by what stands before their figures.
PROXIES = {"": "queue-proxy", "go_": "go", "nginx_": "nginx streams", "bare_": "forwarder"} | (
    {"knative_": "knative"} if KNATIVE else {}
)
CALLS_AT_ONCE = 16
_HOST = "hello.default.localhost"
_PAYLOAD = b"x" * 100
_LARGE = b"x" * 1024 * 1024
_UNBOUNDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
# What is done over and over until time is up; each turn says how many things it did.
Turns = AsyncGenerator[int, None]


async def _calls(port: int) -> Turns:
    """Unary calls of gRPC, 16 at once on one connection."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        say = channel.unary_unary(f"/{grpc_echo.SERVICE}/Say")
        while True:
            await asyncio.gather(*[say(_PAYLOAD) for _ in range(CALLS_AT_ONCE)])
            yield CALLS_AT_ONCE


async def _chat(port: int) -> Turns:
    """Messages of 100 bytes over one stream of gRPC in both directions, 16 on their way at once."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        room = asyncio.Semaphore(CALLS_AT_ONCE)

        async def messages() -> AsyncIterator[bytes]:
            while True:
                await room.acquire()
                yield _PAYLOAD

        call = channel.stream_stream(f"/{grpc_echo.SERVICE}/Chat")(messages())
        try:
            async for _ in call:
                room.release()
                yield 1
        finally:
            call.cancel()


async def _large_calls(port: int) -> Turns:
    """Messages of 1 MiB to an app that joins them, over one stream of gRPC at a time; each turn is one message."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_UNBOUNDED) as channel:
        count = channel.stream_unary(f"/{grpc_echo.SERVICE}/Count")
        while True:

            async def messages() -> AsyncIterator[bytes]:
                for _ in range(CALLS_AT_ONCE):
                    yield _LARGE

            assert int(await count(messages())) == CALLS_AT_ONCE * len(_LARGE)
            yield CALLS_AT_ONCE


async def _large_posts(port: int) -> Turns:
    """Bodies of 1 MiB over HTTP/1.1."""
    async with aiohttp.ClientSession(headers={"Host": _HOST}) as session:
        while True:
            async with session.post(f"http://127.0.0.1:{port}/", data=_LARGE) as response:
                assert int(await response.text()) == len(_LARGE)
            yield 1


async def _messages(port: int) -> Turns:
    """Messages of 100 bytes over one websocket, each after the answer to the one before."""
    async with (
        aiohttp.ClientSession(headers={"Host": _HOST}) as session,
        session.ws_connect(f"http://127.0.0.1:{port}/echo") as client,
    ):
        while True:
            await client.send_bytes(_PAYLOAD)
            await client.receive_bytes()
            yield 1


async def _events(port: int) -> Turns:
    """Server-sent events, as fast as they come."""
    async with (
        aiohttp.ClientSession(headers={"Host": _HOST}) as session,
        session.get(f"http://127.0.0.1:{port}/events?pause=0") as response,
    ):
        # A line with the event, and an empty one.
        while await response.content.readline():
            await response.content.readline()
            yield 1


# Those named by a text are measured by this command of ``peers/h2c_load.go``, a client and an app that are faster than
# grpcio.
KINDS: dict[str, tuple[Callable[[int], Turns] | str, str]] = {
    "grpc unary": (_calls, "h2c"),
    "grpc unary by a Go client, 64 at once": ("calls", "h2c"),
    "grpc message of 100 bytes": (_chat, "h2c"),
    "grpc message of 100 bytes by a Go client, 64 at once": ("messages", "h2c"),
    "grpc message of 1 MiB": (_large_calls, "h2c"),
    "http/1.1 body of 1 MiB": (_large_posts, "http1"),
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


def _measured_go(what: str, port: int, *, seconds: float, pid: int) -> dict[str, float]:
    """The same by the Go client."""
    program = go_program("h2c_load")
    command = ["taskset", "-c", str(LOAD_CORE), str(program), what, f"127.0.0.1:{port}", "64", str(seconds)]
    spent_s = cpu_s(pid)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    spent_s = cpu_s(pid) - spent_s
    per_second, p50_ms, _ = map(float, done.stdout.split())
    return {"per_second": per_second, "p50_ms": p50_ms, "cpu_us": 1e6 * spent_s / (per_second * seconds)}


def streams(*, rounds: int, seconds: float, only: str) -> dict[str, dict[str, float]]:
    """By kind and name; ``rounds`` of ``seconds`` each for those with ``only`` in their kind.

    ``per_second``, ``p50_ms`` and ``cpu_us`` are of the queue-proxy; those with the name of another proxy before them
    are of that one, and ``direct_`` is the app without a proxy.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CORE})
    try:
        return {kind: _one_kind(*how, rounds=rounds, seconds=seconds) for kind, how in KINDS.items() if only in kind}
    finally:
        os.sched_setaffinity(0, cores)


def _one_kind(turns: Callable[[int], Turns] | str, protocol: str, *, rounds: int, seconds: float) -> dict[str, float]:
    app = "go app" if isinstance(turns, str) else "grpc" if protocol == "h2c" else "mixed"
    result: dict[str, list[float]] = {}
    with casting() as cast:
        cast.start(app, core=LOAD_CORE, protocol=protocol)
        for part in PROXIES.values():
            cast.start(part, core=PROXY_CORE, before=app, protocol=protocol)
        for _ in range(rounds):
            for prefix, name in {"direct_": app, **PROXIES}.items():
                port, pid = cast.ports[name], cast.pid(name)
                if isinstance(turns, str):
                    measured = _measured_go(turns, port, seconds=seconds, pid=pid)
                else:
                    measured = asyncio.run(_measured(turns(port), seconds=seconds, pid=pid))
                for key, value in measured.items():
                    result.setdefault(f"{prefix}{key}", []).append(value)
    return {key: statistics.median(values) for key, values in result.items()}


def main() -> None:
    """Measure and tell."""
    quick = {"rounds": 1, "seconds": 1.0}
    options = options_of(__doc__, rounds=5, seconds=2.0, write=False, only="", quick=quick)
    if options.write and options.only:
        raise SystemExit("--write needs all kinds: leave out --only")
    result = streams(rounds=options.rounds, seconds=options.seconds, only=options.only)
    if options.write:
        fill(PAGE, {"calls, messages, events": stream_lines(result)})
    print(json.dumps(result) if options.json else "\n".join(stream_lines(result)))


if __name__ == "__main__":
    main()
