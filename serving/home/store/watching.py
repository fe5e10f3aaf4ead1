"""One watch of the memory store: a bounded queue of changes for its reader.

A reader that falls behind gets ``Gone`` and lists again; it never delays a writer or another reader. Cancelling a read loses
nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from serving.aio.cooperative import turn
from serving.cluster.port import Encoded, EventType, WatchEvent
from serving.home.store.history import ObjectFilter, StoreChange
from serving.model.errors import ClusterError, Gone

Begin = Callable[["Watch"], Iterable[StoreChange]]
"""Registers a watch and returns the changes that it starts with. Raises ``Gone``."""


class Watch:
    """A context manager and an iterator: enter it to start, leave it to end."""

    def __init__(self, wanted: ObjectFilter, *, count_max: int, begin: Begin, end: Callable[["Watch"], None]) -> None:
        self.wanted = wanted
        self._count_max = count_max
        self._begin = begin
        self._end = end
        self._ready: deque[tuple[EventType, Encoded]] = deque()
        self._replayed: Iterator[StoreChange] = iter(())
        self._failure: ClusterError | None = None
        self._is_closed = False
        self._reader: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"Watch({state}, {len(self._ready)} waiting)"

    async def __aenter__(self) -> Self:
        # Replayed changes do not count against the limit: they are a snapshot, or come from the bounded history.
        self._replayed = iter(self._begin(self))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        for change in self._replayed:
            seen = change.seen_by(self.wanted)
            if seen is not None:
                return WatchEvent(type=seen[0], told=seen[1])
            await turn()
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        kind, told = self._ready.popleft()
        return WatchEvent(type=kind, told=told)

    def offer(self, change: StoreChange) -> None:
        """Queue a change that matches; close with ``Gone`` if the queue is full."""
        seen = change.seen_by(self.wanted)
        if seen is None:
            return
        if len(self._ready) >= self._count_max:
            self._replayed = iter(())
            self._ready.clear()
            self.close(Gone(f"the watch fell behind by {self._count_max} changes; list again"))
            return
        self._ready.append(seen)
        self._wake()

    def close(self, failure: ClusterError | None = None) -> None:
        """End the watch; its reader still gets the queued changes, then the error if there is one."""
        if not self._is_closed:
            self._is_closed = True
            self._failure = failure
            self._end(self)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
