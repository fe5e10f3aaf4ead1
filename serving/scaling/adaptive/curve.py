"""The rates by which pods are kept, as a curve for people: fewer points, and only up to the ages that matter.

Input: the rate of each bin and the windows in which a pod is there. Output: a ``HazardCurve``.
"""

from collections.abc import Sequence

import numpy as np

from serving.scaling.adaptive.gaps import BIN_STARTS_S, Array
from serving.scaling.adaptive.policy_story import HazardCurve
from serving.scaling.adaptive.windows import KeepWindow

# The curve goes on for half as long as the last window again, and to this age at least, in seconds.
_BEYOND_RATIO = 1.5
_AGE_MIN_S = 300.0
# Bins that are shown one by one; of later ones, every second.
_FINE_BINS = 20


def curve_of(hazard: Array, windows: Sequence[KeepWindow], *, worth_s: float, gap_count: int) -> HazardCurve:
    """The curve of a revision to which a cold start is worth ``worth_s`` pod-seconds."""
    last = int(np.searchsorted(BIN_STARTS_S, max(_AGE_MIN_S, _BEYOND_RATIO * windows[-1].to_s)))
    bins = [*range(_FINE_BINS), *range(_FINE_BINS, min(last + 1, len(hazard)), 2)]
    return HazardCurve(
        ages_s=tuple(round(float(BIN_STARTS_S[one]), 1) for one in bins),
        # Of two bins that are one point the higher rate counts: a narrow peak is what a pod is started for.
        rates=tuple(float(f"{hazard[one : one + 1 + (one >= _FINE_BINS)].max():.3g}") for one in bins),
        threshold=1.0 / worth_s,
        windows=tuple((round(one.from_s, 1), round(one.to_s, 1)) for one in windows),
        gap_count=gap_count,
    )
