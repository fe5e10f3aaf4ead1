"""``make soak``: ten minutes of mixed traffic through activator and queue-proxy.

    python bench/soak.py [--seconds N] [--quick]

Both daemons run as processes before an app, and a second pair before an app that speaks gRPC. Clients of fifteen kinds ask
without a pause: short requests on kept connections, a connection for each, bodies by length and in chunks, slow answers,
websockets, events, clients that leave in the middle, and nonsense; gRPC calls that are small, large, streams, cancelled, and out of
time. A fifth into the run, and at its end when the clients have gone, memory, descriptors, tasks,
connections and requests inside are read: memory may have grown by 5 percent, tasks not at all, and no request may be inside.
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
from http.client import HTTPConnection
from pathlib import Path

import grpc.aio  # type: ignore[import-untyped]  # it has no types
from websockets.exceptions import WebSocketException

from bench.parts.processes import pss_mib
from bench.parts.program import options_of
from bench.parts.soak_clients import GRPC_KINDS, KINDS, RESPONSE_WITHIN_S, RIGHT, Kind, channel_to, method
from bench.peers.cast import LOAD_CORE, PROXY_CORE, Cast, casting, free_port

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
    found: dict[str, float] = json.loads(path.read_text())
    return found


def _state(cast: Cast, admins: dict[str, int], paths: dict[str, Path]) -> dict[str, float]:
    """What each idle daemon holds; ``admins`` of queue-proxies, ``paths`` of activators by name."""
    found: dict[str, float] = {}
    for name in DAEMONS:
        found[f"{name} pss_mib"] = round(pss_mib(cast.pid(name)), 2)
        found[f"{name} descriptors"] = len(list(Path(f"/proc/{cast.pid(name)}/fd").iterdir()))
    for name, admin in admins.items():
        numbers = _numbers(admin)
        found |= {f"{name} {key}": numbers[f"queueproxy_{of}"] for key, of in _OF_THE_PAGE.items()}
    for name, path in paths.items():
        found |= {f"{name} {key}": value for key, value in _held(cast, name, path).items()}
    return found


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
        found = asyncio.run(soak(cast, Path(folder), options))
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
