"""When, after its last request, a revision should have a pod: by the rate at which requests come at each age of a gap.

A pod that is kept for a second costs a pod-second; if a request comes in that second, a cold start is saved. So it stays while
the rate is at least 1 over what a cold start is worth: at 120 pod-seconds, one request in 120 s. Where the rate rises again
later, as for calls each 10 minutes, the pod goes in between and is started ahead of the request.
"""

from typing import Any

import msgspec
import numpy as np

from serving.scaling.adaptive.gaps import BIN_STARTS_S

Array = np.ndarray[Any, np.dtype[np.float64]]

_WIDTHS_S = np.diff(BIN_STARTS_S)
_STARTS_S = BIN_STARTS_S.tolist()


class KeepWindow(msgspec.Struct, frozen=True):
    """A pod should be ready from one age of the gap to another, in seconds since the last request ended."""

    from_s: float
    to_s: float


class KeepBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds the windows. All in seconds but ``pre_warms``."""

    worth_s: float
    """Pod-seconds that a cold start is worth."""

    min_s: float
    max_s: float
    bridge_s: float
    start_s: float
    """Time that a pod takes to start."""

    pre_warms: bool


def keep_windows(hazard: Array, bounds: KeepBounds) -> tuple[KeepWindow, ...]:
    """The windows, in order. The first begins at 0 and lasts from ``min_s`` to ``max_s``; later ones are for pre-warming.

    ``hazard`` is the rate by bin. A pause of at most ``bridge_s`` joins two windows. A later window has to be worth the start
    of its pod too: what it is expected to save, less what it costs, is at least the time that the pod takes to start.
    """
    kept = np.zeros(len(hazard) + 1, dtype=bool)
    np.greater_equal(hazard[:-1] * bounds.worth_s, 1.0, out=kept[1:-1])
    edges = (kept[1:] != kept[:-1]).nonzero()[0].tolist()
    found = [(0.0, bounds.min_s)]
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        from_s, to_s = _STARTS_S[first], _STARTS_S[last]
        if from_s - found[-1][1] <= bounds.bridge_s:
            found[-1] = (found[-1][0], max(found[-1][1], to_s))
        elif not bounds.pre_warms:
            break
        elif _saved_s(hazard[first:last], _WIDTHS_S[first:last], bounds.worth_s) >= bounds.start_s:
            found.append((from_s, to_s))
    found[0] = (0.0, min(found[0][1], max(bounds.max_s, bounds.min_s)))
    return tuple(KeepWindow(from_s, to_s) for from_s, to_s in found)


def _saved_s(hazard: Array, widths_s: Array, worth_s: float) -> float:
    """Pod-seconds that a window is expected to save over what it costs, if no request has come before it."""
    ahead = hazard * widths_s
    waiting = np.exp(-(np.add.accumulate(ahead) - ahead))
    return float((waiting * (hazard * worth_s - 1.0) * widths_s).sum())
