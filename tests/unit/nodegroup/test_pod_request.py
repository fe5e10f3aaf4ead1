"""What a pod asks of a node."""

from serving.model.resources import Resources
from serving.nodegroup.pod_request import InitContainer, pod_request
from serving.nodegroup.records import Amount


def cpu(cpu_m: int) -> Resources:
    return Resources(cpu_m=cpu_m)


def init(cpu_m: int, *, is_sidecar: bool = False) -> InitContainer:
    return InitContainer(request=cpu(cpu_m), is_sidecar=is_sidecar)


def test_containers_run_together_and_init_containers_one_by_one() -> None:
    assert pod_request([cpu(2000), cpu(1000)], [init(2000), init(2000)]).cpu_m == 3000


def test_a_large_init_container_decides() -> None:
    assert pod_request([cpu(500)], [init(900)]).cpu_m == 900


def test_what_is_not_set_counts_as_0_and_the_overhead_comes_on_top() -> None:
    asked = pod_request(
        [Resources(memory_bytes=100), Resources(cpu_m=200)], overhead=Resources(cpu_m=5, memory_bytes=5)
    )
    assert asked == Amount(cpu_m=205, memory_bytes=105)


def test_a_pod_without_containers_asks_for_nothing() -> None:
    assert pod_request([]) == Amount()


def test_a_sidecar_stays_beside_the_containers() -> None:
    asked = [init(500, is_sidecar=True), init(2000), init(2000)]
    assert pod_request([cpu(2000), cpu(1000)], asked).cpu_m == 3500


def test_an_init_container_runs_beside_earlier_sidecars_only() -> None:
    assert pod_request([cpu(100)], [init(500, is_sidecar=True), init(2000)]).cpu_m == 2500
    assert pod_request([cpu(100)], [init(2000), init(500, is_sidecar=True)]).cpu_m == 2000


def test_the_quirk_takes_a_sidecar_for_an_init_container() -> None:
    asked = [init(500, is_sidecar=True)]
    assert pod_request([cpu(3000)], asked, sidecars_count_as_init_containers=True).cpu_m == 3000
