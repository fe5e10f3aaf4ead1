"""The types of triggers: the usage that each measures, and the number of pods computed from it.

A type computes two numbers for a revision's pods: their usage (1.0 is full), and the change in pods that would bring
the usage to the trigger's target. It is stateless, and does not decide whether to act.

**A new type is one class and one line in ``REGISTRY``.** Triggers then name it in ``type``. Further measurements are in
``ObservedPods.gauges``. Source of the formulas: topfreegames/maestro v9 (dbbfd74), package autoscaler, and its
documentation; worked numbers in docs/calculations.md.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, Protocol

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.quantity import Resources
from serving.core.scaling.policies.scalingpolicy import Trigger
from serving.core.settings.triggers import TriggerQuirks

Share = Fraction | float

_SINGLE = struct.Struct("f")


def single(number: float) -> float:
    """The nearest 32-bit float: 0.7 is 0.699999988079071."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    return rounded


def share_of(parts: Sequence[int], wholes: Sequence[int], quirks: TriggerQuirks) -> Share | NoData:
    """The sum of the parts divided by the sum of the wholes: ([1, 2], [4, 2]) is 1/2.

    NoData if the wholes sum to 0. Maestro computes in 32 bits, where 0/0 is not a number and 1/0 is infinite.
    """
    part, whole = _sum(parts, quirks), _sum(wholes, quirks)
    if whole:
        return single(part / whole) if quirks.single_precision else Fraction(part) / Fraction(whole)
    if quirks.divides_by_zero:
        return math.inf if part else math.nan
    return NoData(missing="something that usage could be a share of")


def _sum(terms: Sequence[int], quirks: TriggerQuirks) -> float:
    if not quirks.single_precision:
        return sum(terms)
    total = 0.0
    for term in terms:
        total = single(total + single(term))
    return total


def fraction_of_percent(percent: int, quirks: TriggerQuirks) -> Share:
    """A percentage for exact computation: 70 is 7/10. Maestro's quirk uses the float 0.7."""
    return percent / 100 if quirks.single_precision else Fraction(percent, 100)


def bound_ratio(percent: int, quirks: TriggerQuirks) -> float:
    """A percentage for comparison: 70 is 0.7. Maestro's quirk uses the 32-bit float 0.699999988079071."""
    return single(percent / 100) if quirks.single_precision else percent / 100


def round_half_away(number: Share) -> int:
    """The nearest whole number, halves away from zero: 2.5 is 3, -2.5 is -3. ``number`` is finite."""
    whole = math.trunc(number)
    rest = number - whole
    if -0.5 < rest < 0.5:
        return whole
    return whole + 1 if rest > 0 else whole - 1


class ContainerUse(msgspec.Struct, frozen=True, kw_only=True):
    """The requests and usage of one container. None means not set, or not measured."""

    requested: Resources = Resources()
    used: Resources = Resources()


class ObservedPods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one revision by state. Triggers change ``available_count``, the sum of the first three.

    Pods are being created (not ready), idle (ready without a request; only these may be removed) or occupied (ready
    with at least one request in flight). Of those being created, ``pending_count`` wait for a node, and
    ``failing_count`` have an error. ``pods`` are the containers of each measured pod, in a stable order. ``gauges`` are
    reported by the apps of ready pods, summed by name, for trigger types that use them.
    """

    creating_count: int = 0
    idle_count: int = 0
    occupied_count: int = 0
    pending_count: int = 0
    failing_count: int = 0
    pods: tuple[tuple[ContainerUse, ...], ...] = ()
    gauges: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def available_count(self) -> int:
        """Existing pods and pods being created: 2 being created, 3 idle and 5 occupied are 10."""
        return self.creating_count + self.idle_count + self.occupied_count


class TriggerPolicy(Protocol):
    """One type of trigger. Only the types taken from maestro read ``quirks``."""

    def usage_ratio(self, observed: ObservedPods, quirks: TriggerQuirks, /) -> float | NoData:
        """The usage of the pods. 1.0 is full; cpu and memory may exceed it. NoData if unknown."""
        ...

    def delta(self, trigger: Trigger, observed: ObservedPods, quirks: TriggerQuirks, /) -> int | NoData:
        """Pods to add (above 0) or remove (below 0) so that the usage becomes ``trigger.usage_percent``."""
        ...


class OccupancyPolicy:
    """Occupancy: the share of pods with a request."""

    def usage_ratio(self, observed: ObservedPods, quirks: TriggerQuirks, /) -> float | NoData:
        """Occupied pods divided by available pods: 8 of 10 are 0.8. NoData without pods."""
        return _occupancy(observed, quirks)

    def delta(self, trigger: Trigger, observed: ObservedPods, quirks: TriggerQuirks, /) -> int | NoData:
        """Solve occupied / (available + delta) = target, rounded, halves away from zero.

        Examples: 8 occupied pods of 10 at 70 percent give 8 / 0.7 - 10 = 1.43, so 1. 2 of 10 at 50 percent give 2 / 0.5
        - 10 = -6.
        """
        target = fraction_of_percent(trigger.usage_percent, quirks)
        if target <= 0:
            return _no_target()
        available_count = observed.available_count
        return round_half_away((observed.occupied_count - target * available_count) / target)


class FixedStepPolicy:
    """Occupancy, with a fixed number of pods per change."""

    def usage_ratio(self, observed: ObservedPods, quirks: TriggerQuirks, /) -> float | NoData:
        """Occupied pods divided by available pods. NoData without pods."""
        return _occupancy(observed, quirks)

    def delta(self, trigger: Trigger, _observed: ObservedPods, _quirks: TriggerQuirks, /) -> int | NoData:
        """The trigger's fixed change: pods to add (above 0) or remove (below 0)."""
        return trigger.delta


class ResourcePolicy:
    """Use of a resource relative to the containers' requests."""

    __slots__ = ("_resource",)

    def __init__(self, resource: Literal["cpu_m", "memory_bytes"]) -> None:
        """``resource`` is a field of ``Resources``."""
        self._resource = resource

    def usage_ratio(self, observed: ObservedPods, quirks: TriggerQuirks, /) -> float | NoData:
        """Sum of use over sum of requests: 900m of 1 cpu and 100m of 1 cpu are 0.5. NoData if nothing is measured."""
        share = self._share(observed, quirks)
        return share if isinstance(share, NoData) else float(share)

    def delta(self, trigger: Trigger, observed: ObservedPods, quirks: TriggerQuirks, /) -> int | NoData:
        """Pods to add: ceil(usage / target x available) - available, with usage / target rounded to hundredths.

        The rounding is a dead band of half a percent around the target. Example: a usage of 0.9 at 70 percent on 10
        pods: 0.9 / 0.7 is 1.29, so 12.9 pods, rounded up to 13, which is 3 more.
        """
        share = self._share(observed, quirks)
        if isinstance(share, NoData):
            return share
        target = fraction_of_percent(trigger.usage_percent, quirks)
        if target <= 0:
            return _no_target()
        if not math.isfinite(share):
            return NoData(missing=f"a finite use of {self._resource}")
        hundredths = round_half_away(share / target * 100)
        available_count = observed.available_count
        return math.ceil(fraction_of_percent(hundredths, quirks) * available_count) - available_count

    def _share(self, observed: ObservedPods, quirks: TriggerQuirks) -> Share | NoData:
        parts: list[int] = []
        wholes: list[int] = []
        for container in (container for pod in observed.pods for container in pod):
            used, requested = self._amounts(container)
            # A request of 0 counts as none; otherwise its use would be a share of other containers' requests.
            if quirks.counts_unmeasured_containers or (used is not None and requested):
                parts.append(used or 0)
                wholes.append(requested or 0)
        return share_of(parts, wholes, quirks)

    def _amounts(self, container: ContainerUse) -> tuple[int | None, int | None]:
        used: int | None = getattr(container.used, self._resource)
        requested: int | None = getattr(container.requested, self._resource)
        return used, requested


def _occupancy(observed: ObservedPods, quirks: TriggerQuirks) -> float | NoData:
    share = share_of([observed.occupied_count], [observed.available_count], quirks)
    return share if isinstance(share, NoData) else float(share)


def _no_target() -> NoData:
    return NoData(missing="a usage above 0 to aim at")


REGISTRY: Mapping[str, TriggerPolicy] = {
    "occupancy": OccupancyPolicy(),
    "fixed-step": FixedStepPolicy(),
    "cpu": ResourcePolicy("cpu_m"),
    "mem": ResourcePolicy("memory_bytes"),
}
