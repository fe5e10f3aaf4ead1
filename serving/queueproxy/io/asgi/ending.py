"""SIGTERM in the process of an app: the pod drains first, and then the server gets the signal.

A server of ASGI stops accepting as soon as it gets SIGTERM, while activators still send requests. So the signal is taken
before the server's own handler, which gets it when the pod has drained. Only the main thread of a process has signals.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignal:
    """SIGTERM, held back from the server until ``release``."""

    def __init__(self) -> None:
        self._servers_own: Any = None
        self._is_held = False

    def hold(self, on_stop: Callable[[], None]) -> None:
        """Call ``on_stop`` in the loop at each SIGTERM from now on, instead of the server's own handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def handler(number: int, frame: FrameType | None) -> None:
            del number, frame
            loop.call_soon_threadsafe(on_stop)

        self._servers_own = signal.signal(signal.SIGTERM, handler)
        self._is_held = True

    def release(self, *, is_due: bool) -> None:
        """Give the signal back to the server; ``is_due`` sends it."""
        if not self._is_held:
            return
        self._is_held = False
        with contextlib.suppress(TypeError):
            # None is a handler that Python did not install.
            signal.signal(signal.SIGTERM, self._servers_own)
        if is_due:
            signal.raise_signal(signal.SIGTERM)
