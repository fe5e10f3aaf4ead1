"""Figures over seeds with confidence intervals, and violated rules of a policy."""

import msgspec
import pytest

from serving.tools.simulator.arena import Interval, interval_of, row_of
from serving.tools.simulator.report import PolicyReport, WorstFunctions, report_of, summed_over_seeds, worst_functions
from serving.tools.simulator.results import RevisionResult

EMPTY = report_of([RevisionResult(name="f")], 3600.0)


def report(cold: float, pod_seconds: float, late: float = 0.0) -> PolicyReport:
    return msgspec.structs.replace(EMPTY, cold_requests=cold, pod_seconds=pod_seconds, late_share=late)


REPORTS = {
    "knative": [report(10, 100), report(20, 100)],
    "adaptive": [report(5, 110), report(10, 110)],
    "oracle": [report(5, 100), report(5, 100)],
    "clairvoyant": [report(0, 55), report(0, 55)],
}


def test_interval_is_the_95_percent_confidence_interval_of_the_mean() -> None:
    assert interval_of([3.0]) == Interval(3.0, None)
    interval = interval_of([1.0, 2.0, 3.0, 4.0, 5.0])
    # 2.776 * sqrt(2.5) / sqrt(5)
    assert interval.mean == 3.0
    assert interval.half == pytest.approx(1.963, abs=0.001)
    assert interval_of([1.0, 2.0] * 20).half == pytest.approx(2.262 * 0.5064 / 40**0.5, rel=0.01)


def test_arena_row_has_costs_bounds_and_changes() -> None:
    row = row_of("adaptive", REPORTS, first="knative", functions=None)
    means = {name: interval.mean for name, interval in row.figures.items()}
    assert means["cold"] == 7.5
    # Cold requests of 5 and 10 at 20, 60 and 180, beside 110 pod-seconds.
    assert [means[f"cost at {price}"] for price in (20, 60, 180)] == [260.0, 560.0, 1460.0]
    assert means["cost of oracle"] == pytest.approx((410 / 400 + 710 / 400) / 2)
    assert means["pod-seconds of clairvoyant"] == 2.0
    assert {name: interval.mean for name, interval in row.changes.items()} == pytest.approx(
        {"cold": -0.5, "late": 0.0, "pod-seconds": 0.1, "cost": ((410 / 700) + (710 / 1300)) / 2 - 1}
    )
    assert row.changes["cold"].half == 0.0
    assert row.broken_rules == ()


@pytest.mark.parametrize(
    ("own", "worse", "rules"),
    [
        (report(11, 101), 0, ("cold and pod-seconds", "cost")),
        (report(10, 100, late=0.2), 0, ("late",)),
        (report(10, 100), 3, ("functions",)),
        (report(9, 120), 2, ()),
    ],
)
def test_arena_row_reports_violated_rules(own: PolicyReport, worse: int, rules: tuple[str, ...]) -> None:
    reports = {name: [report(10, 100, late=0.1)] for name in ("knative", "oracle", "clairvoyant")} | {"own": [own]}
    functions = WorstFunctions(functions=100, worse=worse, worst=())
    assert row_of("own", reports, first="knative", functions=functions).broken_rules == rules


def test_functions_are_summed_over_seeds_before_comparison() -> None:
    seeds = [[RevisionResult(name="f", requests=15, cold_requests=cold, pod_seconds=10.0)] for cold in (1, 2)]
    (total,) = summed_over_seeds(seeds)
    assert (total.requests, total.cold_requests, total.pod_seconds) == (30, 3, 20.0)
    assert worst_functions([total], [total], seeds=2) is None
    assert worst_functions([total], [total]) is not None
