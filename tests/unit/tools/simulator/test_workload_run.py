"""A workload under policies: reports, processes, curves, and the comparison at equal pod-seconds."""

import array
import json
import random

import msgspec
import pytest

from serving.core.settings.autoscaler import AutoscalerSettings
from serving.tools.simulator.curve import POLICIES, CurvePoint, DialPosition, at_equal_pod_seconds, points_around
from serving.tools.simulator.report import PolicyReport, mean_report, report_of
from serving.tools.simulator.trace import RecordedFunction
from serving.tools.simulator.workload_run import Workload, run_workload


def function(name: str, *arrivals_s: float) -> RecordedFunction:
    durations_s = array.array("d", [0.5] * len(arrivals_s))
    return RecordedFunction(name=name, arrivals_s=array.array("d", arrivals_s), durations_s=durations_s)


def new_workload(*functions: RecordedFunction, length_s: float = 600.0) -> Workload:
    return Workload(functions=functions, length_s=length_s)


def ran(workload: Workload, name: str = "knative", *, jobs: int = 1, seed: int = 1) -> PolicyReport:
    return report_of(run_workload(workload, POLICIES[name], jobs=jobs, seed=seed), workload.length_s)


def report(pod_seconds: float, cold: float = 0.0) -> PolicyReport:
    return msgspec.structs.replace(ran(new_workload(function("a", 1.0))), pod_seconds=pod_seconds, cold_requests=cold)


@pytest.mark.parametrize("policy", ["knative", "adaptive"])
def test_report_is_identical_with_two_processes(policy: str) -> None:
    """Functions differ in their number of requests, so processes finish in varying order."""
    dice = random.Random(policy)
    workload = new_workload(*(function(f"f{index}", *busy(dice, 1 + index % 7)) for index in range(24)))
    calls: list[int] = []
    results = run_workload(workload, POLICIES[policy], jobs=2, on_progress=lambda: calls.append(1))
    assert len(calls) == 24
    assert [result.name for result in results] == [function_trace.name for function_trace in workload.functions]
    assert msgspec.json.encode(report_of(results, workload.length_s)) == msgspec.json.encode(ran(workload, policy))


def busy(dice: random.Random, count: int) -> list[float]:
    return sorted(dice.random() * 500.0 for _ in range(count))


def test_longer_retention_trades_pod_seconds_for_cold_requests() -> None:
    workload = new_workload(function("f", *(10.0 + 100.0 * index for index in range(6))))
    knative, fixed = ran(workload, "knative"), ran(workload, "fixed-300s")
    assert knative.cold_requests > fixed.cold_requests
    assert knative.pod_seconds < fixed.pod_seconds


@pytest.mark.parametrize("policy", ["knative", "adaptive"])
def test_functions_stay_within_the_budget_and_reject_no_request(policy: str) -> None:
    dice = random.Random(7)
    functions = [function(f"f{index}", *sorted(dice.random() * 300.0 for _ in range(1500))) for index in range(4)]
    workload = msgspec.structs.replace(new_workload(*functions), concurrency=1)
    budgeted = msgspec.structs.replace(workload, settings=AutoscalerSettings(budget="9 pods"))
    free, results = (run_workload(each_workload, POLICIES[policy]) for each_workload in (workload, budgeted))
    assert sum(max(result.pod_series) for result in free) > 12
    assert max(map(sum, zip(*(result.pod_series for result in results), strict=True))) <= 9 + 1e-9
    assert [result.refused for result in results] == [0] * 4
    assert [result.pod_seconds for result in run_workload(budgeted, POLICIES[policy])] == [
        result.pod_seconds for result in results
    ]
    memory = msgspec.structs.replace(budgeted, settings=AutoscalerSettings(budget="1Gi"), pod_bytes=2**28)
    series = [result.pod_series for result in run_workload(memory, POLICIES[policy])]
    assert max(map(sum, zip(*series, strict=True))) <= 4 + 1e-9


def test_medians_cover_only_revisions_with_requests() -> None:
    medians = ran(new_workload(function("a", 10.0), function("b", 10.0, 200.0, 400.0), function("c"))).per_revision
    assert (medians["requests"], medians["cold_requests"], medians["cold_share"]) == (2.0, 2.0, 1.0)
    assert ran(new_workload(function("c"))).per_revision == {}


def test_mean_report_averages_seeds() -> None:
    mean = mean_report([report(100.0, 4), report(200.0, 6)])
    assert (mean.pod_seconds, mean.cold_requests) == (150.0, 5)
    assert mean_report([mean]) is mean


def test_policy_compared_with_itself_shows_no_change() -> None:
    workload = new_workload(function("f", 10.0, 150.0, 200.0, 500.0))
    first = ran(workload)
    points = points_around(
        first.pod_seconds,
        POLICIES["knative"].dial,
        lambda position: report_of(run_workload(workload, POLICIES["knative"], position=position), workload.length_s),
    )
    change = at_equal_pod_seconds(first, points)
    assert [change.cold_change, change.wait_p99_change, change.pod_seconds_change] == pytest.approx([0.0, 0.0, 0.0])


def positions(count: int) -> list[DialPosition]:
    return [DialPosition(name=str(index), change=lambda settings: settings) for index in range(count)]


def test_only_dial_positions_around_the_cost_are_run() -> None:
    points = points_around(47.0, positions(100), lambda position: report(10.0 * int(position.name)))
    assert {"4", "5"} <= {point.name for point in points}
    assert len(points) <= 10


def test_changes_are_interpolated_between_two_points() -> None:
    points = [CurvePoint(name="a", report=report(100.0, 10)), CurvePoint(name="b", report=report(200.0, 5))]
    change = at_equal_pod_seconds(report(140.0, 10), points)
    assert change.cold_change == pytest.approx(-0.2)
    assert change.dial == "a to b"


def test_unreachable_cost_is_compared_at_the_closest_position() -> None:
    change = at_equal_pod_seconds(report(200.0, 10), [CurvePoint(name="a", report=report(100.0, 5))])
    assert (change.cold_change, change.pod_seconds_change) == (-0.5, -0.5)
    more = at_equal_pod_seconds(report(50.0, 10), [CurvePoint(name="a", report=report(100.0, 5))])
    assert (more.cold_change, more.pod_seconds_change, more.dial) == (-0.5, 1.0, "a")


def test_cost_grows_along_the_dial_of_knative_and_default() -> None:
    workload = new_workload(function("f", *(10.0 + 130.0 * index for index in range(12))), length_s=2400.0)
    for name in ("knative", "default"):
        policy = POLICIES[name]
        costs = [
            report_of(run_workload(workload, policy, position=dial_position), workload.length_s).pod_seconds
            for dial_position in (policy.dial[0], policy.dial[-1])
        ]
        assert costs[0] < costs[1]


def test_report_is_json_encodable() -> None:
    assert json.loads(msgspec.json.encode(report(1.0)))["pod_seconds"] == 1.0
