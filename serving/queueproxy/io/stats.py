"""Reports the pod's stats to the autoscaler: once a second over a websocket, and once at the end."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from serving.core.model.stat import UNFROZEN_MAX
from serving.core.traffic.backoff import backoff_s
from serving.core.traffic.meter import stat_of
from serving.net.aio.clock import now_s, steady_s
from serving.net.aio.listeners import listening_ports
from serving.net.aio.mutualtls import PeerTls
from serving.net.aio.periodic import every
from serving.net.wire.frames import PodStat, encode_frame
from serving.net.wire.link import Link, LinkSettings
from serving.queueproxy.io.podrequests import PodRequests
from serving.queueproxy.podspec import PodSpec
from serving.queueproxy.wrongport import wrong_port

_LOG = logging.getLogger(__name__)
# The last stat reports that the pod is empty; the autoscaler drops the pod soon in any case.
_FLUSH_S = 0.5
# An app may open another port shortly before its own.
_EXPLAINED_AFTER_S = 3.0
# Attempts of an announcement, in about a second.
_ANNOUNCEMENTS_MAX = 5
_RETRY_FIRST_S = 0.05


def stats_link(
    spec: PodSpec,
    *,
    draw: Callable[[], float],
    on_connected: Callable[[], None] = lambda: None,
    secured: PeerTls | None = None,
) -> Link:
    """The link that sends this pod's stats to the autoscaler; ``draw`` randomises its pauses.

    At most one stat, the newest, waits to be sent.
    """
    assert spec.stats_url is not None
    query = f"namespace={spec.namespace}&revision={spec.revision}&pod={spec.pod}"
    url = f"{spec.stats_url}{'&' if '?' in spec.stats_url else '?'}{query}"
    settings = LinkSettings(
        pause_min_s=spec.settings.report_retry_min_s,
        pause_max_s=spec.settings.report_retry_max_s,
        frames_max=1,
        wait=True,
    )
    return Link(
        url,
        token=lambda: stats_token(spec),
        draw=draw,
        settings=settings,
        network=spec.stats_network,
        secured=secured,
        on_connected=on_connected,
    )


async def report_stats(spec: PodSpec, handler: PodRequests[Any], link: Link, *, stop: asyncio.Event) -> None:
    """Report once per period, and once more at the end.

    A pod that becomes dormant reports its last requests, then once that it is dormant, then nothing until it wakes.
    """
    period_s = spec.settings.report_period_s
    explained_from_s = now_s() + _EXPLAINED_AFTER_S
    loading_until_s = -math.inf if spec.loading_max_s is None else now_s() + spec.loading_max_s

    async def beat() -> None:
        nonlocal loading_until_s, explained_from_s
        if handler.is_ready or handler.is_draining:
            # An app that was ready once is not loading, so its pod needs no protection.
            loading_until_s, explained_from_s = -math.inf, math.inf
        dormancy = handler.dormancy
        stat = stat_of(handler.report(), pod=spec.pod, at_s=steady_s(), report_period_s=period_s)
        if dormancy is not None and dormancy.is_dormant and not (stat.concurrency or stat.request_count):
            link.send(dormant_frame(dormancy.idle_s, dormancy.freezer.unfrozen))
            await dormancy.awake.wait()
            return
        responses = handler.request_metrics.pop_responses()
        link.send(
            encode_frame(
                PodStat(
                    at_s=stat.at_s,
                    concurrency=stat.concurrency,
                    proxied_concurrency=stat.proxied_concurrency,
                    request_count=stat.request_count,
                    proxied_request_count=stat.proxied_request_count,
                    ended_count=responses.count / period_s,
                    response_time_s=responses.mean_s,
                    gauges=handler.current_gauges(),
                    is_loading=now_s() < loading_until_s,
                    unready=_unready(spec) if now_s() >= explained_from_s else "",
                    latency_bins=() if handler.slo is None else handler.slo.drain(),
                )
            )
        )

    def on_error(error: Exception) -> None:
        _LOG.error("stats.failed", extra={"error": repr(error)})

    await every(period_s, beat, stop=stop, on_error=on_error)
    await beat()
    await link.flush(_FLUSH_S)


def _unready(spec: PodSpec) -> str:
    """Why the app is not ready, judged by its ports; "" on a single machine, where the kubelet reports the reason."""
    if spec.ready_fd is not None:
        return ""
    ports = listening_ports()
    return wrong_port(ports, app_port=spec.app[1], own=(spec.listen[1], spec.admin[1]))[:UNFROZEN_MAX]


async def announce(spec: PodSpec, *, secured: PeerTls | None, draw: Callable[[], float]) -> None:
    """Announce this pod's readiness to the activators through the autoscaler.

    The announcement arrives up to a second earlier than through the cluster's API.
    """
    from serving.net.wire.podcredentials import announce_pod  # noqa: PLC0415 - only pods of a cluster announce themselves

    assert spec.stats_url is not None
    names = {"namespace": spec.namespace, "revision": spec.revision, "pod": spec.pod}
    for failure_count in range(1, _ANNOUNCEMENTS_MAX + 1):
        try:
            await announce_pod(spec.stats_url, names, port=spec.listen[1], token=stats_token(spec), secured=secured)
        except OSError as error:
            # A slice will list this pod, so only time is lost.
            _LOG.info("pod.not-announced", extra={"error": str(error), "tries": failure_count})
            await asyncio.sleep(backoff_s(failure_count, first_s=_RETRY_FIRST_S, max_s=1.0) * (0.5 + draw()))
        else:
            return


def dormant_frame(idle_s: float, unfrozen: str) -> bytes:
    """The stat of a dormant pod: seconds since its last request, and why its processes run, if they do."""
    unfrozen = unfrozen[:UNFROZEN_MAX]
    return encode_frame(PodStat(at_s=steady_s(), concurrency=0.0, is_dormant=True, idle_s=idle_s, unfrozen=unfrozen))


def stats_token(spec: PodSpec) -> str:
    """Read the stats token; its file is rewritten before the token expires.

    Raises:
        OSError: when the file does not exist.
    """
    if not spec.stats_token_file:
        return spec.stats_token
    with open(spec.stats_token_file, encoding="ascii") as file:  # noqa: PTH123 - as in wire.tokens
        return file.read().strip()
