"""Replays a part of a trace against ``serving up``, and compares the simulator.

    python bench/replay.py --mix FILE --heavy FILE... [--mix-from S] [--heavy-from S] [--minutes 10] [--keep FILE]
    [--quick]

Fifty functions of one trace and the busiest function of each further trace run as services of one system, from zero,
with every request at its recorded time; they are taken from ``--mix-from`` and ``--heavy-from`` on. ``--keep`` copies
the decision log. Each app sleeps before it listens and then for each request, so that the load is the same on any machine. Then the
same requests are simulated with the start times of the decision log and with reports at the same moment of each second;
the time between the deployment and the first request is simulated too, because the adaptive policy learns from it. The
table compares pods over time, pod-seconds, started pods, the share of requests that waited for a pod's start, and the
95th percentile of the latency.
"""

import array
import asyncio
import math
import shutil
import statistics
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from bench.parts.load import send_request
from bench.parts.program import options_of
from bench.parts.system import SERVICES, System, running_system, service_of
from serving.core.scaling.scaler.decision_history import DecisionRecord
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.queueproxy import QueueProxySettings
from serving.home.pods.podplan import DRAIN_LAG_S
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.results import SERIES_COLUMNS, DurationModel, Quantiles, RevisionResult
from serving.tools.simulator.trace import FunctionTrace, RecordedFunction, TraceWindow, read_trace
from serving.tools.simulator.workload_run import Workload, run_workload

SLEEPER = Path(__file__).with_name("apps") / "sleeper.py"
START_S = 1.0
SERVICE_S = 0.5
MIX_CONCURRENCY, HEAVY_CONCURRENCY = 10, 2
DEPLOY_WITHIN_S, ZERO_WITHIN_S = 240.0, 400.0
# A request that waits for longer waited for a pod, or for two requests before it.
COLD_WAIT_S = 0.75 * START_S
RUNS = 5  # simulations, which differ in the drawn start times
FIGURES = ("pod_seconds", "pod_starts", "cold_share", "p95_s")
# Activators report at whole seconds of the machine's clock (``every(is_shared=True)``).
REPORT_AT = 0.0
# When in a second the replay begins: a report during a burst has another effect than one after it.
BEGIN_AT = 0.6

# Services of a quick run are soon at zero, unlike simulated ones.
QUICK = {
    "SERVING_AUTOSCALER_STABLE_WINDOW_S": "6",
    "SERVING_AUTOSCALER_SCALE_TO_ZERO_GRACE_PERIOD_S": "2",
}


class Measured(msgspec.Struct, kw_only=True):
    """What one side shows of one group of functions."""

    pods: list[float]
    """Mean pods in equal parts of the time."""

    pod_seconds: float
    pod_starts: float
    cold_share: float
    p95_s: float


def chosen(path: Path, *, count: int, from_s: float, length_s: float, prefix: str) -> list[RecordedFunction]:
    """Functions of a part of a trace, evenly from rare to busy; one is the busiest."""
    functions, _ = read_trace(path, window=TraceWindow(from_s=from_s, until_s=from_s + length_s))
    busy = [function for function in map(_recorded, functions) if function.request_count]
    busy.sort(key=lambda function: function.request_count)
    # A minute with more than two requests a second of one function is not for a mix.
    quiet = [function for function in busy if function.request_count < 2 * length_s] if count > 1 else busy[-1:]
    step = max(1.0, len(quiet) / count)
    picked = [quiet[int(index * step)] for index in range(min(count, len(quiet)))]
    return [msgspec.structs.replace(function, name=f"{prefix}{index}") for index, function in enumerate(picked)]


def _recorded(function: FunctionTrace) -> RecordedFunction:
    times_s = array.array("d", [at_s for at_s, _ in function.arrivals(1)])
    return RecordedFunction(
        name=function.name, arrivals_s=times_s, durations_s=array.array("d", [SERVICE_S]) * len(times_s)
    )


def delayed(function: RecordedFunction, by_s: float) -> RecordedFunction:
    """The same requests, later."""
    return msgspec.structs.replace(function, arrivals_s=array.array("d", [at_s + by_s for at_s in function.arrivals_s]))


def deploy(system: System, name: str, concurrency: int) -> None:
    """One service whose app starts in ``START_S`` and takes ``SERVICE_S`` for each request."""
    command = f"sh -c 'sleep {START_S}; exec {sys.executable} {SLEEPER}'"
    environment = [{"name": "SLEEP_S", "value": str(SERVICE_S)}]
    annotations = {"serving.dev/command": command}
    service = service_of(name, annotations=annotations, concurrency=concurrency, env=environment)
    system.send_request(SERVICES, service, method="POST")


def until_all_zero(system: System, count: int) -> None:
    """Wait until every service was ready once and none has a pod."""
    until_s = time.monotonic() + DEPLOY_WITHIN_S + ZERO_WITHIN_S
    while time.monotonic() < until_s:
        revisions = system.revisions()
        asleep = [revision for revision in revisions if revision["spec"].get("servingState") == "Reserve"]
        if len(asleep) == count and not system.send_request("/api/v1/namespaces/default/pods")["items"]:
            return
        time.sleep(1.0)
    raise SystemExit("the services did not come to zero")


async def replayed(
    system: System, functions: list[RecordedFunction], length_s: float
) -> tuple[float, dict[str, tuple[list[float], list[float]]]]:
    """When the replay began, and latencies and pods a second of each function; every request is sent at its time."""
    latencies: dict[str, list[float]] = {function.name: [] for function in functions}
    pods: dict[str, list[float]] = {function.name: [] for function in functions}
    begun_s = math.ceil(time.monotonic()) + BEGIN_AT

    async def request(name: str, at_s: float) -> None:
        await asyncio.sleep(begun_s + at_s - time.monotonic())
        sent_s = time.monotonic()
        status, _ = await send_request(system.port, f"{name}.default.localhost")
        if " 200 " not in status:
            raise SystemExit(f"{name}: {status}")
        latencies[name].append(time.monotonic() - sent_s)

    async def watch() -> None:
        for second in range(int(length_s)):
            await asyncio.sleep(max(0.0, begun_s + second + 0.5 - time.monotonic()))
            items = (await asyncio.to_thread(system.send_request, "/api/v1/namespaces/default/pods"))["items"]
            names = [pod["metadata"]["labels"].get("serving.knative.dev/service") for pod in items]
            for name, seen in pods.items():
                seen.append(float(names.count(name)))

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for function in functions:
            for at_s in function.arrivals_s:
                group.create_task(request(function.name, at_s))
    return begun_s, {name: (latencies[name], pods[name]) for name in latencies}


def start_times(log: Path, functions: list[RecordedFunction]) -> list[tuple[float, float]]:
    """How long the pods of these functions took to start, and when their start was decided; sorted."""
    asked_s: dict[str, deque[float]] = {function.name: deque() for function in functions}
    ready: dict[str, int] = {}
    starts: list[tuple[float, float]] = []
    for line in log.read_bytes().splitlines():
        record = msgspec.json.decode(line, type=DecisionRecord)
        name, outcome, at_s = record.revision.rpartition("-")[0], record.entry.outcome, record.entry.outcome.at_s
        if name not in asked_s:
            continue
        facts, request_count = outcome.view, asked_s[name]
        ready_count = min(len(request_count), facts.ready_count - ready.get(name, 0))
        starts.extend((at_s - (decided_s := request_count.popleft()), decided_s) for _ in range(ready_count))
        ready[name] = facts.ready_count
        request_count.extend([at_s] * ((outcome.apply_count or 0) - facts.present_scale))
        if outcome.apply_count == 0:
            request_count.clear()
    return sorted(starts)


def live(latencies: list[list[float]], pods: list[list[float]], length_s: float, *, starts: int) -> Measured:
    """What the system did."""
    every = sorted(took_s for of in latencies for took_s in of)
    per_second = [sum(values) for values in zip(*pods, strict=True)]
    width = length_s / SERIES_COLUMNS
    columns: list[list[float]] = [[] for _ in range(SERIES_COLUMNS)]
    for second, value in enumerate(per_second):
        columns[min(SERIES_COLUMNS - 1, int((second + 0.5) / width))].append(value)
    return Measured(
        pods=[statistics.fmean(values) if values else 0.0 for values in columns],
        pod_seconds=sum(per_second),
        pod_starts=starts,
        cold_share=sum(took_s - SERVICE_S > COLD_WAIT_S for took_s in every) / len(every),
        p95_s=every[int(0.95 * len(every))],
    )


def predicted(workload: Workload) -> Measured:
    """The simulator's figures, as the mean over draws of the start times."""
    runs = []
    for number in range(RUNS):
        functions = [
            msgspec.structs.replace(_recorded(function), name=f"{function.name}-{number}")
            for function in workload.functions
        ]
        moved = msgspec.structs.replace(workload, functions=functions)
        runs.append(simulated(run_workload(moved, POLICIES["default"]), workload.length_s))
    pods = [statistics.fmean(column) for column in zip(*(run.pods for run in runs), strict=True)]
    return Measured(pods=pods, **{name: statistics.fmean(getattr(run, name) for run in runs) for name in FIGURES})


def simulated(results: list[RevisionResult], length_s: float) -> Measured:
    """What one run of the simulator did: the same figures."""
    requests = sum(result.requests for result in results)
    waits = results[0].waits
    for result in results[1:]:
        waits.update(result.waits)
    pods = [sum(values) for values in zip(*(result.pod_series for result in results), strict=True)]
    return Measured(
        pods=pods,
        pod_seconds=sum(pods) * length_s / SERIES_COLUMNS,
        pod_starts=sum(result.pod_starts for result in results),
        cold_share=waits.above(COLD_WAIT_S) / requests,
        p95_s=waits.percentile(0.95, requests=requests) + SERVICE_S,
    )


def show(title: str, measured: Measured, predicted: Measured) -> None:
    """The comparison as a table."""
    distance = sum(abs(first - second) for first, second in zip(measured.pods, predicted.pods, strict=True))
    print(title)
    print(f"  {'':<26}{'live':>10} {'simulated':>10} {'off by':>8}")
    for name in FIGURES:
        live_value, simulated_value = getattr(measured, name), getattr(predicted, name)
        change = simulated_value / live_value - 1 if live_value else 0.0
        print(f"  {name:<26}{live_value:>10.4g} {simulated_value:>10.4g} {change:>8.1%}")
    print(f"  {'pods over time, distance':<26}{'':>21} {distance / max(1e-9, sum(measured.pods)):>8.1%}")


def main() -> None:
    """Replay, simulate, compare."""
    options = options_of(
        __doc__,
        mix=Path,
        heavy=(Path(),),
        mix_from=36_000.0,
        heavy_from=0.0,
        keep=Path,
        minutes=10.0,
        functions=50,
        quick={"minutes": 0.2, "functions": 2},
    )
    if options.mix is None or Path() in options.heavy:
        sys.exit("replay: --mix FILE and --heavy FILE are missing")
    length_s = options.minutes * 60.0
    mix = chosen(options.mix, count=options.functions, from_s=options.mix_from, length_s=length_s, prefix="mix")
    groups = [(options.mix.name, mix, MIX_CONCURRENCY)]
    for number, path in enumerate(options.heavy):
        busy = chosen(path, count=1, from_s=options.heavy_from, length_s=length_s, prefix=f"heavy{number}-")
        groups.append((path.name, busy, HEAVY_CONCURRENCY))
    every = [(function, concurrency) for _, functions, concurrency in groups for function in functions]
    with running_system(environment=QUICK if options.quick else {}) as system:
        deployed_s = time.monotonic()
        for function, concurrency in every:
            deploy(system, function.name, concurrency)
        until_all_zero(system, len(every))
        # The windows of the simulator are empty before the first request.
        time.sleep(0.0 if options.quick else AutoscalerSettings().stable_window_s)
        begun_s, seen = asyncio.run(replayed(system, [function for function, _ in every], length_s))
        log = system.state / "decisions.jsonl"
        if options.keep is not None:
            shutil.copy(log, options.keep)
        starts_of = [start_times(log, functions) for _, functions, _ in groups]
    lead_s = begun_s - math.floor(deployed_s)
    for (title, functions, concurrency), starts in zip(groups, starts_of, strict=True):
        took_s = [start_s for start_s, _ in starts]
        start = Quantiles(p50_s=statistics.median(took_s), p99_s=took_s[int(0.99 * len(took_s))])
        workload = Workload(
            functions=[delayed(function, lead_s) for function in functions],
            length_s=lead_s + length_s,
            start=DurationModel(default=start),
            concurrency=concurrency,
            probe_delay_s=0.0,
            queue_proxy=QueueProxySettings(drain_lag_s=DRAIN_LAG_S),
            has_burst_switch=False,
            report_at=REPORT_AT,
        )
        latencies = [seen[function.name][0] for function in functions]
        pods = [[0.0] * round(lead_s) + seen[function.name][1] for function in functions]
        count = sum(decided_s >= begun_s for _, decided_s in starts)
        measured = live(latencies, pods, lead_s + length_s, starts=count)
        print(f"starts: {len(took_s)}, median {start.p50_s:.2f} s, 99th percentile {start.p99_s:.2f} s")
        show(f"{title}: {sum(map(len, latencies))} requests", measured, predicted(workload))


if __name__ == "__main__":
    main()
