"""Shares the event loop among connections whose peers cause much work with few bytes.

A peer that sends chunks or frames of one byte costs as much for each as a peer that sends 64 KiB. Such a connection
stops reading, and continues here: one piece of work of all of them in each turn of the loop, so that others are served
between two pieces. While no other connection needs the loop, they have all of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class FairTurns:
    """Runs deferred work of connections, the longest-waiting first."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def defer(self, work: Callable[[], None]) -> None:
        """Run ``work`` in a later loop iteration, after the callbacks that are already scheduled."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append(work)

    def _run(self) -> None:
        work = self._waiting[0]
        try:
            work()
        finally:
            # Scheduled only now, so that work deferred by this call comes after the others.
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run)
