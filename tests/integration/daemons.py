"""Runs daemons in the process of a test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol


class Daemon(Protocol):
    """A daemon that serves until it is told to stop."""

    is_serving: asyncio.Event

    def run(self, stop: asyncio.Event) -> Coroutine[Any, Any, None]: ...


@contextlib.asynccontextmanager
async def started(daemon: Daemon) -> AsyncIterator[None]:
    """Run a daemon: it serves when the block begins, and has stopped after it."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(daemon.run(stop))
        try:
            await daemon.is_serving.wait()
            yield
        finally:
            stop.set()
