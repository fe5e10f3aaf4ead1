"""Drain a pod.

In order: probes fail and readiness is taken back; requests are still accepted until none has come for the drain lag; then
no more are accepted. When the last request has ended, or only tunnels (websockets) are left and have had their time, the
app may end: it closes its side of the tunnels properly. What is still open at the end of the grace is cut off.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from serving.queueproxy.io.podrequests import PodRequests
from serving.queueproxy.podspec import PodSpec

_LOG = logging.getLogger(__name__)


class Front(Protocol):
    """Where the requests of a pod come in, as its drain sees it. ``HttpServer`` is one."""

    clock: Callable[[], float]
    finishing: bool
    """Whether no more requests are accepted."""

    def drain(self) -> None:
        """Make every answer from now on the last of its connection."""

    def stop_accepting(self) -> None:
        """Accept no more requests."""

    async def wait_for_requests(self, *, grace_s: float) -> None:
        """Wait until all requests have ended but tunnels, for ``grace_s`` seconds at most."""

    async def wait_for_tunnels(self, *, grace_s: float) -> None:
        """Wait until tunnels have ended as well, for ``grace_s`` seconds at most."""

    async def finish(self, *, grace_s: float) -> int:
        """Wait ``grace_s`` seconds for what runs, cut off the rest; return how many were cut off."""


async def drain(
    spec: PodSpec, handler: PodRequests[Any], server: Front, *, on_drained: Callable[[], None] = lambda: None
) -> int:
    """Drain and return how many requests were cut off. ``on_drained`` is called when the app may end."""
    settings = spec.settings
    clock = server.clock
    begun_s = clock()
    end_s = begun_s + settings.drain_grace_s
    handler.is_draining = True
    server.drain()
    while not server.finishing:
        # Each request that still comes shows that a client has not seen the change yet.
        quiet_s = max(begun_s, handler.last_request_s) + settings.drain_lag_s
        left_s = min(quiet_s, end_s) - clock()
        if left_s <= 0:
            break
        await asyncio.sleep(left_s)
    server.stop_accepting()
    await server.wait_for_requests(grace_s=end_s - clock())
    # An app needs some of the grace to close its tunnels.
    tunnels_s = min(settings.drain_tunnel_wait_s, settings.drain_grace_s / 2)
    await server.wait_for_tunnels(grace_s=min(begun_s + tunnels_s, end_s) - clock())
    on_drained()
    cut_count = await server.finish(grace_s=max(0.0, end_s - clock()))
    _LOG.info("drained", extra={"cut_count": cut_count, "duration_s": clock() - begun_s})
    return cut_count
