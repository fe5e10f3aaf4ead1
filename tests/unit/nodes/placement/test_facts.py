import pytest

from serving.nodes.placement.book import NodeFacts, demand_of, node_of, pod_of
from tests.unit.nodes.placement.builders import node, pod


def test_node_facts_have_allocatable_and_pod_limit() -> None:
    assert node_of(node("a", cpu="3920m", memory="1Ki")) == NodeFacts(
        name="a", allocatable_cpu_m=3920, allocatable_memory_bytes=1024, pod_count_max=10
    )


def test_node_without_status_has_no_allocatable() -> None:
    assert node_of({"metadata": {"name": "a"}}) == NodeFacts(
        name="a", allocatable_cpu_m=0, allocatable_memory_bytes=0, pod_count_max=None
    )


def test_placed_pod_demands_its_requests() -> None:
    placed_pod = pod_of(pod("p", on="a", cpu="250m", memory="1Mi"))
    assert placed_pod is not None
    assert (placed_pod.key, placed_pod.node) == (("default", "p"), "a")
    assert (placed_pod.demand.request_cpu_m, placed_pod.demand.request_memory_bytes) == (250, 2**20)


@pytest.mark.parametrize("resource", [pod("p"), pod("p", on="a", phase="Succeeded"), pod("p", on="a", phase="Failed")])
def test_pending_or_finished_pod_is_not_placed(resource: dict[str, object]) -> None:
    assert pod_of(resource) is None


def test_sidecar_request_is_added_to_containers() -> None:
    def container(cpu: str, **more: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1")],
        "initContainers": [container("500m", restartPolicy="Always"), container("900m")],
    }
    assert demand_of({"spec": spec}).request_cpu_m == 1500


def test_demand_includes_init_containers_and_overhead() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}}, {}],
        "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
        "overhead": {"cpu": "50m"},
    }
    demand = demand_of({"spec": spec})
    assert (demand.request_cpu_m, demand.limit_cpu_m, demand.nonzero_cpu_m) == (2050, 2050, 600)


def test_unreadable_quantity_counts_as_absent() -> None:
    assert demand_of(pod("p", cpu="much")).request_cpu_m == 0
