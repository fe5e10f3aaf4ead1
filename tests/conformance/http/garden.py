"""Looks for requests that our proxies and an origin read in different ways, as HTTP Garden does.

    python -m tests.conformance.http.garden [--count 100000] [--seed 1] [--origins uvicorn,node] [--python PYTHON]

Requests are made by a grammar and mutated, then sent through the activator and the queue-proxy to a tap, which keeps
the bytes that were forwarded and reads them with h11. Each distinct forwarded request goes to every origin, with
another request behind it on the same connection: the origin must report the method, target and body that h11 has read,
and then the other request. An origin may refuse a request. ``--python`` has the packages of origins that this one
lacks.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import h11
import msgspec

from tests.conformance.http.servers import HOST, MAKERS, Stage, is_installed

HERE = Path(__file__).parent
ORIGINS = ("uvicorn", "h11", "hypercorn", "gunicorn", "aiohttp", "tornado", "node", "go", "nginx", "haproxy", "apache")
_PACKAGES = ("uvicorn", "h11", "hypercorn", "gunicorn", "aiohttp", "tornado")
_AT_ONCE = 32
_WAIT_S = 10.0
# Sent to a server that waits for more of a mutated request.
_SILENCE_S = 0.5
_SENTINEL = b"GET /sentinel HTTP/1.1\r\nHost: h\r\n\r\n"
_SENTINEL_READ = ("GET", "/sentinel", "")
# What differs by choice: hypercorn writes methods in capitals, Apache forwards a canonical path.
_UPPER, _CANONICAL = "hypercorn", "apache"
_ECHO = re.compile(rb"\r\nx-echo: ([0-9a-f]+)\r\n", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)

_METHODS = ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "get", "QUERY", "M-SEARCH", "TRACE"]
_TARGETS = [
    "/",
    "/a?b=c",
    "/%2e%2e/a",
    "//a/b",
    "/a;b",
    "/a|b",
    "*",
    f"http://{HOST}/x",
    "/a%00b",
    "/" + "z" * 300,
    "/a\\b",
    "/?",
]
_LINES = [
    "Content-Length: 3", "Content-Length: 003", "Content-Length:3", "Content-Length: +3", "Content-Length: 3, 3",
    "Content-Length: 0", "Content_Length: 9", "Transfer-Encoding: chunked", "transfer-encoding: Chunked",
    "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: \tchunked", "Transfer-Encoding : chunked",
    "Transfer-Encoding: identity", "Transfer_Encoding: chunked", "Connection: close", "Connection: keep-alive, x-a",
    "Connection: content-length", "Connection: transfer-encoding", "TE: trailers", "Trailer: x-t", "Expect: 100-continue",
    "X-A: b", "X-A:", "X-A: \xe4", "X-A: a\tb", "Cookie: a=b; c=d", "Accept: */*", "Upgrade: h2c", "Forwarded: for=x",
]  # fmt: skip
_BODIES = [
    "", "abc", "abcGET / HTTP/1.1\r\nHost: x\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "3;a=b\r\nabc\r\n0\r\nX-T: y\r\n\r\n",
    "3;\r\nabc\r\n0\r\n\r\n", "03\r\nabc\r\n00\r\n\r\n", "3\r\nabc0\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n",
    "3\r\nabc\r\n0\r\n\n", "A\r\n0123456789\r\n0\r\n\r\n", "0\r\n\r\nGET /s HTTP/1.1\r\nHost: x\r\n\r\n",
    '1;a="b;c"\r\nx\r\n0\r\nContent-Length: 5\r\n\r\n',
]  # fmt: skip
_BYTES = [b"\0", b"\r", b"\n", b" ", b"\t", b":", b",", b"\x0b", b"\x7f", b"\x80", b"0", b"\r\n", b"\r\n ", b"#", b"+"]


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """A forwarded request: its bytes and their interpretation by h11."""

    wire: bytes
    read: tuple[str, str, str]


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """An origin interprets a request unlike h11. ``origin`` is "tap" if h11 rejects the bytes."""

    origin: str
    wire: bytes
    expected: tuple[str, ...]
    observed: tuple[str, ...]


def drawn_request(draw: random.Random) -> bytes:
    """A request of the grammar, mutated up to three times."""
    lines = [f"Host: {HOST}", *draw.sample(_LINES, draw.choice([0, 1, 1, 2, 3]))]
    draw.shuffle(lines)
    version = draw.choice(["HTTP/1.1"] * 9 + ["HTTP/1.0"])
    head = "\r\n".join([f"{draw.choice(_METHODS)} {draw.choice(_TARGETS)} {version}", *lines])
    data = f"{head}\r\n\r\n{draw.choice(_BODIES)}".encode("latin-1")
    for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
        data = _mutated(data, draw)
    return data


def _mutated(data: bytes, draw: random.Random) -> bytes:
    at, kind = draw.randrange(len(data)), draw.randrange(5)
    if kind == 0:
        return data[:at] + data[at + 1 :]
    if kind == 1:
        return data[:at] + draw.choice(_BYTES) + data[at:]
    if kind == 2:
        return data[:at] + draw.choice(_BYTES) + data[at + 1 :]
    if kind == 3:
        return data.replace(b"\r\n", b"\n", 1)
    return data[:at] + data[max(0, at - 20) : at] + data[at:]


class Tap:
    """Keeps each distinct request that is forwarded, at the end of the chain."""

    def __init__(self) -> None:
        self.requests: dict[bytes, Forwarded] = {}
        self.refused: list[Disagreement] = []
        self.count = 0
        self._running: set[asyncio.Task[None] | None] = set()

    async def close(self) -> None:
        """End all connections."""
        running = [task for task in self._running if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read requests until the connection ends."""
        self._running.add(asyncio.current_task())
        try:
            # Python 3.11 reports a cancelled one as an error.
            with contextlib.suppress(asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._running.discard(asyncio.current_task())
            await _closed(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            connection, raw, head, body = h11.Connection(h11.SERVER), b"", None, b""
            while True:
                try:
                    event = connection.next_event()
                except h11.RemoteProtocolError as error:
                    self.refused.append(Disagreement(origin="tap", wire=raw, expected=(), observed=(str(error),)))
                    break
                if event is h11.NEED_DATA:
                    data = await reader.read(65536)
                    if not data:
                        # A truncated request is ignored.
                        break
                    raw += data
                    connection.receive_data(data)
                elif isinstance(event, h11.Request):
                    head, body = event, b""
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage) and head is not None:
                    rest = connection.trailing_data[0]
                    self._keep(raw[: len(raw) - len(rest)], head, body)
                    raw, connection = rest, h11.Connection(h11.SERVER)
                    connection.receive_data(rest) if rest else None
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                else:
                    break

    def _keep(self, wire: bytes, head: h11.Request, body: bytes) -> None:
        self.count += 1
        read = (head.method.decode(), head.target.decode("latin-1"), body.hex())
        self.requests.setdefault(wire, Forwarded(wire=wire, read=read))


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait for it: a writer that outlives its loop complains."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _send(data: bytes, address: tuple[str, int]) -> None:
    """Send a request, and wait until it is answered or the server waits for more."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_SILENCE_S):
            await reader.readuntil(b"\r\n\r\n")
    await _closed(writer)


async def send_requests(address: tuple[str, int], *, count: int, seed: int) -> None:
    """Send ``count`` requests to a proxy."""
    draw = random.Random(seed)
    remaining = iter(range(count))

    async def work() -> None:
        for _ in remaining:
            await _send(drawn_request(draw), address)

    await asyncio.gather(*[work() for _ in range(_AT_ONCE)])


async def _echoes(reader: asyncio.StreamReader, count: int) -> list[tuple[str, ...]]:
    """The origin's results for the next requests: its echo, or the status of a rejection."""
    results: list[tuple[str, ...]] = []
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        async with asyncio.timeout(_WAIT_S):
            while len(results) < count:
                head = await reader.readuntil(b"\r\n\r\n")
                status = head.split(b" ", 2)[1].decode()
                if status.startswith("1"):
                    continue
                match, length = _ECHO.search(head), _LENGTH.search(head)
                if match is None:
                    results.append((status,))
                    break
                await reader.readexactly(int(length[1]) if length else 0)
                results.append(tuple(json.loads(bytes.fromhex(match[1].decode()))))
    return results


def _comparable(read: tuple[str, ...], origin: str) -> tuple[str, ...]:
    """A reading without what an origin changes by choice; all of ASGI cannot express an empty query."""
    method, target, body = read
    return (
        method.upper() if origin == _UPPER else method,
        "" if origin == _CANONICAL else target.removesuffix("?"),
        body,
    )


def _agrees(seen: Sequence[tuple[str, ...]], expected: tuple[str, ...], origin: str) -> bool:
    """Whether an origin has read the request, and then the sentinel or the end of the connection."""
    if len(seen) not in (1, 2) or _comparable(seen[0], origin) != _comparable(expected, origin):
        return False
    return seen[1:] in ([], [_SENTINEL_READ])


async def judge(origin: str, address: tuple[str, int], requests: Sequence[Forwarded]) -> tuple[list[Disagreement], int]:
    """Send each request to an origin; return the disagreements, and how many requests it refused."""
    disagreements: list[Disagreement] = []
    refused_count = 0
    remaining = iter(requests)

    async def work() -> None:
        nonlocal refused_count
        for forwarded in remaining:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(forwarded.wire + _SENTINEL)
            seen = await _echoes(reader, 2)
            await _closed(writer)
            if seen and len(seen[0]) == 1:
                refused_count += 1
            elif not _agrees(seen, forwarded.read, origin):
                flat = tuple(json.dumps(answer) for answer in seen)
                disagreements.append(
                    Disagreement(origin=origin, wire=forwarded.wire, expected=forwarded.read, observed=flat)
                )

    await asyncio.gather(*[work() for _ in range(_AT_ONCE)])
    return disagreements, refused_count


def available(names: Sequence[str], python: str) -> list[str]:
    """The origins that can be started here."""
    return [name for name in names if _is_available(name, python)]


def go_toolchain() -> str | None:
    """The program of Go, also the one that `make bench` has installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serving-bench"
    return shutil.which("go", path=f"{os.environ['PATH']}:{cache / 'go' / 'bin'}")


def _go_origin(folder: Path, go: str) -> str:
    """Build the origin of Go; takes a minute where nothing is cached."""
    binary, cache = str(folder / "echo"), str(Path(go).parent.parent.parent / "build")
    settings = {"GO111MODULE": "off", "GOTOOLCHAIN": "local", "HOME": str(folder)}
    if os.access(cache, os.W_OK):
        settings["GOCACHE"] = cache
    subprocess.run([go, "build", "-o", binary, str(HERE / "echo.go")], check=True, env={**os.environ, **settings})
    return binary


def _is_available(name: str, python: str) -> bool:
    if name == "go":
        return go_toolchain() is not None
    if name in _PACKAGES:
        return not subprocess.run([python, "-c", f"import {name}"], check=False, capture_output=True).returncode
    return is_installed(name) and (name != "node" or shutil.which("node") is not None)


def origin_port(stage: Stage, name: str, python: str) -> int:
    """Start an origin. A proxy stands in front of uvicorn."""
    if name in MAKERS and name not in _PACKAGES:
        return MAKERS[name](stage, origin_port(stage, "uvicorn", sys.executable))
    if name == "go" and (go := go_toolchain()) is not None:
        binary = _go_origin(stage.folder, go)
        return stage.start(lambda port: [binary, str(port)])
    return stage.start(lambda port: [python, str(HERE / "echo.py"), name, str(port)])


async def grow(*, count: int, seed: int, origins: Sequence[str], python: str) -> list[str]:
    """Run, and return the lines of the report."""
    tap = Tap()
    server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        try:
            proxy = stage.activator(stage.queue_proxy(server.sockets[0].getsockname()[1]))
            await send_requests(("127.0.0.1", proxy), count=count, seed=seed)
            requests = list(tap.requests.values())
            lines.append(
                f"{count} sent, {tap.count} forwarded, {len(requests)} distinct; h11 refuses {len(tap.refused)}"
            )
            lines += ["", "| origin | disagreements | refused |", "|---|---|---|"]
            disagreements = list(tap.refused)
            for name in origins:
                wrong, refused_count = await judge(name, ("127.0.0.1", origin_port(stage, name, python)), requests)
                disagreements += wrong
                lines.append(f"| {name} | {len(wrong)} | {refused_count} |")
            lines += [
                "",
                *[
                    f"{disagreement.origin}: {disagreement.wire!r}\n  expected {disagreement.expected}\n  found    {disagreement.observed}"
                    for disagreement in disagreements
                ],
            ]
        finally:
            stage.close()
            server.close()
            await tap.close()
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print. Exit 1 if there is a disagreement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--origins", default=",".join(ORIGINS))
    parser.add_argument("--python", default=sys.executable)
    new_arguments = parser.parse_args(arguments)
    wanted = new_arguments.origins.split(",")
    if unknown := [name for name in wanted if name not in ORIGINS]:
        parser.error(f"--origins {', '.join(unknown)}: known are {', '.join(ORIGINS)}")
    names = available(wanted, new_arguments.python)
    if missing := [name for name in wanted if name not in names]:
        sys.stderr.write(f"not installed, and left out: {', '.join(missing)}\n")
    lines = asyncio.run(
        grow(count=new_arguments.count, seed=new_arguments.seed, origins=names, python=new_arguments.python)
    )
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(lines[-1] != "")


if __name__ == "__main__":
    sys.exit(main())
