"""What does not fit wrk: gRPC, messages of a websocket and server-sent events through the queue-proxy, Go and nginx.

    python bench/streams.py [--quick] [--rounds N] [--seconds S] [--json] [--write] [--only KIND]

The proxy has one core; the client (in this process) and the app the other. Each proxy and the app itself are measured in turns, with
the same client and app; medians over rounds. ``cpu_us`` is what the queue-proxy spends on one call, message or event,
``go_cpu_us`` what a bare Go reverse proxy spends (h2c for gRPC), ``nginx_cpu_us`` what nginx spends, and ``bare_cpu_us`` what a
forwarder of bytes on uvloop spends, which understands nothing: the kernel's part, below which no proxy of this kind comes.
``--write`` puts the table into docs/performance.md. ``bench/data_path.py`` calls ``streams`` and has its lines in its own.
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
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # it has no types

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peers.cast import bench_cache, cpu_s, free_port, go_program, nginx_text
from bench.peers.page import stream_lines, write_streams
from serving.home.supervisor.children import ALLOCATOR
from serving.samples import grpc_echo

__all__ = ["main", "streams"]

ROOT = Path(__file__).resolve().parents[1]
PROXY_CORE, LOAD_CORE = 0, 1
CALLS_AT_ONCE = 16
_START_WITHIN_S = 20.0
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
            async with session.post(f"http://127.0.0.1:{port}/", data=_LARGE) as answer:
                assert int(await answer.text()) == len(_LARGE)
            yield 1


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


# Those named by a text are measured by this command of ``peers/h2c_load.go``, a client and an app that are faster than grpcio.
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
    program = go_program(bench_cache(), "h2c_load")
    command = ["taskset", "-c", str(LOAD_CORE), str(program), what, f"127.0.0.1:{port}", "64", str(seconds)]
    spent_s = cpu_s(pid)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={"GOMAXPROCS": "1", **os.environ})
    spent_s = cpu_s(pid) - spent_s
    per_second, p50_ms, _ = map(float, done.stdout.split())
    return {"per_second": per_second, "p50_ms": p50_ms, "cpu_us": 1e6 * spent_s / (per_second * seconds)}


@contextlib.contextmanager
def _process(command: list[str], *, core: int, port: int, **environment: str) -> Iterator[int]:
    """A process that listens; its number."""
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],  # noqa: S607
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
                raise SystemExit(f"{command} does not listen")
            time.sleep(0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _nginx(folder: Path, *, app: int, port: int, protocol: str) -> list[str]:
    """Nginx before the app."""
    if protocol == "h2c":
        listen, how = f"listen 127.0.0.1:{port} http2;", "grpc_pass grpc://app;"
    else:
        listen = f"listen 127.0.0.1:{port};"
        how = "proxy_pass http://app; proxy_http_version 1.1; proxy_buffering off; proxy_set_header Host $host; "
        how += 'proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; proxy_request_buffering off;'
    upstream = f"upstream app {{ server 127.0.0.1:{app}; keepalive 64; keepalive_requests 100000000; }}"
    text = f"{upstream} server {{ {listen} location / {{ {how} }} }}"
    path = folder / f"nginx-{port}.conf"
    path.write_text(nginx_text(folder, f"nginx-{port}", text))
    return ["nginx", "-p", str(folder), "-c", str(path)]


@contextlib.contextmanager
def _stage(protocol: str, folder: Path, *, is_go: bool) -> Iterator[dict[str, tuple[int, int]]]:
    """An app, and proxies before it: for each its port and its process."""
    app, proxy, go, nginx, bare = (free_port() for _ in range(5))
    command = [sys.executable, str(ROOT / "bench" / "peers" / "mixed.py"), str(app)]
    if is_go:
        command = [str(go_program(bench_cache(), "h2c_load")), "app", f"127.0.0.1:{app}"]
    elif protocol == "h2c":
        command = [sys.executable, "-m", "serving.samples.grpc_echo"]
    pod = {
        "SERVING_POD_NAMESPACE": "default",
        "SERVING_POD_REVISION": "hello-00001",
        "SERVING_POD_NAME": "hello-1",
        "SERVING_POD_APP": f"127.0.0.1:{app}",
        "SERVING_POD_LISTEN": f"127.0.0.1:{proxy}",
        "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:0",
        "SERVING_POD_PROTOCOL": protocol,
        **ALLOCATOR,
    }
    program = go_program(bench_cache(), "h2c_proxy" if protocol == "h2c" else "reverse_proxy")
    go_command = [str(program), f"127.0.0.1:{go}", f"http://127.0.0.1:{app}"]
    nginx_command = _nginx(folder, app=app, port=nginx, protocol=protocol)
    bare_command = [sys.executable, str(ROOT / "bench" / "peers" / "forwarder.py"), str(bare), str(app)]
    with (
        _process(command, core=LOAD_CORE, port=app, PORT=str(app), GOMAXPROCS="1") as app_pid,
        _process([sys.executable, "-m", "serving.queueproxy.main"], core=PROXY_CORE, port=proxy, **pod) as pid,
        _process(go_command, core=PROXY_CORE, port=go, GOMAXPROCS="1") as go_pid,
        _process(nginx_command, core=PROXY_CORE, port=nginx) as nginx_pid,
        _process(bare_command, core=PROXY_CORE, port=bare) as bare_pid,
    ):
        peers = {"go": (go, go_pid), "nginx": (nginx, nginx_pid), "bare": (bare, bare_pid)}
        yield {"direct": (app, app_pid), "": (proxy, pid), **peers}


def streams(*, rounds: int, seconds: float, only: str = "") -> dict[str, dict[str, float]]:
    """By kind and name; ``rounds`` of ``seconds`` each for those with ``only`` in their kind.

    ``per_second``, ``p50_ms`` and ``cpu_us`` are of the queue-proxy; the same with ``go_`` and ``nginx_`` before the name of
    these proxies, and with ``direct_`` of the app without a proxy.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CORE})
    try:
        return {kind: _one_kind(*how, rounds=rounds, seconds=seconds) for kind, how in KINDS.items() if only in kind}
    finally:
        os.sched_setaffinity(0, cores)


def _one_kind(turns: Callable[[int], Turns] | str, protocol: str, *, rounds: int, seconds: float) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        _stage(protocol, Path(folder), is_go=isinstance(turns, str)) as players,
    ):
        for _ in range(rounds):
            for name, (port, pid) in players.items():
                if isinstance(turns, str):
                    measured = _measured_go(turns, port, seconds=seconds, pid=pid)
                else:
                    measured = asyncio.run(_measured(turns(port), seconds=seconds, pid=pid))
                for key, value in measured.items():
                    found.setdefault(f"{name}_{key}" if name else key, []).append(value)
    return {key: statistics.median(values) for key, values in found.items()}


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: shows that all works, not how fast")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="how many rounds; medians are of these")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a proxy has in a round")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--only", default="", help="only the kinds with this in their name")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write needs all kinds: leave out --only")
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
    found = streams(rounds=rounds, seconds=seconds, only=options.only)
    print(json.dumps(found) if options.json else "\n".join(stream_lines(found)))
    if options.write:
        write_streams(found, ROOT / "docs" / "performance.md")


if __name__ == "__main__":
    main()
