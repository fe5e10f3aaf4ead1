"""Metrics of one pod: requests and durations by status class, and their page.

Input: status and duration of each ended request. Output: text in Prometheus' format. Metrics that Knative also has use
its names (``kn_serving_...``). Counts are stored in lists: a request costs half a microsecond, and the sidecar needs no
library. Buckets are cumulated only when the page is requested.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

import msgspec

from serving.core.model.responses import STATUS_CLASSES

# From a fast app behind a fast proxy to Knative's longest timeout; each bucket about doubles the previous one.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_DURATION = "kn_serving_invocation_duration_seconds"


# Status classes that show an app's speed: without disconnects and failures, which may be fast.
_RIGHT = slice(1, 5)


class AppResponses(msgspec.Struct, frozen=True, kw_only=True):
    """The count and mean duration of responses without a server error. The mean is 0.0 if there are none."""

    count: int
    mean_s: float


class RequestMetrics:
    """Counts ended requests by status class and duration."""

    __slots__ = ("_buckets", "_response_count", "_response_sum_s", "_sums_s")

    def __init__(self) -> None:
        self._buckets = [[0] * (len(BOUNDS_S) + 1) for _ in range(10)]
        self._sums_s = [0.0] * len(self._buckets)
        # Values at the last ``pop_responses``.
        self._response_count = 0
        self._response_sum_s = 0.0

    def record(self, status: int, took_s: float) -> None:
        """Count an ended request by its status (0: no response) and its duration in seconds."""
        hundreds = status // 100
        self._buckets[hundreds][bisect_left(BOUNDS_S, took_s)] += 1
        self._sums_s[hundreds] += took_s

    def pop_responses(self) -> AppResponses:
        """Return the responses since the last call."""
        before, before_s = self._response_count, self._response_sum_s
        self._response_count = sum(map(sum, self._buckets[_RIGHT]))
        self._response_sum_s = sum(self._sums_s[_RIGHT])
        count = self._response_count - before
        return AppResponses(count=count, mean_s=max(0.0, self._response_sum_s - before_s) / count if count else 0.0)

    def counts(self) -> dict[str, int]:
        """Ended requests by status class; "none" if the client disconnected before a response."""
        # A status above 599 counts as an app error.
        own, beyond = self._buckets[: len(STATUS_CLASSES)], self._buckets[len(STATUS_CLASSES) :]
        counts = {name: sum(buckets) for name, buckets in zip(STATUS_CLASSES, own, strict=True)}
        counts["5xx"] += sum(map(sum, beyond))
        return counts

    def page(self, *, revision: str) -> list[str]:
        """The metrics lines of counts and durations, with ``revision`` as a label."""
        counts = self.counts()
        lines = ["# TYPE queueproxy_requests_total counter"]
        lines += [
            series("queueproxy_requests_total", count, revision=revision, status=status)
            for status, count in counts.items()
        ]
        lines.append(f"# TYPE {_DURATION} histogram")
        for hundreds, name in enumerate(STATUS_CLASSES):
            if counts[name]:
                lines += self._histogram(hundreds, revision=revision, name=name)
        return lines

    def _histogram(self, hundreds: int, *, revision: str, name: str) -> list[str]:
        rows = (
            self._buckets[hundreds:] if hundreds == len(STATUS_CLASSES) - 1 else self._buckets[hundreds : hundreds + 1]
        )
        totals = list(accumulate(map(sum, zip(*rows, strict=True))))
        sum_s = sum(self._sums_s[hundreds : hundreds + len(rows)])
        bounds = [*(f"{bound_s:g}" for bound_s in BOUNDS_S), "+Inf"]
        lines = [
            series(f"{_DURATION}_bucket", total, revision=revision, status=name, le=bound)
            for bound, total in zip(bounds, totals, strict=True)
        ]
        lines.append(series(f"{_DURATION}_sum", sum_s, revision=revision, status=name))
        lines.append(series(f"{_DURATION}_count", totals[-1], revision=revision, status=name))
        return lines


def series(name: str, value: float, *, revision: str, status: str = "", le: str = "") -> str:
    """One metrics line: ``series("a_total", 3, revision="r")`` is ``a_total{kn_revision_name="r"} 3``."""
    labels = [("kn_revision_name", revision), ("status_class", status), ("le", le)]
    inner = ",".join([f'{label}="{text}"' for label, text in labels if text])
    # Enough digits to distinguish consecutive counts in the millions.
    return f"{name}{{{inner}}} {value:.15g}"


def tls_lines(failures: Mapping[str, int], not_after_s: float) -> list[str]:
    """The metrics lines of inner TLS: refused handshakes by reason, and the expiry of the pod's certificate."""
    refused = [
        f'queueproxy_tls_refused_total{{reason="{reason}"}} {count}' for reason, count in sorted(failures.items())
    ]
    return [*refused, f"queueproxy_certificate_expiry_timestamp_seconds {not_after_s:.0f}"]


def refusal_lines(counts: Mapping[str, int]) -> list[str]:
    """The metrics lines of refused requests and connections, by code."""
    return [f'queueproxy_http_refused_total{{code="{code}"}} {count}' for code, count in sorted(counts.items())]
