import pytest

from serving.nodes.placement.book import NodeFacts, demand_of, node_of, pod_of
from tests.unit.nodes.placement.builders import node, pod


def test_a_node_says_what_it_has() -> None:
    assert node_of(node("a", cpu="3920m", memory="1Ki")) == NodeFacts(
        name="a", allocatable_cpu_m=3920, allocatable_memory_bytes=1024, pod_count_max=10
    )


def test_a_node_that_says_nothing_has_nothing() -> None:
    assert node_of({"metadata": {"name": "a"}}) == NodeFacts(
        name="a", allocatable_cpu_m=0, allocatable_memory_bytes=0, pod_count_max=None
    )


def test_a_pod_takes_what_it_requests() -> None:
    placed_pod = pod_of(pod("p", on="a", cpu="250m", memory="1Mi"))
    assert placed_pod is not None
    assert (placed_pod.key, placed_pod.node) == (("default", "p"), "a")
    assert (placed_pod.demand.request_cpu_m, placed_pod.demand.request_memory_bytes) == (250, 2**20)


@pytest.mark.parametrize("resource", [pod("p"), pod("p", on="a", phase="Succeeded"), pod("p", on="a", phase="Failed")])
def test_a_pod_that_waits_or_has_ended_takes_nothing(resource: dict[str, object]) -> None:
    assert pod_of(resource) is None


def test_a_sidecar_continues_beside_the_containers() -> None:
    def asking(cpu: str, **more: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {"containers": [asking("1")], "initContainers": [asking("500m", restartPolicy="Always"), asking("900m")]}
    assert demand_of({"spec": spec}).request_cpu_m == 1500


def test_init_containers_and_overhead_count() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}}, {}],
        "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
        "overhead": {"cpu": "50m"},
    }
    demand = demand_of({"spec": spec})
    assert (demand.request_cpu_m, demand.limit_cpu_m, demand.nonzero_cpu_m) == (2050, 2050, 600)


def test_an_amount_that_cannot_be_read_counts_as_absent() -> None:
    assert demand_of(pod("p", cpu="much")).request_cpu_m == 0
