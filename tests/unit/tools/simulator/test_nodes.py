"""Revisions that share nodes."""

import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tools.simulator.curve import POLICIES
from serving.tools.simulator.results import RevisionResult
from serving.tools.simulator.trace import RecordedFunction
from serving.tools.simulator.workload_run import Workload, run_workload


def ran(*times_s: list[float], pods_max: int, length_s: float = 2000.0) -> list[RevisionResult]:
    functions = [
        RecordedFunction(
            name=f"f{index}", arrivals_s=array.array("d", of), durations_s=array.array("d", [0.5] * len(of))
        )
        for index, of in enumerate(map(sorted, times_s))
    ]
    workload = Workload(functions=functions, length_s=length_s, pods_max=pods_max)
    return run_workload(workload, POLICIES["knative"])


def wait_s(result: RevisionResult) -> float:
    return result.waits.percentile(1.0, requests=result.requests)


def test_pod_waits_until_another_revision_frees_its_place() -> None:
    first, second = ran([10.0], [20.0], pods_max=1)
    assert wait_s(first) < 2.1
    # The first pod is removed after a window of 60 s and drains for 5 s.
    assert 55.0 < wait_s(second) < 75.0


@pytest.mark.parametrize("pods_max", [1, 2, 3])
def test_pods_beyond_the_room_wait(pods_max: int) -> None:
    results = ran(*[[10.0]] * 4, pods_max=pods_max)
    assert sum(wait_s(result) < 3.0 for result in results) == pods_max


def test_sufficient_room_changes_no_result() -> None:
    times_s = ([10.0, 150.0, 151.0], [20.0, 400.0], [20.0] * 30)
    for shared, alone in zip(ran(*times_s, pods_max=1000), ran(*times_s, pods_max=0), strict=True):
        assert (shared.cold_requests, shared.pod_starts) == (alone.cold_requests, alone.pod_starts)
        assert abs(shared.pod_seconds - alone.pod_seconds) < 1e-6


@settings(max_examples=40, deadline=None)
@given(times_s=st.lists(st.lists(st.floats(0, 300), max_size=20), min_size=1, max_size=4), pods_max=st.integers(1, 4))
def test_every_request_is_served_or_rejected_with_limited_pods(times_s: list[list[float]], pods_max: int) -> None:
    results = ran(*times_s, pods_max=pods_max, length_s=4000.0)
    assert [result.requests for result in results] == [len(of) for of in times_s]
    busy_s = sum(result.pod_seconds - result.wasted_pod_seconds for result in results)
    served = sum(result.requests - result.refused for result in results)
    assert busy_s >= 0.05 * served
