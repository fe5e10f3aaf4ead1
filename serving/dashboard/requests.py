"""Answers a second by class, and latencies, out of the activator's counters.

Input: its page of metrics, each time it is read. Output: for each revision what happened since the reading before. A
histogram's quantile is interpolated within its bucket, as Prometheus does. It does not know where the page comes from.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

__all__ = ["Requests", "Seen", "parse"]

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*?)_bucket\{(.*)\} ([^ ]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Names that the same thing has had: today's Knative, 2018's, ours.
_FAMILIES = {
    "http_server_request_duration_seconds",
    "kn_serving_invocation_duration_seconds",
    "activator_request_latencies",
}
_NAMESPACES = ("kn_namespace_name", "k8s_namespace_name", "namespace_name", "namespace")
_REVISIONS = ("kn_revision_name", "revision_name", "revision")
_STATUSES = ("http_response_status_code", "response_code", "response_code_class", "code")
_CLASSES = "2345"
QUANTILES = (0.5, 0.95, 0.99)

Buckets = dict[tuple[str, str], dict[float, float]]
"""Cumulative counts by bound, by revision and class of status."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one revision: answers a second of 2xx, 3xx, 4xx and 5xx, and seconds at the quantiles."""

    rates: tuple[float, float, float, float]
    quantiles_s: tuple[float | None, float | None, float | None]


class Requests:
    """Keeps the reading before."""

    def __init__(self) -> None:
        self._before: Buckets = {}
        self._at_s: float | None = None

    def __repr__(self) -> str:
        return f"Requests({len(self._before)} series)"

    def read(self, page: str, at_s: float) -> dict[str, Seen]:
        """By "namespace/revision", what happened since the last reading; nothing at the first."""
        buckets = parse(page)
        before, self._before = self._before, buckets
        since_s, self._at_s = self._at_s, at_s
        if since_s is None or at_s <= since_s:
            return {}
        found = {}
        for key in {key for key, _ in buckets}:
            grown = {
                status: _grown(buckets.get((key, status), {}), before.get((key, status), {})) for status in _CLASSES
            }
            rates = [one.get(math.inf, 0.0) / (at_s - since_s) for one in grown.values()]
            found[key] = Seen(
                rates=(rates[0], rates[1], rates[2], rates[3]),
                quantiles_s=_quantiles(_sum(grown.values())),
            )
        return found


def parse(page: str) -> Buckets:
    """The histograms of requests on a page, those of several spellings and processes added up."""
    found: Buckets = {}
    for line in page.splitlines():
        match = _LINE.match(line)
        if match is None or match[1] not in _FAMILIES:
            continue
        labels = dict(_LABEL.findall(match[2]))
        revision, status = _first(labels, _REVISIONS), _first(labels, _STATUSES)
        if not revision or status[:1] not in _CLASSES:
            continue
        counts = found.setdefault((f"{_first(labels, _NAMESPACES)}/{revision}", status[0]), {})
        bound = float(labels.get("le", "inf").replace("+Inf", "inf"))
        counts[bound] = counts.get(bound, 0.0) + float(match[3])
    return found


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if name in labels), "")


def _grown(now: Mapping[float, float], before: Mapping[float, float]) -> dict[float, float]:
    """What came to each bucket; a counter that fell began anew."""
    is_new = any(now.get(bound, 0.0) < count for bound, count in before.items())
    return {bound: count - (0.0 if is_new else before.get(bound, 0.0)) for bound, count in now.items()}


def _sum(all_counts: Iterable[Mapping[float, float]]) -> dict[float, float]:
    total: dict[float, float] = {}
    for counts in all_counts:
        for bound, count in counts.items():
            total[bound] = total.get(bound, 0.0) + count
    return total


def _quantiles(counts: Mapping[float, float]) -> tuple[float | None, float | None, float | None]:
    found = list(_each_quantile(sorted(counts.items())))
    return found[0], found[1], found[2]


def _each_quantile(counts: list[tuple[float, float]]) -> Iterator[float | None]:
    total = counts[-1][1] if counts else 0.0
    for ratio in QUANTILES:
        if total <= 0:
            yield None
            continue
        rank, low, passed = ratio * total, 0.0, 0.0
        for bound, count in counts:
            if count >= rank:
                # Beyond the last bound nothing is known but that.
                yield low if math.isinf(bound) else low + (bound - low) * (rank - passed) / (count - passed)
                break
            low, passed = bound, count
