"""The periodic report of a pod or an activator about its requests (every 1 s by default)."""

from collections.abc import Mapping

import msgspec

GAUGES_MAX = 16
"""Most gauges that one pod reports; 16 names of 63 bytes fit a frame."""


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """One report about the requests of one source over one period.

    ``at_s`` is the time of the report in seconds, stamped by the autoscaler on receipt: clocks of pods are not trusted.
    ``concurrency`` is the time-weighted mean number of requests in flight over the period, ``request_count`` the
    number that arrived in it. The ``proxied_`` pair is the part of both that came through an activator, which
    reports it too; load is summed without that part, so that each request counts once. ``ended_count`` is the number of
    requests that a pod answered in the period without a server error, and ``response_time_s`` their mean response time in
    seconds, 0 without any. ``gauges`` are numbers that the app reports of itself, by name.

    An activator also pokes between its reports, with what is new at that moment, and its next report leaves that out: so both
    add up to what is inside now. The ``window_`` pair is what a poke or report adds to the mean of its second instead; None: the
    same.
    """

    pod: str = ""
    at_s: float = 0.0
    concurrency: float = 0.0
    request_count: float = 0.0
    proxied_concurrency: float = 0.0
    proxied_request_count: float = 0.0
    window_concurrency: float | None = None
    window_request_count: float | None = None
    ended_count: float = 0.0
    response_time_s: float = 0.0
    gauges: Mapping[str, float] = msgspec.field(default_factory=dict)
