from serving.core.model.quantity import Resources
from serving.core.model.stat import Stat
from serving.core.scaling.policies.triggertypes import ContainerUse, ObservedPods
from serving.core.scaling.policies.usage import Usages, container_uses, observed_pods, requests_of
from serving.core.scaling.revision import Trouble

POD = ("default", "a")


def metrics(cpu: object = "250m", *, stamp: str = "t1", name: str = "a") -> dict[str, object]:
    container = {"name": "c", "usage": {"cpu": cpu, "memory": "2Mi"}}
    return {"metadata": {"namespace": "default", "name": name}, "timestamp": stamp, "containers": [container]}


def stat(pod: str, concurrency: float) -> Stat:
    return Stat(pod=pod, at_s=0.0, concurrency=concurrency, request_count=0.0)


def seen(present_scale: int, ready: str, **loads: float) -> ObservedPods:
    return observed_pods(
        present_scale=present_scale,
        ready=list(ready),
        troubles=[Trouble.PENDING, Trouble.FAILING, Trouble.FAILING],
        pods={name: stat(name, load) for name, load in loads.items()},
        uses=lambda _: (),
        occupied_concurrency=0.5,
    )


def test_a_measurement_is_read() -> None:
    usages = Usages()
    usages.replace([metrics("12345678n")], 0.0)
    assert usages.used(POD, 0.0) == {"c": Resources(cpu_m=13, memory_bytes=2 * 1024**2)}
    assert len(usages) == 1


def test_a_pod_that_is_not_listed_is_forgotten() -> None:
    usages = Usages()
    usages.replace([metrics()], 0.0)
    usages.replace([metrics(name="b")], 1.0)
    assert usages.used(POD, 1.0) == {}


def test_a_measurement_that_does_not_change_grows_old() -> None:
    usages = Usages()
    for second in (0.0, 30.0, 59.0):
        usages.replace([metrics()], second)
        assert usages.used(POD, second)
    usages.replace([metrics()], 60.0)
    assert usages.used(POD, 60.0) == {}
    usages.replace([metrics()], 70.0)
    assert usages.used(POD, 70.0) == {}, "it is the same measurement still"
    usages.replace([metrics(stamp="t2")], 75.0)
    assert usages.used(POD, 75.0)


def test_an_amount_that_cannot_be_read_is_none() -> None:
    usages = Usages()
    usages.replace([metrics("much"), {}], 0.0)
    assert usages.used(POD, 0.0)["c"].cpu_m is None


def test_requests_are_read_by_container() -> None:
    containers: list[dict[str, object]] = [
        {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}}},
        {"name": "d"},
    ]
    assert requests_of(containers) == {"c": Resources(cpu_m=1000, memory_bytes=1024), "d": Resources()}


def test_use_stands_beside_the_request() -> None:
    requests = {"c": Resources(cpu_m=100), "d": Resources()}
    used = {"c": Resources(cpu_m=50)}
    assert container_uses(requests, used) == (
        ContainerUse(requested=Resources(cpu_m=100), used=Resources(cpu_m=50)),
        ContainerUse(),
    )
    assert container_uses(requests, {}) == ()


def test_a_pod_is_occupied_if_it_was_busy_for_most_of_a_second() -> None:
    new_observed_pods = seen(5, "abcd", a=1.0, b=0.5, c=0.49)
    assert (new_observed_pods.occupied_count, new_observed_pods.idle_count, new_observed_pods.creating_count) == (
        2,
        2,
        1,
    )


def test_there_are_never_more_pods_than_the_scale_asks_for() -> None:
    # Two more are ready, but go away.
    new_observed_pods = seen(1, "abc", a=1.0, b=1.0)
    assert (new_observed_pods.occupied_count, new_observed_pods.idle_count, new_observed_pods.creating_count) == (
        1,
        0,
        0,
    )
    assert new_observed_pods.available_count == 1
    assert (new_observed_pods.pending_count, new_observed_pods.failing_count) == (1, 2)


def test_a_report_of_a_pod_that_is_not_ready_does_not_count() -> None:
    assert seen(2, "a", b=3.0).occupied_count == 0


def test_pods_with_a_measurement_are_compared() -> None:
    use = (ContainerUse(),)
    new_observed_pods = observed_pods(
        present_scale=2,
        ready=["b", "a"],
        troubles=(),
        pods={},
        uses=lambda name: use if name == "a" else (),
        occupied_concurrency=0.5,
    )
    assert new_observed_pods.pods == (use,)


def test_gauges_of_ready_pods_add_up() -> None:
    stats = {name: Stat(pod=name, gauges={"queue_length": 5.0}) for name in ("a", "b", "gone")}
    new_observed_pods = observed_pods(
        present_scale=2,
        ready=("a", "b", "silent"),
        troubles=(),
        pods=stats,
        uses=lambda _: (),
        occupied_concurrency=0.5,
    )
    assert new_observed_pods.gauges == {"queue_length": 10.0}


def test_a_measurement_is_news_once() -> None:
    usages = Usages()
    assert usages.new_measurement(POD, 0.0) == {}
    usages.replace([metrics()], 1.0)
    assert usages.new_measurement(POD, 1.0) == usages.used(POD, 1.0) != {}
    usages.replace([metrics()], 2.0)
    assert usages.new_measurement(POD, 2.0) == {}
    usages.replace([metrics(stamp="t2")], 3.0)
    assert usages.new_measurement(POD, 3.0) != {}
