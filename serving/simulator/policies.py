"""The policies that the simulator compares, by name: what each changes in the settings, and its dial.

A policy is a change of ``AutoscalerSettings``; all else is the product. Its dial is a path of further changes from frugal to
generous: runs along it give the curve on which policies are compared at equal pod-seconds.
"""

from collections.abc import Callable, Mapping

import msgspec

from serving.settings.autoscaler import ADAPTIVE_POLICY, KNATIVE_POLICY, AutoscalerSettings
from serving.settings.kpa_quirks import ORIGINAL

SettingsChange = Callable[[AutoscalerSettings], AutoscalerSettings]


class DialPosition(msgspec.Struct, frozen=True, kw_only=True):
    """One position of a dial: its name, and what it changes in the policy's settings."""

    name: str
    change: SettingsChange


class SimulatedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: what it changes in the settings, and its dial from frugal to generous."""

    change: SettingsChange
    dial: tuple[DialPosition, ...]


def _retention(retention_s: float) -> SettingsChange:
    return lambda settings: msgspec.structs.replace(settings, scale_to_zero_pod_retention_period_s=retention_s)


def _target(ratio: float) -> SettingsChange:
    return lambda settings: msgspec.structs.replace(settings, container_concurrency_target_ratio=ratio)


def _fixed(total_s: float) -> SettingsChange:
    """The last pod stays this long after the last request: the stable window, then the retention."""
    return lambda settings: _retention(max(0.0, total_s - settings.stable_window_s))(_named(KNATIVE_POLICY)(settings))


def _fixed_position(target_ratio: float, kept_s: float) -> DialPosition:
    def change(settings: AutoscalerSettings) -> AutoscalerSettings:
        return _target(target_ratio)(_retention(kept_s)(settings))

    return DialPosition(name=f"target {target_ratio:.0%}, retention {kept_s:g} s", change=change)


# Sparse loads follow the retention of the last pod, heavy loads the target utilisation: both grow along the path.
_FIXED_DIAL = (
    *(_fixed_position(ratio, 0.0) for ratio in (0.9, 0.8, 0.75, 0.7)),
    *(_fixed_position(0.7, kept_s) for kept_s in (15.0, 30.0, 60.0, 120.0, 240.0, 540.0)),
    *(_fixed_position(ratio, 540.0) for ratio in (0.65, 0.6, 0.5)),
)


def _named(policy: str, **changes: object) -> SettingsChange:
    return lambda settings: msgspec.structs.replace(settings, policy=policy, **changes)


def _worth(worth_s: float) -> SettingsChange:
    return lambda settings: msgspec.structs.replace(settings, cold_start_worth_s=worth_s)


# What a cold start is worth moves the last pod and the room of the others alike.
_ADAPTIVE_DIAL = tuple(
    DialPosition(name=f"worth {worth_s:g} s", change=_worth(worth_s))
    for worth_s in (1, 5, 10, 15, 20, 30, 45, 60, 75, 90, 130, 200, 300, 500, 1000, 2000, 5000, 20000)
)

POLICIES: Mapping[str, SimulatedPolicy] = {
    "knative": SimulatedPolicy(change=_named(KNATIVE_POLICY, quirks=ORIGINAL), dial=_FIXED_DIAL),
    "adaptive": SimulatedPolicy(change=_named(ADAPTIVE_POLICY), dial=_ADAPTIVE_DIAL),
    "default": SimulatedPolicy(
        change=lambda settings: settings,
        dial=_ADAPTIVE_DIAL if AutoscalerSettings().policy == ADAPTIVE_POLICY else _FIXED_DIAL,
    ),
    "fixed-90s": SimulatedPolicy(change=_fixed(90.0), dial=_FIXED_DIAL),
    "fixed-300s": SimulatedPolicy(change=_fixed(300.0), dial=_FIXED_DIAL),
    "fixed-600s": SimulatedPolicy(change=_fixed(600.0), dial=_FIXED_DIAL),
}
"""Policies by name. ``knative`` is Knative's exact behaviour, ``default`` what the product does without any setting."""
