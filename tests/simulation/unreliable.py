"""A store with the faults of a real one: calls fail, responses get lost, events are late, repeated or missing.

``UnreliableCluster`` stands between one daemon and the store. Each fault is drawn from the dice that it is given, so
that a seed makes the same run again. It stays within the port's contract: events of one watch keep their order, a watch
may end, and a call that raised may have been carried out.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec

from serving.core.model.errors import Gone, Unavailable
from serving.core.model.objects import Object
from serving.net.aio.clock import now_s
from serving.net.cluster.fenced import last_check
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster, EventType, Listing, Selection, Subresource, WatchEvent, Write

_LATENCY_MAX_S = 0.02
_CALL_MAX_S = 10.0
_EVEN = 0.5


class Faults(msgspec.Struct, kw_only=True):
    """The present faults, as probabilities from 0 to 1; all 0 is a working store. They change during a run."""

    refused: float = 0.0
    """A call fails and nothing was done."""
    response_lost: float = 0.0
    """A call fails though it was done."""
    slow: float = 0.0
    """A call, or the next event of a watch, takes up to ``slow_max_s``."""
    repeated: float = 0.0
    """An event comes twice."""
    watch_ended: float = 0.0
    """A watch ends after an event, or says that its version is gone."""
    slow_max_s: float = 3.0
    partitioned_until_s: float = 0.0
    """Until then no call is answered, and watches are silent and then end."""


class UnreliableCluster(Cluster):
    """The port to ``cluster`` with ``faults``; ``write_count`` counts writes, including those with a lost response."""

    def __init__(self, cluster: Cluster, faults: Faults, dice: random.Random, *, is_beside_store: bool = False) -> None:
        # A client in the process of the store never loses it.
        self._is_beside_store = is_beside_store
        self._cluster = cluster
        self._faults = faults
        self._dice = dice
        self.write_count = 0

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        await self._reached()
        return await self._cluster.get(kind, namespace, name, subresource=subresource)

    async def list_selection(self, selection: Selection, *, page_size: int = 0, page: str = "") -> Listing:
        await self._reached()
        return await self._cluster.list_selection(selection, page_size=page_size, page=page)

    @contextlib.asynccontextmanager
    async def watch_selection(
        self, selection: Selection, resource_version: str
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        await self._pause()
        async with self._cluster.watch_selection(selection, resource_version) as events:
            yield self._events(events)

    async def write(self, write: Write) -> Object:
        await self._reached()
        response = await self._cluster.write(write)
        self.write_count += 1
        if self._dice.random() < self._faults.response_lost:
            await self._pause()
            raise Unavailable("the answer was lost")
        return response

    async def _reached(self) -> None:
        await self._pause()
        if self._is_away():
            await asyncio.sleep(min(self._faults.partitioned_until_s - now_s(), _CALL_MAX_S))
            raise Unavailable("no answer in time")
        if self._dice.random() < self._faults.refused:
            raise Unavailable("refused")
        # As the kube adapter does it, right before the bytes leave.
        last_check()

    def _is_away(self) -> bool:
        return now_s() < self._faults.partitioned_until_s and not self._is_beside_store

    async def _pause(self) -> None:
        is_slow = self._dice.random() < self._faults.slow
        await asyncio.sleep(self._dice.random() * (self._faults.slow_max_s if is_slow else _LATENCY_MAX_S))

    async def _events(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
        async for event in events:
            await self._pause()
            if self._is_away():
                await asyncio.sleep(self._faults.partitioned_until_s - now_s())
                raise Unavailable("the connection is gone")
            yield event
            if event.type is not EventType.BOOKMARK and self._dice.random() < self._faults.repeated:
                yield event
            if self._dice.random() < self._faults.watch_ended:
                if self._dice.random() < _EVEN:
                    raise Gone("too old")
                return
