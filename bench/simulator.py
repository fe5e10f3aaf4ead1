"""How fast the simulator runs recorded workloads, and how much memory it takes.

    python bench/simulator.py [--trace FILE] [--policy NAME] [--quick]

Goals: a revision with 0.02 requests a second at least 500,000 times as fast as real time; a million requests of one
revision in 10 s; 85,000 requests a second of a load for which several pods are right, 50,000 under ``adaptive``; 1,350
functions over a day with a million requests in 60 s on two cores; 500 MB of memory. The peer in the same run is the
same run with a log, as in ``serving simulate --load``: it decides in every period. Without ``--trace`` the 1,350
functions are made up, with the skew of recorded ones: a few have most of the requests.
"""

import argparse
import array
import math
import os
import random
import resource
import time
from pathlib import Path

import msgspec

from bench.parts.program import options_of
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.report import report_of
from serving.tools.simulator.results import DurationModel, Quantiles, RunLog
from serving.tools.simulator.trace import FunctionTrace, RecordedFunction, read_trace
from serving.tools.simulator.workload_run import Workload, run_workload

DAY_S = 86_400.0
SERVICE_S = 0.1
SPARSE_RATE = 0.02
# The example of SimFaaS: requests of 2 s, one at a time in a pod.
PODS_RATE, PODS_SERVICE_S = 0.9, 2.0


def function(name: str, count: int, length_s: float) -> RecordedFunction:
    """A function whose requests come at random times."""
    dice = random.Random(name)
    arrivals_s = array.array("d", sorted(dice.random() * length_s for _ in range(count)))
    return RecordedFunction(name=name, arrivals_s=arrivals_s, durations_s=array.array("d", [math.nan]) * count)


def workload(functions: list[FunctionTrace], length_s: float) -> Workload:
    """Functions with one service time."""
    service = DurationModel(default=Quantiles(p50_s=SERVICE_S, p99_s=SERVICE_S))
    return Workload(functions=functions, length_s=length_s, service=service)


def timed(simulated_workload: Workload, policy: str, jobs: int = 1) -> float:
    """Seconds of CPU with one process, of the clock with several; prints what came out."""
    begun_s = time.process_time() if jobs == 1 else time.perf_counter()
    report = report_of(run_workload(simulated_workload, POLICIES[policy], jobs=jobs), simulated_workload.length_s)
    took_s = (time.process_time() if jobs == 1 else time.perf_counter()) - begun_s
    print(
        f"  {report.requests:,.0f} requests, {report.decisions:,.0f} decisions, {report.cold_requests:,.0f} cold, "
        f"{report.pod_seconds / 3600:,.0f} pod-hours: {took_s:.1f} s"
    )
    return took_s


def peer_s(simulated_workload: Workload, policy: str) -> float:
    """CPU seconds of a run that decides in every period."""
    begun_s = time.process_time()
    run_workload(msgspec.structs.replace(simulated_workload, log=RunLog()), POLICIES[policy])
    return time.process_time() - begun_s


def day(arguments: argparse.Namespace) -> Workload:
    """The functions of a trace, or made-up ones."""
    if arguments.trace is not None:
        functions, length_s = read_trace(arguments.trace)
        return workload(functions, length_s)
    weights = [1 / (rank + 1) for rank in range(arguments.functions)]
    scale = arguments.requests / sum(weights)
    function_traces: list[FunctionTrace] = [
        function(f"f{rank}", int(weight * scale), DAY_S) for rank, weight in enumerate(weights)
    ]
    return workload(function_traces, DAY_S)


def main() -> None:
    """Print the figures."""
    sizes = {"sparse_s": 200_000.0, "pods_requests": 60_000, "functions": 1350, "requests": 1_000_000}
    quick = {"sparse_s": 10_000.0, "pods_requests": 1000, "functions": 10, "requests": 1000}
    arguments = options_of(__doc__, trace=Path, policy="default", quick=quick, **sizes)
    policy = arguments.policy
    print(f"policy {policy}")
    length_s = arguments.sparse_s
    sparse = function("sparse", int(length_s * SPARSE_RATE), length_s)
    speed = length_s / timed(workload([sparse], length_s), policy)
    peer = DAY_S / 10 / peer_s(workload([sparse], DAY_S / 10), policy)
    print(f"0.02 requests a second: {speed:,.0f} times real time (goal 500,000), {speed / peer:.0f} times the peer")
    pods_s = arguments.pods_requests / PODS_RATE
    several = msgspec.structs.replace(
        workload([function("several", arguments.pods_requests, pods_s)], pods_s),
        concurrency=1,
        service=DurationModel(default=Quantiles(p50_s=PODS_SERVICE_S, p99_s=PODS_SERVICE_S)),
    )
    rate = arguments.pods_requests / timed(several, policy)
    print(f"several pods: {rate:,.0f} requests a second (goal 85,000, under adaptive 50,000)")
    took_s = timed(workload([function("busy", arguments.requests, DAY_S)], DAY_S), policy)
    print(f"{arguments.requests:,} requests of one revision: {took_s:.1f} s (goal 10 s)")
    cores = os.cpu_count() or 1
    took_s = timed(day(arguments), policy, jobs=min(2, cores))
    print(f"many functions over a day, two processes: {took_s:.1f} s (goal 60 s)")
    usage = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"memory: {usage[0]:.0f} MB, and {usage[1]:.0f} MB in the largest process of the pool (goal 500 MB)")


if __name__ == "__main__":
    main()
