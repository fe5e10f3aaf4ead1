"""The adaptive policy beside rivals of the literature on the same traces, at several costs.

    python bench/quality_rivals.py --traces DIR [--jobs N] [--results DIR] [--quick] [NAME ...]

Runs each policy at several positions of its dial, keeps the results in ``--results``, and prints a table for each trace: the cold
requests of each policy against Knative's defaults, where its pod-seconds are those of Knative times 1, 1.1, 1.18, 1.41 and 1.7. FeMux'
authors report 1.41 for theirs. A policy is read between two positions, and where its dial ends below a cost, at its end.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.parts.program import options_of
from bench.parts.quality_workload import RESULTS, TestWorkload, workload_of
from bench.parts.rival_table import RivalPoint, RivalResult, table
from bench.quality_grid import QUICK, TRACES
from bench.rivals.base import GapRival
from bench.rivals.fourier import FourierForecast
from bench.rivals.histogram import HybridHistogram
from bench.rivals.rules import PatternRules
from serving.core.scaling.adaptive.advice import PreWarmBudget
from serving.core.scaling.adaptive.gaps import SHIPPED_PRIOR, GapPrior
from serving.core.scaling.spec import ScalingSpec
from serving.core.settings.autoscaler import ADAPTIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.curve import POLICIES, DialPosition, SimulatedPolicy
from serving.tools.simulator.workload_run import Workload, run_workload

_WORTHS_S = (60.0, 120.0, 250.0, 500.0, 1000.0, 2000.0)
_HISTOGRAM = ((0.5, 60), (0.9, 120), (0.99, 600), (0.99, 1800), (0.99, 14_400))
_RULES = ((0.5, 0.25), (1, 1), (2, 2), (3, 5), (5, 10))
TRACE_NAMES = ("femux", "azure", "alibaba")


def _change(settings: AutoscalerSettings) -> AutoscalerSettings:
    """Knative's pods for the load: only the windows after the last request are the rival's."""
    return msgspec.structs.replace(settings, policy=ADAPTIVE_POLICY)


def _rival(kind: type[GapRival], **parameters: float) -> SimulatedPolicy:
    def make(spec: ScalingSpec, settings: AutoscalerSettings, **_: object) -> GapRival:
        budget = PreWarmBudget(settings.adaptive.pre_warming_per_minute)
        return kind(spec, settings, prior=GapPrior(SHIPPED_PRIOR), budget=budget, explains=False, **parameters)

    return SimulatedPolicy(change=_change, dial=(), policy_of=make)


def _worth(worth_s: float) -> Callable[[AutoscalerSettings], AutoscalerSettings]:
    return lambda settings: msgspec.structs.replace(settings, cold_start_worth_s=worth_s)


def _dial(name: str) -> dict[str, tuple[SimulatedPolicy, DialPosition | None]]:
    return {
        f"worth {worth_s:g} s": (POLICIES[name], DialPosition(name="", change=_worth(worth_s))) for worth_s in _WORTHS_S
    }


def _alone(policies: dict[str, SimulatedPolicy]) -> dict[str, tuple[SimulatedPolicy, DialPosition | None]]:
    return {name: (policy, None) for name, policy in policies.items()}


CONTENDERS = {
    "adaptive": _dial("adaptive"),
    "oracle": _dial("oracle"),
    "fixed keep-alive": _alone({name: POLICIES[name] for name in ("fixed-90s", "fixed-300s", "fixed-600s")}),
    "hybrid histogram": _alone(
        {
            f"{tail:.0%}, {kept_s:g} s without a pattern": _rival(HybridHistogram, tail=tail, standard_s=kept_s)
            for tail, kept_s in _HISTOGRAM
        }
    ),
    "Fourier forecast": _alone(
        {f"{calls:g} calls": _rival(FourierForecast, threshold=calls) for calls in (1, 0.5, 0.25, 0.1, 0.03)}
    ),
    "pattern rules": _alone(
        {
            f"{around:g} minutes around, {after:g} after": _rival(
                PatternRules, around_minutes=around, give_up_minutes=after
            )
            for around, after in _RULES
        }
    ),
}


def result_of(name: str, test: TestWorkload, traces: Path, jobs: int) -> RivalResult:
    """Run all policies on one trace."""
    workload = workload_of(test, traces)
    return RivalResult(
        name=name,
        title=test.title,
        functions=len(workload.functions),
        hours=workload.length_s / 3600.0,
        knative=_point(workload, POLICIES["knative"], None, "", jobs),
        shipped=_point(workload, POLICIES["adaptive"], None, "as shipped", jobs),
        curves={
            contender: [_point(workload, policy, position, dial, jobs) for dial, (policy, position) in dials.items()]
            for contender, dials in CONTENDERS.items()
        },
    )


def _point(
    workload: Workload, policy: SimulatedPolicy, position: DialPosition | None, dial: str, jobs: int
) -> RivalPoint:
    results = run_workload(workload, policy, position=position, jobs=jobs)
    return RivalPoint(
        dial=dial,
        requests=sum(one.requests for one in results),
        cold_requests=sum(one.cold_requests for one in results),
        pod_seconds=sum(one.pod_seconds for one in results),
    )


def main() -> None:
    """Run the named traces, or all."""
    options = options_of(
        __doc__, names=TRACE_NAMES, traces=Path, results=RESULTS, jobs=2, quick={"names": TRACE_NAMES[:1]}
    )
    if options.traces is None:
        sys.exit("quality_rivals: --traces DIR is missing")
    for name in options.names:
        test = QUICK if options.quick else msgspec.structs.replace(TRACES[name], concurrency=1)
        result = result_of(name, test, options.traces, options.jobs)
        print(*table(result), sep="\n", flush=True)
        if not options.quick:
            (options.results / f"rivals-{name}.json").write_bytes(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
