"""``make faults``: the fault contract of docs/faults.md, fault by fault, under steady load.

    python bench/faults.py [--rate N] [--seconds N] [--quick] [--json] [NAME ...]

Requests at a fixed rate, a fifth as many open websockets and a twentieth as many event streams run all the time. Each
fault is observed for some seconds: failed requests, streams that were cut, the 99th percentile against that before, the
time until no request fails and the percentile is back, and the memory of the daemons. Exit 0 only if no fault fails
requests or ends streams that it may not, and the overload and the storm of starts keep to their limits.
"""

import argparse
import asyncio
import collections
import itertools
import json
import sys
import time

import msgspec

from bench.parts.fault_stage import FaultStage, stage
from bench.parts.faultlist import DISK, FAULTS, Fault, Overload, StartStorm, overload, start_storm
from bench.parts.program import options_of
from bench.parts.steady import Observed, percentile_ms

BEFORE_S = 4.0
# Observed after a fault has happened, so that what recovers is seen to.
RECOVERY_S = 4.0
WINDOW_S = 1.0
# In the steady state requests take some 20 ms; a second with a higher 99th percentile than this has not recovered.
RECOVERED_FACTOR, RECOVERED_MIN_MS = 3.0, 150.0
OVERLOAD, OVERLOAD_MIN_S = "10 x overload", 60.0
# How many requests of a revision may wait in each activator.
OVERLOAD_QUEUE_DEPTH = "100"
STORM, STORM_RATE_MAX = "storm of starts", 300.0
NAMES = (*FAULTS, STORM, OVERLOAD)


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one fault did. ``recovered_s`` is None if it had not by the end; ``last_...`` are of the last 2 s."""

    fault: str
    sent: int
    failed: int
    kinds: dict[str, int]
    cut: dict[str, int]
    before_p99_ms: float
    p99_ms: float
    recovered_s: float | None
    last_failed: int
    last_p99_ms: float
    daemons_mib: int


async def observe(stage: FaultStage, name: str, *, seconds: float) -> Observation:
    """Let the load settle, make the fault happen, and observe."""
    load = stage.load
    await asyncio.sleep(BEFORE_S)
    before = percentile_ms(load.since(time.monotonic() - BEFORE_S), 99)
    cut, begin_s = load.cut.copy(), time.monotonic()
    await FAULTS[name].happen(stage, seconds / 2)
    await asyncio.sleep(max(RECOVERY_S, begin_s + seconds - time.monotonic()))
    end_s = time.monotonic()
    await asyncio.sleep(WINDOW_S)
    observed = [request for request in load.since(begin_s) if request.due_s < end_s]
    bursts = [request for request in load.bursts if request.due_s >= begin_s]
    kinds = collections.Counter(request.status for request in (*observed, *bursts) if request.status != "200")
    last = [request for request in observed if request.due_s >= end_s - 2 * WINDOW_S]
    return Observation(
        fault=name,
        sent=len(observed) + len(bursts),
        failed=sum(kinds.values()),
        kinds=dict(kinds),
        cut=dict(load.cut - cut),
        before_p99_ms=round(before),
        p99_ms=round(percentile_ms(observed, 99)),
        recovered_s=_recovered_s(observed, begin_s, end_s, before),
        last_failed=sum(request.status != "200" for request in last),
        last_p99_ms=round(percentile_ms(last, 99)),
        daemons_mib=stage.system.daemons_mib(),
    )


def _recovered_s(observed: list[Observed], begin_s: float, end_s: float, before_ms: float) -> float | None:
    """Seconds until the last window with a failure or a slow percentile; None without recovery."""
    slow_ms = max(RECOVERED_MIN_MS, before_ms * RECOVERED_FACTOR)
    last = 0.0
    for at in range(int((end_s - begin_s) / WINDOW_S)):
        window = [request for request in observed if at * WINDOW_S <= request.due_s - begin_s < (at + 1) * WINDOW_S]
        if any(request.status != "200" for request in window) or percentile_ms(window, 99) > slow_ms:
            last = (at + 1) * WINDOW_S
    return last if last < end_s - begin_s - WINDOW_S else None


async def run(options: argparse.Namespace) -> bool:
    """Run all faults; whether each kept to its limits."""
    is_kept = True
    for (flags, environment), some in itertools.groupby(sorted(options.names, key=_needs), _needs):
        async with stage(rate=options.rate, flags=flags, environment=dict(environment)) as fault_stage:
            await asyncio.sleep(BEFORE_S)
            for name in some:
                is_kept = await _one(fault_stage, name, options) and is_kept
    return is_kept


def _needs(name: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Flags and environment of the system for a fault."""
    if name == OVERLOAD:
        return (), (("SERVING_ACTIVATOR_QUEUE_DEPTH_MAX", OVERLOAD_QUEUE_DEPTH),)
    return (FAULTS[name].flags if name in FAULTS else ()), ()


async def _one(fault_stage: FaultStage, name: str, options: argparse.Namespace) -> bool:
    """One fault, printed; whether it kept to what it may."""
    if name == DISK and fault_stage.disk is None:
        print(f"{name}: only root can mount a file system to fill", file=sys.stderr)
        return True
    if name in (OVERLOAD, STORM):
        if name == OVERLOAD:
            seconds = options.seconds if options.quick else max(options.seconds, OVERLOAD_MIN_S)
            special: Overload | StartStorm = await overload(fault_stage.system, seconds=seconds)
        else:
            special = await start_storm(fault_stage, rate=min(options.rate, STORM_RATE_MAX), seconds=options.seconds)
        print(msgspec.json.encode(special).decode(), flush=True)
        return all_kept([] if options.quick else [f"{name}: {bound}" for bound in special.broken_bounds()])
    observation = await observe(fault_stage, name, seconds=options.seconds)
    print(msgspec.json.encode(observation).decode() if options.json else line_of(observation), flush=True)
    # A quick run is over before it can have recovered.
    observation = msgspec.structs.replace(observation, recovered_s=0.0) if options.quick else observation
    return all_kept(limits_broken(observation, FAULTS[name]))


def limits_broken(observation: Observation, fault: Fault) -> list[str]:
    """The broken limits of the contract, with the measurements."""
    broken = []
    if observation.failed > fault.failed_max:
        broken.append(
            f"{observation.fault}: {observation.failed} of {observation.sent} requests failed; at most {fault.failed_max} may"
        )
    if observation.cut and not fault.ends_streams:
        counts = ", ".join(f"{count} {kind}" for kind, count in observation.cut.items())
        broken.append(f"{observation.fault}: {counts} streams ended; none may")
    if observation.recovered_s is None:
        slow_ms = max(RECOVERED_MIN_MS, observation.before_p99_ms * RECOVERED_FACTOR)
        last = f"its last 2 s had {observation.last_failed} failures and a p99 of {observation.last_p99_ms:g} ms"
        broken.append(f"{observation.fault}: not recovered at the end: {last}; at most 0 and {slow_ms:g} ms")
    return broken


def all_kept(broken: list[str]) -> bool:
    """Print each limit that was broken; whether there was none."""
    for text in broken:
        print(text, file=sys.stderr)
    return not broken


def line_of(observation: Observation) -> str:
    """For people, as a row of a table."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in observation.kinds.items())
    cut = ", ".join(f"{count} {kind}" for kind, count in observation.cut.items()) or "none"
    recovered = "not" if observation.recovered_s is None else f"{observation.recovered_s:g} s"
    failed = f"{observation.failed} of {observation.sent}" + (f" ({kinds})" if kinds else "")
    times = f"{observation.before_p99_ms:.0f} -> {observation.p99_ms:.0f} ms"
    return f"| {observation.fault} | {failed} | {cut} | {times} | {recovered} | {observation.daemons_mib} MiB |"


def main() -> int:
    """Run, and print a table; exit 0 only if the contract holds."""
    quick = {"names": ("app killed -9", STORM, OVERLOAD), "rate": 50.0, "seconds": 2.0}
    options = options_of(__doc__, names=NAMES, rate=400.0, seconds=15.0, quick=quick)
    if not options.json:
        print(
            "| fault | failed requests | cut streams | p99 before -> with it | recovered after | memory of the daemons |"
        )
        print("|---|---|---|---|---|---|")
    is_kept = asyncio.run(run(options))
    if not is_kept:
        print(json.dumps({"held": False}) if options.json else "the contract was not held", file=sys.stderr)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
