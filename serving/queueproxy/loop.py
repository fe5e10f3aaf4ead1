"""The loops of a queue-proxy: watching its app, reporting once a second, and the way out.

Each does the i/o that a pure part decides about: ``readiness`` when to ask the app, ``traffic.meter`` what to report. The
drain, in order: probes fail and readiness is taken back; requests are still accepted until none has come for the drain
lag; then no more are accepted. When the last request has ended, or only tunnels (websockets) are left and have had their
time, the app may end: it closes its side of the tunnels properly. What is still open at the end of the grace is cut off.
"""

import asyncio
import logging
import os
from collections.abc import Callable

import msgspec

from serving.aio.clock import now_s, wall_s
from serving.aio.periodic import every
from serving.proxy.server import HttpServer
from serving.queueproxy.client import attempt
from serving.queueproxy.podspec import PodSpec
from serving.queueproxy.readiness import after_attempt, at_start
from serving.queueproxy.server import PodHandler
from serving.traffic.meter import stat_of
from serving.wire.frames import PodStat, encode_pod_stat
from serving.wire.link import Link

__all__ = ["ReadinessPipe", "drain", "report_stats", "watch_app"]

_LOG = logging.getLogger(__name__)
# The last statistic says that the pod is empty; the autoscaler forgets the pod soon anyway.
_FLUSH_S = 0.5


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


async def report_stats(spec: PodSpec, handler: PodHandler, link: Link, *, stop: asyncio.Event) -> None:
    """Report at a steady pace, and once more at the end."""
    period_s = spec.settings.report_period_s

    async def beat() -> None:
        stat = stat_of(handler.report(), pod=spec.pod, at_s=wall_s(), report_period_s=period_s)
        link.send(
            encode_pod_stat(
                PodStat(
                    at_s=stat.at_s,
                    concurrency=stat.concurrency,
                    proxied_concurrency=stat.proxied_concurrency,
                    request_count=stat.request_count,
                    proxied_request_count=stat.proxied_request_count,
                    gauges=handler.gauges.current(now_s()),
                )
            )
        )

    def on_error(error: Exception) -> None:
        _LOG.error("stats.failed", extra={"error": repr(error)})

    await every(period_s, beat, stop=stop, on_error=on_error)
    await beat()
    await link.flush(_FLUSH_S)


async def drain(
    spec: PodSpec, handler: PodHandler, server: HttpServer, *, on_drained: Callable[[], None] = lambda: None
) -> int:
    """Drain and return how many requests were cut off. ``on_drained`` is called when the app may end."""
    settings = spec.settings
    clock = server.clock
    begun_s = clock()
    end_s = begun_s + settings.drain_grace_s
    handler.is_draining = True
    server.drain()
    while True:
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
