"""Reports load to the autoscaler, and receives its announcements of ready pods."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from urllib.parse import urlencode

from serving.activator.io.ingress import Ingress
from serving.activator.queueing.router import RequestRouter
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.wake import RevisionLoad
from serving.core.model.errors import InvalidValue
from serving.core.model.knative import RevisionKey
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.ejection import EjectionReport
from serving.net.aio.mutualtls import PeerTls
from serving.net.aio.periodic import every
from serving.net.proxy.forwarding.exchange import Exchange
from serving.net.wire.frames import (
    ActivatorStats,
    RevisionStat,
    decode_announced_pod,
    encode_frame,
)
from serving.net.wire.link import Link
from serving.net.wire.tokens import activator_token

_log = logging.getLogger("activator")

# Below a websocket server's default limit of 1 MiB: a revision with names of 63 characters takes about 200 bytes.
_REVISIONS_PER_FRAME = 2000


class StatsClient:
    """Sends frames to one autoscaler over ``link``, which the caller runs.

    ``draw`` returns random numbers in [0, 1) for the client's pauses. ``on_connected`` is called for each new
    connection, because the autoscaler at its other end has no reports yet. ``on_announced`` is called with each pod
    that an autoscaler announces as ready.
    """

    def __init__(
        self,
        settings: ActivatorSettings,
        *,
        key: bytes,
        draw: Callable[[], float],
        on_connected: Callable[[], None] = lambda: None,
        on_announced: Callable[[RevisionKey, ServedPod], None] = lambda _key, _pod: None,
        secured: PeerTls | None = None,
    ) -> None:
        url = f"{settings.stats_url}?{urlencode({'activator': settings.name})}"
        token = activator_token(key, name=settings.name)
        self._on_announced = on_announced
        # 64 frames are one second of pokes; a connection further behind accepts no more.
        self.link = Link(
            url,
            token=lambda: token,
            draw=draw,
            on_connected=on_connected,
            on_frame=self._read,
            secured=secured,
        )

    def report(self, loads: Iterable[tuple[RevisionKey, RevisionLoad]]) -> None:
        """Queue load reports until the connection accepts them."""
        stats = [
            RevisionStat(
                namespace=namespace,
                revision=revision,
                concurrency=load.concurrency,
                request_count=load.request_count,
                window_concurrency=load.window_concurrency,
                window_request_count=load.window_request_count,
                pod_loads=load.pod_loads,
                pod_heats=load.pod_heats,
            )
            for (namespace, revision), load in loads
        ]
        for start in range(0, len(stats), _REVISIONS_PER_FRAME):
            self.link.send(encode_frame(ActivatorStats(stats=stats[start : start + _REVISIONS_PER_FRAME])))

    def _read(self, frame: bytes) -> None:
        try:
            announced = decode_announced_pod(frame)
        except InvalidValue as error:
            _log.warning("announced.unreadable", extra={"error": str(error)})
        else:
            pod = ServedPod(
                address=announced.address,
                namespace=announced.namespace,
                name=announced.pod,
                scheme=announced.scheme,
            )
            self._on_announced((announced.namespace, announced.revision), pod)


def ejection_reports(
    router: RequestRouter[Exchange], namespace: str, *, now_s: float, wall_s: float
) -> list[EjectionReport]:
    """Ejected pods of a namespace, for reports; ``wall_s`` is the current time in seconds since the epoch."""
    return [
        report
        for key, throttler in router.throttlers.items()
        if key[0] == namespace
        for report in throttler.ejected.reports(
            key[1],
            {address: pod.name for address, pod in throttler.pods.items()},
            throttler.balancer.in_flight_by_pod(),
            now_s=now_s,
            wall_s=wall_s,
        )
    ]


async def report_loads(
    ingress: Ingress, client: StatsClient, *, period_s: float, clock: Callable[[], float], stop: asyncio.Event
) -> None:
    """Once a period, eject silent pods and report all load, until ``stop`` is set."""

    async def report() -> None:
        ingress.eject_silent()
        client.report(ingress.router.report(clock()))
        ingress.ticker.schedule()

    def on_error(error: Exception) -> None:
        _log.error("report.failed", exc_info=error)

    await every(period_s, report, stop=stop, on_error=on_error, is_shared=True)
