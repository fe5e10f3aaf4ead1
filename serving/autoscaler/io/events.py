"""Writes changes of scale as Events, off the path of decisions."""

import asyncio
import logging

from serving.aio.clock import now_s, stamp
from serving.autoscaler.changes import EventBudget, scale_event
from serving.autoscaler.io.sharing import Sharing
from serving.cluster.kinds import EVENT
from serving.cluster.port import Cluster
from serving.model.errors import AlreadyExists, ClusterError
from serving.scaling.revision import Group, ScaledRevision, group_of

_log = logging.getLogger("autoscaler")

# Events that wait to be written; more than that are changes of hundreds of revisions in a second.
_EVENTS_WAITING_MAX = 500
# Requests wait for the change itself, and for the first pod that it makes: those are written meanwhile.
_LAG_S = 0.1


class ScaleEventWriter:
    """Writes changes of scale as Events, one after the other, off the path of decisions. ``run`` it."""

    def __init__(self, cluster: Cluster, sharing: Sharing | None = None) -> None:
        self.left_out_count = 0
        self._cluster = cluster
        self._sharing = sharing or Sharing()
        self._budget = EventBudget()
        self._waiting: asyncio.Queue[tuple[float, Group, dict[str, object]]] = asyncio.Queue(_EVENTS_WAITING_MAX)

    def __repr__(self) -> str:
        return f"ScaleEventWriter({self._budget})"

    def add(self, revision: ScaledRevision, sentence: str) -> None:
        """A change; left out when its revision, or all together, say too much."""
        leave = self._budget.take(revision.uid, now_s())
        if leave is None or self._waiting.full():
            self.left_out_count += 1
            return
        event = scale_event(revision, sentence, leave=leave, now=stamp())
        self._waiting.put_nowait((now_s() + _LAG_S, group_of(revision.key, revision), event))

    def forget(self, revision: ScaledRevision) -> None:
        """A revision is gone, and with it what it may still say."""
        self._budget.forget(revision.uid)

    async def run(self) -> None:
        """Write until cancelled. An Event that cannot be written is no reason for anything."""
        while True:
            due_s, group, event = await self._waiting.get()
            await asyncio.sleep(max(0.0, due_s - now_s()))
            try:
                with self._sharing.writing(group):
                    try:
                        await self._cluster.create(EVENT, event)
                    except AlreadyExists:
                        await self._cluster.replace(EVENT, event)
            except ClusterError as error:
                self.left_out_count += 1
                _log.debug("event.unwritten", extra={"error": str(error)})
