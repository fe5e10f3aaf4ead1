"""One who wants one lease: what ``election`` remembers, and the calls that it asks for.

Each call has less time than a holder believes, so that a server that hangs costs the lease and no more. ``check`` is for
whoever writes on the lease's strength (``fenced``): it asks the clock and no task, which in a process that was frozen has
not had its turn yet. Who runs it, and when, is somebody else's matter: ``leader`` for one lease, ``shards`` for several.
"""

import asyncio
import logging
from collections.abc import Callable

from serving.aio.clock import steady_s, wall_s
from serving.cluster.election import (
    Election,
    LeaseRecord,
    LeaseStep,
    LeaseTimes,
    decide,
    free_at_s,
    held_until_s,
    lost,
    seen,
    tried,
    written,
)
from serving.cluster.lease import LeaseClient, acquired_record, released_record, renewed_record
from serving.cluster.port import Object
from serving.model.errors import AlreadyExists, ClusterError, Conflict, NotLeading

__all__ = ["LeaseElector"]

_log = logging.getLogger(__name__)
# Part of the deadline that one call may take: a second one still fits in.
_CALL_RATIO = 0.4


class LeaseElector:
    """``me`` must differ between any two processes, also between two of one pod."""

    def __init__(
        self,
        client: LeaseClient,
        me: str,
        *,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self.me = me
        self.clock = clock
        self._client = client
        self._times = times or LeaseTimes()
        self._election = Election()

    def __repr__(self) -> str:
        return f"LeaseElector({self._client.name}, {self.me}, {'holds' if self.is_held else 'does not hold'} it)"

    @property
    def is_held(self) -> bool:
        """Whether the lease is ours at this moment."""
        return self.clock() < held_until_s(self._election, self.me, self._times)

    @property
    def holder(self) -> str:
        """Who holds the lease, as seen last; "" for nobody, and where there is no lease."""
        return "" if self._election.record is None else self._election.record.holder

    @property
    def present_holder(self) -> str:
        """Who holds the lease and has shown signs of life; "" if it may be taken."""
        now_s = self.clock()
        if self.is_held:
            return self.me
        return "" if free_at_s(self._election, self.me, self._times) <= now_s else self.holder

    def check(self) -> None:
        """Nothing while the lease is ours. Raises ``NotLeading``."""
        if not self.is_held:
            raise NotLeading(str(self._client.name))

    def decide(self) -> LeaseStep:
        """What to do now."""
        return decide(self._election, self.me, self._times, now_s=self.clock())

    def take(self, body: Object | None) -> None:
        """The lease as a watch has brought it; None if it is gone."""
        if body is not None and self._client.is_old(body):
            return
        self._election = seen(self._election, self._client.take(body), now_s=self.clock())

    async def look(self) -> None:
        """Read the lease. What cannot be read is as it was."""
        try:
            async with asyncio.timeout(self._call_s()):
                record = await self._client.read()
        except (ClusterError, TimeoutError) as error:
            _log.debug("lease.unread", extra={"lease": str(self._client.name), "error": str(error)})
        else:
            self._election = seen(self._election, record, now_s=self.clock())

    async def acquire(self) -> bool:
        """Take the lease; whether it is ours now."""
        before = self._election.record
        if not await self._write(acquired_record(before, self.me, self._times, wall_s=wall_s())):
            return False
        _log.info("lease.acquired", extra={"lease": str(self._client.name), "holder": self.me})
        return self.is_held

    async def renew(self) -> None:
        """Say that we are there; if that fails, look who is."""
        assert self._election.record is not None, "whoever leads has written a record"
        if not await self._write(renewed_record(self._election.record, wall_s=wall_s())):
            # Whether somebody has it, or our own write came through and its answer did not.
            await self.look()

    def step_down(self) -> None:
        """The lease is lost, or left to run out: nothing is done on its strength from now on."""
        if not self.is_held:
            _log.warning("lease.lost", extra={"lease": str(self._client.name), "holder": self.holder})
        self._election = lost(self._election)

    async def release(self) -> None:
        """Let go of what is ours, or was until now. If that fails the next one waits."""
        record, was_ours = self._election.record, self.holder == self.me
        self._election = lost(self._election)
        if record is None or not was_ours:
            return
        free = released_record(record, wall_s=wall_s())
        try:
            async with asyncio.timeout(self._call_s()):
                await self._client.write(free)
        except (ClusterError, TimeoutError) as error:
            _log.warning("lease.unreleased", extra={"lease": str(self._client.name), "error": str(error)})
        else:
            self._election = seen(self._election, free, now_s=self.clock())
            _log.info("lease.released", extra={"lease": str(self._client.name)})

    async def _write(self, record: LeaseRecord) -> bool:
        """Write the lease; whether that is known to have been done."""
        sent_s = self.clock()
        self._election = tried(self._election, now_s=sent_s)
        try:
            async with asyncio.timeout(self._call_s()):
                done = await self._client.write(record)
        except (AlreadyExists, Conflict):
            return False
        except (ClusterError, TimeoutError) as error:
            _log.warning("lease.unwritten", extra={"lease": str(self._client.name), "error": str(error)})
            return False
        self._election = written(self._election, done, sent_s=sent_s)
        return True

    def _call_s(self) -> float:
        return self._times.renew_deadline_s * _CALL_RATIO
