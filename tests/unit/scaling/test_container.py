from serving.model.resources import Resources
from serving.scaling.container import ServingContainer, serving_container


def test_a_revision_without_containers_has_no_limits() -> None:
    assert serving_container([]) == ServingContainer()


def test_the_limit_of_cpu_goes_before_its_request() -> None:
    one = {"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Ki"}, "requests": {"cpu": "1"}}}
    assert serving_container([one]) == ServingContainer(name="c", limits=Resources(cpu_m=2000, memory_bytes=1024))


def test_a_request_of_cpu_is_what_a_pod_can_count_on() -> None:
    one = {"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "1Ki"}}}
    assert serving_container([one]).limits == Resources(cpu_m=100)


def test_of_several_containers_the_one_with_a_port_takes_requests() -> None:
    assert serving_container([{"name": "a"}, {"name": "b", "ports": [{"containerPort": 80}]}]).name == "b"
