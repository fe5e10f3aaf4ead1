"""Keeps the recent changes of each kind, and feeds watches from them.

``History`` keeps a bounded number of changes by version, so that a watch can start in the past. A ``StoreChange`` is
translated for the watch's selector: an object that starts to match is ADDED, an object that stops matching is DELETED.
The event is encoded once and shared by all watches. ``StoreLimits`` are the bounds of the store.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import msgspec

from serving.core.model.errors import ClusterError, Gone, Invalid
from serving.home.schemas.records import Stored, decoded
from serving.net.aio.cooperative import turn
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Encoded, EventType, WatchEvent
from serving.net.cluster.selectors import FieldSelector, LabelSelector


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The store's limits on objects, on the history of changes that watches replay, and on watches.

    The history has at most ``history_count_max`` changes per kind with ``history_bytes_max`` bytes. Changes older than
    ``history_age_s`` seconds are dropped, except the newest ``history_count_min``. ``watch_count_max`` limits the
    queued changes of one watch.
    """

    object_bytes_max: int = 3 * 2**19
    """Largest object as JSON, in bytes. Range 1 and more. Default: etcd's request limit, 1.5 MiB."""

    history_count_max: int = 10_000
    """Most changes of one kind kept for starting watches. At least 0. Default: a burst of 10,000 pods."""

    history_bytes_max: int = 16 * 2**20
    """Most bytes of JSON of one kind's changes kept for starting watches. At least 0. Default: 10,000 pods of 1.6 KiB.
    """

    history_age_s: float = 10.0
    """Age in seconds after which a change is dropped. Range 0 and more. Default: a list of 10,000 pods, on a machine
    under load, before its watch starts; a client that comes later lists again."""

    history_count_min: int = 100
    """The newest changes of one kind stay at any age.

    Range 0 and more. Default: that of a kube-apiserver's watch cache.
    """

    watch_count_max: int = 10_000
    """Most changes queued in one watch; one more closes it with ``Gone``. Range 1 and more."""

    def check_size(self, kind: Kind, encoded: bytes) -> None:
        """Raise ``Invalid`` if an object, as JSON, is too large."""
        if len(encoded) > self.object_bytes_max:
            raise Invalid(f"{kind.resource}: the object has {len(encoded)} bytes, {self.object_bytes_max} are allowed")


class ObjectFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects objects of a kind. ``namespace`` None means all namespaces."""

    namespace: str | None
    labels: LabelSelector
    fields: FieldSelector

    def lets_through(self, stored: Stored) -> bool:
        """Whether the filter matches an object."""
        if self.namespace is not None and stored.key[0] != self.namespace:
            return False
        # Hot: each watch checks each change of its kind, and most have no selector.
        return (not self.labels.requirements or self.labels.matches(stored.labels)) and (
            not self.fields.clauses or self.fields.matches(stored.fields)
        )


class StoreChange:
    """One write at ``at_s``. ``old`` is None for a created object; ``new`` is the last state of a removed object."""

    __slots__ = ("_left", "_shared_event", "at_s", "is_removal", "new", "old", "version")

    def __init__(self, old: Stored | None, new: Stored, *, is_removal: bool, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.old = old
        self.new = new
        self.is_removal = is_removal
        self.version = new.version
        self._left: Encoded | None = None
        # A weak reference: the decoded object is released with its last reader, before the history drops the change.
        self._shared_event: weakref.ref[Encoded] | None = None

    def __repr__(self) -> str:
        what = "removed" if self.is_removal else "created" if self.old is None else "changed"
        return f"StoreChange({'/'.join(self.new.key)} {what}@{self.version})"

    def seen_by(self, wanted: ObjectFilter) -> tuple[EventType, Encoded] | None:
        """The event for a watch with a filter; None if the watch does not see the change."""
        before = self.old is not None and wanted.lets_through(self.old)
        after = not self.is_removal and wanted.lets_through(self.new)
        if after:
            return (EventType.MODIFIED if before else EventType.ADDED), self._new()
        if not before:
            return None
        return EventType.DELETED, self._new() if self.is_removal else self._last_seen()

    def _new(self) -> Encoded:
        event = None if self._shared_event is None else self._shared_event()
        if event is None:
            event = Encoded(self.new.encoded)
            self._shared_event = weakref.ref(event)
        return event

    def _last_seen(self) -> Encoded:
        """The state before this change, with the version of this change, as JSON.

        A watch gets it as DELETED when an object no longer matches its filter.
        """
        if self._left is None:
            assert self.old is not None
            whole = decoded(self.old.encoded)
            whole["metadata"]["resourceVersion"] = str(self.version)
            self._left = Encoded(msgspec.json.encode(whole))
        return self._left


class History:
    """The changes of one kind after version ``floor``. Older changes are dropped."""

    def __init__(self, limits: StoreLimits, *, floor: int) -> None:
        self.floor = floor
        self._limits = limits
        self._changes: deque[StoreChange] = deque()
        self._bytes = 0

    def add(self, change: StoreChange) -> None:
        """Add a change, and drop the oldest changes beyond the limits."""
        self._changes.append(change)
        self._bytes += len(change.new.encoded)
        while self._changes and self._is_beyond(change.at_s):
            oldest = self._changes.popleft()
            self._bytes -= len(oldest.new.encoded)
            self.floor = oldest.version

    def _is_beyond(self, now_s: float) -> bool:
        """Whether the oldest change must be dropped."""
        limits, count = self._limits, len(self._changes)
        if count > limits.history_count_max or self._bytes > limits.history_bytes_max:
            return True
        return count > limits.history_count_min and now_s - self._changes[0].at_s > limits.history_age_s

    def after(self, version: int) -> Iterator[StoreChange]:
        """Yield the changes after a version, oldest first. Raises ``Gone`` if some of them were dropped."""
        if version < self.floor:
            raise Gone(f"too old resource version: {version} ({self.floor})")
        changes: list[StoreChange] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            changes.append(change)
        return reversed(changes)


Begin = Callable[["Watch"], Iterable[StoreChange]]
"""Registers a watch and returns its initial changes. Raises ``Gone``."""


class Watch:
    """A watch, as context manager and iterator. Entering it starts the watch, leaving it ends the watch."""

    def __init__(self, wanted: ObjectFilter, *, count_max: int, begin: Begin, end: Callable[["Watch"], None]) -> None:
        self.wanted = wanted
        self._count_max = count_max
        self._begin = begin
        self._end = end
        self._ready: deque[tuple[EventType, Encoded]] = deque()
        self._replayed: Iterator[StoreChange] = iter(())
        self._is_replayed = False
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
                return WatchEvent(type=seen[0], payload=seen[1])
            await turn()
        self._is_replayed = True
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
        kind, payload = self._ready.popleft()
        return WatchEvent(type=kind, payload=payload)

    def pop_queued(self, count_max: int) -> list[WatchEvent]:
        """Remove and return up to ``count_max`` queued changes, without waiting. Replayed changes need ``anext``."""
        count = min(count_max, len(self._ready)) if self._is_replayed else 0
        queued = (self._ready.popleft() for _ in range(count))
        return [WatchEvent(type=kind, payload=payload) for kind, payload in queued]

    def offer(self, change: StoreChange) -> None:
        """Queue a change that matches the watch; if the queue is full, end the watch with ``Gone``."""
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
        """End the watch. Its reader still gets the queued changes, then the error, if any."""
        if not self._is_closed:
            self._is_closed = True
            self._failure = failure
            self._end(self)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
