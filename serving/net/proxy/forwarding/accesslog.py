"""Writes logs with one JSON line per request from an executor's thread; the access log is one of them.

The loop stores each finished request as a record. An executor's thread formats and writes the lines in batches, so that
a slow reader of the log never delays a request. Records beyond the queue's bound are dropped and counted, and the next
line reports their number.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from serving.core.settings.http import HttpSettings
from serving.net.aio.clock import wall_s
from serving.net.proxy.forwarding.exchange import Exchange

R = TypeVar("R")

# Most queued records: about 4 MB, a third of a second at 30,000 requests a second.
_WAITING_MAX = 10_000
_PAUSE_S = 0.2


class AccessLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the access log: the client, its request, the outcome and the duration.

    Durations are in seconds; ``at_s`` is wall-clock time. ``dropped_count`` is the number of lines dropped just before.
    """

    at_s: float
    listener: str
    client: str
    method: str
    host: str
    target: str
    status: int
    outcome: str
    duration_s: float
    upstream: str = ""
    agent: str = ""
    trace: str = ""
    dropped_count: int = 0


class ExchangeLog(ABC, Generic[R]):
    """Logs a line per exchange. ``write`` is called in a thread with complete lines."""

    def __init__(self, *, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._waiting: list[R] = []
        self._writing: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self.dropped_count = 0

    @abstractmethod
    def _entry(self, exchange: Exchange, *, now_s: float) -> R | None:
        """The values of a line, read when the exchange has ended; None if the exchange is not logged."""

    @abstractmethod
    def _line(self, record: R) -> bytes:
        """Format a line, in a thread; return "" to omit the line."""

    def record(self, exchange: Exchange, *, now_s: float) -> None:
        """Log a finished request."""
        if len(self._waiting) >= _WAITING_MAX:
            self.dropped_count += 1
            return
        entry = self._entry(exchange, now_s=now_s)
        if entry is None:
            return
        self._waiting.append(entry)
        if self._soon is None and self._writing is None:
            self._soon = asyncio.get_running_loop().call_later(_PAUSE_S, self._begin)

    async def close(self) -> None:
        """Write the pending lines."""
        if self._writing is not None:
            await self._writing
        if self._soon is not None:
            self._soon.cancel()
        if self._waiting:
            self._begin()
            assert self._writing is not None
            await self._writing

    def _begin(self) -> None:
        self._soon = None
        records, self._waiting = self._waiting, []
        writing = asyncio.get_running_loop().run_in_executor(None, self._write_all, records)
        self._writing = writing
        writing.add_done_callback(self._ended)

    def _write_all(self, records: list[R]) -> None:
        self._write(b"".join(map(self._line, records)))

    def _ended(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if not writing.cancelled() and writing.exception() is not None:
            # A log that cannot be written fails no request; the next successful line counts the missing ones.
            self.dropped_count += 1
        if self._waiting and self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_PAUSE_S, self._begin)


class AccessLog(ExchangeLog[AccessLogEntry]):
    """Logs every ``1 / ratio``-th request."""

    def __init__(self, *, ratio: float, write: Callable[[bytes], object], wall: Callable[[], float]) -> None:
        assert 0 < ratio <= 1, ratio
        super().__init__(write=write)
        self._ratio = ratio
        self._wall = wall
        self._share = 0.0
        self._reported_dropped_count = 0

    def record(self, exchange: Exchange, *, now_s: float) -> None:
        """Log a finished request, if it is sampled."""
        self._share += self._ratio
        if self._share < 1:
            return
        self._share -= 1
        super().record(exchange, now_s=now_s)

    def _entry(self, exchange: Exchange, *, now_s: float) -> AccessLogEntry:
        head = exchange.head
        dropped_count = self.dropped_count - self._reported_dropped_count
        self._reported_dropped_count = self.dropped_count
        return AccessLogEntry(
            at_s=round(self._wall(), 3),
            listener=exchange.listener,
            client=exchange.peer.address.decode("latin-1"),
            method=head.method.decode("latin-1"),
            host=head.host.decode("latin-1"),
            target=head.target.decode("latin-1"),
            status=exchange.response.status,
            outcome=exchange.outcome.value if exchange.outcome is not None else "",
            duration_s=round(now_s - exchange.started_s, 6),
            upstream=exchange.upstream_text,
            agent=(head.get(b"user-agent") or b"").decode("latin-1"),
            trace=(head.get(b"traceparent") or b"").decode("latin-1"),
            dropped_count=dropped_count,
        )

    def _line(self, record: AccessLogEntry) -> bytes:
        return msgspec.json.encode(record) + b"\n"


def stdout_log(settings: HttpSettings) -> AccessLog | None:
    """Create the configured log on standard output; None if it is off."""
    if not settings.access_log_ratio:
        return None
    return AccessLog(ratio=settings.access_log_ratio, write=write_to_stdout, wall=wall_s)


def write_to_stdout(data: bytes) -> None:
    """Write all bytes, blocking the calling thread if needed."""
    while data:
        data = data[os.write(1, data) :]
