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


def test_measurement_is_parsed() -> None:
    usages = Usages()
    usages.replace([metrics("12345678n")], 0.0)
    assert usages.used(POD, 0.0) == {"c": Resources(cpu_m=13, memory_bytes=2 * 1024**2)}
    assert len(usages) == 1


def test_unlisted_pod_is_dropped() -> None:
    usages = Usages()
    usages.replace([metrics()], 0.0)
    usages.replace([metrics(name="b")], 1.0)
    assert usages.used(POD, 1.0) == {}


def test_unchanged_measurement_expires() -> None:
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


def test_invalid_quantity_is_none() -> None:
    usages = Usages()
    usages.replace([metrics("much"), {}], 0.0)
    assert usages.used(POD, 0.0)["c"].cpu_m is None


def test_requests_are_parsed_per_container() -> None:
    containers: list[dict[str, object]] = [
        {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}}},
        {"name": "d"},
    ]
    assert requests_of(containers) == {"c": Resources(cpu_m=1000, memory_bytes=1024), "d": Resources()}


def test_container_uses_pair_use_with_request() -> None:
    requests = {"c": Resources(cpu_m=100), "d": Resources()}
    used = {"c": Resources(cpu_m=50)}
    assert container_uses(requests, used) == (
        ContainerUse(requested=Resources(cpu_m=100), used=Resources(cpu_m=50)),
        ContainerUse(),
    )
    assert container_uses(requests, {}) == ()


def test_pod_is_occupied_with_average_of_half_a_request() -> None:
    new_observed_pods = seen(5, "abcd", a=1.0, b=0.5, c=0.49)
    assert (new_observed_pods.occupied_count, new_observed_pods.idle_count, new_observed_pods.creating_count) == (
        2,
        2,
        1,
    )


def test_observed_pods_do_not_exceed_present_scale() -> None:
    # Two more pods are ready, but are being removed.
    new_observed_pods = seen(1, "abc", a=1.0, b=1.0)
    assert (new_observed_pods.occupied_count, new_observed_pods.idle_count, new_observed_pods.creating_count) == (
        1,
        0,
        0,
    )
    assert new_observed_pods.available_count == 1
    assert (new_observed_pods.pending_count, new_observed_pods.failing_count) == (1, 2)


def test_report_of_unready_pod_is_ignored() -> None:
    assert seen(2, "a", b=3.0).occupied_count == 0


def test_only_measured_pods_are_included() -> None:
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


def test_gauges_of_ready_pods_are_added() -> None:
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


def test_new_measurement_is_returned_once() -> None:
    usages = Usages()
    assert usages.new_measurement(POD, 0.0) == {}
    usages.replace([metrics()], 1.0)
    assert usages.new_measurement(POD, 1.0) == usages.used(POD, 1.0) != {}
    usages.replace([metrics()], 2.0)
    assert usages.new_measurement(POD, 2.0) == {}
    usages.replace([metrics(stamp="t2")], 3.0)
    assert usages.new_measurement(POD, 3.0) != {}
