"""Calls the router's ``tick`` when it is due: at the end of the loop's turn in which there is news, and at set times."""

import asyncio
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from serving.activator.queueing.outcome import RoutingOutcome
from serving.activator.queueing.router import RequestRouter

RequestId = TypeVar("RequestId", bound=Hashable)


class Ticker(Generic[RequestId]):
    """Ticks one router; ``apply`` carries out what it returns."""

    def __init__(
        self,
        router: RequestRouter[RequestId],
        *,
        apply: Callable[[RoutingOutcome[RequestId]], None],
        clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._apply = apply
        self._clock = clock
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._later_s = math.inf

    def schedule(self) -> None:
        """Tick at the end of this turn of the loop if there is news, so that requests that came together are one look."""
        if self._soon is None and self._router.schedule.has_pending_work:
            self._soon = asyncio.get_running_loop().call_soon(self._tick)

    def close(self) -> None:
        """Tick no more."""
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()

    def _tick(self) -> None:
        self._soon = None
        self._apply(self._router.tick(self._clock()))
        due_s = self._router.next_due_s()
        if due_s is not None and due_s != self._later_s:
            if self._later is not None:
                self._later.cancel()
            self._later_s = due_s
            self._later = asyncio.get_running_loop().call_later(max(0.0, due_s - self._clock()), self._tick_later)

    def _tick_later(self) -> None:
        self._later, self._later_s = None, math.inf
        self._tick()
