"""Public Services in the controller's cache: wake-ups, and the fate of refusals."""

import msgspec

from serving.controller.cache import ControllerCache
from serving.controller.decide import decide
from serving.controller.revisions.sidecar import Sidecar
from serving.controller.values.writes import WorkKey
from serving.core.model.knative import ACCESS_ANNOTATION, TRAFFIC_PATH_ANNOTATION
from serving.core.model.objects import Object, annotations_of
from serving.core.settings.innertls import ENABLED, InnerTlsSettings
from serving.core.settings.sidecar import SidecarSettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Patch
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SETTINGS,
    a_cache,
    a_deployment,
    a_pod,
    a_revision,
    a_route,
    condition_values,
    stored,
    written_status,
)

ROUTE: WorkKey = (kinds.ROUTE, "default", "hello")
REVISION: WorkKey = (kinds.REVISION, "default", "hello-00001")
PUBLIC = msgspec.structs.replace(SETTINGS, public_services=True)
ACTIVATORS = ("knative-serving", "activator-service-x")
READY = [{"type": "Ready", "status": "True"}]


def activators(*addresses: str) -> Object:
    return {
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8081}],
        "endpoints": [{"addresses": [address]} for address in addresses],
    }


def knowing(*objects: tuple[Kind, Object]) -> ControllerCache:
    return a_cache(*objects, settings=PUBLIC)


def made_by(cache: ControllerCache, key: WorkKey) -> dict[tuple[Kind, str], Object]:
    plan = decide(cache, key, now=NOW, now_s=NOW_S)
    return {
        (write.kind, write.body["metadata"]["name"]): dict(write.body)
        for write in plan.writes
        if isinstance(write, Create)
    }


def with_public(cache: ControllerCache, key: WorkKey) -> dict[tuple[Kind, str], Object]:
    """Put the plan's objects into the cache."""
    result = made_by(cache, key)
    for (resource, _), body in result.items():
        cache.put(resource, stored(body))
    return result


def endpoints_of(fields: dict[tuple[Kind, str], Object]) -> list[list[str]]:
    body = fields[kinds.ENDPOINT_SLICE, "hello-00001-public"]
    return [endpoint["addresses"] for endpoint in body["endpoints"]]


def test_activators_that_change_wake_all_revisions_and_routes() -> None:
    cache = knowing((kinds.REVISION, a_revision()), (kinds.ROUTE, a_route()))
    assert cache.put_activators(ACTIVATORS, activators("10.1.0.1")) == {REVISION, ROUTE}
    assert cache.put_activators(ACTIVATORS, activators("10.1.0.1")) == set()
    assert cache.drop_activators(ACTIVATORS) == {REVISION, ROUTE}
    assert cache.drop_activators(ACTIVATORS) == set()


def test_a_revision_and_a_route_get_a_service_and_a_slice_each() -> None:
    cache = knowing((kinds.REVISION, a_revision()), (kinds.ROUTE, a_route()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    assert {(kinds.SERVICE, "hello"), (kinds.ENDPOINT_SLICE, "hello-public")} == made_by(cache, ROUTE).keys()
    assert {(kinds.SERVICE, "hello-00001"), (kinds.ENDPOINT_SLICE, "hello-00001-public")} < made_by(
        cache, REVISION
    ).keys()


def test_without_the_setting_there_are_none() -> None:
    cache = a_cache((kinds.REVISION, a_revision()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    names = {name for _, name in made_by(cache, REVISION)}
    assert names == {"hello-00001-deployment", "hello-00001-private"}
    public = stored({"kind": "Service", "metadata": {"name": "hello-00001"}})
    assert cache.put(kinds.SERVICE, public) == set()


def test_a_public_service_or_slice_that_goes_wakes_its_owner() -> None:
    cache = knowing((kinds.REVISION, a_revision()), (kinds.ROUTE, a_route()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    for key, name in ((ROUTE, "hello"), (REVISION, "hello-00001")):
        with_public(cache, key)
        assert not {resource for resource, _ in made_by(cache, key)} & {kinds.ENDPOINT_SLICE}
        assert cache.drop(kinds.SERVICE, ("default", name)) == {key}
        assert cache.drop(kinds.ENDPOINT_SLICE, ("default", f"{name}-public")) == {key}
        assert (kinds.ENDPOINT_SLICE, f"{name}-public") in made_by(cache, key)


def test_a_pod_that_turns_unready_leaves_the_slice_before_anything_else_is_written() -> None:
    wanting = stored(a_revision(), annotations={**annotations_of(a_revision()), TRAFFIC_PATH_ANNOTATION: "serve"})
    cache = knowing((kinds.REVISION, wanting))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    for number in (1, 2):
        cache.put(kinds.POD, a_pod(f"pod-{number}", podIP=f"10.2.0.{number}", conditions=READY))
    with_public(cache, REVISION)
    cache.put(kinds.DEPLOYMENT, stored(a_deployment(wanting, replicas=2, ready=2), resourceVersion="9"))
    unready = stored(a_pod("pod-1", podIP="10.2.0.1"), resourceVersion="8")
    assert cache.put(kinds.POD, unready) == {REVISION}
    first, *rest = decide(cache, REVISION, now=NOW, now_s=NOW_S).writes
    assert isinstance(first, Patch)
    assert first.kind is kinds.ENDPOINT_SLICE
    assert [endpoint["addresses"] for endpoint in first.patch["endpoints"]] == [["10.2.0.2"]]
    assert rest, "and then its status"


def test_a_private_route_keeps_the_activators_in_front_of_its_revisions() -> None:
    wanting = stored(a_revision(), annotations={**annotations_of(a_revision()), TRAFFIC_PATH_ANNOTATION: "serve"})
    cache = knowing((kinds.REVISION, wanting), (kinds.ROUTE, assigned(a_route())))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    cache.put(kinds.POD, a_pod("pod-1", podIP="10.2.0.1", conditions=READY))
    assert endpoints_of(with_public(cache, REVISION)) == [["10.2.0.1"]]
    private = assigned(a_route(annotations={ACCESS_ANNOTATION: "private"}))
    assert REVISION in cache.put(kinds.ROUTE, stored(private, resourceVersion="8"))
    (patch,) = [
        write
        for write in decide(cache, REVISION, now=NOW, now_s=NOW_S).writes
        if isinstance(write, Patch) and write.kind is kinds.ENDPOINT_SLICE
    ]
    assert [endpoint["addresses"] for endpoint in patch.patch["endpoints"]] == [["10.1.0.1"]]


def test_strict_inner_tls_keeps_the_activators_in_front_of_all_revisions() -> None:
    wanting = stored(a_revision(), annotations={**annotations_of(a_revision()), TRAFFIC_PATH_ANNOTATION: "serve"})
    cache = knowing((kinds.REVISION, wanting))
    cache.sidecar = Sidecar(
        settings=SidecarSettings(),
        image="i",
        stats_url="",
        secret_of=lambda _, uid: uid,
        token_of=lambda _, name: name,
        inner_tls=InnerTlsSettings(mode=ENABLED),
    )
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    cache.put(kinds.POD, a_pod("pod-1", podIP="10.2.0.1", conditions=READY))
    assert endpoints_of(with_public(cache, REVISION)) == [["10.1.0.1"]]


def test_a_service_in_the_way_is_reported_and_wakes_when_it_goes() -> None:
    theirs = stored({"kind": "Service", "metadata": {"name": "hello"}})
    cache = knowing((kinds.ROUTE, a_route()))
    assert cache.put(kinds.SERVICE, theirs) == {ROUTE}
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    message = 'There is an existing Service "hello" that we do not own.'
    assert condition_values(status, "IngressReady") == ("False", "NotOwned", message)
    assert cache.drop(kinds.SERVICE, ("default", "hello")) == {ROUTE}


def test_a_revision_tells_of_a_service_in_its_way() -> None:
    theirs = stored({"kind": "Service", "metadata": {"name": "hello-00001"}})
    cache = knowing((kinds.REVISION, a_revision()), (kinds.SERVICE, theirs))
    status = written_status(decide(cache, REVISION, now=NOW, now_s=NOW_S), kinds.REVISION)
    assert 'an existing Service "hello-00001"' in condition_values(status, "Ready")[2]


def test_a_refusal_of_a_route_is_reported_and_not_retried() -> None:
    cache = knowing((kinds.ROUTE, a_route()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    assert cache.refuse(ROUTE, "no name for a Service") == {ROUTE}
    assert made_by(cache, ROUTE) == {}
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    assert condition_values(status, "IngressReady") == ("False", "CreationFailed", "no name for a Service")


def behind_a_gateway(*objects: tuple[Kind, Object]) -> ControllerCache:
    return a_cache(*objects, settings=msgspec.structs.replace(PUBLIC, gateway="gateways/front"))


def assigned(route: Object) -> Object:
    return {**route, "status": {"traffic": [{"revisionName": "hello-00001", "percent": 100, "tag": "old"}]}}


def test_a_route_gets_httproutes_and_hears_of_them() -> None:
    cache = behind_a_gateway((kinds.ROUTE, assigned(a_route())), (kinds.REVISION, a_revision("hello")))
    names = {name for resource, name in with_public(cache, ROUTE) if resource is kinds.HTTP_ROUTE}
    assert names == {"hello", "hello.old"}
    assert not {kind for kind, _ in made_by(cache, ROUTE)} & {kinds.HTTP_ROUTE}
    for name in names:
        changed = stored({"kind": "HTTPRoute", "metadata": {"name": name}}, resourceVersion="9", uid="u")
        assert cache.put(kinds.HTTP_ROUTE, changed) == {ROUTE}
        assert cache.drop(kinds.HTTP_ROUTE, ("default", name)) == {ROUTE}
        assert (kinds.HTTP_ROUTE, name) in made_by(cache, ROUTE)
    unknown = stored({"kind": "HTTPRoute", "metadata": {"name": "other"}})
    assert cache.put(kinds.HTTP_ROUTE, unknown) == set()


def test_a_server_without_httproutes_wakes_all_routes_once() -> None:
    cache = behind_a_gateway((kinds.ROUTE, assigned(a_route())))
    assert cache.set_missing(kinds.HTTP_ROUTE, "") == set()
    assert cache.set_missing(kinds.HTTP_ROUTE, "there are none") == {ROUTE}
    assert cache.set_missing(kinds.HTTP_ROUTE, "there are none") == set()
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    assert condition_values(status, "IngressReady") == ("False", "GatewayApiMissing", "there are none")
    assert cache.set_missing(kinds.HTTP_ROUTE, "") == {ROUTE}


def test_without_a_gateway_a_route_has_no_httproutes() -> None:
    cache = knowing((kinds.ROUTE, assigned(a_route())))
    assert not {kind for kind, _ in made_by(cache, ROUTE)} & {kinds.HTTP_ROUTE}
