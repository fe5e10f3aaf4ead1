"""Two ways of doing one thing, timed in alternating rounds of one run.

Machines are noisy, so what counts is the ratio inside a round: the median over rounds is quoted, with the spread.
"""

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable

import msgspec

ROUNDS = 7
# Long enough that the clock's resolution and one interrupt vanish, short enough that all rounds see the same machine.
ROUND_S = 0.05


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Something to time, with a peer or without. ``units`` is how many things one call of either does.

    ``us_max`` bounds the median in microseconds for each thing, ``ratio_min`` the median of peer/ours.
    """

    name: str
    ours: Callable[[], object]
    peer: Callable[[], object] | None = None
    units: int = 1
    us_max: float | None = None
    ratio_min: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the result: medians in microseconds, or bytes, the median ratio peer/ours, and the bar."""

    name: str
    ours: float
    unit: str = "µs"
    peer: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    bar: str = ""
    holds: bool | None = None


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


def _calls_per_round(call: Callable[[], object], round_s: float) -> int:
    call()
    return max(1, int(round_s / max(seconds_per_call(call, 1), 1e-9)))


def timed(one: Comparison, *, rounds: int = ROUNDS, round_s: float = ROUND_S) -> Row:
    """Time ours and the peer in turns, and hold the medians to the bars."""
    ours_count = _calls_per_round(one.ours, round_s)
    peer_count = _calls_per_round(one.peer, round_s) if one.peer else 0
    ours_us, peer_us = [], []
    for _ in range(rounds):
        ours_us.append(seconds_per_call(one.ours, ours_count) / one.units * 1e6)
        if one.peer:
            peer_us.append(seconds_per_call(one.peer, peer_count) / one.units * 1e6)
    ratios = [peer / ours for peer, ours in zip(peer_us, ours_us, strict=False)]
    median_us = statistics.median(ours_us)
    ratio = statistics.median(ratios) if ratios else None
    bars = [f"at most {one.us_max:g} µs"] if one.us_max else []
    bars += [f"at least {one.ratio_min:g}x"] if one.ratio_min else []
    holds = (one.us_max is None or median_us <= one.us_max) and (one.ratio_min is None or (ratio or 0) >= one.ratio_min)
    return Row(
        name=one.name,
        ours=median_us,
        peer=statistics.median(peer_us) if peer_us else None,
        ratio=ratio,
        ratio_low=min(ratios, default=None),
        ratio_high=max(ratios, default=None),
        bar=", ".join(bars),
        holds=holds if bars else None,
    )


def kept_bytes(name: str, make: Callable[[], object], count: int) -> Row:
    """The memory of one of ``count`` things that are made and kept."""
    tracemalloc.start()
    kept = [make() for _ in range(count)]
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return Row(name=name, ours=used / len(kept), unit="bytes")
