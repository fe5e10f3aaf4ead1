"""Sums up the history of revisions over a range: requests, latency, pods, and their price.

Pure. A history is what the dashboard keeps of a revision: columns of numbers, a row for each step of time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

History = Mapping[str, Sequence[Any]]
"""Columns by name, with the times as ``at_s``."""

# A row stands for its time until the next one, at most for the longest step.
_STEP_MAX_S = 600.0
RATES = ("rps_2xx", "rps_3xx", "rps_4xx", "rps_5xx")
"""The columns with responses a second."""

HOUR_S = 3600.0
GIB = 2**30


class StatsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A revision over a range: responses and 5xx among them, pods on average and at most, pod-hours, and the worst p99."""

    revision: str
    requests: int
    errors: int
    pods_mean: float
    pods_max: float
    pod_hours: float
    p99_max_s: float | None


def lengths_of(times: Sequence[float]) -> list[float]:
    """The seconds from each row to the next one; the last row has the length of the row before it."""
    ends = [*times[1:], times[-1] + (times[-1] - times[-2] if len(times) > 1 else 0.0)]
    return [min(_STEP_MAX_S, end - at_s) for at_s, end in zip(times, ends, strict=True)]


def summary(revision: str, history: History) -> StatsSummary:
    """Sum up the rows of a revision; those of a gap have no numbers."""
    lengths_s = lengths_of(history["at_s"])

    def total(*names: str) -> float:
        return sum(float(history[name][at] or 0) * length_s for at, length_s in enumerate(lengths_s) for name in names)

    pods = [count for count in history["ready"] if count is not None]
    known_s = sum(length_s for count, length_s in zip(history["ready"], lengths_s, strict=True) if count is not None)
    return StatsSummary(
        revision=revision,
        requests=round(total(*RATES)),
        errors=round(total("rps_5xx")),
        pods_mean=total("ready") / known_s if known_s else 0.0,
        pods_max=max(pods, default=0.0),
        pod_hours=total("ready") / HOUR_S,
        p99_max_s=max((p99_s for p99_s in history["p99_s"] if p99_s is not None), default=None),
    )


def price_of(pod_hours: float, *, memory_bytes: float, prices: Mapping[str, float]) -> float | None:
    """The price of pods of that memory; None without prices."""
    if not any(prices.values()):
        return None
    return pod_hours * (prices.get("pod_hour", 0.0) + memory_bytes / GIB * prices.get("gib_hour", 0.0))
