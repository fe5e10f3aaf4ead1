"""``make soak``: mixed traffic through activator and queue-proxy for ten minutes; nothing may be left of it.

    python bench/soak.py [--seconds N]

Both daemons run as processes before an app. Clients of ten kinds ask without a pause: short requests on kept
connections, a connection for each, bodies by length and in chunks, slow answers, websockets, events, clients that leave in
the middle, and nonsense. A fifth into the run, and at its end when the clients have gone, memory, descriptors, tasks,
connections and requests inside are read: memory may have grown by 5 percent, tasks not at all, and nobody may be inside.
Exit 0 only if all that holds.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from bench.peers.cast import Cast, free_port, pss_mib

__all__ = ["main"]

HOST = b"Host: hello.default.localhost\r\n"
DAEMONS = ("queue-proxy", "activator")
CLIENTS_PER_KIND = 6
GROWTH_MAX = 1.05
WARM_PART = 0.2
# Idle connections between the daemons are gone by then, and what is left is a leak.
IDLE_MAX_S = 2
SETTLE_S = 5.0
DESCRIPTORS_MORE_MAX = 2
ANSWER_WITHIN_S = 20.0
BODY = b"x" * 50_000

Counts = collections.Counter[str]
Kind = Callable[[int, random.Random], Awaitable[str]]


async def _asked(port: int, wire: bytes, *, leave_after_s: float | None = None) -> str:
    """Send, and read to the end; the status, or what came instead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(wire)
        if leave_after_s is not None:
            await asyncio.sleep(leave_after_s)
            return "left"
        async with asyncio.timeout(ANSWER_WITHIN_S):
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
    url = f"ws://{HOST[6:-2].decode()}/ws"
    async with (
        asyncio.timeout(ANSWER_WITHIN_S),
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
        writer.write(b"GET /events HTTP/1.1\r\n%b\r\n" % HOST)
        async with asyncio.timeout(ANSWER_WITHIN_S):
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


KINDS: tuple[Kind, ...] = (short, kept, by_length, in_chunks, slow, websocket, events, leaves, half, nonsense)
RIGHT = {
    **dict.fromkeys(("short", "kept", "by_length", "in_chunks", "slow"), "200"),
    "websocket": "echoed",
    "events": "heard",
}


async def _client(kind: Kind, port: int, counts: Counts, seed: int) -> None:
    dice = random.Random(seed)
    name = getattr(kind, "__name__", "")
    while True:
        try:
            seen = await kind(port, dice)
        except (OSError, TimeoutError, EOFError, WebSocketException) as error:
            seen = type(error).__name__
        counts[f"{name} {seen}"] += 1


async def _load(port: int, counts: Counts, seconds: float) -> None:
    """Clients of all kinds for a while."""
    tasks = [
        asyncio.create_task(_client(kind, port, counts, place * CLIENTS_PER_KIND + index))
        for place, kind in enumerate(KINDS)
        for index in range(CLIENTS_PER_KIND)
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


def _held(cast: Cast, path: Path) -> dict[str, float]:
    """What the activator says that it holds."""
    path.unlink(missing_ok=True)
    os.kill(cast.pid("activator"), signal.SIGUSR1)
    while not path.exists():
        time.sleep(0.01)
    found: dict[str, float] = json.loads(path.read_text())
    return found


def _state(cast: Cast, admin: int, path: Path) -> dict[str, float]:
    """What each daemon holds while nobody asks."""
    found: dict[str, float] = {}
    for name in DAEMONS:
        found[f"{name} pss_mib"] = round(pss_mib(cast.pid(name)), 2)
        found[f"{name} descriptors"] = len(list(Path(f"/proc/{cast.pid(name)}/fd").iterdir()))
    numbers = _numbers(admin)
    found |= {f"queue-proxy {name}": numbers[f"queueproxy_{key}"] for name, key in _OF_THE_PAGE.items()}
    return found | {f"activator {name}": value for name, value in _held(cast, path).items()}


# Pages say these of a queue-proxy.
_OF_THE_PAGE = {"inside": "requests_inside", "waiting": "requests_waiting", "tasks": "tasks"}
_NOBODY = ("queue-proxy inside", "queue-proxy waiting", "activator inside", "activator client_connections")


def wrong_of(warm: dict[str, float], end: dict[str, float], counts: Counts) -> list[str]:
    """What did not hold."""
    wrong = [f"{key} is {end[key]:g}" for key in _NOBODY if end[key]]
    for name in DAEMONS:
        if end[f"{name} pss_mib"] > warm[f"{name} pss_mib"] * GROWTH_MAX:
            wrong.append(f"{name}: memory grew from {warm[f'{name} pss_mib']} to {end[f'{name} pss_mib']} MiB")
        if end[f"{name} descriptors"] > warm[f"{name} descriptors"] + DESCRIPTORS_MORE_MAX:
            grown = f"from {warm[f'{name} descriptors']:g} to {end[f'{name} descriptors']:g}"
            wrong.append(f"{name}: descriptors grew {grown}")
        if end[f"{name} tasks"] > warm[f"{name} tasks"]:
            wrong.append(f"{name}: tasks grew from {warm[f'{name} tasks']:g} to {end[f'{name} tasks']:g}")
    for key, count in counts.items():
        name, _, seen = key.partition(" ")
        if name in RIGHT and seen != RIGHT[name]:
            wrong.append(f"{count} x {key}")
    return wrong


async def soak(cast: Cast, folder: Path, seconds: float) -> dict[str, object]:
    """The whole run; what was seen and what was wrong."""
    admin, path = free_port(), folder / "activator.json"
    cast.start("mixed", core=1)
    told = {
        "SERVING_POD_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "60",
        "SERVING_QUEUEPROXY_HTTP_UPSTREAM_IDLE_MAX_S": f"{IDLE_MAX_S}",
    }
    cast.start("queue-proxy", core=0, before="mixed", **told)
    own = {"LONE_ACTIVATOR_STATE": str(path), "LONE_ACTIVATOR_IDLE_S": f"{IDLE_MAX_S}"}
    cast.start("activator", core=0, before="queue-proxy", **own)
    counts: Counts = collections.Counter()
    await _load(cast.ports["activator"], counts, seconds * WARM_PART)
    await asyncio.sleep(SETTLE_S)
    warm = _state(cast, admin, path)
    await _load(cast.ports["activator"], counts, seconds * (1 - WARM_PART))
    await asyncio.sleep(SETTLE_S)
    end = _state(cast, admin, path)
    told_counts = dict(sorted(counts.items()))
    return {"seconds": seconds, "warm": warm, "end": end, "counts": told_counts, "wrong": wrong_of(warm, end, counts)}


def main() -> int:
    """Run, tell, and say by the exit code whether it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the traffic lasts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cast = Cast(Path(folder), Path(folder))
        try:
            found = asyncio.run(soak(cast, Path(folder), options.seconds))
        finally:
            cast.close()
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
