"""Measures the mean number of requests in a proxy, and counts arrivals: the inputs of scaling.

Input: each request's arrival and end with their times, and whether an activator marked the request. Output: a
``Report`` for each period (1 s by default), and the ``Stat`` for it. The mean is weighted by time: a request of 10 ms
counts a hundredth of a request that lasts the whole second. A request that waits for a slot counts like a running one.
Requests through an activator are counted separately, because the activator also reports them.

Follows knative/networking pkg/http/stats as used by knative/serving 98e5ef90 (docs/calculations.md, "Request
statistics"), but for what ``MeterQuirks`` lists.
"""

import msgspec

from serving.core.model.stat import Stat
from serving.core.settings.queueproxy import MeterQuirks

_SAFE = MeterQuirks()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one period.

    ``concurrency`` is the time-weighted mean number of requests over ``period_s`` seconds; 0.0 for an empty period.
    ``request_count`` is the number of arrivals. The ``proxied_`` pair is the part of both that came through an
    activator. ``unmatched_leaves`` counts ends of requests without an arrival; it is above 0 only if the caller has an
    error.
    """

    period_s: float
    concurrency: float
    proxied_concurrency: float
    request_count: int
    proxied_request_count: int
    unmatched_leaves: int


class Meter:
    """Counts requests in and out; ``report`` closes a period and opens the next.

    Requests in flight are carried over to the next period. A time before the last one counts as the last one.
    """

    __slots__ = (
        "_direct_arrivals",
        "_direct_integral",
        "_direct_level",
        "_last_s",
        "_level_may_go_negative",
        "_period_start_s",
        "_proxied_arrivals",
        "_proxied_integral",
        "_proxied_level",
        "_unmatched_leaves",
    )

    def __init__(self, *, now_s: float, quirks: MeterQuirks = _SAFE) -> None:
        self._level_may_go_negative = quirks.level_may_go_negative
        self._direct_level = 0
        self._proxied_level = 0
        self._last_s = now_s
        self._open_period()

    def __repr__(self) -> str:
        return (
            f"Meter(inside {self.level}, proxied {self._proxied_level}, "
            f"arrived {self.arrived_count} in {self._last_s - self._period_start_s:.3f} s)"
        )

    @property
    def level(self) -> int:
        """Requests in the proxy now, including waiting and proxied ones."""
        return self._direct_level + self._proxied_level

    @property
    def arrived_count(self) -> int:
        """Requests that arrived in the current period."""
        return self._direct_arrivals + self._proxied_arrivals

    def arrive(self, now_s: float, *, proxied: bool) -> None:
        """Count an arrival. If ``proxied``, an activator has also counted the request."""
        self._integrate(now_s)
        if proxied:
            self._proxied_level += 1
            self._proxied_arrivals += 1
        else:
            self._direct_level += 1
            self._direct_arrivals += 1

    def exit(self, now_s: float, *, proxied: bool) -> None:
        """Count the end of a request; ``proxied`` is the same as at its arrival.

        If no such request is counted, only ``unmatched_leaves`` changes.
        """
        self._integrate(now_s)
        if (self._proxied_level if proxied else self._direct_level) <= 0:
            self._unmatched_leaves += 1
            if not self._level_may_go_negative:
                return
        if proxied:
            self._proxied_level -= 1
        else:
            self._direct_level -= 1

    def report(self, now_s: float) -> Report:
        """Close the period at ``now_s`` and open the next.

        Example: with one request from 0.25 s on and a second from 0.5 s on, the mean at 1.0 s is (1 x 0.25 + 2 x 0.5) /
        1.0 = 1.25.
        """
        self._integrate(now_s)
        period_s = self._last_s - self._period_start_s
        report = Report(
            period_s=period_s,
            concurrency=_mean(self._direct_integral + self._proxied_integral, period_s),
            proxied_concurrency=_mean(self._proxied_integral, period_s),
            request_count=self.arrived_count,
            proxied_request_count=self._proxied_arrivals,
            unmatched_leaves=self._unmatched_leaves,
        )
        self._open_period()
        return report

    def skip_idle(self) -> None:
        """Let a period without earlier requests begin at its last event, so that its idle time does not count."""
        if not (self._direct_integral or self._proxied_integral):
            self._period_start_s = self._last_s

    def _open_period(self) -> None:
        self._period_start_s = self._last_s
        self._direct_integral: float = 0.0
        self._proxied_integral: float = 0.0
        self._direct_arrivals = 0
        self._proxied_arrivals = 0
        self._unmatched_leaves = 0

    def _integrate(self, now_s: float) -> None:
        if now_s > self._last_s:
            passed_s = now_s - self._last_s
            self._direct_integral += self._direct_level * passed_s
            self._proxied_integral += self._proxied_level * passed_s
            self._last_s = now_s


def stat_of(report: Report, *, pod: str, at_s: float, report_period_s: float) -> Stat:
    """The stat for a report, with counts per second.

    Counts are divided by the configured period, not by the elapsed time, because the autoscaler sums the reports of
    each second. A late report therefore contains all of its requests. Example: 500 requests are reported after 5 s
    instead of 1 s. They count as 500 in one second and 0 in four, which is correct on average; 100 would lose 400 of
    them.
    """
    return Stat(
        pod=pod,
        at_s=at_s,
        concurrency=report.concurrency,
        request_count=report.request_count / report_period_s,
        proxied_concurrency=report.proxied_concurrency,
        proxied_request_count=report.proxied_request_count / report_period_s,
    )


def _mean(integral: float, period_s: float) -> float:
    return integral / period_s if period_s else 0.0
