"""Two ways of doing one thing, timed in alternating rounds of one run.

Machines are noisy, so what counts is the ratio inside a round: the median over rounds is quoted, with the spread.
"""

import gc
import statistics
import time
from collections.abc import Callable

import msgspec

__all__ = ["Row", "compare", "seconds_per_call"]

ROUNDS = 7
# Long enough that the clock's resolution and one interrupt vanish, short enough that all rounds see the same machine.
ROUND_TARGET_S = 0.05


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the result: medians in microseconds, the median ratio peer/ours, and the bar it is held to."""

    name: str
    ours_us: float
    peer_us: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    bar: str
    holds: bool | None


def seconds_per_call(call: Callable[[], object], call_count: int) -> float:
    """Mean duration of one call over ``call_count`` calls, with the collector off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        begin_s = time.perf_counter()
        for _ in range(call_count):
            call()
        return (time.perf_counter() - begin_s) / call_count
    finally:
        if was_enabled:
            gc.enable()


def _calls_per_round(call: Callable[[], object]) -> int:
    call()
    return max(1, int(ROUND_TARGET_S / max(seconds_per_call(call, 1), 1e-9)))


def compare(
    name: str,
    *,
    ours: Callable[[], object],
    peer: Callable[[], object] | None = None,
    units: int = 1,
    us_max: float | None = None,
    ratio_min: float | None = None,
) -> Row:
    """Time ``ours`` against ``peer`` and hold the medians to the bars.

    ``units`` is how many things one call of either does; times are per thing. ``us_max`` bounds our median in
    microseconds, ``ratio_min`` the median of peer/ours.
    """
    ours_count = _calls_per_round(ours)
    peer_count = _calls_per_round(peer) if peer else 0
    ours_s, peer_s, ratios = [], [], []
    for _ in range(ROUNDS):
        ours_s.append(seconds_per_call(ours, ours_count) / units)
        if peer:
            peer_s.append(seconds_per_call(peer, peer_count) / units)
            ratios.append(peer_s[-1] / ours_s[-1])
    ours_us = statistics.median(ours_s) * 1e6
    ratio = statistics.median(ratios) if ratios else None
    bars = [f"at most {us_max:g} µs"] if us_max else []
    bars += [f"at least {ratio_min:g}x"] if ratio_min else []
    holds = (us_max is None or ours_us <= us_max) and (ratio_min is None or (ratio or 0) >= ratio_min)
    return Row(
        name=name,
        ours_us=ours_us,
        peer_us=statistics.median(peer_s) * 1e6 if peer_s else None,
        ratio=ratio,
        ratio_low=min(ratios, default=None),
        ratio_high=max(ratios, default=None),
        bar=", ".join(bars),
        holds=holds if bars else None,
    )
