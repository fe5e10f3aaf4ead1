"""The adaptive policy as shipped against Knative's, on each trace at four start times and two limits of a pod.

``python bench/quality_grid.py --traces DIR [NAME ...]`` runs the cells of the named traces, keeps them in
``bench/quality_results/grid.json``, and prints a table that says which rules each breaks. ``--quick`` runs one short cell, which is
not kept. ``--write`` puts the kept cells, and the tables of ``bench/quality_rivals.py``, into ``docs/benchmarks.md``. It exits with 1 if a cell is worse:

- cold requests and pod-seconds are both above Knative's, or
- more than 10 % more requests wait over 10 ms, or
- the cost, pod-seconds and 60 for each cold request, is more than 2 % higher, or
- 2 % of its functions with 20 requests or more are more than 10 % worse in cold requests and pod-seconds both.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from bench.parts.page import fill
from bench.parts.quality_cells import Cell, read_cells, summary, table
from bench.parts.quality_workload import RESULTS, TestWorkload, workload_of
from bench.parts.rival_table import rival_lines
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.results import RevisionResult
from serving.tools.simulator.trace import ArrivalPlacement
from serving.tools.simulator.workload_run import run_workload

STARTS_S = (0.1, 2.0, 10.0, 20.0)
LIMITS = (1, 10)
_DAY_S = 86_400.0
_WORLD_CUP = "worldcup-1998-days-1-50.rate.csv.xz"
_AZURE = "azure2019-1350.per-minute.csv.xz"
TRACES = {
    "azure": TestWorkload(title="Azure 2019", file=_AZURE, until_s=28_800.0, sample=60, seeds=2),
    "azure-phase": TestWorkload(
        title="Azure 2019, fixed phase",
        file=_AZURE,
        until_s=28_800.0,
        sample=60,
        seeds=2,
        placement=ArrivalPlacement.PHASE,
    ),
    "femux": TestWorkload(title="FeMux' 100 apps", file="femux-100.per-minute.csv.xz", until_s=28_800.0, seeds=1),
    "alibaba": TestWorkload(title="Alibaba GenAI", file="alibaba-genai-days-1-12.requests.csv.xz", seeds=1),
    "mooncake": TestWorkload(
        title="Mooncake, 8 s", file="mooncake-conversation.requests.csv.xz", service_s=8.0, seeds=5
    ),
    "azure-llm": TestWorkload(
        title="Azure LLM, 2 s", file="azure-llm-2023-code.requests.csv.xz", service_s=2.0, seeds=5
    ),
    "worldcup": TestWorkload(
        title="World Cup, day 39", file=_WORLD_CUP, from_s=38.5 * _DAY_S, until_s=38.5 * _DAY_S + 1200, seeds=5
    ),
    "worldcup-quiet": TestWorkload(
        title="World Cup, day 7", file=_WORLD_CUP, from_s=6.5 * _DAY_S, until_s=6.5 * _DAY_S + 3600, seeds=5
    ),
}
QUICK = TestWorkload(title="quick", file=_AZURE, until_s=1800.0, sample=3, seeds=1)
COLD_WORTH_S = 60.0
WORSE_RATIO = 1.1
REQUESTS_MIN = 20


def cell_of(name: str, test: TestWorkload, traces: Path, jobs: int) -> Cell:
    """Run both policies on one cell."""
    workload = workload_of(test, traces)
    knative, adaptive = (
        [
            one
            for seed in range(1, test.seeds + 1)
            for one in run_workload(workload, POLICIES[policy], seed=seed, jobs=jobs)
        ]
        for policy in ("knative", "adaptive")
    )
    ours, theirs = _by_function(adaptive), _by_function(knative)
    names = sorted(theirs)
    columns = np.array([[*theirs[one], *ours[one]] for one in names])
    counted = columns[columns[:, 0] >= REQUESTS_MIN * test.seeds]
    worse = (counted[:, 5] > WORSE_RATIO * counted[:, 1]) & (counted[:, 7] > WORSE_RATIO * counted[:, 3])
    total = columns.sum(axis=0)
    return Cell(
        trace=name,
        start_s=test.start_s,
        limit=test.concurrency,
        functions=len(names),
        requests=int(total[0]) // test.seeds,
        cold=_change(total[5], total[1]),
        late=_change(total[6], total[2]),
        pod_seconds=_change(total[7], total[3]),
        cost=_change(*_costs(total)),
        worse_functions=int(worse.sum()),
        counted_functions=len(counted),
    )


def _by_function(results: Sequence[RevisionResult]) -> dict[str, tuple[float, float, float, float]]:
    """Requests, cold and late ones and pod-seconds by function, over all seeds."""
    found: dict[str, tuple[float, float, float, float]] = {}
    for one in results:
        before = found.get(one.name, (0.0, 0.0, 0.0, 0.0))
        more = (one.requests, one.cold_requests, one.late_requests, one.pod_seconds)
        found[one.name] = (before[0] + more[0], before[1] + more[1], before[2] + more[2], before[3] + more[3])
    return found


def _costs(total: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    return float(total[7] + COLD_WORTH_S * total[5]), float(total[3] + COLD_WORTH_S * total[1])


def _change(ours: float, theirs: float) -> float:
    return float(ours / theirs - 1.0) if theirs else float(ours > 0)


def main() -> None:
    """Run the cells of the named traces, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(TRACES))
    parser.add_argument("--traces", type=Path, help="folder of the recorded workloads")
    parser.add_argument("--write", action="store_true", help="write the page from what was run before")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parent.parent / "docs", help="folder of the page")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, help="seeds of each cell in place of those of its trace")
    parser.add_argument("--quick", action="store_true", help="one short cell, which is not kept")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(TRACES)):
        sys.exit(f"quality_grid: {unknown[0]} is none of {', '.join(TRACES)}")
    if given.write:
        blocks = {"cells": summary(read_cells(RESULTS / "grid.json")), "rivals": rival_lines(RESULTS)}
        fill(given.docs / "benchmarks.md", blocks)
        return
    if given.traces is None:
        sys.exit("quality_grid: --traces DIR is missing")
    if given.quick:
        print(*table([cell_of("quick", QUICK, given.traces, given.jobs)]), sep="\n")
        return
    kept = RESULTS / "grid.json"
    names = given.names or list(TRACES)
    cells = [one for one in read_cells(kept) if one.trace not in names]
    for name in names:
        for start_s in STARTS_S:
            for limit in LIMITS:
                test = msgspec.structs.replace(TRACES[name], start_s=start_s, concurrency=limit)
                test = msgspec.structs.replace(test, seeds=given.seeds or test.seeds)
                cells.append(cell_of(name, test, given.traces, given.jobs))
                print([*table(cells[-1:])][-1], flush=True)
        kept.write_bytes(msgspec.json.format(msgspec.json.encode(cells), indent=1) + b"\n")
    worse_count = sum(one.is_worse for one in cells)
    print(f"{worse_count} of {len(cells)} cells are worse")
    sys.exit(int(worse_count > 0))


if __name__ == "__main__":
    main()
