"""Simulated nodes: pods are placed by the product's scores, and groups scaled by its passes."""

import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core.settings.nodegroup import NodeGroupSettings
from serving.nodes.nodegroup.records import Amount
from serving.tools.simulator.curve import POLICIES, SimulatedPolicy
from serving.tools.simulator.nodes import NodePlan
from serving.tools.simulator.report import mean_report, report_of
from serving.tools.simulator.results import NodesResult, RevisionResult
from serving.tools.simulator.trace import RecordedFunction
from serving.tools.simulator.workload_run import Workload, run_workload

GROUP = NodeGroupSettings(
    name="default",
    label_key="pool",
    label_value="simulated",
    cloud_provider_group_name="simulated",
    taint_lower_capacity_threshold_percent=25,
    taint_upper_capacity_threshold_percent=45,
    scale_up_threshold_percent=100,
    slow_node_removal_rate=1,
    fast_node_removal_rate=2,
    soft_delete_grace_period_s=20.0,
    hard_delete_grace_period_s=60.0,
    drain_grace_period_s=60.0,
    scale_up_cool_down_period_s=40.0,
    scale_on_starve=True,
)
# Two pods fit on a node.
PLAN = NodePlan(
    count=1,
    count_max=4,
    node=Amount(cpu_m=1000, memory_bytes=1000),
    pod=Amount(cpu_m=500, memory_bytes=1),
    boot_s=30.0,
    scan_interval_s=5.0,
    policy="spread",
    group=GROUP,
)


def ran(
    *times_s: list[float],
    plan: NodePlan | None = PLAN,
    length_s: float = 1500.0,
    took_s: float = 0.5,
    concurrency: int = 10,
    policy: SimulatedPolicy = POLICIES["knative"],
) -> tuple[list[RevisionResult], NodesResult | None]:
    functions = [
        RecordedFunction(
            name=f"f{index}", arrivals_s=array.array("d", of), durations_s=array.array("d", [took_s] * len(of))
        )
        for index, of in enumerate(map(sorted, times_s))
    ]
    workload = Workload(functions=functions, length_s=length_s, nodes=plan, concurrency=concurrency)
    nodes: list[NodesResult] = []
    results = run_workload(workload, policy, on_nodes=nodes.append)
    return results, nodes[0] if nodes else None


def changed(**changes: object) -> NodePlan:
    return msgspec.structs.replace(PLAN, **changes)


def slowest_s(result: RevisionResult) -> float:
    return result.waits.percentile(1.0, requests=result.requests)


def test_results_with_room_on_nodes_equal_those_without_nodes() -> None:
    times_s = ([10.0, 11.0], [300.0])
    (with_nodes, nodes), (without, nothing) = ran(*times_s), ran(*times_s, plan=None)
    assert [result.cold_requests for result in with_nodes] == [result.cold_requests for result in without]
    assert [result.pod_seconds for result in with_nodes] == pytest.approx([result.pod_seconds for result in without])
    assert nothing is None
    assert nodes is not None
    assert (nodes.nodes_max, nodes.node_starts, nodes.pods_pending, nodes.node_seconds) == (1, 0, 0, 1500.0)


def test_pod_without_room_waits_for_a_booting_node() -> None:
    (first, second, third), nodes = ran([10.0], [11.0], [12.0])
    assert slowest_s(first) < 2.1
    assert slowest_s(second) < 2.1
    # The next pass, at 15 s; 30 s of boot; the start of the pod.
    assert slowest_s(third) == pytest.approx(15.0 + 30.0 - 12.0 + 2.02, abs=0.2)
    assert nodes is not None
    assert (nodes.nodes_max, nodes.node_starts, nodes.pods_pending) == (2, 1, 1)
    assert nodes.pending_pod_seconds == pytest.approx(33.0, abs=0.1)


def test_nodes_are_removed_after_their_pods() -> None:
    _, nodes = ran([10.0], [11.0], [12.0], length_s=3000.0)
    assert nodes is not None
    # One node runs all the time; the other one from 15 s until its grace periods after its pods have ended.
    assert 3000.0 < nodes.node_seconds < 3000.0 + 400.0
    assert nodes.node_series[0] >= 1.0
    assert nodes.node_series[-1] == pytest.approx(1.0)


def test_node_count_is_limited_by_the_cloud_maximum() -> None:
    times_s = [[10.0 + index / 10] for index in range(20)]
    _, nodes = ran(*times_s)
    assert nodes is not None
    assert nodes.nodes_max == 4


def test_eviction_from_a_drained_node_fails_no_request() -> None:
    # Five revisions need three nodes; then one pod on each of two nodes is left, which fit on one.
    short = [[10.0 + index] for index in range(3)]
    long = [[float(second) for second in range(14, 1400, 5)], [float(second) for second in range(15, 1400, 5)]]
    results, nodes = ran(*short, *long)
    assert nodes is not None
    assert nodes.evictions >= 1
    assert sum(result.refused for result in results) == 0
    assert [result.requests for result in results[3:]] == [len(of) for of in long]


def test_packing_uses_fewer_nodes_than_spreading() -> None:
    plan = changed(count=3, node=Amount(cpu_m=2000, memory_bytes=1000))
    times_s = [[float(second) for second in range(10 + index, 1400, 5)] for index in range(4)]
    spread = ran(*times_s, plan=plan)[1]
    packed = ran(*times_s, plan=msgspec.structs.replace(plan, policy="pack", count=1))[1]
    assert spread is not None
    assert packed is not None
    assert packed.node_seconds < spread.node_seconds


def climb() -> list[float]:
    """From 100 s on, the load grows by one concurrent request every 10 s."""
    times_s = [float(second) for second in range(100)]
    for step in range(30):
        times_s += [100.0 + 10.0 * step + number * 10.0 / (10 * (step + 1)) for number in range(10 * (step + 1))]
    return times_s


def test_anticipated_pods_bring_nodes_before_pods_are_pending() -> None:
    plan = changed(count_max=40)
    late = ran(climb(), plan=plan, length_s=600.0, took_s=4.0, concurrency=2)[1]
    anticipating = msgspec.structs.replace(plan, group=msgspec.structs.replace(GROUP, anticipation=True))
    early = ran(climb(), plan=anticipating, length_s=600.0, took_s=4.0, concurrency=2)[1]
    assert late is not None
    assert early is not None
    assert early.pending_pod_seconds < 0.7 * late.pending_pod_seconds


def test_node_group_min_nodes_above_the_initial_count_is_applied() -> None:
    group = msgspec.structs.replace(GROUP, name="shared", min_nodes=2, max_nodes=3)
    _, nodes = ran([10.0], [11.0], [12.0], plan=changed(group=group))
    assert nodes is not None
    # The group's minimum is above the initial number of nodes.
    assert (nodes.nodes_max, nodes.node_starts) == (2, 1)


def test_node_simulation_is_deterministic() -> None:
    def run() -> tuple[list[float], NodesResult | None]:
        results, nodes = ran(climb(), plan=changed(count_max=20), length_s=400.0, took_s=1.0, concurrency=1)
        return [result.pod_seconds for result in results], nodes

    assert run() == run()


def test_mean_report_averages_nodes_over_seeds() -> None:
    results, nodes = ran([10.0], [11.0], [12.0])
    assert nodes is not None
    once = report_of(results, 1500.0, nodes=nodes)
    other = report_of(results, 1500.0, nodes=msgspec.structs.replace(nodes, node_starts=3))
    mean = mean_report([once, other]).nodes
    assert mean is not None
    assert mean.node_starts == 2.0
    assert mean.node_seconds == pytest.approx(nodes.node_seconds)
    assert mean_report([report_of(results, 1500.0)] * 2).nodes is None


@settings(max_examples=12, deadline=None)
@given(
    times_s=st.lists(st.lists(st.floats(0, 300), max_size=12), min_size=1, max_size=4),
    count_max=st.integers(1, 3),
    anticipates=st.booleans(),
)
def test_every_request_is_counted_and_node_bounds_hold(
    times_s: list[list[float]], count_max: int, *, anticipates: bool
) -> None:
    group = msgspec.structs.replace(GROUP, anticipation=anticipates)
    results, nodes = ran(*times_s, plan=changed(count_max=count_max, group=group), length_s=1000.0)
    assert nodes is not None
    assert [result.requests for result in results] == [len(of) for of in times_s]
    assert 1 <= nodes.nodes_max <= count_max
    assert 1000.0 <= nodes.node_seconds <= 1000.0 * count_max
    assert nodes.pending_pod_seconds >= 0
