"""Makes an app sleep and wake by its own HTTP calls, as model servers offer.

A queue-proxy imports this module only for pods that need it; few do.
"""

import asyncio
import contextlib

from serving.core.settings.dormancy import CallPair, HttpCall
from serving.queueproxy.io.processes import exists_mark, remove_mark, touch_mark
from serving.queueproxy.podspec import Address

_WAKE_PAUSE_S = 0.1


class CallFreezer:
    """Makes an app sleep and wake by HTTP calls to its own endpoints, which model servers offer.

    ``marker`` is the path of a file that exists while the app may sleep; the pod's next queue-proxy then wakes the app.
    "": there is no such file, and the next queue-proxy always wakes the app. ``limit_s`` bounds each call, and the sum
    of all attempts to wake the app.
    """

    is_instant = False
    name = "calls"
    unfrozen = ""

    def __init__(self, calls: CallPair, app: Address, *, limit_s: float, marker: str) -> None:
        self._calls = calls
        self._app = app
        self._limit_s = limit_s
        self._marker = marker

    async def freeze(self) -> None:
        """Call the app's sleep endpoint."""
        touch_mark(self._marker)
        await self._call(self._calls.sleep)

    def thaw(self) -> None:
        """Do nothing: only an HTTP call wakes the app."""

    async def wake(self) -> None:
        """Call the app's wake endpoint, repeatedly within the limit."""
        until_s = asyncio.get_running_loop().time() + self._limit_s
        while True:
            try:
                await self._call(self._calls.wake)
            except OSError:
                if asyncio.get_running_loop().time() + _WAKE_PAUSE_S > until_s:
                    raise
                await asyncio.sleep(_WAKE_PAUSE_S)
            else:
                remove_mark(self._marker)
                return

    async def recover(self) -> None:
        """Wake the app if an earlier queue-proxy may have made it sleep."""
        if not self._marker:
            # A newly started app does not listen yet, and is awake.
            with contextlib.suppress(OSError):
                await self._call(self._calls.wake)
        elif exists_mark(self._marker):
            with contextlib.suppress(OSError):
                await self.wake()

    async def _call(self, call: HttpCall) -> None:
        """Send an HTTP call. Raises ``OSError`` for a status other than 2xx, and after the limit."""
        text = f"{call.method} {call.target}"
        try:
            async with asyncio.timeout(self._limit_s):
                reader, writer = await asyncio.open_connection(*self._app)
                try:
                    length = "" if call.method == "GET" else "Content-Length: 0\r\n"
                    host = f"{self._app[0]}:{self._app[1]}"
                    head = f"{text} HTTP/1.1\r\nHost: {host}\r\n{length}Connection: close\r\n\r\n"
                    writer.write(head.encode())
                    line = await reader.readline()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            raise TimeoutError(f"{text}: no response within {self._limit_s:g} s") from None
        status = line.split(b" ")[1:2]
        if not line.startswith(b"HTTP/1.") or not status or not status[0].startswith(b"2"):
            raise OSError(f"{text}: {line[:80].decode('latin-1').strip() or 'no response'}")
