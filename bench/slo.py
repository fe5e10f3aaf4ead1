"""A goal for latency against fixed targets from 1 to 100, in the simulator.

    python bench/slo.py --traces DIR [--seeds N] [--quick] [NAME ...]

Each workload runs under the goal and under each target, with the same seeds: the share of minutes in which the goal was held, and
pod-seconds. The first five minutes, in which a target is found, count for pod-seconds only. The best target is the cheapest that
held the goal in 95 % of the minutes, over all seeds; the second ratio is to the cheapest that held it in as many as the goal did. ``cpu`` and ``io`` are apps as those of ``bench/slow_brain.py``: times grow with the
requests in a pod, or do not.
"""

import argparse
import array
import math
import random
import statistics
from pathlib import Path

import msgspec

from serving.core.model.slo import read_slo
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.queueproxy import QueueProxySettings
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.results import DurationModel, Quantiles
from serving.tools.simulator.trace import (
    FunctionTrace,
    RecordedFunction,
    TraceWindow,
    arrivals,
    parse_steps,
    read_trace,
)
from serving.tools.simulator.workload_run import Workload, run_workload

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


class Measured(msgspec.Struct, frozen=True):
    """One run: the share of minutes with the goal held, and pod-seconds."""

    held: float
    pod_seconds: float


def functions_of(case: Case, traces: Path, until_s: float, seed: int) -> tuple[list[FunctionTrace], float]:
    """The arrivals of a workload, and its length."""
    if case.file:
        return read_trace(
            traces / case.file,
            window=TraceWindow(from_s=case.from_s, until_s=min(case.until_s, case.from_s + until_s)),
        )
    until_s = min(until_s, STEPS_UNTIL_S)
    times = array.array("d", arrivals(parse_steps(STEPS), until_s, random.Random(seed)))
    unknown = array.array("d", [math.nan] * len(times))
    return [RecordedFunction(name="steps", arrivals_s=times, durations_s=unknown)], until_s


def measure(case: Case, workload: Workload, scaling: ScalingAnnotations, seed: int) -> Measured:
    """Run a workload once."""
    (result,) = run_workload(msgspec.structs.replace(workload, scaling=scaling), POLICIES["knative"], seed=seed)
    result.minutes = {number: counts for number, counts in result.minutes.items() if number >= WARM_MINUTES}
    return Measured(result.held_ratio(read_slo(case.goal)), result.pod_seconds)


def run_case(case: Case, traces: Path, until_s: float, seed: int) -> dict[int, Measured]:
    """The results of one seed by target; that of the goal is at 0."""
    functions, length_s = functions_of(case, traces, until_s, seed)
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
    results = {target: measure(case, workload, ScalingAnnotations(target=float(target)), seed) for target in TARGETS}
    results[0] = measure(case, workload, ScalingAnnotations(slo=case.goal), seed)
    return results


def compare(name: str, case: Case, traces: Path, until_s: float, seeds: int) -> None:
    """Print a table of one workload: means over the seeds, and the range of the goal."""
    runs = [run_case(case, traces, until_s, seed) for seed in range(1, seeds + 1)]
    held = {key: statistics.fmean(run[key].held for run in runs) for key in runs[0]}
    cost = {key: statistics.fmean(run[key].pod_seconds for run in runs) for key in runs[0]}
    print(f"\n{name}: {case.goal}, {seeds} seeds\n  {'':8} {'held':>6} {'least':>6} {'pod-seconds':>12}")
    for key in (*TARGETS, 0):
        least = min(run[key].held for run in runs)
        print(f"  {key or 'goal':<8} {held[key]:6.1%} {least:6.1%} {cost[key]:12.0f}")
    for what, least_held in (("best target", HELD_MIN), ("best target that holds as much", held[0])):
        best = min((one for one in TARGETS if held[one] >= least_held), key=lambda target: cost[target], default=0)
        ratios = sorted(run[0].pod_seconds / run[best].pod_seconds for run in runs)
        text = f"{cost[0] / cost[best]:.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})" if best else "no target holds it"
        print(f"  goal to the {what}, {best}: {text}", flush=True)


def main() -> None:
    """Compare the workloads that are named, all of them without a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="five minutes of the first workload")
    parser.add_argument("names", nargs="*", default=[], choices=[*CASES, []], metavar="NAME")
    options = parser.parse_args()
    for name in options.names or (["cpu"] if options.quick else CASES):
        compare(name, CASES[name], options.traces, 600.0 if options.quick else math.inf, options.seeds)


if __name__ == "__main__":
    main()
