"""Response rates by class, latencies and queue lengths from the activators' counters.

Input: the metrics page of each activator at each reading. Output: the change of each revision since the reading before, summed
over all activators; an activator that is new or restarted counts from its second reading. Pure: pages are text.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from serving.core.traffic.latencies import quantile_s
from serving.core.traffic.responsecounts import CLASSES, MetricsReading, grown, parse

QUANTILES = (0.5, 0.95, 0.99)


class RequestRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one revision: responses a second by class 2xx to 5xx, latency quantiles, and queued requests.

    None where there is no earlier reading.
    """

    rates: tuple[float | None, ...] = (None,) * len(CLASSES)
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
        sums: dict[str, Counter[int]] = {}
        waiting: Counter[str] = Counter()
        for source, now in self._before.items():
            waiting.update(now.page.waiting)
            last = before.get(source)
            if last is None or at_s <= last.at_s:
                continue
            for (key, status), counts in now.page.durations.items():
                came = grown(counts, last.page.durations.get((key, status), {}))
                place = CLASSES.index(status)
                rates.setdefault(key, [0.0] * len(CLASSES))[place] += sum(came.values()) / (at_s - last.at_s)
                sums.setdefault(key, Counter()).update(came)
        requests = {key: RequestRates(waiting=count) for key, count in waiting.items()}
        for key, by_class in rates.items():
            quantiles_s = tuple(quantile_s(sums[key], ratio) for ratio in QUANTILES)
            requests[key] = RequestRates(rates=tuple(by_class), quantiles_s=quantiles_s, waiting=waiting.get(key, 0.0))
        return requests
