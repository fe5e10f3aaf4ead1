"""Where the milliseconds of a cold start go: reads what ``tracing/sitecustomize.py`` has noted.

Each request's steps are the first note of each kind after the step before; requests must not overlap.
"""

import os
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.parts.tracing.sitecustomize import STEPS

TRACING = Path(__file__).with_name("tracing")


class TracedStart(msgspec.Struct, frozen=True, kw_only=True):
    """One cold start, in seconds since the epoch: what the client and the app saw of it."""

    asked_s: float
    executed_s: float
    accepted_s: float
    responded_s: float


def tracing_environment(notes: Path) -> dict[str, str]:
    """What daemons need in their environment to write notes to a file."""
    paths = [str(TRACING), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "BENCH_TRACE": str(notes)}


def report_steps(notes: Path, starts: Sequence[TracedStart]) -> list[str]:
    """A line for each step: median of the time since the request was sent, and since the step before."""
    times: dict[str, list[float]] = {}
    for line in notes.read_text().splitlines():
        at_s, _, what = line.partition(" ")
        times.setdefault(what, []).append(float(at_s))
    unseen = [step for step, module, _ in STEPS if module and step not in times]
    if unseen:
        raise SystemExit(f"no daemon has noted: {', '.join(unseen)} (bench/parts/tracing/sitecustomize.py)")
    for found in times.values():
        found.sort()
    rows = [_steps_of(times, start) for start in starts]
    lines = [f"{'step':32} {'at ms':>8} {'took ms':>8} {'p90':>8}"]
    before = dict.fromkeys(range(len(rows)), 0.0)
    for step, *_ in STEPS:
        at = {number: row[step] for number, row in enumerate(rows) if step in row}
        if not at:
            continue
        took = [at_s - before[number] for number, at_s in at.items()]
        before |= at
        ms = [1000 * statistics.median(one) for one in (list(at.values()), took)]
        lines.append(f"{step:32} {ms[0]:8.1f} {ms[1]:8.1f} {1000 * sorted(took)[int(len(took) * 0.9)]:8.1f}")
    return lines


def _steps_of(times: Mapping[str, list[float]], start: TracedStart) -> dict[str, float]:
    """Seconds from the request to each step."""
    given = {
        "app is executed": start.executed_s,
        "app takes a connection": start.accepted_s,
        "client has the answer": start.responded_s,
    }
    found, now_s = {}, start.asked_s
    for step, *_ in STEPS:
        noted = times.get(step, [])
        place = bisect_left(noted, now_s)
        at_s = given.get(step) or (noted[place] if place < len(noted) else start.responded_s + 1)
        if at_s <= start.responded_s:
            found[step] = at_s - start.asked_s
            now_s = max(now_s, at_s)
    return found
