"""Public Services: the addresses in their slices, and their writes."""

from typing import Any

import msgspec
import pytest

from serving.controller.revisions.public import (
    EndpointGroup,
    EndpointGroups,
    PublicService,
    is_foreign,
    pod_backends,
    public_owner_name,
    public_writes,
    slice_names,
    traffic_path_of,
)
from serving.core.model.knative import TCP_ANNOTATION, TRAFFIC_PATH_ANNOTATION, TrafficPath
from serving.core.model.objects import Object, annotations_of, owner_reference
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Patch, Write
from tests.unit.controller.builders import a_pod, a_revision, a_route, stored

ACTIVATORS = {"IPv4": EndpointGroup(port=8081, endpoints=({"addresses": ["10.1.0.1"], "conditions": {"ready": True}},))}
READY = [{"type": "Ready", "status": "True"}]
REVISION = a_revision()


def ready_pod(name: str = "pod", address: str = "10.2.0.1", **more: Any) -> Object:  # noqa: ANN401 - JSON
    return a_pod(name, podIP=address, conditions=READY, **more)


def created_body(writes: tuple[Write, ...], resource: Kind) -> Object:
    (body,) = [write.body for write in writes if isinstance(write, Create) and write.kind is resource]
    return dict(body)


def service_of(owner: Object) -> Object:
    return stored(created_body(public_writes(owner, public(None)), kinds.SERVICE))


def slice_of(owner: Object, **more: object) -> Object:
    """The slice that is created while activators exist."""
    body = created_body(public_writes(owner, public(None)), kinds.ENDPOINT_SLICE)
    return {**stored(body), **more}


def public(
    service: Object | None,
    *slices: Object,
    activators: EndpointGroups = ACTIVATORS,
    pods: EndpointGroups | None = None,
    path: TrafficPath = TrafficPath.PROXY,
) -> PublicService:
    return PublicService(service=service, slices=slices, activators=activators, pods=pods or {}, path=path)


def patched(owner: Object, now: PublicService) -> Object:
    (patch,) = public_writes(owner, now)
    assert isinstance(patch, Patch)
    return dict(patch.patch)


@pytest.mark.parametrize("owner", [REVISION, a_route()])
def test_public_service_has_no_selector_and_a_slice_of_activators(owner: Object) -> None:
    writes = public_writes(owner, public(None))
    service, endpoints = created_body(writes, kinds.SERVICE), created_body(writes, kinds.ENDPOINT_SLICE)
    name = owner["metadata"]["name"]
    assert service["metadata"]["name"] == name
    assert "selector" not in service["spec"]
    assert service["spec"]["ports"][0]["port"] == 80
    assert endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == name
    assert endpoints["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "serving-controller"
    assert endpoints["addressType"] == "IPv4"
    assert (endpoints["ports"][0]["port"], endpoints["endpoints"]) == (8081, [*ACTIVATORS["IPv4"].endpoints])
    assert endpoints["metadata"]["name"] in slice_names(name)
    for resource in (service, endpoints):
        assert resource["metadata"]["ownerReferences"] == [owner_reference(owner)]


def test_tcp_ports_of_route_are_added_to_its_service_and_slice() -> None:
    plain = a_route()
    owner = a_route(annotations={TCP_ANNOTATION: "5432,8883/tls"})
    further = [("tcp-5432", 5432), ("tcp-8883", 8883)]
    assert [(port["name"], port["port"]) for port in service_of(owner)["spec"]["ports"]] == [("http", 80), *further]
    assert [(port["name"], port["port"]) for port in slice_of(owner)["ports"]] == [("http", 8081), *further]
    assert public_writes(owner, public(service_of(owner), slice_of(owner))) == ()
    # The ports change with the annotation, and the patch of the slice includes the endpoints.
    for before, after in ((plain, owner), (owner, plain)):
        service, endpoints = public_writes(after, public(service_of(before), slice_of(before)))
        assert isinstance(service, Patch)
        assert isinstance(endpoints, Patch)
        assert service.patch["spec"]["ports"] == service_of(after)["spec"]["ports"]
        assert endpoints.patch["ports"] == slice_of(after)["ports"]
        assert "endpoints" in endpoints.patch
    tag = created_body(public_writes(owner, public(None), name="new-hello"), kinds.SERVICE)
    assert [port["name"] for port in tag["spec"]["ports"]] == ["http"]


def test_https_port_targets_http_port_of_activators() -> None:
    owner = a_route()
    secured = msgspec.structs.replace(public(None), has_tls=True)
    writes = public_writes(owner, secured)
    service, endpoints = created_body(writes, kinds.SERVICE), created_body(writes, kinds.ENDPOINT_SLICE)
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("http", 80), ("https", 443)]
    assert [(port["name"], port["port"]) for port in endpoints["ports"]] == [("http", 8081), ("https", 8081)]
    known = public(stored(service), stored(endpoints))
    assert public_writes(owner, msgspec.structs.replace(known, has_tls=True)) == ()
    assert [type(write) for write in public_writes(owner, known)] == [Patch, Patch]


def test_activator_slice_has_no_revision_label() -> None:
    assert "serving.knative.dev/revision" not in slice_of(REVISION)["metadata"]["labels"]


def test_settled_public_service_plans_no_writes() -> None:
    assert public_writes(REVISION, public(service_of(REVISION), slice_of(REVISION))) == ()


def test_switch_to_pods_patches_endpoints_and_port_at_once() -> None:
    pods = pod_backends([ready_pod("b", "10.2.0.2"), ready_pod("a")])
    now = public(service_of(REVISION), slice_of(REVISION), pods=pods, path=TrafficPath.SERVE)
    patch = patched(REVISION, now)
    assert [endpoint["addresses"] for endpoint in patch["endpoints"]] == [["10.2.0.1"], ["10.2.0.2"]]
    assert patch["ports"] == [{"name": "http", "port": 8012, "protocol": "TCP"}]
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert {endpoint["targetRef"]["name"] for endpoint in patch["endpoints"]} == {"a", "b"}


def test_endpoint_change_patches_port_too() -> None:
    other = {"IPv4": EndpointGroup(port=8081, endpoints=({"addresses": ["10.1.0.9"]},))}
    patch = patched(REVISION, public(service_of(REVISION), slice_of(REVISION), activators=other))
    assert patch.keys() == {"metadata", "endpoints", "ports"}


def test_serve_path_without_ready_pods_keeps_activators() -> None:
    now = public(service_of(REVISION), slice_of(REVISION), path=TrafficPath.SERVE)
    assert public_writes(REVISION, now) == ()


def test_proxy_path_without_activators_uses_pods() -> None:
    pods = pod_backends([ready_pod()])
    patch = patched(REVISION, public(service_of(REVISION), slice_of(REVISION), activators={}, pods=pods))
    assert patch["ports"][0]["port"] == 8012


def test_last_activators_remain_in_slice() -> None:
    assert public_writes(REVISION, public(service_of(REVISION), slice_of(REVISION), activators={})) == ()


def test_last_pods_remain_in_slice_as_not_ready() -> None:
    pods = pod_backends([ready_pod()])["IPv4"]
    served = slice_of(REVISION, endpoints=[*pods.endpoints], ports=[{"name": "http", "port": 8012, "protocol": "TCP"}])
    patch = patched(REVISION, public(service_of(REVISION), served, activators={}))
    assert [endpoint["conditions"] for endpoint in patch["endpoints"]] == [{"ready": False}]
    assert patch["ports"][0]["port"] == 8012
    reported = {**served, "endpoints": patch["endpoints"]}
    assert public_writes(REVISION, public(service_of(REVISION), reported, activators={})) == ()


def test_slice_is_not_created_without_endpoints() -> None:
    (write,) = public_writes(REVISION, public(None, activators={}))
    assert isinstance(write, Create)
    assert write.kind is kinds.SERVICE


def test_emptied_slice_is_retained_until_endpoints_exist() -> None:
    empty = slice_of(REVISION, endpoints=None, ports=[])
    (patch,) = public_writes(REVISION, public(service_of(REVISION), empty, activators={}))
    assert isinstance(patch, Patch)
    assert patch.patch["endpoints"] == []
    assert patched(REVISION, public(service_of(REVISION), empty))["endpoints"] == [*ACTIVATORS["IPv4"].endpoints]


def test_each_ip_family_of_activators_has_a_slice() -> None:
    both = {**ACTIVATORS, "IPv6": EndpointGroup(port=8081, endpoints=({"addresses": ["fd00::1"]},))}
    writes = public_writes(REVISION, public(service_of(REVISION), activators=both))
    bodies = [write.body for write in writes if isinstance(write, Create)]
    assert [(body["metadata"]["name"], body["addressType"]) for body in bodies] == [
        ("hello-00001-public", "IPv4"),
        ("hello-00001-public-ipv6", "IPv6"),
    ]


def test_dual_stack_pod_is_an_endpoint_of_each_family() -> None:
    pod = ready_pod(podIPs=[{"ip": "10.2.0.1"}, {"ip": "fd00::2"}, {}])
    groups = pod_backends([{**pod, "spec": {"nodeName": "one"}}])
    assert groups.keys() == {"IPv4", "IPv6"}
    assert groups["IPv6"].endpoints[0]["addresses"] == ["fd00::2"]
    assert groups["IPv6"].endpoints[0]["nodeName"] == "one"


def test_unready_unaddressed_or_terminating_pod_is_no_endpoint() -> None:
    assert pod_backends([a_pod(podIP="10.2.0.1"), a_pod(conditions=READY)]) == {}
    assert pod_backends([stored(ready_pod(), deletionTimestamp="2026-11-21T04:00:00Z")]) == {}


def test_slice_has_at_most_1000_endpoints() -> None:
    pods = [ready_pod(f"pod-{number:04d}", f"10.2.{number // 250}.{number % 250}") for number in range(1003)]
    assert len(pod_backends(pods)["IPv4"].endpoints) == 1000


def test_service_of_another_owner_is_not_changed() -> None:
    foreign = public(stored({"kind": "Service", "metadata": {"name": "hello-00001"}}))
    assert is_foreign(REVISION, foreign)
    assert public_writes(REVISION, foreign) == ()


def test_slice_of_another_owner_is_not_patched() -> None:
    foreign = stored(slice_of(REVISION), ownerReferences=[])
    (write,) = public_writes(REVISION, public(service_of(REVISION), foreign))
    assert isinstance(write, Create), "the server rejects it because it exists"


def test_traffic_path_is_read_from_annotation_of_active_revision() -> None:
    wanting = stored(REVISION, annotations={**annotations_of(REVISION), TRAFFIC_PATH_ANNOTATION: "serve"})
    assert traffic_path_of(REVISION) is TrafficPath.PROXY
    assert traffic_path_of(wanting) is TrafficPath.SERVE
    assert traffic_path_of({**wanting, "spec": {"servingState": "Reserve"}}) is TrafficPath.PROXY


@pytest.mark.parametrize("owner", ["hello", "hello-public", "hello-public-ipv6"])
def test_slice_name_identifies_its_owner(owner: str) -> None:
    assert [public_owner_name(slice_name) for slice_name in slice_names(owner)] == [owner, owner]
    assert public_owner_name("strange") == "strange"


def test_http2_revision_has_h2c_app_protocol() -> None:
    containers = [{**REVISION["spec"]["containers"][0], "ports": [{"name": "h2c", "containerPort": 8080}]}]
    revision = {**REVISION, "spec": {**REVISION["spec"], "containers": containers}}
    assert service_of(revision)["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert slice_of(revision)["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert "appProtocol" not in service_of(REVISION)["spec"]["ports"][0]
