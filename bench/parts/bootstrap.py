"""How sure a change at equal pod-seconds is: an interval by resampling the functions of a workload.

Input: pod-seconds and cold requests of each function, under Knative's defaults and at each position of another policy's dial that was
run, as means over the seeds. Output: the central 95 % of the change in cold requests at Knative's pod-seconds, over resamples of as many
functions with replacement. Each resample has its own cost, and so its own place on the curve. One function gives no interval.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FunctionCosts = Mapping[str, tuple[float, float]]
"""Pod-seconds and cold requests by the name of the function."""

_RESAMPLES = 2000
_CENTRAL = (2.5, 97.5)

_Array = np.ndarray[Any, np.dtype[np.float64]]


def cold_change_interval(first: FunctionCosts, points: Sequence[FunctionCosts]) -> tuple[float, float] | None:
    """Two changes as ratios, -0.3 is 30 % fewer; None where there are too few functions, or no cold requests."""
    names = sorted(first)
    if len(names) < 2 or not points:
        return None
    dice = np.random.default_rng(1)
    weights = dice.multinomial(len(names), np.full(len(names), 1.0 / len(names)), size=_RESAMPLES).astype(float)
    base = weights @ _columns(first, names)
    curve = np.stack([weights @ _columns(one, names) for one in points])
    changes = [
        _at(curve[:, resample], base[resample, 0]) / base[resample, 1] - 1.0
        for resample in range(_RESAMPLES)
        if base[resample, 1] > 0
    ]
    if not changes:
        return None
    low, high = np.percentile(changes, _CENTRAL)
    return float(low), float(high)


def _columns(costs: FunctionCosts, names: Sequence[str]) -> _Array:
    return np.array([costs[name] for name in names], dtype=float)


def _at(points: _Array, pod_seconds: float) -> float:
    """Cold requests of a curve at a cost, interpolated; beyond its ends, those of the end."""
    order = np.argsort(points[:, 0])
    return float(np.interp(pod_seconds, points[order, 0], points[order, 1]))
