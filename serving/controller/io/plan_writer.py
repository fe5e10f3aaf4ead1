"""Executes plans: writes in order, each fenced by the version behind the decision, and Events. Delays unread writes."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from serving.controller.cache import ControllerCache
from serving.controller.values.writes import Note, WorkKey, WritePlan, text_of
from serving.core.model.errors import AlreadyExists, ClusterError, Invalid, NotFound
from serving.core.model.event import MESSAGE_LENGTH_MAX, EventText, about, digest, new_event
from serving.core.model.objects import Object, uid_of, version_of
from serving.net.aio.clock import stamp
from serving.net.cluster.events import EventRecorder
from serving.net.cluster.kinds import REVISION
from serving.net.cluster.port import Cluster, Create, Delete, Patch, Write

_log = logging.getLogger(__name__)

_COMPONENT = "serving-controller"
# Notes waiting to be written: rejected settings and rollouts create a few at a time.
_NOTES_MAX = 500


class PlanWriter:
    """Writes to the cluster, and caches each response, so that the next decision need not wait for a watch event.

    ``wake`` is called with the keys that a write affects. ``on_call`` is called after each call with its duration in
    seconds, and its error if it failed.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: ControllerCache,
        *,
        wake: Callable[[set[WorkKey]], None],
        on_call: Callable[[float, ClusterError | None], None],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._wake = wake
        self._on_call = on_call
        self.writes_count = 0

    async def carry_out(self, key: WorkKey, plan: WritePlan) -> None:
        """Execute the plan's writes. Raises an error at a conflict; the decision is then repeated with newer state."""
        # The next patch of an object is fenced by the version from this plan's last write.
        versions: dict[WorkKey, str] = {}
        for write in plan.writes:
            begun_s, failure = time.perf_counter(), None
            try:
                await self._write(write, versions)
            except AlreadyExists:
                # Created before but not observed yet: the watch event enqueues this key.
                _log.debug("controller.already_exists", extra={"key": text_of(key)})
            except NotFound:
                _log.debug("controller.gone", extra={"key": text_of(key)})
            except ClusterError as error:
                failure = error
                if not isinstance(write, Create) or not isinstance(error, Invalid):
                    raise
                _log.warning("controller.refused", extra={"key": text_of(key), "error": str(error)})
                self._wake(self._cache.refuse(key, str(error)))
            finally:
                self._on_call(time.perf_counter() - begun_s, failure)

    async def _write(self, write: Write, versions: dict[WorkKey, str]) -> None:
        self.writes_count += 1
        written = await self._cluster.write(_fenced(write, versions))
        match write:
            case Create():
                self._wake(self._cache.put_written(write.kind, written))
                _log_object("controller.created", write)
            case Patch():
                key = (write.kind, write.namespace, write.name)
                versions[key] = version_of(written)
                woken = self._cache.put_written(write.kind, written)
                if write.kind is REVISION and write.subresource == "status":
                    # The status is the decision's own result; another decision would change nothing.
                    woken.discard(key)
                self._wake(woken)
            case Delete():
                _log_object("controller.deleted", write)


def _log_object(event: str, write: Write) -> None:
    _log.info(event, extra={"kind": write.kind.resource, "namespace": write.namespace, "object": write.name})


def _fenced(write: Write, versions: dict[WorkKey, str]) -> Write:
    version = versions.get((write.kind, write.namespace, write.name))
    if version is None or not isinstance(write, Patch):
        return write
    patch = {**write.patch, "metadata": {**write.patch["metadata"], "resourceVersion": version}}
    return msgspec.structs.replace(write, patch=patch)


def first_event(note: Note, *, now: str) -> Object:
    """The first Event of a note. Its name is derived from object and message.

    A long message is truncated at its beginning, because its end has the cause.
    """
    message = note.message[-MESSAGE_LENGTH_MAX:]
    words = EventText(reason=note.reason or "Changed", message=message, is_warning=note.warning)
    suffix = digest(uid_of(note.about), note.reason, note.message)
    return new_event(about(note.about), words, suffix=suffix, component=_COMPONENT, now=now)


class NoteWriter:
    """Writes Events: ``run`` writes queued notes, ``write`` writes a note immediately."""

    def __init__(self, cluster: Cluster) -> None:
        self._events = EventRecorder(cluster)
        self._queued: asyncio.Queue[Note] = asyncio.Queue(_NOTES_MAX)

    @property
    def writes_count(self) -> int:
        """The number of writes since the start."""
        return self._events.writes_count

    def enqueue(self, note: Note) -> None:
        """Queue a note that is not part of a plan."""
        try:
            self._queued.put_nowait(note)
        except asyncio.QueueFull:
            _log.warning("controller.note_dropped", extra={"reason": note.reason, "message": note.message})

    async def run(self) -> None:
        """Write queued notes until cancelled."""
        while True:
            await self.write(await self._queued.get())

    async def write(self, note: Note) -> None:
        """Create the note's Event, or increment its count."""
        await self._events.record(first_event(note, now=stamp()))


class UnreadWrites:
    """Delays writes that no daemon uses until a client reads their kinds, on a single machine.

    ``delay`` takes the place of such a write: of statuses that only repeat the scale of revisions, which are the counts
    of a revision's Deployment, and the counts and the condition Active of the revision; and of Events. The API server
    calls ``refresh`` before it reads the kinds for a client, and keeps ``watched`` open during a client's watch. At most
    ``count_max`` writes are delayed, and the oldest is dropped.
    """

    def __init__(self, count_max: float = math.inf) -> None:
        self._count_max = count_max
        self._writes: dict[WorkKey, Callable[[], Awaitable[None]]] = {}
        self._refreshing = asyncio.Lock()
        self._watch_count = 0

    def delay(self, key: WorkKey, write: Callable[[], Awaitable[None]]) -> bool:
        """Delay the write of an object until a read; return False, and delay nothing, while a client watches."""
        if self.is_watched:
            return False
        # Last, because it replaces an older write.
        self._writes.pop(key, None)
        self._writes[key] = write
        if len(self._writes) > self._count_max:
            del self._writes[next(iter(self._writes))]
        return True

    def __contains__(self, key: WorkKey) -> bool:
        """Whether the write of an object is delayed."""
        return key in self._writes

    def cancel(self, key: WorkKey) -> None:
        """Drop the delayed write of an object, because the object is written or deleted."""
        self._writes.pop(key, None)

    @property
    def is_watched(self) -> bool:
        """Whether a client watches, so that objects are written as they change."""
        return bool(self._watch_count)

    async def refresh(self, _namespace: str | None = None, _name: str = "") -> None:
        """Execute all delayed writes, oldest first, also those that another call has begun."""
        async with self._refreshing:
            while self._writes:
                write = self._writes.pop(next(iter(self._writes)))
                await write()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A context for a client's watch of the kinds."""
        self._watch_count += 1
        try:
            yield
        finally:
            self._watch_count -= 1
