"""Targets in tokens against targets in requests for a model server, simulated on recorded requests.

    python bench/model_server.py --traces DIR [--sizes DIR] [--jobs N] [--quick] [NAME ...]

The pods are stand-ins after vLLM (``bench/apps/model_server.py``) on a virtual clock; meters, balancing and scaling are the product's own.
Each workload runs once with each target: the share of requests that held both limits, of the time to the first token (TTFT) and of the
time of each further one (TPOT), and pod-seconds, starts and drains included. Below, each target in tokens that held 90 % stands beside the best
target in requests that takes no more pod-seconds.

``--sizes`` has AzureLLMInferenceTrace_code.csv and Mooncake's conversation_trace.jsonl as published, whose rows are those of the traces:
each request then has its own length. Without it lengths are drawn from the quantiles of those files, each for itself.
``both`` has the hour of one trace after that of the other, for a server whose requests change. Clients set no max_tokens, and bytes estimate a prompt with a fifth of error, both as the queue-proxy sees them.
"""

import argparse
import bisect
import csv
import heapq
import json
import math
import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.apps.model_server import Engine, Model
from bench.apps.model_server import Sequence as Request
from serving.core.model.knative import ServingState
from serving.core.model.stat import Stat
from serving.core.scaling.decision.records import DecisionCause
from serving.core.scaling.decision.view import ScalerView
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.revision import ScaledRevision
from serving.core.scaling.scaler.scaler import Scaler, StatSource
from serving.core.settings.autoscaler import KPA_CLASS, AutoscalerSettings
from serving.core.traffic.balance import Balancer
from serving.core.traffic.meter import Meter, stat_of
from serving.core.traffic.policy import BalancingPolicy
from serving.queueproxy.tokens import OUTPUT_DEFAULT, TokenMeter
from serving.tools.simulator.trace import RecordedFunction, read_trace

REQUEST_TARGETS = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 50, 100)
TOKEN_TARGETS = (2000, 5000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000, 70_000, 100_000, 200_000)
HELD_MIN = 0.9
MODEL = Model()
START_S = 40.0
# The limits of a first token are those of Mooncake's paper (FAST'25), 10 times the time of the same prompt alone, but at least 2 s. That
# of the others is the longer one of DistServe's (OSDI'24).
TTFT_S, SLOWDOWN_MAX, TPOT_S = 2.0, 10.0, 0.2
BOTH = "both"
LATE_S = 600.0
ESTIMATE_SIGMA = 0.2
PERCENTS = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)


Rows = list[tuple[float, int, int, int]]
"""Of each request its time, its tokens of prompt and answer, and its tokens as estimated."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A workload: its files, and quantiles of its lengths at ``PERCENTS``."""

    file: str
    sizes: str
    prompts: tuple[int, ...]
    outputs: tuple[int, ...]


CASES = {
    "azure-code": Case(
        file="azure-llm-2023-code.requests.csv.xz",
        sizes="AzureLLMInferenceTrace_code.csv",
        prompts=(3, 147, 385, 770, 1075, 1469, 1909, 2433, 3193, 5194, 7315, 7436, 7437),
        outputs=(6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 252, 1899),
    ),
    "mooncake": Case(
        file="mooncake-conversation.requests.csv.xz",
        sizes="conversation_trace.jsonl",
        prompts=(891, 964, 1662, 3263, 4993, 6909, 9570, 13_196, 17_869, 27_367, 39_552, 85_401, 126_195),
        outputs=(1, 24, 100, 213, 291, 350, 399, 447, 504, 597, 698, 1120, 2000),
    ),
}


class Pod:
    """A pod: the stand-in, and the queue-proxy's meters."""

    def __init__(self, name: str, now_s: float, ready_s: float) -> None:
        self.name, self.begun_s, self.ready_s = name, now_s, ready_s
        self.engine = Engine(MODEL, ready_s)
        self.meter, self.tokens = Meter(now_s=ready_s), TokenMeter(ready_s)
        self.open: list[tuple[float, int, Request]] = []
        self.is_leaving = False

    def take(self, request: Request, tokens: int, now_s: float) -> None:
        """Take a request that counts so many tokens."""
        self.meter.arrive(now_s, proxied=False)
        self.tokens.arrive(request, tokens, now_s)
        self.engine.add(request)

    def advance(self, now_s: float) -> list[Request]:
        """Run to a time, and return the requests that have ended by then."""
        self.engine.advance(now_s)
        for request in self.engine.ended:
            heapq.heappush(self.open, (request.ended_s, id(request), request))
        self.engine.ended = []
        done = []
        while self.open and self.open[0][0] <= now_s:
            ended_s, _, request = heapq.heappop(self.open)
            self.meter.exit(ended_s, proxied=False)
            self.tokens.exit(request, ended_s)
            done.append(request)
        return done

    def stat(self, now_s: float) -> Stat:
        """The report of the last second."""
        found = stat_of(self.meter.report(now_s), pod=self.name, at_s=now_s, report_period_s=1.0)
        return msgspec.structs.replace(found, gauges={"tokens_in_flight": self.tokens.report(now_s)})


class Run:
    """One workload under one annotation, from one ready pod on."""

    def __init__(self, annotations: dict[str, str]) -> None:
        settings = AutoscalerSettings()
        given = {"autoscaling.knative.dev/min-scale": "1", **annotations}
        spec = resolve_annotations(given, settings, container_concurrency=0, reachable=True)
        revision = ScaledRevision(
            key=("default", "llm-00001"),
            uid="u",
            resource_version="1",
            serving_state=ServingState.ACTIVE,
            class_name=KPA_CLASS,
            container_concurrency=0,
            was_ready=True,
            spec=spec,
        )
        self.pods = [Pod("p0", 0.0, 0.0)]
        self.made_count = 1
        self.pod_seconds = 0.0
        self.scaler = Scaler(revision, self.view(0.0), settings, is_restart=False, now_s=0.0)
        self.balancer = Balancer(BalancingPolicy.TWO_CHOICES, random=random.Random(7).random)
        self.serve(0.0)

    def view(self, now_s: float) -> ScalerView:
        """What the autoscaler sees of the cluster."""
        present = [pod for pod in self.pods if not pod.is_leaving]
        ready_count = sum(pod.ready_s <= now_s for pod in present)
        return ScalerView(present_scale=len(present), ready_count=ready_count, serving_state=ServingState.ACTIVE)

    def serve(self, now_s: float) -> None:
        """Give requests to the pods that are ready."""
        self.balancer.set_pods({pod.name: None for pod in self.pods if pod.ready_s <= now_s and not pod.is_leaving})

    def advance(self, now_s: float) -> None:
        """Run all pods to a time."""
        for pod in self.pods:
            for _ in pod.advance(now_s):
                self.balancer.give_back(pod.name)

    def take(self, request: Request, tokens: int, now_s: float) -> None:
        """Send a request to a pod, as an activator does."""
        self.advance(now_s)
        chosen = self.balancer.pick()
        assert chosen is not None
        next(pod for pod in self.pods if pod.name == chosen.address).take(request, tokens, now_s)

    def second(self, now_s: float) -> None:
        """Report, and decide in every other second."""
        self.advance(now_s)
        for pod in self.pods:
            if pod.ready_s < now_s:
                self.scaler.record(pod.stat(now_s), StatSource.POD)
        if now_s % 2 == 0:
            outcome = self.scaler.tick(self.view(now_s), DecisionCause.PERIOD, now_s)
            if outcome.apply_count is not None:
                self.scale(outcome.apply_count, now_s)
        for pod in [one for one in self.pods if one.is_leaving and not one.meter.level]:
            self.pods.remove(pod)
            self.pod_seconds += now_s - pod.begun_s
            self.scaler.forget_pod(pod.name, now_s)
        self.serve(now_s)

    def scale(self, count: int, now_s: float) -> None:
        """Create or delete pods."""
        present = [pod for pod in self.pods if not pod.is_leaving]
        for _ in range(count - len(present)):
            self.pods.append(Pod(f"p{self.made_count}", now_s, now_s + START_S))
            self.made_count += 1
        # As a ReplicaSet: pods that are not ready first, then those with the least to do.
        present.sort(key=lambda pod: (pod.ready_s <= now_s, pod.meter.level))
        for pod in present[: max(0, len(present) - count)]:
            pod.is_leaving = True


def simulate(rows: Rows, annotations: dict[str, str]) -> tuple[float, float]:
    """The share of requests that held both limits, and pod-seconds."""
    run, requests, place = Run(annotations), [Request(prompt, output, at_s) for at_s, prompt, output, _ in rows], 0
    length_s = math.ceil(rows[-1][0]) + 1
    now_s = 0
    while now_s < length_s or (any(pod.meter.level for pod in run.pods) and now_s < length_s + LATE_S):
        now_s += 1
        while place < len(rows) and rows[place][0] < now_s:
            run.take(requests[place], rows[place][3], rows[place][0])
            place += 1
        run.second(float(now_s))
    run.pod_seconds += sum(now_s - pod.begun_s for pod in run.pods)
    return sum(is_held(request) for request in requests) / len(requests), run.pod_seconds


def is_held(request: Request) -> bool:
    """Whether a request held both limits. One without an answer held none."""
    if not request.first_s or not request.ended_s:
        return False
    each_s = (request.ended_s - request.first_s) / max(1, request.generated - 1)
    limit_s = max(TTFT_S, SLOWDOWN_MAX * MODEL.alone_s(request.prompt))
    return request.first_s - request.arrived_s <= limit_s and each_s <= TPOT_S


def rows_of(name: str, traces: Path, sizes: Path | None, until_s: float) -> Rows:
    """The requests of a workload; of both, those of the second follow those of the first."""
    if name == BOTH:
        first, second = (rows_of(one, traces, sizes, until_s) for one in CASES)
        after_s = first[-1][0] + 1
        return [*first, *((at_s + after_s, prompt, output, tokens) for at_s, prompt, output, tokens in second)]
    case = CASES[name]
    (function,), _ = read_trace(traces / case.file)
    assert isinstance(function, RecordedFunction)
    dice = random.Random(3)
    lengths = drawn(case, dice) if sizes is None else published(sizes / case.sizes)
    found: Rows = []
    for at_s, (prompt, output) in zip(function.arrivals_s, lengths, strict=False):
        estimate = round(prompt * math.exp(dice.gauss(0.0, ESTIMATE_SIGMA))) + OUTPUT_DEFAULT
        if at_s < until_s:
            found.append((at_s, prompt, output, estimate))
    return found


def drawn(case: Case, dice: random.Random) -> Iterator[tuple[int, int]]:
    """Lengths by the quantiles, without end."""
    while True:
        yield at_percent(case.prompts, 100 * dice.random()), at_percent(case.outputs, 100 * dice.random())


def at_percent(values: tuple[int, ...], percent: float) -> int:
    """A quantile, between those that are known."""
    place = min(bisect.bisect_right(PERCENTS, percent), len(PERCENTS) - 1)
    low, high = PERCENTS[place - 1], PERCENTS[place]
    return round(values[place - 1] + (values[place] - values[place - 1]) * (percent - low) / (high - low))


def published(path: Path) -> Iterator[tuple[int, int]]:
    """The lengths in a published file."""
    with path.open() as file:
        if path.suffix == ".csv":
            for row in csv.DictReader(file):
                yield int(row["ContextTokens"]), int(row["GeneratedTokens"])
            return
        for line in file:
            one = json.loads(line)
            yield one["input_length"], one["output_length"]


def job(given: tuple[Rows, dict[str, str]]) -> tuple[float, float]:
    """One run, in a process of its own."""
    return simulate(*given)


def compare(name: str, options: argparse.Namespace) -> None:
    """Print both frontiers of a workload, and what each target in tokens is worth."""
    rows = rows_of(name, options.traces, options.sizes, 300.0 if options.quick else math.inf)
    targets = {f"{target:g} requests": {"autoscaling.knative.dev/target": f"{target:g}"} for target in REQUEST_TARGETS}
    targets |= {
        f"{target:g} tokens": {"autoscaling.serving.dev/metric": f"tokens={target}"} for target in TOKEN_TARGETS
    }
    if options.quick:
        targets = dict(list(targets.items())[:: len(targets) - 1])
    with multiprocessing.Pool(options.jobs) as pool:
        found = dict(zip(targets, pool.map(job, [(rows, one) for one in targets.values()], chunksize=1), strict=True))
    print(f"\n{name}: {len(rows)} requests\n  {'target':16} {'held':>6} {'pod-seconds':>12}")
    for target, (held, cost) in found.items():
        print(f"  {target:16} {held:6.1%} {cost:12.0f}")
    by_requests = [one for target, one in found.items() if target.endswith("requests")]
    for target, (held, cost) in found.items():
        cheaper = [one for one in by_requests if one[1] <= cost]
        if target.endswith("tokens") and held >= HELD_MIN and cheaper:
            best = max(cheaper)
            print(
                f"  {target}: {held:.1%} at {cost:.0f}; the best of requests {best[0]:.1%} at {best[1]:.0f}: {100 * (held - best[0]):+.1f} points"
            )
    print(flush=True, end="")


def main() -> None:
    """Compare the workloads that are named, all of them without a name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path())
    parser.add_argument("--sizes", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="five minutes, two targets")
    parser.add_argument("names", nargs="*", default=[], choices=[*CASES, BOTH, []], metavar="NAME")
    options = parser.parse_args()
    for name in options.names or (["azure-code"] if options.quick else [*CASES, BOTH]):
        compare(name, options)


if __name__ == "__main__":
    main()
