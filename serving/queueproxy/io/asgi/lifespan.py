"""Wraps an app's ASGI lifespan: a second component starts after the app and stops before it.

An app without a lifespan raises immediately. Then only the second component starts and stops.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

from serving.net.aio.supervise import TaskOwner
from serving.queueproxy.io.asgi.call import App, Message, Receive, Scope, Send

_MESSAGES_MAX = 2
_COMPLETE = {"lifespan.startup.complete", "lifespan.shutdown.complete"}


class _AppSide:
    """The app's side of the lifespan protocol."""

    def __init__(self, app: App, scope: Scope) -> None:
        # One message for each of the two lifespan events.
        self._events: asyncio.Queue[Message] = asyncio.Queue(_MESSAGES_MAX)
        self._replies: asyncio.Queue[Message] = asyncio.Queue(_MESSAGES_MAX)
        self._tasks = TaskOwner()
        self._task = self._tasks.start(self._run(app, scope), name="lifespan of the app", is_awaited=True)

    async def _run(self, app: App, scope: Scope) -> None:
        await app(scope, self._events.get, self._replies.put)

    async def send_event(self, kind: str) -> Message:
        """Send the app an event and return its response; "complete" if the app ended without a response."""
        await self._events.put({"type": kind})
        replying = self._tasks.start(self._replies.get(), name="reply to the lifespan")
        await asyncio.wait([replying, self._task], return_when=asyncio.FIRST_COMPLETED)
        if replying.done():
            return replying.result()
        replying.cancel()
        # An app without a lifespan raises or returns.
        self._task.exception()
        return {"type": f"{kind}.complete"}

    async def close(self) -> None:
        """Wait until the app's lifespan call has ended."""
        await asyncio.wait([self._task])
        self._task.exception()


async def run_lifespan(
    app: App,
    scope: Scope,
    *,
    receive: Receive,
    send: Send,
    start: Callable[[], Awaitable[None]],
    stop: Callable[[], Awaitable[None]],
) -> None:
    """Run the lifespans of the app and of the queue-proxy in its process.

    ``start`` may raise ``OSError`` or ``ServingError``, which the server reports before it exits.
    """
    await receive()
    app_side = _AppSide(app, scope)
    reply = await app_side.send_event("lifespan.startup")
    if reply["type"] in _COMPLETE:
        try:
            await start()
        except Exception as error:  # noqa: BLE001 - the outermost frame of a start
            reply = {"type": "lifespan.startup.failed", "message": f"queue-proxy in process: {error}"}
    await send(reply)
    if reply["type"] not in _COMPLETE:
        return
    await receive()
    await stop()
    reply = await app_side.send_event("lifespan.shutdown")
    await app_side.close()
    await send(reply)


class StopSignal:
    """Withholds SIGTERM from the server until ``release``."""

    def __init__(self) -> None:
        self._servers_own: Any = None
        self._is_held = False

    def intercept(self, on_stop: Callable[[], None]) -> None:
        """Call ``on_stop`` in the event loop at each SIGTERM, instead of the server's handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def handler(number: int, frame: FrameType | None) -> None:
            del number, frame
            loop.call_soon_threadsafe(on_stop)

        self._servers_own = signal.signal(signal.SIGTERM, handler)
        self._is_held = True

    def release(self, *, is_due: bool) -> None:
        """Restore the server's signal handler; with ``is_due``, also send the signal."""
        if not self._is_held:
            return
        self._is_held = False
        with contextlib.suppress(TypeError):
            # None is a handler that was not installed from Python.
            signal.signal(signal.SIGTERM, self._servers_own)
        if is_due:
            signal.raise_signal(signal.SIGTERM)
