"""Writes notes as Events of the API: a new Event, or one more count of an Event that exists."""

import asyncio
import contextlib
import logging
from collections import OrderedDict

from serving.aio.clock import stamp
from serving.cluster.kinds import EVENT
from serving.cluster.port import Cluster
from serving.controller.values.writes import Note
from serving.model.errors import AlreadyExists, ClusterError, NotFound
from serving.model.event import MESSAGE_LENGTH_MAX, EventText, about, digest, name_within, new_event, repeated
from serving.model.objects import Object, name_of, namespace_of, uid_of

_COMPONENT = "serving-controller"


def event_name(note: Note) -> str:
    """The object's name and a digest of the object and the message."""
    return name_within(name_of(note.about), _digest(note))


def note_event(note: Note, *, now: str) -> Object:
    """The first Event of a note. A long message keeps its end, which has the cause."""
    message = note.message[-MESSAGE_LENGTH_MAX:]
    words = EventText(reason=note.reason or "Changed", message=message, is_warning=note.warning)
    return new_event(about(note.about), words, suffix=_digest(note), component=_COMPONENT, now=now)


def _digest(note: Note) -> str:
    return digest(uid_of(note.about), note.reason, note.message)


_log = logging.getLogger(__name__)

# Events whose count is known without a read.
_EVENTS_KNOWN_MAX = 256


class NoteWriter:
    """``run`` writes queued notes; ``write`` writes one at once. A failed write is logged: no decision depends on an Event."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queued: asyncio.Queue[Note] = asyncio.Queue()
        self._known: OrderedDict[tuple[str, str], Object] = OrderedDict()
        self.writes_count = 0

    def enqueue(self, note: Note) -> None:
        """Write a note that belongs to no plan."""
        self._queued.put_nowait(note)

    async def run(self) -> None:
        """Write queued notes until cancelled."""
        while True:
            await self.write(await self._queued.get())

    async def write(self, note: Note) -> None:
        """Create the note's Event, or increase its count."""
        namespace, name = namespace_of(note.about), event_name(note)
        try:
            try:
                await self._write(note, namespace, name)
            except NotFound:
                # It has expired.
                self._known.pop((namespace, name), None)
                await self._write(note, namespace, name)
        except ClusterError as error:
            self._known.pop((namespace, name), None)
            extra = {"reason": note.reason, "message_": note.message, "error": str(error)}
            _log.warning("controller.event_failed", extra=extra)

    async def _write(self, note: Note, namespace: str, name: str) -> None:
        now = stamp()
        before = self._known.get((namespace, name))
        if before is None:
            with contextlib.suppress(AlreadyExists):
                self.writes_count += 1
                self._remember(await self._cluster.create(EVENT, note_event(note, now=now)))
                return
            before = await self._cluster.get(EVENT, namespace, name)
        self.writes_count += 1
        patch = repeated(before, now=now)
        self._remember(await self._cluster.patch(EVENT, namespace, name, patch=patch))

    def _remember(self, event: Object) -> None:
        self._known[namespace_of(event), name_of(event)] = event
        while len(self._known) > _EVENTS_KNOWN_MAX:
            self._known.popitem(last=False)
