"""The calls of an app that run, as the ``Front`` of a drain: which of them are requests, and which are websockets."""

import asyncio
import contextlib
import time
from collections.abc import Callable


class RunningCalls:
    """The tasks in which the app is called. ``end_server`` makes the server accept no more, once the app may end."""

    def __init__(self, *, end_server: Callable[[], None]) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.finishing = False
        self.draining = False
        """Whether each answer is the last of its connection."""
        self._end_server = end_server
        self._requests: set[asyncio.Task[None]] = set()
        self._tunnels: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"RunningCalls({len(self._requests)} requests, {len(self._tunnels)} websockets)"

    def add(self, task: asyncio.Task[None]) -> None:
        """A call has begun."""
        self._requests.add(task)
        task.add_done_callback(self._ended)

    def became_tunnel(self, task: asyncio.Task[None]) -> None:
        """The app has accepted a websocket."""
        self._requests.discard(task)
        self._tunnels.add(task)
        self._changed.set()

    def drain(self) -> None:
        """Make every answer from now on the last of its connection."""
        self.draining = True

    def stop_accepting(self) -> None:
        """The server accepts until it is ended: a request that comes in between is answered."""

    async def wait_for_requests(self, *, grace_s: float) -> None:
        """Wait until no call runs but those of websockets, for ``grace_s`` seconds at most."""
        await self._until(lambda: not self._requests, grace_s)

    async def wait_for_tunnels(self, *, grace_s: float) -> None:
        """Wait until no call runs, for ``grace_s`` seconds at most."""
        await self._until(lambda: not self._requests and not self._tunnels, grace_s)

    async def finish(self, *, grace_s: float) -> int:
        """End the server, which closes websockets, wait ``grace_s`` seconds for what runs, and cancel the rest."""
        self._end_server()
        await self.wait_for_tunnels(grace_s=grace_s)
        left = self._requests | self._tunnels
        for task in left:
            task.cancel()
        return len(left)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._tunnels.discard(task)
        self._changed.set()

    async def _until(self, holds: Callable[[], bool], grace_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
