"""Response rates by class, latencies and queue lengths from the activators' counters.

Input: the metrics page of each activator at each reading. Output: the change of each revision since the reading before, summed
over all activators; an activator that is new or restarted counts from its second reading. Pure: pages are text.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

# Halvings of a bucket: 1/4096 of it is far below what a histogram knows.
_STEPS = 12

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)\{(.*)\} ([^ ]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# The names of one metric in today's Knative, in Knative of 2018, and here.
_FAMILIES = {
    "http_server_request_duration_seconds",
    "kn_serving_invocation_duration_seconds",
    "activator_request_latencies",
}
_WAITING = "serving_requests_waiting"
_NAMESPACES = ("kn_namespace_name", "k8s_namespace_name", "namespace_name", "namespace")
_REVISIONS = ("kn_revision_name", "revision_name", "revision")
_STATUSES = ("http_response_status_code", "response_code", "response_code_class", "code")
_KNOWN = _FAMILIES | {_WAITING}
_CLASSES = "2345"
QUANTILES = (0.5, 0.95, 0.99)

Buckets = dict[tuple[str, str], dict[float, float]]
"""Cumulative counts by bound, by revision and class of status."""


def quantile(counts: Sequence[tuple[float, float]], ratio: float) -> float | None:
    """The value below which ``ratio`` of all observations lie; None without observations.

    ``counts`` are cumulative, by upper bound, in order; bounds are above 0 and the last one may be infinite. A quantile beyond
    the last finite bound is that bound.
    """
    total = counts[-1][1] if counts else 0.0
    finite = [one for one in counts if math.isfinite(one[0])]
    if total <= 0 or not finite:
        return None
    # log(0) does not exist: the first bucket starts at half of its bound.
    bounds = [math.log(finite[0][0] / 2), *(math.log(bound) for bound, _ in finite)]
    passed = [0.0, *(count for _, count in finite)]
    place = next((place for place, count in enumerate(passed) if count >= ratio * total and place), None)
    if place is None:
        return finite[-1][0]
    return math.exp(_solved(bounds, passed, place - 1, wanted=ratio * total))


def _solved(bounds: Sequence[float], passed: Sequence[float], place: int, *, wanted: float) -> float:
    """The point after bound ``place`` at which the curve reaches ``wanted``."""
    width, rise = bounds[place + 1] - bounds[place], passed[place + 1] - passed[place]
    begins, ends = (_slope(bounds, passed, one) * width for one in (place, place + 1))
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        at = (low + high) / 2
        # The cubic with these two slopes that goes from 0 to ``rise`` as ``at`` goes from 0 to 1.
        risen = at * (begins + at * (3 * rise - 2 * begins - ends + at * (begins + ends - 2 * rise)))
        low, high = (at, high) if passed[place] + risen < wanted else (low, at)
    return bounds[place] + width * (low + high) / 2


def _slope(bounds: Sequence[float], passed: Sequence[float], place: int) -> float:
    """The slope at a bound from the buckets on both sides; 0 at both ends and beside an empty bucket."""
    if not 0 < place < len(bounds) - 1:
        return 0.0
    before, after = bounds[place] - bounds[place - 1], bounds[place + 1] - bounds[place]
    came, comes = (passed[place] - passed[place - 1]) / before, (passed[place + 1] - passed[place]) / after
    if came <= 0 or comes <= 0:
        return 0.0
    # The weighted harmonic mean stays near the smaller slope, which keeps the curve monotone.
    return 3 * (before + after) / ((2 * after + before) / came + (after + 2 * before) / comes)


class MetricsReading(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one metrics page: histograms of requests, and the requests that wait now, by revision."""

    buckets: Buckets
    waiting: dict[str, float]


class RequestRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one revision: responses a second by class 2xx to 5xx, latency quantiles, and queued requests.

    None where there is no earlier reading.
    """

    rates: tuple[float | None, ...] = (None,) * len(_CLASSES)
    quantiles_s: tuple[float | None, ...] = (None,) * len(QUANTILES)
    waiting: float = 0.0


class _CounterReading(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one activator and their time in seconds."""

    at_s: float
    page: MetricsReading


class Requests:
    """Keeps the last reading of each activator."""

    def __init__(self) -> None:
        self._before: dict[str, _CounterReading] = {}

    def read(self, pages: Mapping[str, str], at_s: float) -> dict[str, RequestRates]:
        """Rates by "namespace/revision" since the last readings, and queued requests. ``pages`` by source."""
        before = self._before
        self._before = {source: _CounterReading(at_s=at_s, page=parse(page)) for source, page in pages.items()}
        rates: dict[str, list[float]] = {}
        grown: dict[str, list[dict[float, float]]] = {}
        waiting: dict[str, float] = {}
        for source, now in self._before.items():
            for key, count in now.page.waiting.items():
                waiting[key] = waiting.get(key, 0.0) + count
            last = before.get(source)
            if last is None or at_s <= last.at_s:
                continue
            for (key, status), counts in now.page.buckets.items():
                came = _grown(counts, last.page.buckets.get((key, status), {}))
                place = _CLASSES.index(status)
                rates.setdefault(key, [0.0] * len(_CLASSES))[place] += came.get(math.inf, 0.0) / (at_s - last.at_s)
                grown.setdefault(key, []).append(came)
        found = {key: RequestRates(waiting=count) for key, count in waiting.items()}
        for key, one in rates.items():
            came_in_all = sorted(_sum(grown[key]).items())
            quantiles_s = tuple(quantile(came_in_all, ratio) for ratio in QUANTILES)
            found[key] = RequestRates(rates=tuple(one), quantiles_s=quantiles_s, waiting=waiting.get(key, 0.0))
        return found


def parse(text: str) -> MetricsReading:
    """Parse a metrics page: histograms of requests, those of several spellings summed, and queued requests."""
    found = MetricsReading(buckets={}, waiting={})
    for line in text.splitlines():
        match = _LINE.match(line)
        family = "" if match is None else match[1].removesuffix("_bucket")
        if match is None or family not in _KNOWN or (family == match[1]) != (family == _WAITING):
            continue
        labels = dict(_LABEL.findall(match[2]))
        revision, status = _first(labels, _REVISIONS), _first(labels, _STATUSES)
        key = f"{_first(labels, _NAMESPACES)}/{revision}"
        if revision and family == _WAITING:
            found.waiting[key] = float(match[3])
        elif revision and status and status[0] in _CLASSES:
            counts = found.buckets.setdefault((key, status[0]), {})
            bound = float(labels.get("le", "inf").replace("+Inf", "inf"))
            counts[bound] = counts.get(bound, 0.0) + float(match[3])
    return found


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if name in labels), "")


def _grown(now: Mapping[float, float], before: Mapping[float, float]) -> dict[float, float]:
    """The increase of each bucket; a counter that fell was reset."""
    is_new = any(now.get(bound, 0.0) < count for bound, count in before.items())
    return {bound: count - (0.0 if is_new else before.get(bound, 0.0)) for bound, count in now.items()}


def _sum(all_counts: Iterable[Mapping[float, float]]) -> dict[float, float]:
    total: dict[float, float] = {}
    for counts in all_counts:
        for bound, count in counts.items():
            total[bound] = total.get(bound, 0.0) + count
    return total
