"""Suspends the probes of a dormant app, and wakes it on request.

The queue-proxy of a pod freezes and thaws its app (``queueproxy.io.dormant``) and reports both. The kubelet does not
probe a sleeping app. It wakes the app for exec, attach and port-forward, which bypass the queue-proxy.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from serving.net.aio.supervise import TaskOwner
from serving.queueproxy.io.dormant import WAKE_HOLD_S

_log = logging.getLogger("kubelet")

# A queue-proxy responds immediately, unless it wakes the app by the app's own call.
_WAKE_MAX_S = 90.0
# Two orders may be late before the first one ends.
_REPEAT_S = WAKE_HOLD_S / 3


class AppSleep:
    """Tracks whether one pod's app is dormant (frozen), and wakes it. Waking requires an earlier call of ``reach``."""

    def __init__(self) -> None:
        self._awake = asyncio.Event()
        self._awake.set()
        self._sleep_count = 0
        self._admin: tuple[str, int] | None = None
        self._secret = ""
        self._tasks = TaskOwner()

    @property
    def is_dormant(self) -> bool:
        """Whether the app is dormant."""
        return not self._awake.is_set()

    @property
    def can_sleep(self) -> bool:
        """Whether the queue-proxy may freeze the app."""
        return self._admin is not None

    def reach(self, admin: tuple[str, int], *, secret: str) -> None:
        """Set the queue-proxy's address for orders, and the pod's secret, which authorizes them."""
        self._admin = admin
        self._secret = secret

    def report(self, *, is_dormant: bool) -> None:
        """Record the queue-proxy's report on whether the app is dormant."""
        self._sleep_count += is_dormant and not self.is_dormant
        (self._awake.clear if is_dormant else self._awake.set)()

    async def awake_failure(self, probe: Callable[[], Awaitable[str]]) -> str:
        """Run a probe while the app is awake; return its failure or "". Repeat a probe interrupted by a freeze."""
        while True:
            await self._awake.wait()
            before = self._sleep_count
            failure = await probe()
            if not failure or (before == self._sleep_count and not self.is_dormant):
                return failure

    async def wake(self) -> None:
        """Order the queue-proxy to wake the app and keep it awake for half a minute. Does nothing before ``reach``."""
        if self._admin is None:
            return
        host, port = self._admin
        order = f"POST /wake HTTP/1.1\r\nHost: {host}\r\nK-Pod-Secret: {self._secret}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        try:
            async with asyncio.timeout(_WAKE_MAX_S):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(order.encode())
                    await reader.read()
                finally:
                    writer.close()
        except OSError as error:
            _log.warning("pod.not_woken", extra={"address": host, "error": str(error)})

    def inhibit_sleep(self, until: Awaitable[object]) -> None:
        """Keep the app awake until a task has ended."""
        if self._admin is None:
            return
        self._tasks.start(self._inhibit_sleep(until), name="keep awake")

    def wake_unready(self) -> None:
        """Wake an app that sleeps before its pod is ready, because the kubelet must still probe it."""
        if self.is_dormant:
            self._tasks.start(self.wake(), name="keep awake")

    async def _inhibit_sleep(self, until: Awaitable[object]) -> None:
        async def ending() -> None:
            with contextlib.suppress(Exception):
                await until

        async with TaskOwner() as tasks:
            end = tasks.start(ending(), name="end of a stream")
            while not end.done():
                await asyncio.wait((end,), timeout=_REPEAT_S)
                if not end.done():
                    await self.wake()
