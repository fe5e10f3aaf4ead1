"""Converts a node's metrics to its load: mean and deviation of cpu and memory.

Input: a node's list of metrics as load-watcher sends it; output: ``NodeUsage``, or ``NoData`` for missing measurements.
Pure.

Source: kubernetes-sigs/scheduler-plugins 903da7d, pkg/trimaran/resourcestats.go.
"""

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from serving.core.model.nodata import NoData
from serving.core.settings.placement import PlacementQuirks
from serving.nodes.placement.scores.arrays import FloatArray, IntArray, Resource

# load-watcher's case-sensitive words.
_TYPES = {Resource.CPU: "CPU", Resource.MEMORY: "Memory"}
_AVERAGE = "AVG"
_DEVIATION = "STD"
_LATEST = frozenset({"", "Latest"})


class NodeMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a node: type "CPU" or "Memory", operator "AVG", "STD", "Latest" or "", value in percent."""

    type: str
    operator: str = ""
    value: float = 0.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and standard deviation of one resource, in percent of the allocatable amount."""

    mean_percent: float
    deviation_percent: float


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Measured load of one node. ``at_s`` is the end of the measurement, in seconds of the caller's clock."""

    at_s: float
    cpu: Usage | NoData
    memory: Usage | NoData


def usage_of(percents: Iterable[float | None], *, missing: NoData) -> Usage | NoData:
    """Mean and standard deviation of measurements, else ``missing``: 20, 40 and 60 percent give 40 and 16.3."""
    known = [value for value in percents if value is not None and math.isfinite(value)]
    if not known:
        return missing
    mean = math.fsum(known) / len(known)
    variance = math.fsum((value - mean) ** 2 for value in known) / len(known)
    return Usage(mean_percent=mean, deviation_percent=math.sqrt(variance))


def read_usage(metrics: Iterable[NodeMetric], *, at_s: float, quirks: PlacementQuirks) -> NodeUsage:
    """The load of a node from its list of metrics, which may be empty."""
    metrics = list(metrics)
    return NodeUsage(
        at_s=at_s,
        cpu=_select(metrics, Resource.CPU, quirks),
        memory=_select(metrics, Resource.MEMORY, quirks),
    )


def _select(metrics: Iterable[NodeMetric], resource: Resource, quirks: PlacementQuirks) -> Usage | NoData:
    """Mean and deviation of one resource.

    AVG is the mean and STD the deviation; the last value of each counts. A value with the operator Latest, or without
    an operator, is the mean only before the first AVG. Values that are not finite are skipped.
    """
    average: float | None = None
    latest: float | None = None
    deviation = 0.0
    seen = False
    for metric in metrics:
        if metric.type != _TYPES[resource] or not math.isfinite(metric.value):
            continue
        seen = True
        if metric.operator == _AVERAGE:
            average = metric.value
        elif metric.operator == _DEVIATION:
            deviation = metric.value
        elif metric.operator in _LATEST:
            latest = metric.value
    mean = latest if average is None else average
    if mean is None and seen and quirks.any_entry_is_a_mean:
        mean = 0.0
    if mean is None:
        return NoData(missing=f"{resource} mean among the node's metrics")
    return Usage(mean_percent=mean, deviation_percent=deviation)


def usage_ratio(percent: FloatArray, allocatable: IntArray, *, added: IntArray | int = 0) -> FloatArray:
    """Percentages as shares of the allocatable amount, from 0 to 1; 0 where nothing is allocatable.

    ``added`` is an amount in addition to the measured one. Example: 40 % of 4000 m with 1000 m added: (1600 + 1000) /
    4000 = 0.65. As in scheduler-plugins, absolute amounts are computed first; the result may differ from percent / 100
    in the last bit.
    """
    return _ratio(percent * allocatable / 100 + added, allocatable)


def clamped_usage_ratio(percent: FloatArray, allocatable: IntArray, *, added: IntArray | int = 0) -> FloatArray:
    """``usage_ratio`` after clamping measured use to 0..allocatable, and ``added`` to at least 0.

    Measured -5 % of 4000 m (-200 m) with 1000 m added: (0 + 1000) / 4000 = 0.25, where ``usage_ratio`` gives 0.2.
    """
    used = np.clip(percent * allocatable / 100, 0.0, np.maximum(allocatable, 0))
    return _ratio(used + np.maximum(added, 0), allocatable)


def _ratio(used: FloatArray, allocatable: IntArray) -> FloatArray:
    ratio = np.zeros_like(used)
    np.divide(used, allocatable, out=ratio, where=allocatable > 0)
    return np.clip(ratio, 0.0, 1.0)
