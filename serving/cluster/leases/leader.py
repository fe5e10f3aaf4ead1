"""Run some work while this process holds a lease.

``run`` waits until it may take the lease, takes it, and runs the work as a task while it renews. When the lease is lost, the
task is cancelled, and the next attempt starts only when it has ended. On exit the lease is released, so that the next
process need not wait.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from serving.aio.clock import steady_s
from serving.cluster.leases.election import LeaseAction, LeaseTimes
from serving.cluster.leases.elector import LeaseElector
from serving.cluster.leases.lease import LeaseClient
from serving.model.errors import NotLeading

_log = logging.getLogger(__name__)


class Leader:
    """Work that needs a lease. ``me`` must be unique to this process."""

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

    def __repr__(self) -> str:
        return f"Leader({self._name}, {'leads' if self.is_leading else 'does not lead'})"

    @property
    def is_leading(self) -> bool:
        """Whether this process holds the lease now."""
        return self._candidate.is_held

    @property
    def holder(self) -> str:
        """The holder that was last observed; "" if the lease is free."""
        return self._candidate.holder

    def check(self) -> None:
        """Raise ``NotLeading`` unless this process holds the lease."""
        self._candidate.check()

    async def run(self, work: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        """Run the work whenever this process holds the lease, until it returns or ``stop`` is set.

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
        one = self._candidate
        while not stop.is_set():
            await one.look()
            if one.decide().action is LeaseAction.ACQUIRE and await one.acquire():
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, one.decide().until_s - one.clock())):
                    await stop.wait()
        return False

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Work and renew; return True if the work has returned, False if the lease is lost."""
        one, task = self._candidate, asyncio.ensure_future(work())
        try:
            while not task.done():
                step = one.decide()
                if step.action is LeaseAction.LOST:
                    one.step_down()
                    return False
                if step.action is LeaseAction.RENEW:
                    await one.renew()
                else:
                    await asyncio.wait({task}, timeout=max(0.0, step.until_s - one.clock()))
            return not self._was_fenced(task)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled() and (error := task.exception()) is not None:
                    _log.warning("lease.work_failed", extra={"lease": self._name}, exc_info=error)

    def _was_fenced(self, task: "asyncio.Future[None]") -> bool:
        """Whether the work ended because one of its writes was fenced; other exceptions propagate."""
        try:
            task.result()
        except NotLeading:
            self._candidate.step_down()
            return True
        return False
