from serving.controller.revisions.public import EndpointGroup
from serving.controller.workloads.inplace import in_place_writes, slice_name
from serving.core.model.objects import Object
from serving.net.cluster.port import Create, Patch

ACTIVATORS = {"IPv4": EndpointGroup(port=8081, endpoints=({"addresses": ["10.0.0.1"]},))}


def workload(service: str = "shop", port_name: str | None = "http") -> Object:
    metadata = {"name": "shop", "namespace": "team", "uid": "1", "annotations": {"serving.dev/in-place": service}}
    status = {} if port_name is None else {"portName": port_name}
    return {"apiVersion": "serving.dev/v1alpha1", "kind": "ScaledWorkload", "metadata": metadata, "status": status}


def created() -> Object:
    (create,) = in_place_writes(workload(), ACTIVATORS, {})
    assert isinstance(create, Create)
    return {**create.body, "metadata": {**create.body["metadata"], "resourceVersion": "1"}}


def slices() -> dict[str, Object]:
    return {slice_name(workload(), "IPv4"): created()}


def test_in_place_slice_has_activator_endpoints() -> None:
    resource = created()
    assert resource["metadata"]["labels"]["kubernetes.io/service-name"] == "shop"
    assert resource["metadata"]["ownerReferences"][0]["uid"] == "1"
    assert resource["ports"] == [{"name": "http", "port": 8081, "protocol": "TCP"}]
    assert resource["endpoints"] == [{"addresses": ["10.0.0.1"]}]


def test_in_place_slice_follows_activators() -> None:
    assert list(in_place_writes(workload(), ACTIVATORS, slices())) == []
    others = {"IPv4": EndpointGroup(port=8081, endpoints=({"addresses": ["10.0.0.2"]},))}
    (patch,) = in_place_writes(workload(), others, slices())
    assert isinstance(patch, Patch)
    assert patch.patch["endpoints"] == [{"addresses": ["10.0.0.2"]}]


def test_no_slice_is_written_without_service_port_or_activators() -> None:
    gone = workload()
    gone["metadata"]["deletionTimestamp"] = "now"
    for scaled_workload in (workload(service=""), workload(port_name=None), gone):
        assert list(in_place_writes(scaled_workload, ACTIVATORS, {})) == []
    assert list(in_place_writes(workload(), {}, slices())) == []
