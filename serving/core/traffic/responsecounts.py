"""Parses the response counts of activators by revision: responses of each class, and their durations.

Input: the text of a page of ``serving.net.metrics``, with the fine buckets of ``serving.core.traffic.latencies``. Pure.
"""

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from serving.core.traffic.latencies import FINE_DURATIONS

CLASSES = "2345"
"""The counted status classes: 2xx to 5xx."""

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)\{(.*)\} ([^ ]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WAITING = "serving_requests_waiting"
_NAMESPACES = ("kn_namespace_name", "k8s_namespace_name", "namespace")
_REVISIONS = ("kn_revision_name", "revision")
_ERRORS = "5"

_Key = tuple[str, str]


class MetricsReading(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one metrics page.

    ``durations`` counts requests by (revision, status class), then by bucket. ``waiting`` counts queued requests by
    revision.
    """

    durations: dict[_Key, dict[int, float]]
    waiting: dict[str, float]


class ResponseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Responses of one revision: all, the 5xx ones, and all by duration bucket."""

    count: float
    error_count: float
    durations: Mapping[int, float]


class GrowingCounts:
    """The responses of a revision ("namespace/name") since the first metrics page of each activator."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._before: dict[str, MetricsReading] = {}
        self._durations: Counter[int] = Counter()
        self._error_count = 0.0

    def add(self, pages: Mapping[str, MetricsReading]) -> ResponseCounts:
        """Add the metrics pages of all activators, by source; return the sums since the first page of each."""
        for source, page in pages.items():
            last = self._before.get(source)
            for status in CLASSES if last is not None else ():
                place = (self._key, status)
                came = grown(page.durations.get(place, {}), last.durations.get(place, {}) if last else {})
                self._durations.update(came)
                self._error_count += sum(came.values()) if status == _ERRORS else 0.0
        self._before |= pages
        count = sum(self._durations.values())
        return ResponseCounts(count=count, error_count=self._error_count, durations=dict(self._durations))


def parse(text: str) -> MetricsReading:
    """Parse a metrics page: fine-grained durations of requests, and queued requests. Raises ``ValueError``."""
    reading = MetricsReading(durations={}, waiting={})
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
            reading.waiting[key] = float(match[3])
        elif match[1] == FINE_DURATIONS and status and status in CLASSES:
            reading.durations.setdefault((key, status), {})[int(labels.get("bucket", ""))] = float(match[3])
    return reading


def grown(now: Mapping[int, float], before: Mapping[int, float]) -> dict[int, float]:
    """The increase of each bucket. A count that decreased was reset, and counts from 0."""
    is_new = any(now.get(bucket, 0.0) < count for bucket, count in before.items())
    return {bucket: count - (0.0 if is_new else before.get(bucket, 0.0)) for bucket, count in now.items()}


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if name in labels), "")
