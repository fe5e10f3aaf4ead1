"""Watch the app's readiness and push it to the parent process. When to ask is decided by ``queueproxy.readiness``."""

import asyncio
import logging
import os
from collections.abc import Callable

import msgspec

from serving.queueproxy.io.app_probe import attempt
from serving.queueproxy.io.requests import PodHandler
from serving.queueproxy.podspec import PodSpec
from serving.queueproxy.readiness import after_attempt, at_start

__all__ = ["ReadinessPipe", "watch_app"]

_LOG = logging.getLogger(__name__)


class ReadinessPipe:
    """Pushes readiness to the parent process, one JSON object a line: ``{"ready": true}``.

    The last line is ``{"ready": false, "drained": true}``: the app may end.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_blocking(descriptor, False)
            os.set_inheritable(descriptor, False)

    def push(self, *, ready: bool, drained: bool = False) -> None:
        """Write a line. Without a reader, do nothing."""
        if self._descriptor is None:
            return
        line: dict[str, bool] = {"ready": ready, "drained": True} if drained else {"ready": ready}
        try:
            os.write(self._descriptor, msgspec.json.encode(line) + b"\n")
        except OSError as error:
            _LOG.warning("readiness.not_pushed", extra={"error": str(error)})
            self._descriptor = None


async def watch_app(spec: PodSpec, handler: PodHandler, on_change: Callable[[bool], None]) -> None:
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
