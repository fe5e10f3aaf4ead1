"""The output of one run: a line for each change, a plot, and a summary."""

import array
import math

import pytest

from serving.core.model.slo import read_slo
from serving.core.scaling.resolve import resolve
from serving.core.settings.annotations import ScalingAnnotations
from serving.core.settings.autoscaler import KNATIVE_POLICY, AutoscalerSettings
from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.report import (
    PolicyReport,
    mean_report,
    plot,
    policy_table,
    report_of,
    summary,
    timeline,
    worst_functions,
)
from serving.tools.simulator.results import RevisionResult, RunLog
from serving.tools.simulator.revision_run import RevisionRun, RunConfig
from serving.tools.simulator.trace import RecordedFunction
from serving.tools.simulator.workload_run import Workload, run_workload

UNTIL_S = 200.0


def reported(policy: str, slo: str | None) -> PolicyReport:
    """Two requests of 0.25 s: the first waits for a start of 2 s."""
    arrivals_s = array.array("d", [10.5, 20.0])
    unknown_s = array.array("d", [math.nan, math.nan])
    function = RecordedFunction(name="f", arrivals_s=arrivals_s, durations_s=unknown_s)
    goal = None if slo is None else read_slo(slo)
    workload = Workload(functions=[function], length_s=UNTIL_S, slo=goal)
    return report_of(run_workload(workload, POLICIES[policy]), UNTIL_S)


@pytest.mark.parametrize(
    ("policy", "slo", "share"),
    [
        ("knative", "p95<1s", 0.5),
        ("knative", "p95-wait<3s", 1.0),
        ("oracle", "p95-wait<1s", 0.5),
        ("clairvoyant", "p95<1s", 1.0),
        ("clairvoyant", "p95<0.2s", 0.0),
        ("knative", None, None),
    ],
)
def test_slo_attainment_is_the_share_of_requests_within_the_limit(
    policy: str, slo: str | None, share: float | None
) -> None:
    report = reported(policy, slo)
    assert report.attained_share == mean_report([report, report]).attained_share == share
    header, line = policy_table({policy: report})
    assert ("attained" in header) is (slo is not None)
    assert slo is None or line.endswith(f" {share:.1%}")


def run(*times_s: float) -> tuple[RunLog, RevisionResult]:
    autoscaler, log = AutoscalerSettings(policy=KNATIVE_POLICY), RunLog()
    spec = resolve(autoscaler, ScalingAnnotations(), container_concurrency=10, reachable=True)
    arrivals = iter([(at_s, math.nan) for at_s in times_s])
    config = RunConfig(settings=autoscaler, spec=spec, probe_delay_s=0.0, log=log)
    return log, RevisionRun("f", arrivals, config, until_s=UNTIL_S).run()


def test_timeline_has_one_line_per_change_with_its_reason() -> None:
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


def test_summary_reports_requests_and_median_latency() -> None:
    log, result = run(10.5)
    assert summary(result, log.latencies_s, UNTIL_S).startswith("1 requests answered, 0 refused; latency median 2.25 s")
    log, result = run()
    assert summary(result, log.latencies_s, UNTIL_S) == "no request in 200 s"


def served(name: str, requests: int, cold: int, pod_seconds: float) -> RevisionResult:
    return RevisionResult(name=name, requests=requests, cold_requests=cold, pod_seconds=pod_seconds)


def test_worst_functions_have_the_largest_cost_increase() -> None:
    first = [served(f"f{index}", 20, 10, 1000.0) for index in range(30)]
    others = [
        served("f0", 20, 12, 1101.0),
        served("f1", 20, 14, 1000.0),
        *(served(f"f{index}", 20, 11, 1200.0) for index in range(2, 4)),
        *(served(f"f{index}", 20, 8, 1050.0) for index in range(4, 30)),
    ]
    rare = served("rare", 19, 1, 60.0), served("rare", 19, 19, 6000.0)
    new_worst_functions = worst_functions([*first, rare[0]], [*others, rare[1]])
    assert new_worst_functions is not None
    assert (new_worst_functions.functions, new_worst_functions.worse) == (30, 1)
    assert [(function_change.name, function_change.cost_change) for function_change in new_worst_functions.worst] == [
        ("f2", 260.0),
        ("f3", 260.0),
    ]
    assert worst_functions(rare[:1], rare[1:]) is None
