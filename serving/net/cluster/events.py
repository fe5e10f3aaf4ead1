"""Writes Events through the cluster port; an Event with a repeated name is counted or kept unchanged.

The author of an Event derives its name from the text, so that equal texts have the same name (``core/model/event.py``).
"""

import contextlib
import logging
from collections import OrderedDict

from serving.core.model.errors import AlreadyExists, ClusterError, NotFound
from serving.core.model.event import EventText, about, new_event, repeated
from serving.core.model.objects import Key, Object, key_of
from serving.net.aio.clock import stamp
from serving.net.cluster.kinds import EVENT
from serving.net.cluster.port import Cluster

_log = logging.getLogger(__name__)

# Most Events whose count is known without a read.
_KNOWN_MAX = 1024


async def write_once(cluster: Cluster, event: Object) -> None:
    """Create the Event unless an Event with its name exists. A failure is logged."""
    try:
        await cluster.create(EVENT, event)
    except AlreadyExists:
        return
    except ClusterError as error:
        _log_failure(event, error)


async def announce(cluster: Cluster, resource: Object, words: EventText, *, suffix: str, component: str) -> None:
    """Write an Event about an object, unless an Event with this name exists.

    ``suffix`` is part of the name, so it must differ for each text.
    """
    event = new_event(about(resource), words, suffix=suffix, component=component, now=stamp(), instance=component)
    await write_once(cluster, event)


class EventRecorder:
    """Writes the Events of one author. A failed write is logged: no decision depends on an Event."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: OrderedDict[Key, Object] = OrderedDict()
        self.writes_count = 0

    async def record(self, event: Object) -> None:
        """Create the Event, or increment the count of the Event with the same name."""
        key = key_of(event)
        try:
            try:
                await self._write(key, event)
            except NotFound:
                # The Event has expired.
                self._known.pop(key, None)
                await self._write(key, event)
        except ClusterError as error:
            self._known.pop(key, None)
            _log_failure(event, error)

    async def _write(self, key: Key, event: Object) -> None:
        before = self._known.get(key)
        self.writes_count += 1
        if before is None:
            with contextlib.suppress(AlreadyExists):
                self._remember(key, await self._cluster.create(EVENT, event))
                return
            before = await self._cluster.get(EVENT, *key)
            self.writes_count += 1
        self._remember(key, await self._cluster.patch(EVENT, *key, patch=repeated(before, now=event["lastTimestamp"])))

    def _remember(self, key: Key, event: Object) -> None:
        self._known[key] = event
        self._known.move_to_end(key)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)


def _log_failure(event: Object, error: ClusterError) -> None:
    name = event["metadata"]["name"]
    fields = {"event": name, "reason": event["reason"], "message_": event["message"], "error": str(error)}
    _log.warning("event.unwritten", extra=fields)
