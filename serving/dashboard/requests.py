"""Response rates by class, latencies and queue lengths from the activators' counters.

Input: the metrics page of each activator at each reading. Output: the change of each revision since the reading before, summed
over all activators; an activator that is new or restarted counts from its second reading. Pure: pages are text.
"""

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from serving.traffic.latencies import FINE_DURATIONS, quantile_s

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)\{(.*)\} ([^ ]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WAITING = "serving_requests_waiting"
_NAMESPACES = ("kn_namespace_name", "k8s_namespace_name", "namespace")
_REVISIONS = ("kn_revision_name", "revision")
_CLASSES = "2345"
QUANTILES = (0.5, 0.95, 0.99)

_Key = tuple[str, str]


class MetricsReading(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one metrics page.

    ``durations`` counts requests by revision and class of status, then by bucket; ``waiting`` are queued requests by revision.
    """

    durations: dict[_Key, dict[int, float]]
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
        grown: dict[str, Counter[int]] = {}
        waiting: Counter[str] = Counter()
        for source, now in self._before.items():
            waiting.update(now.page.waiting)
            last = before.get(source)
            if last is None or at_s <= last.at_s:
                continue
            for (key, status), counts in now.page.durations.items():
                came = _grown(counts, last.page.durations.get((key, status), {}))
                place = _CLASSES.index(status)
                rates.setdefault(key, [0.0] * len(_CLASSES))[place] += sum(came.values()) / (at_s - last.at_s)
                grown.setdefault(key, Counter()).update(came)
        found = {key: RequestRates(waiting=count) for key, count in waiting.items()}
        for key, one in rates.items():
            quantiles_s = tuple(quantile_s(grown[key], ratio) for ratio in QUANTILES)
            found[key] = RequestRates(rates=tuple(one), quantiles_s=quantiles_s, waiting=waiting.get(key, 0.0))
        return found


def parse(text: str) -> MetricsReading:
    """Parse a metrics page: fine-grained durations of requests, and queued requests."""
    found = MetricsReading(durations={}, waiting={})
    for line in text.splitlines():
        if not line.startswith((FINE_DURATIONS, _WAITING)):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        key = f"{_first(labels, _NAMESPACES)}/{_first(labels, _REVISIONS)}"
        status = labels.get("response_code_class", "")[:1]
        if match[1] == _WAITING and _first(labels, _REVISIONS):
            found.waiting[key] = float(match[3])
        elif match[1] == FINE_DURATIONS and status and status in _CLASSES:
            found.durations.setdefault((key, status), {})[int(labels["bucket"])] = float(match[3])
    return found


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if name in labels), "")


def _grown(now: Mapping[int, float], before: Mapping[int, float]) -> dict[int, float]:
    """The increase of each bucket; a counter that fell was reset."""
    is_new = any(now.get(bucket, 0.0) < count for bucket, count in before.items())
    return {bucket: count - (0.0 if is_new else before.get(bucket, 0.0)) for bucket, count in now.items()}
