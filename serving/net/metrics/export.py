"""Exports a daemon's spans and metrics by OTLP while it runs. Without an endpoint nothing is imported.

A daemon runs inside the context ``exporting``. Metrics are read from its page in its own loop, one family at a time,
and sent by a thread; requests that have ended are handed over unchanged.
"""

import asyncio
import collections
import contextlib
import importlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Generic, TypeVar

from prometheus_client.core import Metric as Family

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.otlp import OtlpSettings
from serving.net.aio.periodic import every
from serving.net.aio.supervise import supervise
from serving.net.metrics.page import MetricsPage
from serving.net.metrics.spans import Traced

_log = logging.getLogger("otlp")

Item = TypeVar("Item")

_EXTRA = "opentelemetry"
_TIMEOUT_S = 10.0
# Longest delay of a daemon's end for the last batch, in seconds, if the receiver does not respond.
_LAST_S = 2.0
# OpenTelemetry has 5 s, 2048 queued spans and 512 per batch; users look for a trace sooner. A request
# has up to four spans.
_SPAN_PERIOD_S = 1.0
_REQUESTS_MAX = 2048
_REQUESTS_BATCH = 128


class ExportOutbox(Generic[Item]):
    """Items to send; ``send`` gets up to ``batch_max`` of them, oldest first."""

    def __init__(
        self, name: str, send: Callable[[list[Item]], None], *, period_s: float, items_max: int, batch_max: int
    ) -> None:
        self.dropped_count = 0
        self._name = name
        self._send = send
        self._period_s = period_s
        self._batch_max = batch_max
        self._items: collections.deque[Item] = collections.deque(maxlen=items_max)
        self._closing = threading.Event()
        # A daemon thread: an unresponsive receiver must not delay the end of the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"ExportOutbox({self._name}, {len(self._items)} items, {self.dropped_count} dropped)"

    def add(self, item: Item) -> None:
        """Queue an item; the oldest is dropped if the queue is full."""
        if len(self._items) == self._items.maxlen:
            self.dropped_count += 1
        self._items.append(item)

    def close(self, within_s: float) -> None:
        """Send the queued items within a time limit. Blocks: call it in a thread."""
        self._closing.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._items:
            batch = [self._items.popleft() for _ in range(min(self._batch_max, len(self._items)))]
            try:
                self._send(batch)
            except Exception:  # noqa: BLE001 - the outermost frame of a batch
                _log.exception("otlp.failed", extra={"outbox": self._name, "items": len(batch)})


@contextlib.asynccontextmanager
async def exporting(
    settings: OtlpSettings, page: MetricsPage, *, service: str, instance: str = ""
) -> AsyncIterator[None]:
    """Export the page's metrics each period while the context is open, and once more at its end.

    Raises:
        SettingsError: when an endpoint is set and the extra is not installed, or the endpoint is not a URL.
    """
    if not settings.endpoint or not settings.metrics_period_s:
        yield
        return
    module = _loaded(settings.endpoint)
    sender = module.MetricSender(settings.endpoint, service=service, instance=instance, timeout_s=_TIMEOUT_S)
    # Only the latest page counts, and it is sent immediately.
    outbox: ExportOutbox[list[Family]] = ExportOutbox(
        "otlp numbers", sender.send, period_s=min(1.0, settings.metrics_period_s), items_max=1, batch_max=1
    )
    stop = asyncio.Event()

    async def read() -> None:
        outbox.add(await _families(page))

    def on_error(error: Exception) -> None:
        _log.error("numbers.unread", exc_info=error)

    try:
        async with supervise() as tasks:
            tasks.start(every(settings.metrics_period_s, read, stop=stop, on_error=on_error), name="otlp numbers")
            try:
                yield
            finally:
                stop.set()
    finally:
        await read()
        await _closed(outbox.close)


@contextlib.asynccontextmanager
async def span_outbox(
    settings: OtlpSettings, *, service: str, instance: str = ""
) -> AsyncIterator[Callable[[Traced], None] | None]:
    """Open an outbox for spans of ended requests; None if no endpoint is set.

    Raises:
        SettingsError: when an endpoint is set and the extra is not installed, or the endpoint is not a URL.
    """
    if not settings.endpoint:
        yield None
        return
    module = _loaded(settings.endpoint)
    sender = module.SpanSender(settings.endpoint, service=service, instance=instance, timeout_s=_TIMEOUT_S)
    outbox: ExportOutbox[Traced] = ExportOutbox(
        "otlp spans", sender.send, period_s=_SPAN_PERIOD_S, items_max=_REQUESTS_MAX, batch_max=_REQUESTS_BATCH
    )
    try:
        yield outbox.add
    finally:
        await _closed(outbox.close)


async def _families(page: MetricsPage) -> list[Family]:
    """All current metric families. Yields to other tasks between families."""
    families = []
    for family in page.families():
        families.append(family)
        await asyncio.sleep(0)
    return families


async def _closed(close: Callable[[float], None]) -> None:
    await asyncio.to_thread(close, _LAST_S)


def _loaded(endpoint: str) -> ModuleType:
    if not endpoint.startswith(("http://", "https://")):
        raise SettingsError(
            [
                Problem(
                    where="otlp.endpoint",
                    what=f"{endpoint!r} is not a URL",
                    expected="a URL such as http://127.0.0.1:4318",
                )
            ]
        )
    try:
        module = importlib.import_module("serving.net.metrics.otlp")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != _EXTRA:
            raise
        problem = Problem(
            where="otlp.endpoint",
            what="OpenTelemetry is not installed",
            expected="the extra: pip install 'serving[otel]'",
        )
        raise SettingsError([problem]) from error
    _log.info("otlp.sending", extra={"endpoint": endpoint})
    return module
