"""Recorded workloads under policies: cold requests, pod-seconds, waits, and curves."""

import array

import msgspec
import pytest

from serving.settings.annotations import ScalingAnnotations
from serving.simulator.compare import ServiceTimes, Workload, at_equal_pod_seconds, report_of
from serving.simulator.policies import POLICIES
from serving.simulator.trace import FunctionTrace


def workload(*arrivals_s: float, length_s: float = 600.0, scaling: ScalingAnnotations | None = None) -> Workload:
    trace = FunctionTrace(name="f", arrivals_s=array.array("d", arrivals_s))
    return Workload(
        functions=[trace],
        length_s=length_s,
        scaling=scaling or ScalingAnnotations(),
        service=ServiceTimes(constant_s=0.5),
        start_s=2.0,
    )


def test_a_lone_request_is_cold_and_its_pod_goes_a_window_later() -> None:
    report = report_of(workload(10.0), "knative")
    assert (report.requests, report.cold_requests, report.pod_starts) == (1, 1, 1)
    assert report.wait_p50_s == pytest.approx(2.0)
    # Two seconds to start, half a second of work, and a window of 60 s until the last second of load has left it.
    assert 60.0 < report.pod_seconds < 70.0
    assert report.wasted_pod_seconds == pytest.approx(report.pod_seconds - 2.0 - 0.5)


def test_a_request_within_the_window_is_warm_and_one_after_it_is_cold() -> None:
    assert report_of(workload(10.0, 50.0), "knative").cold_requests == 1
    assert report_of(workload(10.0, 150.0), "knative").cold_requests == 2
    assert report_of(workload(10.0, 150.0), "fixed-300s").cold_requests == 1


def test_requests_from_zero_get_pods_for_all_of_them_at_once() -> None:
    report = report_of(workload(*(10.0 + index / 1000 for index in range(70))), "default")
    assert (report.cold_requests, report.pod_starts) == (70, 10)
    assert report.wait_p99_s < 2.1


def test_max_scale_holds_and_late_requests_wait_for_slots() -> None:
    report = report_of(workload(*([10.0] * 30), scaling=ScalingAnnotations(max_scale=1)), "default")
    assert report.pod_starts == 1
    assert report.wait_p999_s == pytest.approx(3.0)
    assert report.late_share == 1.0


def test_functions_may_be_shared_out_over_processes() -> None:
    one = workload(10.0, 150.0)
    several = msgspec.structs.replace(one, functions=[*one.functions, *workload(20.0).functions])
    assert report_of(several, "default", jobs=2) == report_of(several, "default")
    assert report_of(several, "default").per_revision["cold_requests"] == 1.5


def test_a_policy_beside_itself_is_no_better_at_equal_pod_seconds() -> None:
    given = workload(10.0, 150.0, 200.0, 500.0)
    first = report_of(given, "knative")
    curve = [report_of(given, "knative", position=one) for one in POLICIES["knative"].dial if "retention" in one.name]
    change = at_equal_pod_seconds(first, curve)
    assert [change.cold_change, change.wait_p99_change] == pytest.approx([0.0, 0.0])
    assert at_equal_pod_seconds(first, curve[1:]).cold_change is None


def test_a_longer_retention_costs_pod_seconds_and_saves_cold_requests() -> None:
    given = workload(*(10.0 + 100.0 * index for index in range(6)))
    reports = [report_of(given, name) for name in ("knative", "fixed-300s")]
    assert reports[0].cold_requests > reports[1].cold_requests
    assert reports[0].pod_seconds < reports[1].pod_seconds
    assert set(POLICIES) >= {"knative", "default"}
