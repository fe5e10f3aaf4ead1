"""Policies compared at equal pod-seconds: the curve of a dial, and the place on it that costs what the first policy costs.

A dial is a path of positions from frugal to generous, along which pod-seconds grow. Only the positions around the cost that
is looked for are run: twelve positions take four or five runs.
"""

from collections.abc import Callable, Sequence

import msgspec

from serving.simulator.policies import DialPosition
from serving.simulator.report import PolicyReport

# A hair beside a point is on it: the sums of two runs differ in their last bits.
_SLACK = 1e-6


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One position of a policy's dial and what the policy does there."""

    name: str
    report: PolicyReport


class EqualPodSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Changes against the first policy at its pod-seconds, as ratios: -0.3 is 30 % fewer.

    None where the first policy has 0. A policy whose dial does not reach the cost is compared at the position that comes
    closest: ``pod_seconds_change`` is above 0 where the most frugal one costs more, below 0 where the most generous one costs less.
    """

    cold_change: float | None
    wait_p99_change: float | None
    late_change: float | None
    flaps_change: float | None
    pod_seconds_change: float | None
    dial: str
    """The positions of the dial on both sides."""


def points_around(
    pod_seconds: float, dial: Sequence[DialPosition], run: Callable[[DialPosition], PolicyReport]
) -> list[CurvePoint]:
    """The points of a dial next to a cost, and those that were run on the way there, in the order of the dial."""
    found: dict[int, PolicyReport] = {}

    def cost_at(index: int) -> float:
        if index not in found:
            found[index] = run(dial[index])
        return found[index].pod_seconds

    low, high = 0, len(dial) - 1
    if cost_at(high) > pod_seconds * (1 + _SLACK) and high > 0 and cost_at(low) < pod_seconds * (1 - _SLACK):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cost_at(middle) <= pod_seconds else (low, middle)
    return [CurvePoint(name=dial[index].name, report=found[index]) for index in sorted(found)]


def at_equal_pod_seconds(first: PolicyReport, points: Sequence[CurvePoint]) -> EqualPodSeconds:
    """The changes of a policy on its curve at the pod-seconds of the first policy."""
    by_cost = sorted(points, key=lambda point: point.report.pod_seconds)
    below = [point for point in by_cost if point.report.pod_seconds <= first.pod_seconds * (1 + _SLACK)]
    above = [point for point in by_cost if point.report.pod_seconds > first.pod_seconds * (1 + _SLACK)]
    left = below[-1] if below else above[0]
    right = above[0] if above else left
    width = right.report.pod_seconds - left.report.pod_seconds
    share = (first.pod_seconds - left.report.pod_seconds) / width if width else 0.0

    def change(value: Callable[[PolicyReport], float]) -> float | None:
        base = value(first)
        here = value(left.report) + (value(right.report) - value(left.report)) * share
        return here / base - 1 if base else None

    return EqualPodSeconds(
        cold_change=change(lambda one: one.cold_requests),
        wait_p99_change=change(lambda one: one.wait_p99_s),
        late_change=change(lambda one: one.late_share),
        flaps_change=change(lambda one: one.flaps_per_hour),
        pod_seconds_change=change(lambda one: one.pod_seconds),
        dial=left.name if left is right else f"{left.name} to {right.name}",
    )


def best_within(points: Sequence[CurvePoint], pod_seconds: float) -> CurvePoint | None:
    """The point with the fewest cold requests, then the fewest late ones, that costs no more; None if all cost more."""
    within = [point for point in points if point.report.pod_seconds <= pod_seconds * (1 + _SLACK)]

    def order(point: CurvePoint) -> tuple[float, float, float]:
        return point.report.cold_requests, point.report.late_share, point.report.pod_seconds

    return min(within, key=order, default=None)
