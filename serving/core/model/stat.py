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
    """A report about the requests of one source in one period.

    ``at_s`` is the time of the report in seconds, stamped by the autoscaler on receipt: clocks of pods are not trusted.
    ``concurrency`` is the time-weighted mean number of requests in flight over the period, ``request_count`` the number
    that arrived in it. The ``proxied_`` pair is the part of both that came through an activator, which reports it too;
    load is summed without that part, so that each request counts once. ``ended_count`` is the number of responses of a
    pod in the period without a server error, and ``response_time_s`` their mean response time in seconds, 0 without
    any. ``gauges`` are numbers that the app reports of itself, by name. ``latency_bins`` counts the requests of a pod
    whose revision has a goal for its latency, by how late they are (``core/model/slo.py``).

    An activator also pokes between its reports, with the load that is new at that moment; its next report excludes that
    load. Both add up to the present load. The ``window_`` pair is added to the mean of the second instead; None: the
    same.

    ``is_dormant`` says that the pod's app sleeps: its next report comes when it has woken, and until then it has no
    load. Its last request ended ``idle_s`` seconds before the report. ``pod_loads`` are the requests of an activator in
    each pod of a ScaledWorkload, which reports nothing itself; ``pod_heats`` say what each pod's cache of prompts has
    saved, in an unknown unit. ``unfrozen`` is why its processes run all the same; "" if they are frozen. ``is_loading``
    asks to keep a pod whose app was never ready yet. ``unready`` is why the app of a pod was never ready; "" if the
    reason is unknown.
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
