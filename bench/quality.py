"""Scaling quality of the policies on the parts of recorded workloads kept for the test.

    python bench/quality.py --traces DIR [--jobs N] [--results DIR] [--quick] [NAME ...]
    python bench/quality.py --write [--results DIR] [--docs DIR]

Runs workloads of the table below and keeps each result as a file in ``--results``; ``--write`` puts all that are there into
``docs/scaling-quality.md`` with one chart a workload. ``--quick`` runs the first workload with one seed. The policies were tuned on the other parts: half of the functions of azure2019-1350, and the first 60 % of the time of the others.
"""

import argparse
import math
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.parts.bootstrap import cold_change_interval
from bench.parts.page import fill
from bench.parts.program import options_of
from bench.parts.quality_cells import read_cells
from bench.parts.quality_page import QualityResult, cell_lines, result_lines
from bench.parts.rival_table import rival_lines
from serving.core.settings.queueproxy import QueueProxySettings
from serving.tools.cli.decisions.simulatetrace import PolicyRunner, compare_policies
from serving.tools.simulator.curve import POLICIES, CurvePoint, DialPosition
from serving.tools.simulator.report import PolicyReport
from serving.tools.simulator.results import DurationModel, Quantiles, RevisionResult
from serving.tools.simulator.trace import ArrivalPlacement, TraceWindow, read_trace
from serving.tools.simulator.workload_run import Workload

RESULTS = Path(__file__).parent / "quality_results"
DOCS = Path(__file__).parent.parent / "docs"
_DAY_S = 86_400.0
# Positions of the dial of Knative's policy that are shown.
_HEAVY_RIVALS = (
    "target 90%, retention 0 s",
    "target 80%, retention 0 s",
    "target 70%, retention 0 s",
    "target 50%, retention 540 s",
)
_SPARSE_RIVALS = (
    "target 70%, retention 0 s",
    "target 70%, retention 30 s",
    "target 70%, retention 120 s",
    "target 70%, retention 540 s",
)
# Part of the time of a workload that the policies were tuned on.
_TUNED_RATIO = 0.6

_AZURE = "azure2019-1350.per-minute.csv.xz"
_WORLD_CUP = "worldcup-1998-days-1-50.rate.csv.xz"


class TestWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a trace, with the times of requests and pods in seconds."""

    __test__ = False

    title: str
    file: str
    from_s: float = 0.0
    until_s: float = math.inf
    is_halved: bool = False
    """Whether only the functions count that were not tuned on."""

    sample: int | None = None
    """Functions of those, by a hash of their names; None: all."""

    placement: ArrivalPlacement = ArrivalPlacement.UNIFORM
    service_s: float = 0.25
    start_s: float = 2.0
    concurrency: int = 10
    seeds: int = 5
    is_heavy: bool = False


WORKLOADS = {
    "azure-uniform": TestWorkload(
        title="Azure Functions 2019, 10 hours of 60 functions, uniform in the minute",
        file=_AZURE,
        until_s=36_000.0,
        is_halved=True,
        sample=60,
    ),
    "azure-phase": TestWorkload(
        title="Azure Functions 2019, 10 hours of 60 functions, fixed phase in the minute",
        file=_AZURE,
        until_s=36_000.0,
        is_halved=True,
        sample=60,
        placement=ArrivalPlacement.PHASE,
    ),
    "alibaba-genai": TestWorkload(
        title="Alibaba GenAI, days 8 to 12, all models",
        file="alibaba-genai-days-1-12.requests.csv.xz",
        from_s=12 * _DAY_S * _TUNED_RATIO,
        start_s=10.0,
        seeds=1,
    ),
    "mooncake": TestWorkload(
        title="Mooncake conversation, the last 24 minutes, 8 s a request, 4 a pod",
        file="mooncake-conversation.requests.csv.xz",
        from_s=3537 * _TUNED_RATIO,
        service_s=8.0,
        start_s=10.0,
        concurrency=4,
        is_heavy=True,
    ),
    "azure-llm": TestWorkload(
        title="Azure LLM 2023, the last 23 minutes, 2 s a request, 1 a pod",
        file="azure-llm-2023-code.requests.csv.xz",
        from_s=3436 * _TUNED_RATIO,
        service_s=2.0,
        start_s=3.0,
        concurrency=1,
        is_heavy=True,
    ),
    "mooncake-short": TestWorkload(
        title="Mooncake conversation, the last 24 minutes, 0.25 s a request, 10 a pod",
        file="mooncake-conversation.requests.csv.xz",
        from_s=3537 * _TUNED_RATIO,
        is_heavy=True,
    ),
    "azure-llm-short": TestWorkload(
        title="Azure LLM 2023, the last 23 minutes, 0.25 s a request, 10 a pod",
        file="azure-llm-2023-code.requests.csv.xz",
        from_s=3436 * _TUNED_RATIO,
        is_heavy=True,
    ),
    "worldcup": TestWorkload(
        title="World Cup 1998, day 39, 12:00 to 12:40",
        file=_WORLD_CUP,
        from_s=38.5 * _DAY_S,
        until_s=38.5 * _DAY_S + 2400,
        seeds=1,
        is_heavy=True,
    ),
}


def workload_of(test: TestWorkload, traces: Path) -> Workload:
    """The part of the trace that the policies were not tuned on."""
    functions, length_s = read_trace(
        traces / test.file,
        placement=test.placement,
        window=TraceWindow(from_s=test.from_s, until_s=test.until_s),
    )
    if test.is_halved:
        # The tuned half has an odd checksum.
        functions = [one for one in functions if not zlib.crc32(one.name.encode()) & 1]
    if test.sample is not None:
        functions = sorted(functions, key=lambda one: zlib.crc32(one.name[::-1].encode()))[: test.sample]
    functions = [one for one in functions if one.request_count]
    return Workload(
        functions=functions,
        length_s=length_s,
        service=DurationModel(default=Quantiles(p50_s=test.service_s, p99_s=test.service_s)),
        start=DurationModel(default=Quantiles(p50_s=test.start_s, p99_s=test.start_s)),
        queue_proxy=msgspec.structs.replace(QueueProxySettings(), container_concurrency=test.concurrency),
        concurrency=test.concurrency,
    )


def run(name: str, options: argparse.Namespace) -> QualityResult:
    """Run all policies on one workload."""
    test = WORKLOADS[name]
    workload = workload_of(test, options.traces)
    costs: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}

    def keep(policy: str, position: DialPosition | None, results: Sequence[RevisionResult]) -> None:
        """Add up each function's costs over the seeds: a sum does as well as a mean."""
        found = costs.setdefault((policy, "" if position is None else position.name), {})
        for one in results:
            pod_seconds, cold = found.get(one.name, (0.0, 0.0))
            found[one.name] = (pod_seconds + one.pod_seconds, cold + one.cold_requests)

    seeds = 1 if options.quick else test.seeds
    runner = PolicyRunner(workload=workload, seeds=range(1, seeds + 1), jobs=options.jobs, on_results=keep)
    rivals = ("knative", "adaptive") if test.is_heavy else ("knative", "adaptive", "fixed-300s")
    comparison = compare_policies(runner, rivals, equal_pod_seconds=True)
    interval = cold_change_interval(
        costs["knative", ""], [costs["adaptive", point.name] for point in comparison.curves["adaptive"]]
    )
    knative_curve = [
        CurvePoint(name=position.name, report=without_series(runner.run("knative", position)))
        for position in POLICIES["knative"].dial
        if position.name in (_HEAVY_RIVALS if test.is_heavy else _SPARSE_RIVALS)
    ]
    return QualityResult(
        name=name,
        title=test.title,
        is_heavy=test.is_heavy,
        functions=len(workload.functions),
        requests=comparison.policies["knative"].requests,
        comparison=msgspec.structs.replace(
            comparison, policies={of: without_series(one) for of, one in comparison.policies.items()}
        ),
        knative_curve=knative_curve,
        cold_interval=interval,
        seeds=seeds,
    )


def without_series(report: PolicyReport) -> PolicyReport:
    """A report without the pods over time, which no table shows."""
    return msgspec.structs.replace(report, pod_series=[])


def main() -> None:
    """Run the named workloads, or write the page from what was run before."""
    places = {"traces": Path, "results": RESULTS, "docs": DOCS}
    quick = {"names": tuple(WORKLOADS)[:1]}
    options = options_of(__doc__, names=tuple(WORKLOADS), jobs=2, write=False, quick=quick, **places)
    if options.write:
        kept = [options.results / f"{name}.json" for name in WORKLOADS]
        found = [msgspec.json.decode(path.read_bytes(), type=QualityResult) for path in kept if path.exists()]
        cells = cell_lines(read_cells(options.results / "grid.json"))
        blocks = {
            "cells": cells,
            "rivals": rival_lines(options.results),
            "results": result_lines(found, options.docs / "img"),
        }
        fill(options.docs / "scaling-quality.md", blocks)
        return
    if options.traces is None:
        sys.exit("quality: --traces DIR is missing")
    for name in options.names:
        result = run(name, options)
        (options.results / f"{name}.json").write_bytes(msgspec.json.encode(result) + b"\n")
        print(f"{name}: {result.functions} functions, {result.requests:,.0f} requests")


if __name__ == "__main__":
    main()
