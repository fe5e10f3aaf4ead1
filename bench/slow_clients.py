"""Attacks by slow clients, and by costly bodies to the API, beside a client that is served.

    python bench/slow_clients.py [--seconds S] [--clients N] [--quick] [--json] [ATTACK...]

A whole system runs with one service of two pods with four slots each. For each attack the client's GETs are timed
without it, with it, and without it again: ``ratio`` is the p99 with it over the larger p99 without, ``worst_first_ms``
the longest in its first second. Attackers open their connections again when they are cut. They have another address
than the client, and are in another process. Attacks on the service:

- ``half-open-posts``: POSTs with a Content-Length and no body.
- ``dripping-posts``: POSTs whose body comes a byte each second.
- ``slow-heads``: heads that come a byte each second.
- ``slow-readers``: GETs whose responses are not read.
- ``half-open-streams``: HTTP/2 connections with a hundred requests each that never end.
- ``tiny-chunks``, ``tiny-frames``: eight clients whose bodies come in chunks, or HTTP/2 frames, of one byte, as fast as
  they are taken. The client of these and the next three is one of another service.
- ``dropped-bodies``: eight clients that continue to send a body after its response.
- ``pipelined``: eight clients that send requests for a host that there is not, one after another without waiting.
- ``tiny-responses``: eight clients whose responses the app sends in chunks of one byte.
- ``one-slot``, ``one-slot-direct``: as ``slow-readers``, at a service with one pod of one slot: by its host, and at the
  pod's own address.

Attacks on the API of the machine, by a user with a token; the client is a GET of a ConfigMap:

- ``api-small-objects``, ``api-environment``: JSON of 3 MiB: a list of small objects, and a Service with 90,000 equal
  variables.
- ``api-yaml``: YAML of 3 MiB.
- ``api-containers``: a pod with 2,200 containers, within all bounds on values.
- ``api-patch``: a JSON patch of 3 MiB with as many operations as fit.
- ``api-escapes``: a merge patch of 3 MiB with one text of escapes.

Goal: no failed request of the client; a p99 of at most 100 ms beside tiny pieces, and of 200 ms for the API.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import math
import multiprocessing
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing import synchronize
from pathlib import Path

from bench.parts.program import exit_code, options_of, show
from bench.parts.system import SERVICES, System, running_system, service_of
from serving.net.proxy.http2.frames import PREFACE
from serving.net.proxy.http2.hpack_encoder import HeaderEncoder

CLIENT = "127.0.0.2"
HOST, SINGLE = "busy.default.localhost", "single.default.localhost"
PAGE_BYTES = 4 * 2**20
BODY_BYTES = 3 * 2**20
STREAMS = 100
GOAL_MS, TINY_GOAL_MS = 200.0, 100.0
TINY, TINY_CLIENTS = ("tiny-chunks", "tiny-frames", "dropped-bodies", "pipelined", "tiny-responses"), 8
DRIP_S = 1.0
HOLD_S = 2.0
# So long has the first burst of an attack had to take all slots, and so long is the client's beginning judged apart.
BURST_S = 0.2
BEGINNING_S = 1.0
WITHIN_S = 120.0
TYPES = {
    "POST": "application/json",
    "YAML": "application/yaml",
    "PATCH": "application/json-patch+json",
    "MERGE": "application/merge-patch+json",
}
APP = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/tiny": return self.tiny()
        body = bytes(%d) if self.path == "/large" else b"ok"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def tiny(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while True:
            self.wfile.write(b"1\\r\\nx\\r\\n" * 10_000)
    def do_POST(self):
        if self.path == "/read":
            while self.rfile.read1(65536): ...
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()
    def log_message(self, *given): ...
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), App).serve_forever()
"""

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def half_open_post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the head of a POST, and wait for the end."""
    writer.write(f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 100000\r\n\r\n".encode())
    await reader.read()


async def dripping_post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte of the body a second."""
    writer.write(f"POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    while not reader.at_eof():
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(DRIP_S)


async def slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte of the head a second."""
    for byte in f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: {'y' * 4000}".encode():
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(DRIP_S)
        if reader.at_eof():
            return


async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, host: str = HOST) -> None:
    """Ask for a large page, and read none of it. Who does not read sees no cut, and so asks again after a while."""
    del reader
    writer.write(f"GET /large HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * 2)
    await asyncio.sleep(HOLD_S)


async def half_open_streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Open streams that never end."""
    encoder = HeaderEncoder()
    writer.write(PREFACE + b"\0\0\0\4\0\0\0\0\0")
    for number in range(STREAMS):
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", HOST.encode())]
        block = encoder.pack(fields)
        writer.write(len(block).to_bytes(3, "big") + b"\1\4" + (2 * number + 1).to_bytes(4, "big") + block)
    await reader.read()


async def tiny_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send chunks of one byte for as long as they are taken."""
    writer.write(f"POST /read HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    while not reader.at_eof():
        writer.write(b"1\r\nx\r\n" * 10_000)
        await writer.drain()


async def dropped_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a body that the app does not read, also after the response."""
    writer.write(f"POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    piece = b"10000\r\n%b\r\n" % bytes(2**16)
    while not writer.is_closing():
        writer.write(piece)
        await writer.drain()
    del reader


async def pipelined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send requests for a host without a service, and read the responses."""

    async def send() -> None:
        while True:
            writer.write(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 2_000)
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        while await reader.read(2**16):
            pass
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def tiny_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a response that comes in chunks of one byte."""
    writer.write(f"GET /tiny HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    while await reader.read(2**16):
        pass


async def tiny_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send DATA frames of one byte, as many as the windows of a stream take, on one stream after the other."""
    encoder = HeaderEncoder()
    writer.write(PREFACE + b"\0\0\0\4\0\0\0\0\0")
    number = 1
    while not reader.at_eof():
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", HOST.encode())]
        block, stream = encoder.pack(fields), number.to_bytes(4, "big")
        writer.write(len(block).to_bytes(3, "big") + b"\1\4" + stream + block)
        writer.write((b"\0\0\1\0\0" + stream + b"x") * 10_000 + b"\0\0\0\0\1" + stream)
        await writer.drain()
        # Responses are read, or the client would be cut for not reading them.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(2**16), 0.001)
        number += 2


ON_SERVICE: dict[str, Attack] = {
    "half-open-posts": half_open_post,
    "dripping-posts": dripping_post,
    "slow-heads": slow_head,
    "slow-readers": slow_reader,
    "half-open-streams": half_open_streams,
    "tiny-chunks": tiny_chunks,
    "tiny-frames": tiny_frames,
    "dropped-bodies": dropped_body,
    "pipelined": pipelined,
    "tiny-responses": tiny_response,
    "one-slot": functools.partial(slow_reader, host=SINGLE),
    "one-slot-direct": functools.partial(slow_reader, host=SINGLE),
}


def small_objects() -> tuple[str, str, bytes]:
    """A Service whose traffic is a long list of small objects."""
    body = service_of("worst", annotations={}, command=["x"])
    body["spec"]["traffic"] = [{"percent": 1}] * (BODY_BYTES // 15)
    return "POST", SERVICES, json.dumps(body, separators=(",", ":")).encode()[:BODY_BYTES]


def environment() -> tuple[str, str, bytes]:
    """A Service with 90,000 equal variables."""
    body = service_of("worst", annotations={}, command=["x"], env=[{"name": "A", "value": "b"}] * 90_000)
    return "POST", SERVICES, json.dumps(body, separators=(",", ":")).encode()


def yaml_list() -> tuple[str, str, bytes]:
    """A ConfigMap in YAML with 1,500,000 values."""
    return (
        "YAML",
        "/api/v1/namespaces/default/configmaps",
        b"metadata: {name: y}\ndata: [" + b"1," * (BODY_BYTES // 2 - 100) + b"1]",
    )


def pod_of_containers() -> tuple[str, str, bytes]:
    """A dry run of the largest pod that can be stored, with 2,200 containers and 20,000 values."""
    result = {"image": "i" * 300, "command": ["x" * 200], "env": [{"name": "A", "value": "b"}]}
    containers = [{"name": f"c{number}", **result} for number in range(2_200)]
    body = {"metadata": {"name": "worst"}, "spec": {"containers": containers}}
    return "POST", "/api/v1/namespaces/default/pods?dryRun=All", json.dumps(body, separators=(",", ":")).encode()


def escapes() -> tuple[str, str, bytes]:
    """A dry run of a patch whose only text is escaped backslashes."""
    path = "/api/v1/namespaces/default/configmaps/target?dryRun=All"
    return "MERGE", path, b'{"data":{"a":"' + b"\\\\" * (BODY_BYTES // 2 - 20) + b'"}}'


def json_patch() -> tuple[str, str, bytes]:
    """A patch of a ConfigMap with as many operations as fit."""
    data = b'{"op":"add","path":"/data/a","value":"b"}'
    many = (BODY_BYTES - 2) // (len(data) + 1)
    return "PATCH", "/api/v1/namespaces/default/configmaps/target", b"[" + b",".join([data] * many) + b"]"


ON_API = {
    "api-small-objects": small_objects,
    "api-environment": environment,
    "api-yaml": yaml_list,
    "api-containers": pod_of_containers,
    "api-patch": json_patch,
    "api-escapes": escapes,
}


async def get(host: str, port: int, head: bytes, tls: ssl.SSLContext | None = None) -> int:
    """One GET on a connection of its own, from another address than the attack's; its status."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, local_addr=(CLIENT, 0))
    try:
        writer.write(head)
        response = await reader.read()
        return int(response.split(b" ", 2)[1])
    finally:
        writer.close()


async def timed(ask: Callable[[], Awaitable[int]], seconds: float) -> tuple[list[float], int]:
    """Milliseconds of each request in a time, and the number of failures."""
    took_ms, failures, until_s = list[float](), 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(WITHIN_S):
                failures += await ask() != 200
        except (OSError, IndexError, ValueError):
            failures += 1
        took_ms.append(1000 * (time.monotonic() - begun_s))
        await asyncio.sleep(0.01)
    return sorted(took_ms), failures


@dataclasses.dataclass(frozen=True)
class Target:
    """What is attacked: a service, or the API with a token."""

    service: tuple[str, int]
    api: tuple[str, int]
    authority: str
    """The certificate of the API, as PEM."""
    authorization: str
    """Header lines with the token."""


async def on_service(target: Target, attack: Attack) -> None:
    """Run one attack on a service once."""
    # A small window of TCP: the kernel buffers less of what is not read.
    reader, writer = await asyncio.open_connection(*target.service, limit=1024)
    try:
        await attack(reader, writer)
    finally:
        writer.close()


async def on_api(target: Target, method: str, path: str, body: bytes) -> None:
    """Send one body to the API, and wait for the response."""
    tls = ssl.create_default_context(cadata=target.authority)
    reader, writer = await asyncio.open_connection(*target.api, ssl=tls)
    try:
        verb = {"YAML": "POST", "MERGE": "PATCH"}.get(method, method)
        head = f"{verb} {path} HTTP/1.1\r\nHost: {target.api[0]}\r\nContent-Type: {TYPES[method]}\r\nContent-Length: {len(body)}\r\n"
        writer.write((head + target.authorization + "\r\n").encode() + body)
        await reader.read()
    finally:
        writer.close()


def attack_forever(name: str, target: Target, clients: int, is_ready: synchronize.Event) -> None:
    """Run an attack with so many clients until this process is ended; each begins again when it is cut off."""
    request = ON_API[name]() if name in ON_API else None

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                await (on_api(target, *request) if request else on_service(target, ON_SERVICE[name]))
            await asyncio.sleep(0.05)

    async def all_clients() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(again())
            is_ready.set()

    asyncio.run(all_clients())


@contextlib.asynccontextmanager
async def attacked(name: str, target: Target, clients: int) -> AsyncIterator[None]:
    """Run an attack in its own process for the block, soon after it began: the client's loop does no work of it."""
    spawning = multiprocessing.get_context("spawn")
    is_ready = spawning.Event()
    process = spawning.Process(target=attack_forever, args=(name, target, clients, is_ready), daemon=True)
    process.start()
    if not await asyncio.to_thread(is_ready.wait, WITHIN_S):
        raise TimeoutError("the attack did not begin")
    await asyncio.sleep(BURST_S)
    try:
        yield
    finally:
        # An attack that has a defect measures nothing.
        is_running = process.is_alive()
        process.kill()
        await asyncio.to_thread(process.join)
    if not is_running:
        raise RuntimeError(f"the attack {name} has ended")


async def measure(
    ask: Callable[[], Awaitable[int]], attack: contextlib.AbstractAsyncContextManager[None], *, seconds: float
) -> dict[str, float]:
    """The p50 and p99 of the client without, with and without the attack."""
    before, _ = await timed(ask, seconds)
    async with attack:
        beginning, failures_first = await timed(ask, BEGINNING_S)
        during, failures = await timed(ask, seconds)
    after, _ = await timed(ask, seconds)
    without_ms = max(_p(before, 99), _p(after, 99))
    return {
        "p50_without_ms": round(_p(before, 50), 1),
        "p99_without_ms": round(without_ms, 1),
        "p50_ms": round(_p(during, 50), 1),
        "p99_ms": round(_p(during, 99), 1),
        "worst_first_ms": round(beginning[-1], 1),
        "ratio": round(_p(during, 99) / without_ms, 2),
        "requests": len(during),
        "failures": failures + failures_first,
    }


def _p(sorted_ms: list[float], percent: int) -> float:
    return sorted_ms[min(len(sorted_ms) - 1, len(sorted_ms) * percent // 100)]


def address_of(system: System, service: str) -> tuple[str, int]:
    """The address of a pod of a service."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=serving.knative.dev/service={service}"
    items = [item for item in system.send_request(path)["items"] if item["endpoints"]]
    return items[0]["endpoints"][0]["addresses"][0], items[0]["ports"][0]["port"]


async def run(system: System, names: list[str], *, seconds: float, clients: int) -> dict[str, dict[str, float]]:
    """Measure each attack."""
    host, _, port = system.server.rpartition("//")[2].partition(":")
    target = Target(
        service=("127.0.0.1", system.port),
        api=(host, int(port)),
        authority=system.authority,
        authorization=f"Authorization: {system.headers['Authorization']}\r\nConnection: close\r\n",
    )
    map_path = "/api/v1/namespaces/default/configmaps/target"
    map_head = f"GET {map_path} HTTP/1.1\r\nHost: {host}\r\n{target.authorization}\r\n".encode()
    results = {}
    for name in names:
        if name in ON_SERVICE:
            page_host = SINGLE if name.startswith("one-slot") or name in TINY else HOST
            if name.endswith("-direct"):
                target = dataclasses.replace(target, service=address_of(system, "single"))
            head = f"GET / HTTP/1.1\r\nHost: {page_host}\r\nConnection: close\r\n\r\n".encode()
            ask = functools.partial(get, *target.service, head)
            count = TINY_CLIENTS if name in TINY else clients
        else:
            ask, count = functools.partial(get, *target.api, map_head, system.tls), 1
        results[name] = await measure(ask, attacked(name, target, count), seconds=seconds)
        print(name, results[name], file=sys.stderr)
    return results


def main() -> int:
    """Run the attacks."""
    options = options_of(
        __doc__, names=(*ON_SERVICE, *ON_API), quick={"seconds": 1.0, "clients": 20}, seconds=10.0, clients=200
    )
    with tempfile.TemporaryDirectory() as folder, running_system() as system:
        # The state folder is hidden from pods.
        app = Path(folder) / "app.py"
        app.write_text(APP % PAGE_BYTES)
        for service, pods, slots in (("busy", "2", 4), ("single", "1", 1)):
            scale = {"autoscaling.knative.dev/min-scale": pods, "autoscaling.knative.dev/max-scale": pods}
            body = service_of(service, annotations=scale, concurrency=slots, command=[sys.executable, str(app)])
            system.send_request(SERVICES, body, method="POST")
        system.until_ready(2, WITHIN_S)
        maps = "/api/v1/namespaces/default/configmaps"
        system.send_request(maps, {"metadata": {"name": "target"}, "data": {"a": "b"}}, method="POST")
        results = asyncio.run(run(system, options.names, seconds=options.seconds, clients=options.clients))
    show(results, options)
    goals_ms = dict.fromkeys(ON_SERVICE, math.inf) | dict.fromkeys(TINY, TINY_GOAL_MS)
    is_met = all(
        not result["failures"] and result["p99_ms"] <= goals_ms.get(name, GOAL_MS) for name, result in results.items()
    )
    return exit_code(options, is_met=is_met)


if __name__ == "__main__":
    sys.exit(main())
