"""Runs the parts of a pod other than its requests: readiness, stats, the admin port, and the drain.

A queue-proxy is a separate process or runs in the app's process. The two receive requests in different ways, each by
its ``Front``. All other parts are here.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable
from typing import Any, Protocol

from serving.net.aio.supervise import supervise
from serving.net.proxy.server.listener import HttpServer
from serving.net.wire.link import Link
from serving.queueproxy.io.admin import AdminHandler
from serving.queueproxy.io.appmetrics import watch_gauges
from serving.queueproxy.io.credentials import Credentials
from serving.queueproxy.io.podrequests import PodRequests
from serving.queueproxy.io.readiness import ReadinessPipe, after_attempt, at_start, attempt, listener_check
from serving.queueproxy.io.stats import announce, dormant_frame, report_stats, stats_link
from serving.queueproxy.metrics import series
from serving.queueproxy.podspec import Address, PodSpec

_LOG = logging.getLogger(__name__)

_CLOSE_WAIT_S = 0.5


class Front(Protocol):
    """A pod's request listener, as seen by the drain. ``HttpServer`` implements it."""

    clock: Callable[[], float]
    finishing: bool
    """Whether requests are no longer accepted."""

    def drain(self) -> None:
        """Make each further response the last on its connection."""

    def stop_accepting(self) -> None:
        """Stop accepting requests."""

    async def wait_for_requests(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds until all requests except tunnels have ended."""

    async def wait_for_tunnels(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` seconds until tunnels have ended, too."""

    async def finish(self, *, grace_s: float) -> int:
        """Wait ``grace_s`` seconds for running requests, then cut them off; return how many were cut off."""


async def drain(
    spec: PodSpec, handler: PodRequests[Any], server: Front, *, on_drained: Callable[[], None] = lambda: None
) -> int:
    """Drain, and return how many requests were cut off. ``on_drained`` is called when the app may end."""
    settings = spec.settings
    clock = server.clock
    begun_s = clock()
    end_s = begun_s + settings.drain_grace_s
    handler.is_draining = True
    server.drain()
    while not server.finishing:
        # Each new request shows that a client has not noticed the change yet.
        quiet_s = max(begun_s, handler.last_request_s) + settings.drain_lag_s
        left_s = min(quiet_s, end_s) - clock()
        if left_s <= 0:
            break
        await asyncio.sleep(left_s)
    server.stop_accepting()
    await server.wait_for_requests(grace_s=end_s - clock())
    # An app needs part of the grace period to close its tunnels.
    tunnels_s = min(settings.drain_tunnel_wait_s, settings.drain_grace_s / 2)
    await server.wait_for_tunnels(grace_s=min(begun_s + tunnels_s, end_s) - clock())
    on_drained()
    cut_count = await server.finish(grace_s=max(0.0, end_s - clock()))
    _LOG.info("drained", extra={"cut_count": cut_count, "duration_s": clock() - begun_s})
    return cut_count


class PodService:
    """The parts of one pod's queue-proxy except requests. ``numbers`` returns further lines for the metrics page."""

    def __init__(
        self,
        spec: PodSpec,
        pod: PodRequests[Any],
        front: Front,
        *,
        credentials: Credentials,
        pipe: ReadinessPipe,
        numbers: Callable[[], list[str]] = list,
    ) -> None:
        self._spec = spec
        self._pod = pod
        self._front = front
        self._pipe = pipe
        self._numbers = numbers
        self._credentials = credentials
        self._link: Link | None = None
        self._is_announced = False
        if spec.stats_url:
            secured = credentials.secured
            self._link = stats_link(spec, draw=random.random, on_connected=self._connected, secured=secured)
        self._admin_server = HttpServer(spec.settings.http)
        self._admin: AdminHandler

    async def listen(self, on_drain: Callable[[], None]) -> None:
        """Listen on the admin port. Raises ``OSError`` if it is taken."""
        self._admin = AdminHandler(
            self._pod,
            on_drain=on_drain,
            numbers=self._page,
            caller_token=self._credentials.caller_token if self._spec.stats_url else None,
            opens_queries=self._credentials.opens_queries if self._spec.stats_url else None,
            caller_key=self._spec.caller_key,
        )
        await self._admin_server.listen(socket_of(self._spec, "admin", self._spec.admin), self._admin)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set, then drain."""
        spec, pod, pipe, admin = self._spec, self._pod, self._pipe, self._admin
        if self._pod.dormancy is not None:
            await self._pod.dormancy.recover()
        flushed = asyncio.Event()

        def changed(ready: bool) -> None:  # noqa: FBT001 - the shape of a callback
            pipe.push(ready=ready)
            admin.readiness_changed()
            pod.wake()
            # On a single machine the readiness pipe has just reported it.
            if ready and self._link is not None and spec.ready_fd is None and not self._is_announced:
                self._is_announced = True
                announcing = announce(spec, secured=self._credentials.secured, draw=random.random)
                tasks.append(group.start(announcing, name="announce"))

        def drained() -> None:
            pipe.push(ready=False, drained=True)
            admin.drained()

        async with contextlib.AsyncExitStack() as at_end, supervise() as group:
            # Requests held for the drain must still be answered, and a failed task must not leave a listener open.
            at_end.push_async_callback(self._admin_server.finish, grace_s=_CLOSE_WAIT_S)
            watch = group.start(self._watch_app(changed), name="watch app")
            tasks = [watch, group.start(self._credentials.renew(), name="credentials")]
            reports = None
            if self._link is not None:
                tasks.append(group.start(self._connect(self._link), name="stats connection"))
                reporting = report_stats(spec, pod, self._link, stop=flushed)
                reports = group.start(reporting, name="stats reports")
                if self._reads_page:
                    reading = watch_gauges(spec, pod.gauges, probing=pod.probing, stop=flushed)
                    tasks.append(group.start(reading, name="gauges"))
            await stop.wait()
            watch.cancel()
            pipe.push(ready=False)
            admin.stopping()
            if pod.dormancy is not None:
                await pod.dormancy.end()
            await drain(spec, pod, self._front, on_drained=drained)
            flushed.set()
            if reports is not None:
                await reports
            for task in tasks:
                task.cancel()

    @property
    def _reads_page(self) -> bool:
        """Whether to read the app's metrics page. An app that speaks only HTTP/2 needs another port for the page."""
        spec = self._spec
        return bool(spec.gauges) and (not spec.is_http2 or bool(spec.metrics_port))

    async def _watch_app(self, on_change: Callable[[bool], None]) -> None:
        """Probe the app repeatedly, until cancelled or the probing ends. A dormant app is not probed.

        The first probe waits for the pod's certificate, because without it no request is accepted.
        """
        await self._credentials.wait()
        spec, pod = self._spec, self._pod
        state, check, foreign = at_start(spec.settings), listener_check(spec), ""
        while True:
            async with pod.probing():
                ok = await attempt(spec.readiness, spec.app, is_http2=spec.is_http2, check=check)
            before_foreign, foreign = foreign, "" if ok or check is None else check.foreign_at(*spec.app)
            if foreign and foreign != before_foreign:
                _LOG.warning("app.port_taken", extra={"reason": foreign})
            before, state = state, after_attempt(state, ok=ok, probe=spec.readiness, settings=spec.settings)
            if state.is_ready is not before.is_ready:
                pod.is_ready = state.is_ready
                _LOG.info("app.readiness_changed", extra={"ready": state.is_ready})
                on_change(state.is_ready)
            if state.pause_s is None:
                return
            await asyncio.sleep(state.pause_s)

    async def _connect(self, link: Link) -> None:
        """Keep the stats connection open from the first report on.

        Before, its library's import would delay the announcement and the first response.
        """
        await asyncio.sleep(self._spec.settings.report_period_s)
        await link.run()

    def _connected(self) -> None:
        """After a reconnect, repeat the report of a dormant pod."""
        dormancy = self._pod.dormancy
        if self._link is not None and dormancy is not None and dormancy.is_dormant:
            self._link.send(dormant_frame(dormancy.idle_s, dormancy.freezer.unfrozen))

    def _page(self) -> bytes:
        """The metrics page, written without Prometheus' library to keep the sidecar small."""
        pod, link, revision = self._pod, self._link, self._spec.revision
        lines = pod.request_metrics.page(revision=revision)
        lines.append(series("kn_serving_queue_depth", pod.waiting_count, revision=revision))
        lines.append(f"queueproxy_requests_inside {pod.inside_count}")
        lines.append(f"queueproxy_requests_waiting {pod.waiting_count}")
        lines += self._numbers()
        lines.append(f"queueproxy_app_ready {int(pod.is_ready)}")
        if pod.dormancy is not None:
            lines += pod.dormancy.page()
        lines.append(f"queueproxy_tasks {len(asyncio.all_tasks())}")
        if link is not None:
            lines.append(f"queueproxy_stats_sent_total {link.sent_count}")
            lines.append(f"queueproxy_stats_unsent_total {link.dropped_count}")
        return "\n".join([*lines, ""]).encode()


def socket_of(spec: PodSpec, name: str, address: Address) -> socket.socket:
    """The listening socket: the inherited socket ``name``, or a new socket at ``address``. Raises ``OSError``.

    The socket is not created by the event loop: this would resolve the address in a new thread, which takes a tenth of
    the start time.
    """
    descriptor = spec.listen_fds.get(name)
    if descriptor is None:
        return socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    inherited = socket.socket(fileno=descriptor)
    inherited.setblocking(False)
    inherited.set_inheritable(False)
    return inherited
