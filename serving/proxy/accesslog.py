"""The access log: one JSON object a line for each sampled request, written in an executor's thread.

What ends is noted in the loop as a record; lines are made and written in an executor's thread, one batch at a time, so
that a slow reader of the log never stops a request. What does not fit into the memory for waiting records is dropped and
counted, and the next line that is written says how many were.
"""

import asyncio
import os
from collections.abc import Callable

import msgspec

from serving.aio.clock import wall_s
from serving.proxy.exchange import Exchange
from serving.settings.http import HttpSettings

__all__ = ["AccessLog", "AccessLogEntry", "stdout_log"]

# At most some 4 MB of records, a third of a second at 30,000 requests a second.
_WAITING_MAX = 10_000
_PAUSE_S = 0.2


class AccessLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line: the client, its request, the outcome and the duration.

    Times are in seconds, ``at_s`` by the clock on the wall. ``dropped_count`` are the lines before this one that were
    dropped.
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


class AccessLog:
    """Takes every ``1 / ratio``-th request. ``write`` is called in a thread, with whole lines."""

    def __init__(self, *, ratio: float, write: Callable[[bytes], object], wall: Callable[[], float]) -> None:
        assert 0 < ratio <= 1, ratio
        self._ratio = ratio
        self._write = write
        self._wall = wall
        self._share = 0.0
        self._waiting: list[AccessLogEntry] = []
        self._writing: asyncio.Future[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self.dropped_count = 0
        self._reported_dropped_count = 0

    def __repr__(self) -> str:
        return f"AccessLog(ratio {self._ratio:g}, waiting {len(self._waiting)}, dropped {self.dropped_count})"

    def note(self, exchange: Exchange, *, now_s: float) -> None:
        """A request has ended."""
        self._share += self._ratio
        if self._share < 1:
            return
        self._share -= 1
        if len(self._waiting) >= _WAITING_MAX:
            self.dropped_count += 1
            return
        self._waiting.append(self._entry(exchange, now_s=now_s))
        if self._soon is None and self._writing is None:
            self._soon = asyncio.get_running_loop().call_later(_PAUSE_S, self._begin)

    async def close(self) -> None:
        """Write the waiting lines."""
        if self._writing is not None:
            await self._writing
        if self._soon is not None:
            self._soon.cancel()
        if self._waiting:
            self._begin()
            assert self._writing is not None
            await self._writing

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
            status=exchange.status,
            outcome=exchange.outcome.value if exchange.outcome is not None else "",
            duration_s=round(now_s - exchange.started_s, 6),
            upstream=exchange.upstream_text,
            agent=(head.get(b"user-agent") or b"").decode("latin-1"),
            trace=(head.get(b"traceparent") or b"").decode("latin-1"),
            dropped_count=dropped_count,
        )

    def _begin(self) -> None:
        self._soon = None
        entries, self._waiting = self._waiting, []
        writing = asyncio.get_running_loop().run_in_executor(None, self._write_all, entries)
        self._writing = writing
        writing.add_done_callback(self._ended)

    def _write_all(self, entries: list[AccessLogEntry]) -> None:
        self._write(b"".join([msgspec.json.encode(entry) + b"\n" for entry in entries]))

    def _ended(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if not writing.cancelled() and writing.exception() is not None:
            # A log that cannot be written fails no request; the next line that can be counts what is missing.
            self.dropped_count += 1
        if self._waiting and self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(_PAUSE_S, self._begin)


def stdout_log(settings: HttpSettings) -> AccessLog | None:
    """The log that settings ask for, on standard output; None if they ask for none."""
    if not settings.access_log_ratio:
        return None
    return AccessLog(ratio=settings.access_log_ratio, write=_to_stdout, wall=wall_s)


def _to_stdout(data: bytes) -> None:
    """Write all, in a thread that may wait."""
    while data:
        data = data[os.write(1, data) :]
