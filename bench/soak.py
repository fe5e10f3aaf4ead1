"""``make soak``: ten minutes of mixed traffic through activator and queue-proxy.

    python bench/soak.py [--seconds N] [--quick]

Both daemons run as processes before an app, and a second pair before an app that speaks gRPC. Clients of fifteen kinds
ask without a pause: short requests on kept connections, a connection for each, bodies by length and in chunks, slow
answers, websockets, events, clients that leave in the middle, and nonsense; gRPC calls that are small, large, streams,
cancelled, and out of time. A fifth into the run, and at its end when the clients have gone, memory, descriptors, tasks,
connections and requests inside are read: memory may have grown by 5 percent, tasks not at all, and no request may be
inside. Exit 0 only if all that holds.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from http.client import HTTPConnection
from pathlib import Path

import grpc.aio  # type: ignore[import-untyped]  # it has no types
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from bench.parts.processes import pss_mib
from bench.parts.program import options_of
from bench.peers.cast import LOAD_CORE, PROXY_CORE, Cast, casting, free_port
from serving.tools.samples import grpc_echo

HOST = b"Host: hello.default.localhost\r\n"
RESPONSE_WITHIN_S = 20.0
BODY = b"x" * 50_000

Kind = Callable[[int, random.Random], Awaitable[str]]


async def _asked(port: int, wire: bytes, *, leave_after_s: float | None = None) -> str:
    """Send, and read to the end; the status, or what came instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(wire)
        if leave_after_s is not None:
            await asyncio.sleep(leave_after_s)
            return "left"
        async with asyncio.timeout(RESPONSE_WITHIN_S):
            return (await reader.read())[9:12].decode() or "closed"
    finally:
        writer.close()


async def short(port: int, _: random.Random) -> str:
    """A connection for one request."""
    return await _asked(port, b"GET / HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)


async def kept(port: int, dice: random.Random) -> str:
    """Some requests on one connection, sent ahead."""
    count = dice.randint(2, 50)
    wire = b"GET / HTTP/1.1\r\nX-Unique: %d\r\n%b\r\n" % (dice.getrandbits(64), HOST)
    return await _asked(port, wire * count + b"GET / HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)


async def by_length(port: int, dice: random.Random) -> str:
    """A body by its length."""
    body = BODY[: dice.randint(1, len(BODY))]
    head = b"PUT / HTTP/1.1\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n" % (HOST, len(body))
    return await _asked(port, head + body)


async def in_chunks(port: int, dice: random.Random) -> str:
    """A body in chunks, of any sizes."""
    body, wire = BODY[: dice.randint(1, len(BODY))], b""
    while body:
        size = dice.randint(1, 20_000)
        wire += b"%x\r\n%b\r\n" % (len(body[:size]), body[:size])
        body = body[size:]
    head = b"PUT / HTTP/1.1\r\nConnection: close\r\n%bTransfer-Encoding: chunked\r\n\r\n" % HOST
    return await _asked(port, head + wire + b"0\r\n\r\n")


async def websocket(port: int, dice: random.Random) -> str:
    """A tunnel with some echoes; every second one ends without a goodbye."""
    url = f"ws://{HOST[6:-2].decode()}/echo"
    async with (
        asyncio.timeout(RESPONSE_WITHIN_S),
        connect(url, host="127.0.0.1", port=port, compression=None, proxy=None) as client,
    ):
        for _ in range(dice.randint(1, 20)):
            message = dice.randbytes(dice.randint(1, 2000))
            await client.send(message)
            if await client.recv() != message:
                return "another echo"
        if dice.random() < 0.5:
            client.transport.abort()
    return "echoed"


async def events(port: int, dice: random.Random) -> str:
    """A stream of events that is left after some."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /events?pause=0.05 HTTP/1.1\r\n%b\r\n" % HOST)
        async with asyncio.timeout(RESPONSE_WITHIN_S):
            for number in range(1, dice.randint(2, 20)):
                await reader.readuntil(b"data: %d\n\n" % number)
        return "heard"
    finally:
        writer.close()


async def slow(port: int, _: random.Random) -> str:
    """An answer after 100 ms."""
    return await _asked(port, b"GET /slow HTTP/1.1\r\nConnection: close\r\n%b\r\n" % HOST)


async def leaves(port: int, dice: random.Random) -> str:
    """A client that leaves before its answer."""
    wire = b"GET /slow HTTP/1.1\r\n%b\r\n" % HOST
    return await _asked(port, wire, leave_after_s=dice.uniform(0, 0.1))


async def half(port: int, dice: random.Random) -> str:
    """A client that leaves in the middle of its body."""
    wire = b"POST / HTTP/1.1\r\n%bContent-Length: 100000\r\n\r\n%b" % (HOST, BODY)
    return await _asked(port, wire, leave_after_s=dice.uniform(0, 0.05))


async def nonsense(port: int, dice: random.Random) -> str:
    """Bytes that are no request."""
    return await _asked(port, dice.randbytes(50) + b"\r\n\r\n")


def channel_to(port: int) -> grpc.aio.Channel:
    """A connection that nothing else uses."""
    options = [
        ("grpc.default_authority", HOST[6:-2].decode()),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)


def method(name: str) -> str:
    """The path of a method of the sample app."""
    return f"/{grpc_echo.SERVICE}/{name}"


async def grpc_unary(port: int, dice: random.Random) -> str:
    """Some calls at once on one connection, with messages of all sizes."""
    async with channel_to(port) as channel:
        say = channel.unary_unary(method("Say"))
        sent = [dice.randbytes(dice.choice((0, 10, 1000, 100_000))) for _ in range(dice.randint(1, 30))]
        responses = await asyncio.gather(*[say(data, timeout=RESPONSE_WITHIN_S) for data in sent])
    return "echoed" if responses == sent else "another echo"


async def grpc_large(port: int, dice: random.Random) -> str:
    """A large message there and back."""
    message = dice.randbytes(dice.randint(1, 3_000_000))
    async with channel_to(port) as channel:
        response = await channel.unary_unary(method("Say"))(message, timeout=RESPONSE_WITHIN_S)
    return "echoed" if response == message else "another echo"


async def grpc_chat(port: int, dice: random.Random) -> str:
    """A stream in both directions; every second one is cancelled in the middle."""
    async with channel_to(port) as channel:
        call = channel.stream_stream(method("Chat"))(timeout=RESPONSE_WITHIN_S)
        for _ in range(dice.randint(1, 50)):
            message = dice.randbytes(dice.randint(1, 2000))
            await call.write(message)
            if await call.read() != message:
                return "another echo"
        if dice.random() < 0.5:
            call.cancel()
        else:
            await call.done_writing()
            await call.read()
    return "echoed"


async def grpc_cancelled(port: int, dice: random.Random) -> str:
    """Calls that are cancelled while they wait."""
    async with channel_to(port) as channel:
        calls = [channel.unary_unary(method("Wait"))(b"30") for _ in range(dice.randint(1, 5))]
        await asyncio.sleep(dice.uniform(0, 0.1))
        for call in calls:
            call.cancel()
    return "left"


async def grpc_late(port: int, dice: random.Random) -> str:
    """A call whose deadline passes."""
    async with channel_to(port) as channel:
        try:
            await channel.unary_unary(method("Wait"))(b"30", timeout=dice.uniform(0.01, 0.2))
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "answered"


KINDS: tuple[Kind, ...] = (short, kept, by_length, in_chunks, slow, websocket, events, leaves, half, nonsense)
GRPC_KINDS: tuple[Kind, ...] = (grpc_unary, grpc_large, grpc_chat, grpc_cancelled, grpc_late)
RIGHT = {
    **dict.fromkeys(("short", "kept", "by_length", "in_chunks", "slow"), "200"),
    **dict.fromkeys(("grpc_unary", "grpc_large", "grpc_chat"), "echoed"),
    "grpc_late": "DEADLINE_EXCEEDED",
    "websocket": "echoed",
    "events": "heard",
}


DAEMONS = ("queue-proxy", "activator", "grpc queue-proxy", "grpc activator")
CLIENTS_PER_KIND = 6
# A channel of grpcio costs this process more than a socket.
GRPC_CLIENTS_PER_KIND = 2
GROWTH_MAX = 1.05
WARM_PART = 0.2
# Idle connections between the daemons are gone by then, and what is left is a leak.
IDLE_MAX_S = 2
SETTLE_S = 5.0
DESCRIPTORS_MORE_MAX = 2

Counts = collections.Counter[str]
# Pages say these of a queue-proxy.
_OF_THE_PAGE = {"inside": "requests_inside", "waiting": "requests_waiting", "tasks": "tasks"}
_NOTHING = tuple(
    f"{prefix}{key}"
    for prefix in ("", "grpc ")
    for key in ("queue-proxy inside", "queue-proxy waiting", "activator inside", "activator client_connections")
)


async def _client(kind: Kind, port: int, counts: Counts, seed: int) -> None:
    dice = random.Random(seed)
    name = getattr(kind, "__name__", "")
    while True:
        try:
            seen = await kind(port, dice)
        except grpc.aio.AioRpcError as error:
            seen = f"{error.code().name} {error.details()}"
        except (OSError, TimeoutError, EOFError, WebSocketException) as error:
            seen = type(error).__name__
        counts[f"{name} {seen}"] += 1


async def _load(cast: Cast, counts: Counts, seconds: float) -> None:
    """Clients of all kinds for a while."""
    kinds = [(kind, cast.ports["activator"], CLIENTS_PER_KIND) for kind in KINDS]
    kinds += [(kind, cast.ports["grpc activator"], GRPC_CLIENTS_PER_KIND) for kind in GRPC_KINDS]
    tasks = [
        asyncio.create_task(_client(kind, port, counts, place * CLIENTS_PER_KIND + index))
        for place, (kind, port, count) in enumerate(kinds)
        for index in range(count)
    ]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _numbers(admin: int) -> dict[str, float]:
    """The queue-proxy's own page."""
    with contextlib.closing(HTTPConnection("127.0.0.1", admin)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    return {name: float(value) for name, value in re.findall(r"^(queueproxy_\w+) (\S+)$", page, re.MULTILINE)}


def _held(cast: Cast, activator: str, path: Path) -> dict[str, float]:
    """The numbers of an activator."""
    path.unlink(missing_ok=True)
    os.kill(cast.pid(activator), signal.SIGUSR1)
    while not path.exists():
        time.sleep(0.01)
    document: dict[str, float] = json.loads(path.read_text())
    return document


def _state(cast: Cast, admins: dict[str, int], paths: dict[str, Path]) -> dict[str, float]:
    """What each idle daemon holds; ``admins`` of queue-proxies, ``paths`` of activators by name."""
    result: dict[str, float] = {}
    for name in DAEMONS:
        result[f"{name} pss_mib"] = round(pss_mib(cast.pid(name)), 2)
        result[f"{name} descriptors"] = len(list(Path(f"/proc/{cast.pid(name)}/fd").iterdir()))
    for name, admin in admins.items():
        numbers = _numbers(admin)
        result |= {f"{name} {key}": numbers[f"queueproxy_{of}"] for key, of in _OF_THE_PAGE.items()}
    for name, path in paths.items():
        result |= {f"{name} {key}": value for key, value in _held(cast, name, path).items()}
    return result


def grown(warm: dict[str, float], end: dict[str, float]) -> list[str]:
    """What each daemon has more of at the end."""
    wrong = []
    for name in DAEMONS:
        for what, may_be in (
            ("pss_mib", warm[f"{name} pss_mib"] * GROWTH_MAX),
            ("descriptors", warm[f"{name} descriptors"] + DESCRIPTORS_MORE_MAX),
            ("tasks", warm[f"{name} tasks"]),
        ):
            key = f"{name} {what}"
            if end[key] > may_be:
                wrong.append(f"{key} grew from {warm[key]:g} to {end[key]:g}")
    return wrong


def wrong_of(end: dict[str, float], counts: Counts) -> list[str]:
    """Requests still inside, and wrong answers."""
    wrong = [f"{key} is {end[key]:g}" for key in _NOTHING if end[key]]
    for key, count in counts.items():
        name, _, seen = key.partition(" ")
        if name in RIGHT and seen != RIGHT[name]:
            wrong.append(f"{count} x {key}")
    return wrong


async def soak(cast: Cast, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """The whole run, with its observations and faults."""
    seconds = options.seconds
    admins, paths = {}, {}
    for prefix, app in (("", "mixed"), ("grpc ", "grpc")):
        admin = admins[f"{prefix}queue-proxy"] = free_port()
        path = paths[f"{prefix}activator"] = folder / f"{app}-activator.json"
        protocol = "h2c" if prefix else "http1"
        cast.start(app, core=LOAD_CORE, protocol=protocol, WORK_S="0")
        pod = {
            "SERVING_POD_ADMIN_LISTEN": f"127.0.0.1:{admin}",
            "SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "60",
            "SERVING_QUEUEPROXY_HTTP_UPSTREAM_IDLE_MAX_S": f"{IDLE_MAX_S}",
        }
        own = {"LONE_ACTIVATOR_STATE": str(path), "LONE_ACTIVATOR_IDLE_S": f"{IDLE_MAX_S}"}
        for part, before, settings in (("queue-proxy", app, pod), ("activator", f"{prefix}queue-proxy", own)):
            how = {"part": part, "before": before, "protocol": protocol}
            cast.start(f"{prefix}{part}", core=PROXY_CORE, **how, **settings)
    await _until_called(cast.ports["grpc activator"])
    counts: Counts = collections.Counter()
    await _load(cast, counts, seconds * WARM_PART)
    await asyncio.sleep(SETTLE_S)
    warm = _state(cast, admins, paths)
    await _load(cast, counts, seconds * (1 - WARM_PART))
    await asyncio.sleep(SETTLE_S)
    end = _state(cast, admins, paths)
    # A quick run warms nothing up.
    wrong = ([] if options.quick else grown(warm, end)) + wrong_of(end, counts)
    seen = dict(sorted(counts.items()))
    return {"seconds": seconds, "warm": warm, "end": end, "counts": seen, "wrong": wrong}


async def _until_called(port: int) -> None:
    """Wait until a call is answered: the pod is ready, and the activator knows it."""
    async with asyncio.timeout(RESPONSE_WITHIN_S), channel_to(port) as channel:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(method("Say"))(b"")
                return
            await asyncio.sleep(0.1)


def main() -> int:
    """Run, tell, and say by the exit code whether it held."""
    options = options_of(__doc__, seconds=600.0, quick={"seconds": 5.0})
    with casting() as cast, tempfile.TemporaryDirectory() as folder:
        entry = asyncio.run(soak(cast, Path(folder), options))
    print(json.dumps(entry, indent=2))
    return 1 if entry["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
