"""Watch the app's readiness and push it to what runs the pod. When to ask is decided by ``queueproxy.readiness``."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from serving.queueproxy.io.app_probe import attempt
from serving.queueproxy.io.podrequests import PodRequests
from serving.queueproxy.podspec import PodSpec
from serving.queueproxy.readiness import after_attempt, at_start

_LOG = logging.getLogger(__name__)

PUSH_AGAIN = signal.SIGUSR1


class ReadinessPipe:
    """Pushes readiness to whatever runs the pod, one JSON object a line: ``{"pid": 7, "ready": true}``.

    The last line is ``{"pid": 7, "ready": false, "drained": true}``: the app may end. A reader that has lost lines sends
    ``PUSH_AGAIN``, and the last line is written again. ``pid`` is the process that the reader knows; None is this one.
    """

    def __init__(self, descriptor: int | None, *, pid: int | None = None) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid() if pid is None else pid
        self._line = b""
        if descriptor is not None:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def push(self, *, ready: bool, drained: bool = False) -> None:
        """Write a line. Without a reader, do nothing."""
        line: dict[str, int] = {"pid": self._pid, "ready": ready}
        self._line = msgspec.json.encode({**line, "drained": True} if drained else line) + b"\n"
        self.push_again()

    def push_again(self) -> None:
        """Write the last line again."""
        if self._descriptor is None or not self._line:
            return
        try:
            os.write(self._descriptor, self._line)
        except BlockingIOError:
            # The pipe is full because its reader is gone; the next one sends the signal.
            return
        except OSError as error:
            _LOG.warning("readiness.not_pushed", extra={"error": str(error)})
            self._descriptor = None


async def watch_app(spec: PodSpec, handler: PodRequests[Any], on_change: Callable[[bool], None]) -> None:
    """Ask the app again and again, until cancelled or nothing more is to be asked."""
    state = at_start(spec.settings)
    while True:
        ok = await attempt(spec.readiness, spec.app, is_http2=spec.is_http2)
        before, state = state, after_attempt(state, ok=ok, probe=spec.readiness, settings=spec.settings)
        if state.is_ready is not before.is_ready:
            handler.is_ready = state.is_ready
            _LOG.info("app.readiness_changed", extra={"ready": state.is_ready})
            on_change(state.is_ready)
        if state.pause_s is None:
            return
        await asyncio.sleep(state.pause_s)
