"""EndpointSlices of the Services of ScaledWorkloads."""

from typing import Any

from serving.activator.queueing.slices import ServedSlice
from serving.activator.queueing.workloads import WorkloadBackend, WorkloadBackends, backend_of, fallback_backend_of
from serving.core.model.nodata import NoData
from serving.core.model.objects import Object
from serving.core.model.scaledworkload import ScaledWorkloadSpec

KEY = ("default", "shop")


def workload(*, status: Any = None, **service: object) -> Object:  # noqa: ANN401 - JSON
    spec = {"target": {"name": "shop"}, "service": {"name": "web", **service}}
    return {"metadata": {"name": "shop", "namespace": "default"}, "spec": spec, "status": status}


def endpoint_slice(name: str = "web-1", *, service: str = "web", ports: Any = None) -> Object:  # noqa: ANN401 - JSON
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "ports": ports or [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    }


def addresses(slices: list[ServedSlice | NoData]) -> list[tuple[str, tuple[str, str], list[str]]]:
    served = [served_slice for served_slice in slices if isinstance(served_slice, ServedSlice)]
    assert len(served) == len(slices)
    return [
        (served_slice.key, served_slice.revision, [pod.address for pod in served_slice.pods]) for served_slice in served
    ]


def test_port_name_is_read_from_the_spec_else_from_the_status() -> None:
    named = workload(port=80, status={"portName": "http"})
    backends = [
        backend_of(resource, ScaledWorkloadSpec.from_object(resource))
        for resource in (workload(port="http"), workload(port=80), named)
    ]
    assert backends == [WorkloadBackend(service="web", port_name=name) for name in ("http", None, "http")]


def test_slice_is_read_for_each_workload_of_its_service() -> None:
    backends = WorkloadBackends()
    backends.put(KEY, WorkloadBackend(service="web", port_name="http"))
    backends.put(("default", "stats"), WorkloadBackend(service="web", port_name="metrics"))
    backends.put(("other", "shop"), WorkloadBackend(service="web", port_name="http"))
    assert addresses(list(backends.slices(endpoint_slice()))) == [
        ("default/web-1@shop", KEY, ["10.0.0.1:8080"]),
        ("default/web-1@stats", ("default", "stats"), ["10.0.0.1:9000"]),
    ]
    assert list(backends.slices(endpoint_slice(service="db"))) == []
    backends.put(KEY, None)
    assert [key for key, _, _ in addresses(list(backends.slices(endpoint_slice())))] == ["default/web-1@stats"]
    assert backends.namespaces == {"default", "other"}


def test_first_port_is_used_without_a_name_and_unknown_port_has_no_pods() -> None:
    backends = WorkloadBackends()
    backends.put(KEY, WorkloadBackend(service="web", port_name=None))
    assert addresses(list(backends.slices(endpoint_slice())))[0][2] == ["10.0.0.1:9000"]
    backends.put(KEY, WorkloadBackend(service="web", port_name="grpc"))
    assert addresses(list(backends.slices(endpoint_slice())))[0][2] == []


def test_own_slices_selects_slices_by_service() -> None:
    backends = WorkloadBackends()
    known = {
        ("default", resource["metadata"]["name"]): resource
        for resource in (endpoint_slice(), endpoint_slice("x", service="db"))
    }
    assert list(backends.own_slices(KEY, known)) == []
    backends.put(KEY, WorkloadBackend(service="web", port_name=""))
    assert [key for key, _, _ in addresses(list(backends.own_slices(KEY, known)))] == ["default/web-1@shop"]


def test_changed_or_removed_workload_releases_its_service() -> None:
    backends = WorkloadBackends()
    backends.put(KEY, WorkloadBackend(service="web", port_name=None))
    backends.put(KEY, WorkloadBackend(service="db", port_name=None))
    assert list(backends.slices(endpoint_slice())) == []
    backends.put(KEY, None)
    backends.put(KEY, None)
    assert backends.backend(KEY) is None
    assert backends.namespaces == set()


def test_app_protocol_sets_the_pod_scheme() -> None:
    backends = WorkloadBackends()
    backends.put(KEY, WorkloadBackend(service="web", port_name=None))
    for protocol, scheme in ((None, "http"), ("http", "http"), ("HTTPS", "https"), ("kubernetes.io/wss", "https")):
        ports = [{"name": "web", "port": 8443, "appProtocol": protocol}]
        (slice_,) = backends.slices(endpoint_slice(ports=ports))
        assert isinstance(slice_, ServedSlice)
        assert [pod.scheme for pod in slice_.pods] == [scheme]


def test_invalid_slice_is_no_data() -> None:
    backends = WorkloadBackends()
    backends.put(KEY, WorkloadBackend(service="web", port_name=None))
    (slice_,) = backends.slices({**endpoint_slice(), "endpoints": "many"})
    assert slice_ == NoData(
        missing="an EndpointSlice that can be read: Expected `array | null`, got `str` - at `$.endpoints`"
    )


def test_fallback_port_name_is_read_from_the_spec_else_from_the_status() -> None:
    def fallback(port: object) -> WorkloadBackend | None:
        resource = workload(status={"portName": "http", "fallbackPortName": "page"})
        resource["spec"]["coldStart"] = {"fallback": {"name": "maintenance", "port": port}}
        return fallback_backend_of(resource, ScaledWorkloadSpec.from_object(resource))

    assert fallback(80) == WorkloadBackend(service="maintenance", port_name="page")
    assert fallback("web") == WorkloadBackend(service="maintenance", port_name="web")
    assert fallback_backend_of(workload(), ScaledWorkloadSpec.from_object(workload())) is None
