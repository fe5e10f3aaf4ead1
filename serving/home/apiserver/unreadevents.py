"""Delays the Events that daemons send, such as those about each change of a scale, until a client reads Events."""

import contextlib
import functools

from serving.controller.io.plan_writer import UnreadWrites
from serving.core.model.errors import AlreadyExists, ClusterError
from serving.core.model.objects import Object
from serving.home.controllers.garbage import EVENT_AGE_MAX_S, EVENT_COUNT_MAX
from serving.home.store.memory import MemoryCluster
from serving.home.store.requester import acting_manager, managed_by
from serving.net.aio.clock import now_s, stamp
from serving.net.cluster.kinds import EVENT


class UnreadEvents(UnreadWrites):
    """The Events that no client has read yet. Like stored Events, they are lost at a restart."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(EVENT_COUNT_MAX)
        self._cluster = cluster

    def record(self, event: Object, *, is_new: bool) -> Object | None:
        """Delay an Event, in place of an earlier one with its name, and return it; None if it must be written now.

        ``is_new``: its author creates it, and must get an error if the name exists.
        """
        metadata = event["metadata"]
        namespace, name = metadata.get("namespace"), metadata.get("name")
        if not name or not namespace:
            return None
        key = EVENT, namespace, name
        if is_new and (key in self or (namespace, name) in self._cluster.table(EVENT).objects):
            return None
        created = {**event, "metadata": {**metadata, "creationTimestamp": stamp()}}
        write = functools.partial(self._write, created, manager=acting_manager(), at_s=now_s())
        return created if self.delay(key, write) else None

    async def _write(self, event: Object, *, manager: str, at_s: float) -> None:
        if now_s() - at_s > EVENT_AGE_MAX_S:
            return
        # No decision depends on an Event: its namespace may be deleted.
        with managed_by(manager), contextlib.suppress(ClusterError):
            try:
                await self._cluster.restore(EVENT, event)
            except AlreadyExists:
                await self._cluster.replace(EVENT, event)
