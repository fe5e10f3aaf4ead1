"""A bounded buffer that a thread of its own sends away, so that the producer never waits.

``add`` takes a microsecond and never blocks: when the buffer is full, the oldest entry is dropped and counted. The thread
takes all entries once a period and passes them to ``send``, which may block and may fail.
"""

import collections
import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_log = logging.getLogger("otlp")

Item = TypeVar("Item")


class ExportOutbox(Generic[Item]):
    """Items on their way out; ``send`` gets some of them, oldest first, ``batch_max`` at most."""

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
        # It dies with the process: a receiver that does not answer must not delay a daemon that stops.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"ExportOutbox({self._name}, {len(self._items)} items, {self.dropped_count} dropped)"

    def add(self, item: Item) -> None:
        """Send something, soon; the oldest goes unsent if there is no place."""
        if len(self._items) == self._items.maxlen:
            self.dropped_count += 1
        self._items.append(item)

    def close(self, within_s: float) -> None:
        """Send what is there, for so long at most. Blocks: call it in a thread."""
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
