"""The output of one run: a line for each change, a plot, and a summary."""

import math

from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.report import plot, summary, timeline, worst_functions
from serving.tools.simulator.results import RevisionResult, RunLog
from serving.tools.simulator.revision_run import RevisionRun, RunConfig

UNTIL_S = 200.0


def run(*times_s: float) -> tuple[RunLog, RevisionResult]:
    autoscaler, log = AutoscalerSettings(policy=KNATIVE_POLICY), RunLog()
    spec = resolve(autoscaler, ScalingAnnotations(), container_concurrency=10, reachable=True)
    arrivals = iter([(at_s, math.nan) for at_s in times_s])
    config = RunConfig(settings=autoscaler, spec=spec, probe_delay_s=0.0, log=log)
    return log, RevisionRun("f", arrivals, config, until_s=UNTIL_S).run()


def test_each_change_has_a_line_with_its_reason() -> None:
    log, _ = run(10.5)
    lines = list(timeline(log.moments))
    assert sum("0 → 1: stable;" in line and "in flight" in line for line in lines) == 1
    assert sum("1 → 0: " in line for line in lines) == 1
    assert len(lines) < 10 < len(log.moments)


def test_load_and_pods_are_plotted() -> None:
    log, _ = run(10.5)
    lines = list(plot(log.moments, UNTIL_S))
    assert [line.split()[0] for line in lines] == ["requests", "pods"]
    assert [line.split()[-2:] for line in lines] == [["max", "1"], ["max", "1"]]


def test_the_summary_has_latencies_and_costs() -> None:
    log, result = run(10.5)
    assert summary(result, log.latencies_s, UNTIL_S).startswith("1 requests answered, 0 refused; latency median 2.25 s")
    log, result = run()
    assert summary(result, log.latencies_s, UNTIL_S) == "no request in 200 s"


def served(name: str, requests: int, cold: int, pod_seconds: float) -> RevisionResult:
    return RevisionResult(name=name, requests=requests, cold_requests=cold, pod_seconds=pod_seconds)


def test_the_worst_functions_are_those_whose_cost_grows_most() -> None:
    first = [served(f"f{index}", 20, 10, 1000.0) for index in range(30)]
    others = [
        served("f0", 20, 12, 1101.0),
        served("f1", 20, 14, 1000.0),
        *(served(f"f{index}", 20, 11, 1200.0) for index in range(2, 4)),
        *(served(f"f{index}", 20, 8, 1050.0) for index in range(4, 30)),
    ]
    rare = served("rare", 19, 1, 60.0), served("rare", 19, 19, 6000.0)
    found = worst_functions([*first, rare[0]], [*others, rare[1]])
    assert found is not None
    assert (found.functions, found.worse) == (30, 1)
    assert [(one.name, one.cost_change) for one in found.worst] == [("f2", 260.0), ("f3", 260.0)]
    assert worst_functions(rare[:1], rare[1:]) is None
