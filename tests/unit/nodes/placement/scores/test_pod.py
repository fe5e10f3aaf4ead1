"""The demand of pods."""

import pytest

from serving.core.model.quantity import MEMORY_ASSUMED_BYTES, Resources
from serving.nodes.placement.scores.pod import (
    NONZERO_CPU_M,
    Container,
    PodContainers,
    PodDemand,
    pod_demand,
    total_demand,
)

MIB = 2**20


def new_container(request_m: int | None = None, limit_m: int | None = None) -> Container:
    return Container(request=Resources(cpu_m=request_m), limit=Resources(cpu_m=limit_m))


def test_container_without_requests_counts_100_m_and_200_mib() -> None:
    demand = pod_demand(PodContainers(containers=(new_container(), new_container(), new_container(250))))
    assert (demand.nonzero_cpu_m, demand.nonzero_memory_bytes) == (450, 600 * MIB)


def test_explicit_request_of_0_counts_0() -> None:
    nothing = Container(request=Resources(cpu_m=0, memory_bytes=0))
    demand = pod_demand(PodContainers(containers=(nothing,)))
    assert (demand.nonzero_cpu_m, demand.nonzero_memory_bytes) == (0, 0)


def test_pod_without_containers_has_no_demand() -> None:
    assert pod_demand(PodContainers()) == PodDemand()


def test_nonzero_demand_excludes_init_containers_and_overhead() -> None:
    pod = PodContainers(
        containers=(new_container(100),), init_containers=(new_container(900),), overhead=Resources(cpu_m=50)
    )
    assert pod_demand(pod).nonzero_cpu_m == 100


def test_request_is_largest_init_container_plus_overhead() -> None:
    pod = PodContainers(
        containers=(new_container(500), new_container(100)),
        init_containers=(new_container(1000), new_container(700)),
        overhead=Resources(cpu_m=50),
    )
    assert pod_demand(pod).request_cpu_m == 1050


def test_small_init_containers_do_not_change_request() -> None:
    assert (
        pod_demand(PodContainers(containers=(new_container(500),), init_containers=(new_container(100),))).request_cpu_m
        == 500
    )


def test_limit_is_raised_to_request_of_whole_pod() -> None:
    demand = pod_demand(PodContainers(containers=(new_container(1000), new_container(100, 300))))
    assert (demand.request_cpu_m, demand.limit_cpu_m) == (1100, 1100)


def test_container_without_limit_adds_nothing_to_pod_limit() -> None:
    assert pod_demand(PodContainers(containers=(new_container(500, 2000), new_container()))).limit_cpu_m == 2000


def test_memory_is_summed_like_cpu() -> None:
    container = Container(request=Resources(memory_bytes=3 * MIB), limit=Resources(memory_bytes=5 * MIB))
    demand = pod_demand(PodContainers(containers=(container,), overhead=Resources(memory_bytes=MIB)))
    assert (demand.request_memory_bytes, demand.limit_memory_bytes) == (4 * MIB, 6 * MIB)


@pytest.mark.parametrize(
    ("pod", "best_effort"),
    [
        (PodContainers(containers=(new_container(),)), True),
        (PodContainers(containers=(new_container(0, 0),)), True),
        (PodContainers(containers=(new_container(None, 1),)), False),
        (PodContainers(containers=(new_container(),), overhead=Resources(cpu_m=1)), False),
    ],
)
def test_pod_without_requests_limits_and_overhead_is_best_effort(pod: PodContainers, *, best_effort: bool) -> None:
    assert pod_demand(pod).best_effort is best_effort


def test_total_demand_sums_pods() -> None:
    new_pod_demand = pod_demand(PodContainers(containers=(new_container(),)))
    assert total_demand([new_pod_demand, new_pod_demand]) == PodDemand(
        nonzero_cpu_m=2 * NONZERO_CPU_M, nonzero_memory_bytes=2 * MEMORY_ASSUMED_BYTES
    )


def test_total_demand_of_no_pods_is_zero() -> None:
    assert total_demand([]) == PodDemand()
