"""Sums up the history of revisions over a range: requests, latency, pods, and what they cost.

Pure. A history is what the dashboard keeps of a revision: columns of numbers, a row for each step of time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.scaling.adaptive.policy_story import PolicyStory
from serving.settings.autoscaler import ADAPTIVE_POLICY

History = Mapping[str, Sequence[Any]]
"""Columns by name, with the times as ``at_s``."""

# A row stands for its time until the next one, at most for the longest step.
_STEP_MAX_S = 600.0
RATES = ("rps_2xx", "rps_3xx", "rps_4xx", "rps_5xx")
"""The columns with responses a second."""

_HOUR_S = 3600.0
_GIB = 2**30


class StatsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A revision over a range: responses and 5xx among them, pods on average and at most, pod-hours, and the worst p99."""

    revision: str
    requests: int
    errors: int
    pods_mean: float
    pods_max: float
    pod_hours: float
    p99_max_s: float | None


class ServiceCost(msgspec.Struct, frozen=True, kw_only=True):
    """A service over a range.

    ``always_on_pod_hours`` are those with at least one pod at each moment, ``knative_pod_hours`` those under Knative's policy, None
    without an estimate; ``price`` is of what it used, None without prices.
    """

    service: str
    pod_hours: float
    gib_hours: float
    price: float | None
    always_on_pod_hours: float
    knative_pod_hours: float | None


def lengths_of(times: Sequence[float]) -> list[float]:
    """The seconds from each row to the next one; the last row stands for as many as the one before it."""
    ends = [*times[1:], times[-1] + (times[-1] - times[-2] if len(times) > 1 else 0.0)]
    return [min(_STEP_MAX_S, end - at_s) for at_s, end in zip(times, ends, strict=True)]


def summary(revision: str, history: History) -> StatsSummary:
    """Sum up the rows of a revision; those of a gap have no numbers."""
    lengths_s = lengths_of(history["at_s"])

    def total(*names: str) -> float:
        return sum(float(history[name][at] or 0) * length_s for at, length_s in enumerate(lengths_s) for name in names)

    pods = [one for one in history["ready"] if one is not None]
    known_s = sum(length_s for one, length_s in zip(history["ready"], lengths_s, strict=True) if one is not None)
    return StatsSummary(
        revision=revision,
        requests=round(total(*RATES)),
        errors=round(total("rps_5xx")),
        pods_mean=total("ready") / known_s if known_s else 0.0,
        pods_max=max(pods, default=0.0),
        pod_hours=total("ready") / _HOUR_S,
        p99_max_s=max((one for one in history["p99_s"] if one is not None), default=None),
    )


def cost_of(
    service: str,
    histories: Mapping[str, History],
    *,
    memory: Mapping[str, int],
    stories: Sequence[PolicyStory],
    prices: Mapping[str, float],
) -> ServiceCost:
    """Sum up the histories of a service's revisions, by name; ``memory`` is that of a pod of each, in bytes."""
    pod_s, gib_s, knative_s = 0.0, 0.0, 0.0
    ready: dict[float, tuple[float, float]] = {}
    story_of = {one.revision: one for one in stories}
    for name, history in histories.items():
        lengths_s = lengths_of(history["at_s"])
        pods = [float(one or 0) for one in history["ready"]]
        own_s = sum(count * length_s for count, length_s in zip(pods, lengths_s, strict=True))
        pod_s += own_s
        gib_s += own_s * memory.get(name, 0) / _GIB
        knative_s += own_s * _knative_ratio(story_of.get(name))
        for at_s, count, length_s in zip(history["at_s"], pods, lengths_s, strict=True):
            before, longest_s = ready.get(at_s, (0.0, 0.0))
            ready[at_s] = (before + count, max(longest_s, length_s))
    price = prices.get("pod_hour", 0.0) * pod_s / _HOUR_S + prices.get("gib_hour", 0.0) * gib_s / _HOUR_S
    return ServiceCost(
        service=service,
        pod_hours=pod_s / _HOUR_S,
        gib_hours=gib_s / _HOUR_S,
        price=price if any(prices.values()) else None,
        always_on_pod_hours=sum(max(1.0, count) * length_s for count, length_s in ready.values()) / _HOUR_S,
        knative_pod_hours=knative_s / _HOUR_S if story_of.keys() & histories.keys() else None,
    )


def _knative_ratio(story: PolicyStory | None) -> float:
    """Pod-seconds under Knative's policy for each that was used."""
    if story is None or story.policy != ADAPTIVE_POLICY or not story.costs.adaptive_pod_seconds:
        return 1.0
    return story.costs.knative_pod_seconds / story.costs.adaptive_pod_seconds
