"""Shares the event loop among connections whose peers cause much work with few bytes.

A chunk or frame of one byte costs as much as one of 64 KiB. A connection with many small ones stops reading, and its
work is done here in pieces. Each turn of the loop runs one piece of one such connection, so that other connections are
served between two pieces. While no other connection has work, pieces run without a pause.
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
