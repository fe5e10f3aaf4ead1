"""Runs daemons in the process of a test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol


class Daemon(Protocol):
    """A daemon that serves until `stop` is set."""

    is_serving: asyncio.Event

    def run(self, stop: asyncio.Event) -> Coroutine[Any, Any, None]: ...


@contextlib.asynccontextmanager
async def started(daemon: Daemon) -> AsyncIterator[None]:
    """Run a daemon during the block: it serves at the begin, and has stopped at the end."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(daemon.run(stop))
        try:
            await daemon.is_serving.wait()
            yield
        finally:
            stop.set()
