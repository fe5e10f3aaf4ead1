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


def made(writes: tuple[Write, ...], resource: Kind) -> Object:
    (body,) = [write.body for write in writes if isinstance(write, Create) and write.kind is resource]
    return dict(body)


def service_of(owner: Object) -> Object:
    return stored(made(public_writes(owner, public(None)), kinds.SERVICE))


def slice_of(owner: Object, **more: object) -> Object:
    """The slice that was made when activators were there."""
    body = made(public_writes(owner, public(None)), kinds.ENDPOINT_SLICE)
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
def test_it_gets_a_service_without_selector_and_a_slice_with_the_activators(owner: Object) -> None:
    writes = public_writes(owner, public(None))
    service, endpoints = made(writes, kinds.SERVICE), made(writes, kinds.ENDPOINT_SLICE)
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


def test_ports_for_tcp_are_ports_of_the_service_of_their_route_and_lead_to_activators() -> None:
    plain = a_route()
    owner = a_route(annotations={TCP_ANNOTATION: "5432,8883/tls"})
    further = [("tcp-5432", 5432), ("tcp-8883", 8883)]
    assert [(port["name"], port["port"]) for port in service_of(owner)["spec"]["ports"]] == [("http", 80), *further]
    assert [(port["name"], port["port"]) for port in slice_of(owner)["ports"]] == [("http", 8081), *further]
    assert public_writes(owner, public(service_of(owner), slice_of(owner))) == ()
    # They come and go with the annotation, and the addresses come along.
    for before, after in ((plain, owner), (owner, plain)):
        service, endpoints = public_writes(after, public(service_of(before), slice_of(before)))
        assert isinstance(service, Patch)
        assert isinstance(endpoints, Patch)
        assert service.patch["spec"]["ports"] == service_of(after)["spec"]["ports"]
        assert endpoints.patch["ports"] == slice_of(after)["ports"]
        assert "endpoints" in endpoints.patch
    tag = made(public_writes(owner, public(None), name="new-hello"), kinds.SERVICE)
    assert [port["name"] for port in tag["spec"]["ports"]] == ["http"]


def test_the_port_for_https_leads_to_the_port_of_activators_that_http_does() -> None:
    owner = a_route()
    secured = msgspec.structs.replace(public(None), has_tls=True)
    writes = public_writes(owner, secured)
    service, endpoints = made(writes, kinds.SERVICE), made(writes, kinds.ENDPOINT_SLICE)
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("http", 80), ("https", 443)]
    assert [(port["name"], port["port"]) for port in endpoints["ports"]] == [("http", 8081), ("https", 8081)]
    known = public(stored(service), stored(endpoints))
    assert public_writes(owner, msgspec.structs.replace(known, has_tls=True)) == ()
    assert [type(write) for write in public_writes(owner, known)] == [Patch, Patch]


def test_an_activator_does_not_take_itself_for_a_pod() -> None:
    assert "serving.knative.dev/revision" not in slice_of(REVISION)["metadata"]["labels"]


def test_what_is_as_it_should_be_costs_no_write() -> None:
    assert public_writes(REVISION, public(service_of(REVISION), slice_of(REVISION))) == ()


def test_the_flip_to_the_pods_is_one_patch_of_addresses_and_port() -> None:
    pods = pod_backends([ready_pod("b", "10.2.0.2"), ready_pod("a")])
    now = public(service_of(REVISION), slice_of(REVISION), pods=pods, path=TrafficPath.SERVE)
    patch = patched(REVISION, now)
    assert [endpoint["addresses"] for endpoint in patch["endpoints"]] == [["10.2.0.1"], ["10.2.0.2"]]
    assert patch["ports"] == [{"name": "http", "port": 8012, "protocol": "TCP"}]
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert {endpoint["targetRef"]["name"] for endpoint in patch["endpoints"]} == {"a", "b"}


def test_a_change_of_endpoints_brings_the_port_along() -> None:
    other = {"IPv4": EndpointGroup(port=8081, endpoints=({"addresses": ["10.1.0.9"]},))}
    patch = patched(REVISION, public(service_of(REVISION), slice_of(REVISION), activators=other))
    assert patch.keys() == {"metadata", "endpoints", "ports"}


def test_without_a_ready_pod_the_activators_serve() -> None:
    now = public(service_of(REVISION), slice_of(REVISION), path=TrafficPath.SERVE)
    assert public_writes(REVISION, now) == ()


def test_without_an_activator_the_pods_serve() -> None:
    pods = pod_backends([ready_pod()])
    patch = patched(REVISION, public(service_of(REVISION), slice_of(REVISION), activators={}, pods=pods))
    assert patch["ports"][0]["port"] == 8012


def test_the_last_activators_stay_named() -> None:
    assert public_writes(REVISION, public(service_of(REVISION), slice_of(REVISION), activators={})) == ()


def test_the_last_pods_stay_in_a_slice_as_not_ready() -> None:
    pods = pod_backends([ready_pod()])["IPv4"]
    served = slice_of(REVISION, endpoints=[*pods.endpoints], ports=[{"name": "http", "port": 8012, "protocol": "TCP"}])
    patch = patched(REVISION, public(service_of(REVISION), served, activators={}))
    assert [endpoint["conditions"] for endpoint in patch["endpoints"]] == [{"ready": False}]
    assert patch["ports"][0]["port"] == 8012
    reported = {**served, "endpoints": patch["endpoints"]}
    assert public_writes(REVISION, public(service_of(REVISION), reported, activators={})) == ()


def test_before_anybody_is_there_no_slice_is_made() -> None:
    (write,) = public_writes(REVISION, public(None, activators={}))
    assert isinstance(write, Create)
    assert write.kind is kinds.SERVICE


def test_an_emptied_slice_stays_until_there_is_an_address() -> None:
    empty = slice_of(REVISION, endpoints=None, ports=[])
    (patch,) = public_writes(REVISION, public(service_of(REVISION), empty, activators={}))
    assert isinstance(patch, Patch)
    assert patch.patch["endpoints"] == []
    assert patched(REVISION, public(service_of(REVISION), empty))["endpoints"] == [*ACTIVATORS["IPv4"].endpoints]


def test_each_family_of_the_activators_has_a_slice() -> None:
    both = {**ACTIVATORS, "IPv6": EndpointGroup(port=8081, endpoints=({"addresses": ["fd00::1"]},))}
    writes = public_writes(REVISION, public(service_of(REVISION), activators=both))
    bodies = [write.body for write in writes if isinstance(write, Create)]
    assert [(body["metadata"]["name"], body["addressType"]) for body in bodies] == [
        ("hello-00001-public", "IPv4"),
        ("hello-00001-public-ipv6", "IPv6"),
    ]


def test_a_pod_counts_once_in_each_family_that_it_has() -> None:
    pod = ready_pod(podIPs=[{"ip": "10.2.0.1"}, {"ip": "fd00::2"}, {}])
    groups = pod_backends([{**pod, "spec": {"nodeName": "one"}}])
    assert groups.keys() == {"IPv4", "IPv6"}
    assert groups["IPv6"].endpoints[0]["addresses"] == ["fd00::2"]
    assert groups["IPv6"].endpoints[0]["nodeName"] == "one"


def test_a_pod_that_is_not_ready_has_no_address_or_goes_is_not_added() -> None:
    assert pod_backends([a_pod(podIP="10.2.0.1"), a_pod(conditions=READY)]) == {}
    assert pod_backends([stored(ready_pod(), deletionTimestamp="2026-11-21T04:00:00Z")]) == {}


def test_a_slice_holds_a_thousand_and_no_more() -> None:
    pods = [ready_pod(f"pod-{number:04d}", f"10.2.{number // 250}.{number % 250}") for number in range(1003)]
    assert len(pod_backends(pods)["IPv4"].endpoints) == 1000


def test_a_service_of_another_owner_is_left_alone() -> None:
    theirs = public(stored({"kind": "Service", "metadata": {"name": "hello-00001"}}))
    assert is_foreign(REVISION, theirs)
    assert public_writes(REVISION, theirs) == ()


def test_a_slice_of_another_owner_is_not_written() -> None:
    theirs = stored(slice_of(REVISION), ownerReferences=[])
    (write,) = public_writes(REVISION, public(service_of(REVISION), theirs))
    assert isinstance(write, Create), "which the server refuses as it exists"


def test_the_autoscaler_says_which_path_is_wanted() -> None:
    wanting = stored(REVISION, annotations={**annotations_of(REVISION), TRAFFIC_PATH_ANNOTATION: "serve"})
    assert traffic_path_of(REVISION) is TrafficPath.PROXY
    assert traffic_path_of(wanting) is TrafficPath.SERVE
    assert traffic_path_of({**wanting, "spec": {"servingState": "Reserve"}}) is TrafficPath.PROXY


@pytest.mark.parametrize("owner", ["hello", "hello-public", "hello-public-ipv6"])
def test_the_name_of_a_slice_reports_whose_it_is(owner: str) -> None:
    assert [public_owner_name(slice_name) for slice_name in slice_names(owner)] == [owner, owner]
    assert public_owner_name("strange") == "strange"


def test_ports_of_a_revision_that_speaks_http2_say_so() -> None:
    containers = [{**REVISION["spec"]["containers"][0], "ports": [{"name": "h2c", "containerPort": 8080}]}]
    revision = {**REVISION, "spec": {**REVISION["spec"], "containers": containers}}
    assert service_of(revision)["spec"]["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert slice_of(revision)["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert "appProtocol" not in service_of(REVISION)["spec"]["ports"][0]
