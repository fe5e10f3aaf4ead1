"""A histogram of durations for one row, cheap enough for every request.

Input: a duration, and the ``traceparent`` of its request. Output: the samples of a histogram for ``prometheus_client``, made
with the page. An observation takes 0.3 µs, where a bound ``Histogram`` takes 0.6, and 1.6 with an exemplar: each bucket keeps
one exemplar a second, which is more than any scraper reads.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from serving.metrics.names import BUCKETS_S

_EXEMPLAR_SPACING_S = 1.0
# "00-" and 32 hexadecimal digits and "-": a trace as W3C's traceparent tells it.
_TRACE_BYTES = 32
_VERSION = b"00-"
_ZERO_TRACE = "0" * _TRACE_BYTES
_HEXADECIMAL = frozenset(b"0123456789abcdef")
_BOUNDS = (*map(floatToGoString, BUCKETS_S), "+Inf")


class Durations:
    """One row. ``clock`` gives the time of day in seconds, for exemplars."""

    __slots__ = ("_clock", "_counts", "_due_s", "_exemplars", "_sum_s")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._counts = [0] * len(_BOUNDS)
        self._sum_s = 0.0
        self._due_s = [0.0] * len(_BOUNDS)
        self._exemplars: list[Exemplar | None] = [None] * len(_BOUNDS)

    def note(self, took_s: float, *, at_s: float, traceparent: bytes = b"") -> None:
        """Record a duration of ``took_s`` seconds that ended at ``at_s`` on a monotonic clock."""
        bucket = bisect_left(BUCKETS_S, took_s)
        self._counts[bucket] += 1
        self._sum_s += took_s
        if traceparent and at_s >= self._due_s[bucket]:
            self._remember(bucket, took_s, at_s=at_s, traceparent=traceparent)

    def samples(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        """The row as it is now."""
        total = 0
        for total, bound, exemplar in zip(accumulate(self._counts), _BOUNDS, self._exemplars, strict=True):
            yield Sample(f"{name}_bucket", {**labels, "le": bound}, total, None, exemplar)
        yield Sample(f"{name}_count", dict(labels), total)
        yield Sample(f"{name}_sum", dict(labels), self._sum_s)

    def _remember(self, bucket: int, took_s: float, *, at_s: float, traceparent: bytes) -> None:
        trace_id = trace_id_of(traceparent)
        if trace_id is not None:
            self._due_s[bucket] = at_s + _EXEMPLAR_SPACING_S
            self._exemplars[bucket] = Exemplar({"trace_id": trace_id}, took_s, self._clock())


def trace_id_of(traceparent: bytes) -> str | None:
    """The trace id of a W3C traceparent; None for an invalid one."""
    trace = traceparent[len(_VERSION) : len(_VERSION) + _TRACE_BYTES]
    is_one = (
        traceparent.startswith(_VERSION)
        and len(trace) == _TRACE_BYTES
        and traceparent[len(_VERSION) + _TRACE_BYTES :][:1] == b"-"
        and _HEXADECIMAL.issuperset(trace)
    )
    text = trace.decode("latin-1")
    return text if is_one and text != _ZERO_TRACE else None
