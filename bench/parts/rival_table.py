"""The results of ``bench/quality_rivals.py`` and their tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

COSTS = (1.0, 1.1, 1.18, 1.41, 1.7)


class RivalPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy does at one position of its dial."""

    dial: str
    requests: int
    cold_requests: int
    pod_seconds: float


class RivalResult(msgspec.Struct, frozen=True, kw_only=True):
    """All policies on one trace."""

    name: str
    title: str
    functions: int
    hours: float
    knative: RivalPoint
    shipped: RivalPoint
    curves: dict[str, list[RivalPoint]]


def rival_lines(folder: Path) -> Iterator[str]:
    """The tables of all traces that were kept in a folder."""
    for path in sorted(folder.glob("rivals-*.json")):
        yield from table(msgspec.json.decode(path.read_bytes(), type=RivalResult))


def table(result: RivalResult) -> Iterator[str]:
    """A trace in Markdown: the change in cold requests of each policy, at multiples of Knative's pod-seconds."""
    knative, shipped = result.knative, result.shipped
    yield f"### {result.title}: {result.functions} functions, {result.hours:g} hours, {knative.requests:,} requests"
    yield ""
    yield (
        f"Knative has {knative.cold_requests:,} cold requests for {knative.pod_seconds / 3600:,.1f} pod-hours. Adaptive, as shipped: "
        f"{shipped.cold_requests / knative.cold_requests - 1:+.0%} cold requests, {shipped.pod_seconds / knative.pod_seconds - 1:+.0%} pod-hours."
    )
    yield ""
    yield "| pod-seconds of Knative | " + " | ".join(f"x {cost:g}" for cost in COSTS) + " |"
    yield "|---" * (len(COSTS) + 1) + "|"
    for name, points in result.curves.items():
        cells = [_shown(cold_at(points, cost * knative.pod_seconds), knative) for cost in COSTS]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def cold_at(points: Sequence[RivalPoint], pod_seconds: float) -> float | None:
    """The fewest cold requests of a policy within a cost, read between two positions; None where all cost more."""
    by_cost = sorted(points, key=lambda point: point.pod_seconds)
    best: float | None = None
    for left, right in zip(by_cost, [*by_cost[1:], None], strict=True):
        if left.pod_seconds > pod_seconds:
            break
        cold = float(left.cold_requests)
        if right is not None and right.pod_seconds > pod_seconds:
            share = (pod_seconds - left.pod_seconds) / (right.pod_seconds - left.pod_seconds)
            cold = min(cold, cold + (right.cold_requests - cold) * share)
        best = cold if best is None else min(best, cold)
    return best


def _shown(cold: float | None, knative: RivalPoint) -> str:
    return "costs more" if cold is None else f"{cold / knative.cold_requests - 1:+.0%}"
