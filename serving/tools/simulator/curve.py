"""Compares policies at equal pod-seconds, each on the curve of its dial.

A dial is a path of positions from frugal to generous, along which pod-seconds grow. Only positions around the wanted
cost run: twelve positions take four or five runs.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from serving.core.scaling.decision.guarded import PolicyClass
from serving.core.scaling.scaler.registry import BUILT_IN, PolicyFactory, PolicyRegistry
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, ORIGINAL, AutoscalerSettings
from serving.tools.simulator.foresight import Foresight
from serving.tools.simulator.report import PolicyReport

SettingsChange = Callable[[AutoscalerSettings], AutoscalerSettings]

# A cost slightly beside a point counts as on it: the sums of two runs differ in their last bits.
_SLACK = 1e-6


class DialPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a policy: its name, and its changes to the policy's settings.

    A dial is a sequence of such variants, from the one with the fewest pod-seconds to the one with the most.
    """

    name: str
    change: SettingsChange


class SimulatedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy to simulate: its changes to the settings, and its dial of variants from frugal to generous.

    ``policy_of`` creates the policy of a revision. A policy with ``foresight`` knows the future, and replaces the
    autoscaler's decisions.
    """

    change: SettingsChange
    dial: tuple[DialPosition, ...]
    policy_of: PolicyFactory = BUILT_IN.policy_of
    """Creates the policy of a revision; rivals of the product replace it."""

    foresight: Foresight | None = None
    """A policy with knowledge of the future, in place of the product's decisions."""


def _unchanged(settings: AutoscalerSettings) -> AutoscalerSettings:
    return settings


def _changed(**changes: object) -> SettingsChange:
    return lambda settings: replace(settings, **changes)


def _fixed(total_s: float) -> SettingsChange:
    """Settings that keep the last pod for ``total_s`` seconds after the last request.

    This time consists of the stable window and the pod retention after it.
    """

    def change(settings: AutoscalerSettings) -> AutoscalerSettings:
        retention_s = max(0.0, total_s - settings.stable_window_s)
        return replace(settings, policy=KNATIVE_POLICY, scale_to_zero_pod_retention_period_s=retention_s)

    return change


def _fixed_position(target_ratio: float, kept_s: float) -> DialPosition:
    change = _changed(container_concurrency_target_ratio=target_ratio, scale_to_zero_pod_retention_period_s=kept_s)
    return DialPosition(name=f"target {target_ratio:.0%}, retention {kept_s:g} s", change=change)


# Sparse loads depend on the retention of the last pod, heavy loads on the target utilisation: both grow along the path.
_FIXED_DIAL = (
    *(_fixed_position(ratio, 0.0) for ratio in (0.9, 0.8, 0.75, 0.7)),
    *(_fixed_position(0.7, kept_s) for kept_s in (15.0, 30.0, 60.0, 120.0, 240.0, 540.0)),
    *(_fixed_position(ratio, 540.0) for ratio in (0.65, 0.6, 0.5)),
)


# The worth of a cold start affects both the last pod and the room of the others.
_ADAPTIVE_DIAL = tuple(
    DialPosition(name=f"worth {worth_s:g} s", change=_changed(cold_start_worth_s=worth_s))
    for worth_s in (1, 5, 10, 15, 20, 30, 45, 60, 75, 90, 130, 200, 300, 500, 1000, 2000, 5000, 20000)
)

POLICIES: Mapping[str, SimulatedPolicy] = {
    "knative": SimulatedPolicy(change=_changed(policy=KNATIVE_POLICY, quirks=ORIGINAL), dial=_FIXED_DIAL),
    "adaptive": SimulatedPolicy(change=_changed(policy=ADAPTIVE_POLICY), dial=_ADAPTIVE_DIAL),
    "default": SimulatedPolicy(change=_unchanged, dial=_ADAPTIVE_DIAL),
    "fixed-90s": SimulatedPolicy(change=_fixed(90.0), dial=_FIXED_DIAL),
    "fixed-300s": SimulatedPolicy(change=_fixed(300.0), dial=_FIXED_DIAL),
    "fixed-600s": SimulatedPolicy(change=_fixed(600.0), dial=_FIXED_DIAL),
    "oracle": SimulatedPolicy(change=_unchanged, dial=_ADAPTIVE_DIAL, foresight=Foresight.ORACLE),
    "clairvoyant": SimulatedPolicy(
        change=_unchanged,
        dial=(DialPosition(name="no request waits", change=_unchanged),),
        foresight=Foresight.CLAIRVOYANT,
    ),
}
"""Policies by name. ``knative`` is Knative's exact behaviour, ``default`` the product with default settings.

``oracle`` and ``clairvoyant`` have knowledge of the future: bounds without and with pre-warming, defined in
``foresight``.
"""


def policy_of_user(name: str, policy_class: PolicyClass) -> SimulatedPolicy:
    """A user's policy under a name.

    It has no dial. The time of its calls is not limited, so that results do not depend on the machine.
    """
    return SimulatedPolicy(
        change=_changed(policy=name),
        dial=(DialPosition(name="as it is", change=_unchanged),),
        policy_of=PolicyRegistry({name: policy_class}).policy_of,
    )


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One position of a policy's dial, with the policy's results there."""

    name: str
    report: PolicyReport


class EqualPodSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's changes compared with the first policy at equal pod-seconds, as ratios: -0.3 is 30 % fewer.

    A ratio is None if the first policy's value is 0. The results are interpolated between the two positions of the
    policy's dial named in ``dial``. If even the cheapest or the most expensive position does not reach the first
    policy's pod-seconds, it is compared as it is; ``pod_seconds_change`` is its remaining difference. ``way_to_oracle``
    are the avoided cold requests divided by those that the oracle avoids.
    """

    cold_change: float | None
    wait_p99_change: float | None
    late_change: float | None
    flaps_change: float | None
    pod_seconds_change: float | None
    dial: str
    """The positions of the dial on both sides of the cost."""

    way_to_oracle: float | None = None
    """Cold requests avoided, as a share of those avoided by the oracle at this cost; None without an oracle."""


def points_around(
    pod_seconds: float, dial: Sequence[DialPosition], run: Callable[[DialPosition], PolicyReport]
) -> list[CurvePoint]:
    """Search the dial for the two positions next to ``pod_seconds``; return all computed points, in dial order."""
    reports: dict[int, PolicyReport] = {}

    def cost_at(index: int) -> float:
        if index not in reports:
            reports[index] = run(dial[index])
        return reports[index].pod_seconds

    low, high = 0, len(dial) - 1
    if cost_at(high) > pod_seconds * (1 + _SLACK) and high > 0 and cost_at(low) < pod_seconds * (1 - _SLACK):
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cost_at(middle) <= pod_seconds else (low, middle)
    return [CurvePoint(name=dial[index].name, report=reports[index]) for index in sorted(reports)]


def at_equal_pod_seconds(first: PolicyReport, points: Sequence[CurvePoint]) -> EqualPodSeconds:
    """The changes of a policy at the first policy's pod-seconds, interpolated on the policy's curve."""
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
        cold_change=change(lambda report: report.cold_requests),
        wait_p99_change=change(lambda report: report.wait_p99_s),
        late_change=change(lambda report: report.late_share),
        flaps_change=change(lambda report: report.flaps_per_hour),
        pod_seconds_change=change(lambda report: report.pod_seconds),
        dial=left.name if left is right else f"{left.name} to {right.name}",
    )


def with_way_to_oracle(changes: Mapping[str, EqualPodSeconds]) -> dict[str, EqualPodSeconds]:
    """Add ``way_to_oracle``: the policy's change of cold requests divided by the oracle's change.

    Example: if a policy avoids 60 % of the cold requests and the oracle 80 %, the value is 0.75.
    """
    oracle = changes.get("oracle")
    if oracle is None or not oracle.cold_change:
        return dict(changes)
    return {
        name: change
        if change.cold_change is None or name == "clairvoyant"
        else replace(change, way_to_oracle=change.cold_change / oracle.cold_change)
        for name, change in changes.items()
    }


def best_within(points: Sequence[CurvePoint], pod_seconds: float) -> CurvePoint | None:
    """The point within a cost with the fewest cold requests, then the fewest late ones; None if all cost more."""
    within = [point for point in points if point.report.pod_seconds <= pod_seconds * (1 + _SLACK)]

    def order(point: CurvePoint) -> tuple[float, float, float]:
        return point.report.cold_requests, point.report.late_share, point.report.pod_seconds

    return min(within, key=order, default=None)
