"""Competes for one lease: keeps the state of ``election``, and makes its API calls.

Each call has a shorter timeout than the renew deadline, so an API server that does not respond costs only the lease.
``check`` is for writes that depend on the lease (``fenced``). It reads the clock, so it is correct even in a process
that was frozen and whose tasks have not run yet. ``leader`` runs an elector for one lease, ``shards`` for several.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from serving.core.model.errors import AlreadyExists, ClusterError, Conflict, NotLeading
from serving.core.model.objects import Object
from serving.net.aio.clock import steady_s, wall_s
from serving.net.aio.supervise import TaskOwner
from serving.net.cluster.leases.lease import LeaseClient, acquired_record, released_record, renewed_record
from serving.net.cluster.leases.rules import (
    Election,
    LeaseAction,
    LeaseRecord,
    LeaseStep,
    LeaseTimes,
    decide,
    free_at_s,
    lease_end_s,
    lost,
    seen,
    tried,
    written,
)

_log = logging.getLogger(__name__)
# Share of the renew deadline for one call, so that a second call still fits.
_CALL_RATIO = 0.4


class LeaseElector:
    """One competitor for a lease. ``me`` must be unique among all processes, including those in one pod."""

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
        """Whether this process holds the lease now."""
        return self.clock() < lease_end_s(self._election, self.me, self._times)

    @property
    def holder(self) -> str:
        """The last observed holder; "" if the lease is free or missing."""
        return "" if self._election.record is None else self._election.record.holder

    @property
    def present_holder(self) -> str:
        """The holder of an unexpired lease; "" if the lease may be acquired."""
        now_s = self.clock()
        if self.is_held:
            return self.me
        return "" if free_at_s(self._election, self.me, self._times) <= now_s else self.holder

    def check(self) -> None:
        """Raise ``NotLeading`` unless this process holds the lease."""
        if not self.is_held:
            raise NotLeading(str(self._client.name))

    def decide(self) -> LeaseStep:
        """The next step of the election."""
        return decide(self._election, self.me, self._times, now_s=self.clock())

    def update(self, body: Object | None) -> None:
        """Apply a lease from a watch; None if it was deleted."""
        if body is not None and self._client.is_old(body):
            return
        self._election = seen(self._election, self._client.update(body), now_s=self.clock())

    async def observe(self) -> None:
        """Read the lease. If that fails, the last observation remains valid."""
        try:
            async with asyncio.timeout(self._call_s()):
                record = await self._client.read()
        except (ClusterError, TimeoutError) as error:
            _log.debug("lease.unread", extra={"lease": str(self._client.name), "error": str(error)})
        else:
            self._election = seen(self._election, record, now_s=self.clock())

    async def acquire(self) -> bool:
        """Try to acquire the lease; return whether it succeeded."""
        before = self._election.record
        if not await self._write(acquired_record(before, self.me, self._times, wall_s=wall_s())):
            return False
        _log.info("lease.acquired", extra={"lease": str(self._client.name), "holder": self.me})
        return self.is_held

    async def renew(self) -> None:
        """Renew the lease. If that fails, read its current holder."""
        assert self._election.record is not None, "a leader has written a record"
        if not await self._write(renewed_record(self._election.record, wall_s=wall_s())):
            # Another process may hold it, or the write succeeded and its response was lost.
            await self.observe()

    def step_down(self) -> None:
        """Stop acting as the holder, because the lease is lost or expires."""
        if not self.is_held:
            _log.warning("lease.lost", extra={"lease": str(self._client.name), "holder": self.holder})
        self._election = lost(self._election)

    async def release(self) -> None:
        """Release the lease if this process held it last. If that fails, the next holder waits for its expiry."""
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
        """Write the lease; return whether the server confirmed it."""
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


class Leader:
    """Runs work that requires a lease. ``me`` must be unique to this process."""

    def __init__(
        self,
        client: LeaseClient,
        me: str,
        *,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        self._name = str(client.name)
        self._candidate = LeaseElector(client, me, times=times, clock=clock)

    @property
    def is_leading(self) -> bool:
        """Whether this process holds the lease now."""
        return self._candidate.is_held

    def check(self) -> None:
        """Raise ``NotLeading`` unless this process holds the lease."""
        self._candidate.check()

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], stop: asyncio.Event) -> None:
        """Run the work whenever this process holds the lease, until the work returns or ``stop`` is set.

        The work watches ``stop`` itself; it is cancelled only when the lease is lost or this call is cancelled. Its
        exceptions propagate.
        """
        try:
            while await self._acquire(stop):
                if await self._lead(work):
                    return
        finally:
            if self.is_leading:
                await self._candidate.release()

    async def _acquire(self, stop: asyncio.Event) -> bool:
        """Wait for the lease; return False if ``stop`` is set first."""
        candidate = self._candidate
        while not stop.is_set():
            await candidate.observe()
            if candidate.decide().action is LeaseAction.ACQUIRE and await candidate.acquire():
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, candidate.decide().until_s - candidate.clock())):
                    await stop.wait()
        return False

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run the work while renewing the lease; return True if the work has returned, False if the lease is lost."""
        candidate, tasks = self._candidate, TaskOwner()
        task = tasks.start(work(), name=f"work of {self._name}", is_awaited=True)
        try:
            while not task.done():
                step = candidate.decide()
                if step.action is LeaseAction.LOST:
                    candidate.step_down()
                    return False
                if step.action is LeaseAction.RENEW:
                    await candidate.renew()
                else:
                    await asyncio.wait({task}, timeout=max(0.0, step.until_s - candidate.clock()))
            return not self._was_fenced(task)
        finally:
            if not task.done():
                await tasks.close()
                if not task.cancelled() and (error := task.exception()) is not None:
                    _log.warning("lease.work_failed", extra={"lease": self._name}, exc_info=error)

    def _was_fenced(self, task: "asyncio.Future[None]") -> bool:
        """Whether the work ended because fencing rejected one of its writes. Other exceptions propagate."""
        try:
            task.result()
        except NotLeading:
            self._candidate.step_down()
            return True
        return False
