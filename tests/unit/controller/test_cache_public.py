"""Public Services in the controller's cache: enqueued objects, and rejected writes."""

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


def cache_with(*objects: tuple[Kind, Object]) -> ControllerCache:
    return a_cache(*objects, settings=PUBLIC)


def created_by(cache: ControllerCache, key: WorkKey) -> dict[tuple[Kind, str], Object]:
    plan = decide(cache, key, now=NOW, now_s=NOW_S)
    return {
        (write.kind, write.body["metadata"]["name"]): dict(write.body)
        for write in plan.writes
        if isinstance(write, Create)
    }


def with_public(cache: ControllerCache, key: WorkKey) -> dict[tuple[Kind, str], Object]:
    """Put the plan's objects into the cache."""
    result = created_by(cache, key)
    for (resource, _), body in result.items():
        cache.put(resource, stored(body))
    return result


def endpoints_of(fields: dict[tuple[Kind, str], Object]) -> list[list[str]]:
    body = fields[kinds.ENDPOINT_SLICE, "hello-00001-public"]
    return [endpoint["addresses"] for endpoint in body["endpoints"]]


def test_changed_activators_enqueue_all_revisions_and_routes() -> None:
    cache = cache_with((kinds.REVISION, a_revision()), (kinds.ROUTE, a_route()))
    assert cache.put_activators(ACTIVATORS, activators("10.1.0.1")) == {REVISION, ROUTE}
    assert cache.put_activators(ACTIVATORS, activators("10.1.0.1")) == set()
    assert cache.drop_activators(ACTIVATORS) == {REVISION, ROUTE}
    assert cache.drop_activators(ACTIVATORS) == set()


def test_revision_and_route_have_public_service_and_slice() -> None:
    cache = cache_with((kinds.REVISION, a_revision()), (kinds.ROUTE, a_route()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    assert {(kinds.SERVICE, "hello"), (kinds.ENDPOINT_SLICE, "hello-public")} == created_by(cache, ROUTE).keys()
    assert {(kinds.SERVICE, "hello-00001"), (kinds.ENDPOINT_SLICE, "hello-00001-public")} < created_by(
        cache, REVISION
    ).keys()


def test_no_public_services_without_the_setting() -> None:
    cache = a_cache((kinds.REVISION, a_revision()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    names = {name for _, name in created_by(cache, REVISION)}
    assert names == {"hello-00001-deployment", "hello-00001-private"}
    public = stored({"kind": "Service", "metadata": {"name": "hello-00001"}})
    assert cache.put(kinds.SERVICE, public) == set()


def test_deleted_public_service_or_slice_enqueues_its_owner() -> None:
    cache = cache_with((kinds.REVISION, a_revision()), (kinds.ROUTE, a_route()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    for key, name in ((ROUTE, "hello"), (REVISION, "hello-00001")):
        with_public(cache, key)
        assert not {resource for resource, _ in created_by(cache, key)} & {kinds.ENDPOINT_SLICE}
        assert cache.drop(kinds.SERVICE, ("default", name)) == {key}
        assert cache.drop(kinds.ENDPOINT_SLICE, ("default", f"{name}-public")) == {key}
        assert (kinds.ENDPOINT_SLICE, f"{name}-public") in created_by(cache, key)


def test_unready_pod_is_removed_from_slice_before_other_writes() -> None:
    wanting = stored(a_revision(), annotations={**annotations_of(a_revision()), TRAFFIC_PATH_ANNOTATION: "serve"})
    cache = cache_with((kinds.REVISION, wanting))
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


def test_private_route_uses_activators_for_its_revisions() -> None:
    wanting = stored(a_revision(), annotations={**annotations_of(a_revision()), TRAFFIC_PATH_ANNOTATION: "serve"})
    cache = cache_with((kinds.REVISION, wanting), (kinds.ROUTE, assigned(a_route())))
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


def test_strict_inner_tls_uses_activators_for_all_revisions() -> None:
    wanting = stored(a_revision(), annotations={**annotations_of(a_revision()), TRAFFIC_PATH_ANNOTATION: "serve"})
    cache = cache_with((kinds.REVISION, wanting))
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


def test_conflicting_service_is_reported_and_enqueues_route_on_deletion() -> None:
    foreign = stored({"kind": "Service", "metadata": {"name": "hello"}})
    cache = cache_with((kinds.ROUTE, a_route()))
    assert cache.put(kinds.SERVICE, foreign) == {ROUTE}
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    message = 'There is an existing Service "hello" that we do not own.'
    assert condition_values(status, "IngressReady") == ("False", "NotOwned", message)
    assert cache.drop(kinds.SERVICE, ("default", "hello")) == {ROUTE}


def test_revision_reports_conflicting_service() -> None:
    foreign = stored({"kind": "Service", "metadata": {"name": "hello-00001"}})
    cache = cache_with((kinds.REVISION, a_revision()), (kinds.SERVICE, foreign))
    status = written_status(decide(cache, REVISION, now=NOW, now_s=NOW_S), kinds.REVISION)
    assert 'an existing Service "hello-00001"' in condition_values(status, "Ready")[2]


def test_rejected_route_write_is_reported_and_not_retried() -> None:
    cache = cache_with((kinds.ROUTE, a_route()))
    cache.put_activators(ACTIVATORS, activators("10.1.0.1"))
    assert cache.refuse(ROUTE, "no name for a Service") == {ROUTE}
    assert created_by(cache, ROUTE) == {}
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    assert condition_values(status, "IngressReady") == ("False", "CreationFailed", "no name for a Service")


def behind_a_gateway(*objects: tuple[Kind, Object]) -> ControllerCache:
    return a_cache(*objects, settings=msgspec.structs.replace(PUBLIC, gateway="gateways/front"))


def assigned(route: Object) -> Object:
    return {**route, "status": {"traffic": [{"revisionName": "hello-00001", "percent": 100, "tag": "old"}]}}


def test_route_has_httproutes_that_enqueue_it() -> None:
    cache = behind_a_gateway((kinds.ROUTE, assigned(a_route())), (kinds.REVISION, a_revision("hello")))
    names = {name for resource, name in with_public(cache, ROUTE) if resource is kinds.HTTP_ROUTE}
    assert names == {"hello", "hello.old"}
    assert not {kind for kind, _ in created_by(cache, ROUTE)} & {kinds.HTTP_ROUTE}
    for name in names:
        changed = stored({"kind": "HTTPRoute", "metadata": {"name": name}}, resourceVersion="9", uid="u")
        assert cache.put(kinds.HTTP_ROUTE, changed) == {ROUTE}
        assert cache.drop(kinds.HTTP_ROUTE, ("default", name)) == {ROUTE}
        assert (kinds.HTTP_ROUTE, name) in created_by(cache, ROUTE)
    unknown = stored({"kind": "HTTPRoute", "metadata": {"name": "other"}})
    assert cache.put(kinds.HTTP_ROUTE, unknown) == set()


def test_missing_gateway_api_enqueues_all_routes_once() -> None:
    cache = behind_a_gateway((kinds.ROUTE, assigned(a_route())))
    assert cache.set_missing(kinds.HTTP_ROUTE, "") == set()
    assert cache.set_missing(kinds.HTTP_ROUTE, "there are none") == {ROUTE}
    assert cache.set_missing(kinds.HTTP_ROUTE, "there are none") == set()
    status = written_status(decide(cache, ROUTE, now=NOW, now_s=NOW_S), kinds.ROUTE)
    assert condition_values(status, "IngressReady") == ("False", "GatewayApiMissing", "there are none")
    assert cache.set_missing(kinds.HTTP_ROUTE, "") == {ROUTE}


def test_route_without_gateway_has_no_httproutes() -> None:
    cache = cache_with((kinds.ROUTE, assigned(a_route())))
    assert not {kind for kind, _ in created_by(cache, ROUTE)} & {kinds.HTTP_ROUTE}
