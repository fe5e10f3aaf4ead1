"""Services of tags: one per tag, with the labels of the route and the visibility of the tag."""

from serving.controller.decide import decide
from serving.controller.routes.route import TagServices, is_local_tag
from serving.controller.values.writes import WorkKey
from serving.core.model.objects import Object, labels_of, name_of
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Delete, Patch
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    a_configuration,
    a_revision,
    a_route,
    merged,
    stored,
    with_ready,
)
from tests.unit.controller.test_cache_public import activators, cache_with

ROUTE: WorkKey = (kinds.ROUTE, "default", "hello")
TAGGED = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]
LOCAL = {"networking.knative.dev/visibility": "cluster-local"}


def writes(*objects: tuple[Kind, Object]) -> list[object]:
    cache = cache_with((kinds.REVISION, with_ready(a_revision(), "True")), *objects)
    cache.put_activators(("knative-serving", "activator-service-x"), activators("10.0.0.1"))
    return list(decide(cache, ROUTE, now=NOW, now_s=NOW_S).writes)


def created(planned_writes: list[object], resource: Kind) -> dict[str, Object]:
    return {
        name_of(write.body): dict(write.body)
        for write in planned_writes
        if isinstance(write, Create) and write.kind is resource
    }


def status_of(planned_writes: list[object]) -> Object:
    (status,) = [
        write.patch["status"] for write in planned_writes if isinstance(write, Patch) and write.subresource == "status"
    ]
    return dict(status)


def a_tag_service(**labels: str) -> Object:
    route = a_route(traffic=TAGGED, annotations={"mine": "x"})
    body = created(writes((kinds.ROUTE, route)), kinds.SERVICE)["blue-hello"]
    return merged(stored(body), {"metadata": {"labels": labels}})


def test_route_and_each_tag_have_service_and_slice() -> None:
    results = writes((kinds.ROUTE, a_route(traffic=TAGGED)))
    services = created(results, kinds.SERVICE)
    assert set(services) == {"hello", "blue-hello"}
    assert labels_of(services["blue-hello"])["serving.knative.dev/route"] == "hello"
    slices = created(results, kinds.ENDPOINT_SLICE)
    assert set(slices) == {"hello-public", "blue-hello-public"}
    assert labels_of(slices["blue-hello-public"])["kubernetes.io/service-name"] == "blue-hello"


def test_tag_service_inherits_route_metadata_except_visibility() -> None:
    route = a_route(traffic=TAGGED, labels={"team": "a", **LOCAL}, annotations={"mine": "x"})
    service = created(writes((kinds.ROUTE, route)), kinds.SERVICE)["blue-hello"]
    assert labels_of(service)["team"] == "a"
    assert not labels_of(service).keys() & LOCAL.keys()
    assert service["metadata"]["annotations"] == {"mine": "x"}


def test_route_labels_are_added_to_existing_tag_service() -> None:
    service = a_tag_service(**LOCAL)
    route = a_route(traffic=TAGGED, labels={"team": "b"}, annotations={"mine": "x"})
    results = writes((kinds.ROUTE, route), (kinds.SERVICE, service))
    (patch,) = [write for write in results if isinstance(write, Patch) and write.kind is kinds.SERVICE]
    assert (patch.name, patch.patch["metadata"]["labels"]) == ("blue-hello", {"team": "b"})


def test_visibility_label_of_tag_service_makes_tag_cluster_local() -> None:
    route = a_route(traffic=TAGGED, annotations={"mine": "x"})
    public = status_of(writes((kinds.ROUTE, route), (kinds.SERVICE, a_tag_service())))
    assert public["traffic"][0]["url"] == "http://blue-hello.default.localhost:8080"
    local = status_of(writes((kinds.ROUTE, route), (kinds.SERVICE, a_tag_service(**LOCAL))))
    assert local["traffic"][0]["url"] == "http://blue-hello.default.svc.cluster.local:8081"
    assert local["url"] == "http://hello.default.localhost:8080"


def test_service_of_removed_tag_is_deleted() -> None:
    route = a_route(traffic=[{"revisionName": "hello-00001", "percent": 100}])
    results = writes((kinds.ROUTE, route), (kinds.SERVICE, a_tag_service()))
    assert [write.name for write in results if isinstance(write, Delete)] == ["blue-hello"]


def test_unowned_service_with_route_label_is_not_deleted() -> None:
    foreign = stored(
        {"kind": "Service", "metadata": {"name": "mine", "labels": {"serving.knative.dev/route": "hello"}}}
    )
    results = writes((kinds.ROUTE, a_route(traffic=TAGGED)), (kinds.SERVICE, foreign))
    assert not [write for write in results if isinstance(write, Delete)]


def test_changed_tag_service_enqueues_its_route() -> None:
    cache = cache_with((kinds.ROUTE, a_route(traffic=TAGGED)), (kinds.CONFIGURATION, a_configuration()))
    assert ROUTE in cache.put(kinds.SERVICE, a_tag_service())


def test_tag_of_cluster_local_route_is_local_without_service() -> None:
    assert is_local_tag(a_route(labels=LOCAL), TagServices(), "blue")
    assert not is_local_tag(a_route(), TagServices(), "blue")
