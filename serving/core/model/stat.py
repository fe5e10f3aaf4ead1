"""The periodic report of a pod or an activator about its requests (every 1 s by default).

The bounds are part of the record and are checked when a frame is decoded (``serving.net.wire.frames``).
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

GAUGES_MAX = 16
"""Most gauges in a pod's report; 16 names of 63 bytes fit a frame."""

UNFROZEN_MAX = 200
"""Most characters of the reason in ``unfrozen``."""

BINS_MAX = 34
"""The number of latency bins; the last bin holds all latencies above sixteen times the limit."""

# Far above the count of any pod, and far below 2**53, where sums of floats become inexact.
_AMOUNT_MAX = 1e12
Amount = Annotated[float, msgspec.Meta(ge=0, le=_AMOUNT_MAX)]
GaugeName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_:][A-Za-z0-9_:.-]{0,62}$")]
Bins = Annotated[tuple[Amount, ...], msgspec.Meta(max_length=BINS_MAX)]
POD_LOADS_MAX = 1000
"""Most pods of a revision in an activator's report."""

PodLoads = Annotated[Mapping[str, Amount], msgspec.Meta(max_length=POD_LOADS_MAX)]
Gauges = Annotated[Mapping[GaugeName, Amount], msgspec.Meta(max_length=GAUGES_MAX)]


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """A report about the requests of one source (a pod or an activator) in one period.

    ``at_s`` is the time of the report in seconds. The autoscaler sets it on receipt, because clocks of pods are not
    trusted. ``concurrency`` is the time-weighted mean number of requests in flight over the period, ``request_count``
    the number of arrivals. ``proxied_concurrency`` and ``proxied_request_count`` are the part of both that came through
    an activator. The activator also reports this part, so the autoscaler subtracts it. ``ended_count`` counts a pod's
    responses without a server error in the period. ``response_time_s`` is their mean response time in seconds, or 0.
    ``gauges`` are numbers reported by the app, by name. ``latency_bins`` counts requests by latency, if the revision
    has a latency goal (``core/model/slo.py``).

    Between reports an activator also sends pokes: reports of the load that has arrived since the last one. The next
    regular report excludes the load of pokes, so that the sum of all is the present load. Its ``window_concurrency``
    and ``window_request_count`` include the load of pokes, for the windows; None means the same as without ``window_``.

    ``is_dormant``: the pod's app sleeps. The pod has no load until its next report, which it sends when it wakes. Its
    last request ended ``idle_s`` seconds before the report. ``unfrozen`` is why a dormant pod's processes still run, or
    "". ``pod_loads`` are an activator's requests in each pod of a ScaledWorkload, because these pods do not report.
    ``pod_heats`` are the savings of each pod's prompt cache, in an arbitrary unit. ``is_loading`` asks to keep a pod
    whose app was never ready. ``unready`` is why the app was never ready; "" if unknown.
    """

    pod: str = ""
    at_s: float = 0.0
    concurrency: Amount = 0.0
    request_count: Amount = 0.0
    proxied_concurrency: Amount = 0.0
    proxied_request_count: Amount = 0.0
    window_concurrency: Amount | None = None
    window_request_count: Amount | None = None
    ended_count: Amount = 0.0
    response_time_s: Amount = 0.0
    gauges: Gauges = msgspec.field(default_factory=dict)
    latency_bins: Bins = ()
    is_dormant: bool = False
    idle_s: Amount = 0.0
    is_loading: bool = False
    pod_loads: PodLoads = msgspec.field(default_factory=dict)
    pod_heats: PodLoads = msgspec.field(default_factory=dict)
    unfrozen: Annotated[str, msgspec.Meta(max_length=UNFROZEN_MAX)] = ""
    unready: Annotated[str, msgspec.Meta(max_length=UNFROZEN_MAX)] = ""

    @property
    def is_idle(self) -> bool:
        """Whether the source had no request in the period."""
        return not (self.concurrency or self.request_count or self.window_concurrency or self.window_request_count)
