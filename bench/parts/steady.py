"""Steady load from one process: requests at a fixed rate on kept connections, open websockets, open event streams.

An open loop: a request is sent when it is due, however long others take. A kept connection that the server has closed
before any byte of an answer is replaced once, as HTTP clients do for a GET. Only 127.0.0.1 is asked.
"""

import asyncio
import collections
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

RESPONSE_WITHIN_S = 60.0
ECHO_PERIOD_S = 1.0
RECONNECT_S = 0.1
# A pod that ends sends its app SIGTERM after 30 s, which ends streams by contract: no stream lasts as long.
STREAM_MIN_S, STREAM_MAX_S = 10.0, 20.0


class Observed(msgspec.Struct, frozen=True):
    """One request: when it was due and how long it took, in seconds, and its status; another text is a failure."""

    due_s: float
    took_s: float
    status: str


class Load:
    """Clients and their observations. ``cut`` counts by kind the streams that the server ended.

    ``bursts`` are requests to a service at zero: each counts if it fails, but takes as long as a start.
    """

    def __init__(self, port: int, host: str) -> None:
        self.port, self.host = port, host
        self.observed: list[Observed] = []
        self.bursts: list[Observed] = []
        self.cut: collections.Counter[str] = collections.Counter()
        self.open: collections.Counter[str] = collections.Counter()
        self.retried = 0
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def since(self, begin_s: float) -> list[Observed]:
        """The requests that were due from a time on."""
        return [observed for observed in self.observed if observed.due_s >= begin_s]

    async def send_request(self, path: str = "/", *, method: str = "GET") -> tuple[str, str]:
        """Status and body of one request without a body, on a kept connection. Raises ``OSError``."""
        # Marked, so that it goes to another pod when its own one dies.
        fields = f"Host: {self.host}\r\nIdempotency-Key: 1\r\nContent-Length: 0"
        request = f"{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()
        while self._idle:
            reader, writer = self._idle.pop()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if not reader.at_eof():
                    return await self._exchange(reader, writer, request)
            self._close(writer)
            self.retried += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            return await self._exchange(reader, writer, request)
        except asyncio.IncompleteReadError as error:
            self._close(writer)
            raise ConnectionResetError("closed without an answer") from error

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[str, str]:
        self._writers.add(writer)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection") == "close":
            self._close(writer)
        else:
            self._idle.append((reader, writer))
        return head.split(" ", 2)[1], body.decode()

    async def request(self, due_s: float, path: str = "/") -> None:
        """One request, noted."""
        try:
            async with asyncio.timeout(RESPONSE_WITHIN_S):
                status, _ = await self.send_request(path)
        except (OSError, TimeoutError) as error:
            status = type(error).__name__
        self.observed.append(Observed(due_s, time.monotonic() - due_s, status))

    async def requests(self, rate: float) -> None:
        """Requests at a rate, until cancelled."""
        begin_s = time.monotonic()
        for number in range(1 << 60):
            due_s = begin_s + number / rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(self.request(due_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._writers.discard(writer)

    async def finish(self) -> None:
        """Wait for the answers of all requests that are under way."""
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """End the requests that are under way and all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def websocket(self) -> None:
        """One open websocket after the other, until cancelled."""
        while True:
            end_s = time.monotonic() + random.uniform(STREAM_MIN_S, STREAM_MAX_S)
            with contextlib.suppress(OSError, WebSocketException, TimeoutError):
                async with connect(f"ws://{self.host}/echo", host="127.0.0.1", port=self.port, proxy=None) as socket:
                    self.open["websocket"] += 1
                    try:
                        while time.monotonic() < end_s:
                            await socket.send("a")
                            await socket.recv()
                            await asyncio.sleep(ECHO_PERIOD_S)
                        continue
                    finally:
                        self.open["websocket"] -= 1
            self.cut["websocket"] += 1
            await asyncio.sleep(RECONNECT_S)

    async def events(self) -> None:
        """One open event stream after the other, until cancelled."""
        while True:
            end_s = time.monotonic() + random.uniform(STREAM_MIN_S, STREAM_MAX_S)
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(f"GET /events HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
                self.open["events"] += 1
                try:
                    while time.monotonic() < end_s and await reader.readline():
                        pass
                    if time.monotonic() >= end_s:
                        continue
                finally:
                    self.open["events"] -= 1
                    writer.close()
            self.cut["events"] += 1
            await asyncio.sleep(RECONNECT_S)


@contextlib.asynccontextmanager
async def steady_load(port: int, host: str, *, rate: float, websockets: int, streams: int) -> AsyncIterator[Load]:
    """Load for as long as the block lasts."""
    load = Load(port, host)
    tasks = [asyncio.create_task(load.requests(rate))]
    tasks += [asyncio.create_task(load.websocket()) for _ in range(websockets)]
    tasks += [asyncio.create_task(load.events()) for _ in range(streams)]
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await load.close()


def percentile_ms(observed: list[Observed], percent: float) -> float:
    """A percentile of the times of requests in milliseconds; NaN without requests."""
    times = sorted(request.took_s for request in observed)
    return times[min(len(times) - 1, math.ceil(len(times) * percent / 100))] * 1000 if times else math.nan
