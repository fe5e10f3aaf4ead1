"""A goal for latency against fixed targets from 1 to 100, in the simulator.

    python bench/slo.py --traces DIR [--quick] [NAME ...]

Each workload runs under the goal and under each target: the share of minutes in which the goal was held, and pod-seconds. The
first five minutes, in which a target is found, count for pod-seconds only. The best target is the cheapest that
held the goal in 95 % of the minutes. ``cpu`` and ``io`` are apps as those of ``bench/slow_brain.py``: times grow with the
requests in a pod, or do not.
"""

import argparse
import array
import math
import random
from pathlib import Path

import msgspec

from serving.model.slo import read_slo
from serving.settings.annotations import ScalingAnnotations
from serving.settings.queueproxy import QueueProxySettings
from serving.simulator.curve import POLICIES
from serving.simulator.results import DurationModel, Quantiles
from serving.simulator.trace import FunctionTrace, RecordedFunction, TraceWindow, arrivals, parse_steps, read_trace
from serving.simulator.workload_run import Workload, run_workload

TARGETS = (1, 2, 5, 10, 20, 50, 100)
WARM_MINUTES = 5
HELD_MIN = 0.95
STEPS = "0:20 600:60 1200:120 1800:40 2400:90 3000:20 3600:60 4200:120 4800:40 5400:90 6000:20"
STEPS_UNTIL_S = 6600.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A workload and its goal; ``knee`` as in ``RunConfig``. Times in seconds."""

    goal: str
    service: tuple[float, float]
    knee: float = math.inf
    concurrency: int = 0
    start_s: float = 1.0
    file: str = ""
    from_s: float = 0.0
    until_s: float = math.inf


CASES = {
    "cpu": Case(goal="p95<300ms", service=(0.1, 0.15), knee=2),
    "io": Case(goal="p95<1500ms", service=(1.0, 1.2)),
    "world-cup": Case(
        goal="p95<300ms",
        service=(0.1, 0.15),
        knee=10,
        start_s=10,
        file="worldcup-1998-days-1-50.rate.csv.xz",
        from_s=3_280_000,
        until_s=3_287_200,
    ),
    "mooncake-waits": Case(
        goal="p95-wait<100ms",
        service=(2.0, 5.0),
        concurrency=10,
        start_s=10,
        file="mooncake-conversation.requests.csv.xz",
    ),
    "mooncake": Case(
        goal="p95<6s", service=(2.0, 4.0), knee=5, start_s=10, file="mooncake-conversation.requests.csv.xz"
    ),
}


def functions_of(case: Case, traces: Path, until_s: float) -> tuple[list[FunctionTrace], float]:
    """The arrivals of a workload, and its length."""
    if case.file:
        return read_trace(
            traces / case.file,
            window=TraceWindow(from_s=case.from_s, until_s=min(case.until_s, case.from_s + until_s)),
        )
    until_s = min(until_s, STEPS_UNTIL_S)
    times = array.array("d", arrivals(parse_steps(STEPS), until_s, random.Random(1)))
    unknown = array.array("d", [math.nan] * len(times))
    return [RecordedFunction(name="steps", arrivals_s=times, durations_s=unknown)], until_s


def measure(case: Case, workload: Workload, scaling: ScalingAnnotations) -> tuple[float, float]:
    """The share of minutes in which the goal was held, and pod-seconds."""
    (result,) = run_workload(msgspec.structs.replace(workload, scaling=scaling), POLICIES["knative"])
    result.minutes = {number: counts for number, counts in result.minutes.items() if number >= WARM_MINUTES}
    return result.held_ratio(read_slo(case.goal)), result.pod_seconds


def compare(name: str, case: Case, traces: Path, until_s: float) -> None:
    """Print a table of one workload."""
    functions, length_s = functions_of(case, traces, until_s)
    service_s, service_p99_s = case.service
    workload = Workload(
        functions=functions,
        length_s=length_s,
        service=DurationModel(default=Quantiles(p50_s=service_s, p99_s=service_p99_s)),
        start=DurationModel(default=Quantiles(p50_s=case.start_s, p99_s=case.start_s)),
        concurrency=case.concurrency,
        knee=case.knee,
        slo=read_slo(case.goal),
        queue_proxy=QueueProxySettings(container_concurrency=case.concurrency),
    )
    print(f"\n{name}: {case.goal}\n  {'':8} {'held':>6} {'pod-seconds':>12}")
    fixed = {target: measure(case, workload, ScalingAnnotations(target=float(target))) for target in TARGETS}
    for target, (held_ratio, pod_seconds) in fixed.items():
        print(f"  {target:<8} {held_ratio:6.1%} {pod_seconds:12.0f}")
    held_ratio, pod_seconds = measure(case, workload, ScalingAnnotations(slo=case.goal))
    print(f"  {'goal':8} {held_ratio:6.1%} {pod_seconds:12.0f}")
    best = (
        min((cost, target) for target, (held, cost) in fixed.items() if held >= HELD_MIN)
        if any(held >= HELD_MIN for held, _ in fixed.values())
        else (math.nan, 0)
    )
    print(f"  goal to the best target, {best[1]}: {pod_seconds / best[0]:.2f}x", flush=True)


def main() -> None:
    """Compare the workloads that are named, all of them without a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path())
    parser.add_argument("--quick", action="store_true", help="five minutes of the first workload")
    parser.add_argument("names", nargs="*", default=[], choices=[*CASES, []], metavar="NAME")
    options = parser.parse_args()
    for name in options.names or (["cpu"] if options.quick else CASES):
        compare(name, CASES[name], options.traces, 600.0 if options.quick else math.inf)


if __name__ == "__main__":
    main()
