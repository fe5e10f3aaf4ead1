"""What wakes whom, and that the plans lead where they should."""

from typing import Any

import msgspec

from serving.controller.knowledge import Knowledge, WorkKey
from serving.controller.writes import Plan, Resource
from serving.model.knative import BECAME_READY_ANNOTATION
from serving.model.objects import Object
from tests.unit.controller.builders import (
    NOW,
    NOW_S,
    SCALING,
    SETTINGS,
    a_configuration,
    a_deployment,
    a_pod,
    a_revision,
    a_route,
    a_service,
    merged,
    stored,
    told,
    with_ready,
    written_status,
)

SERVICE: WorkKey = (Resource.SERVICE, "default", "hello")
CONFIGURATION: WorkKey = (Resource.CONFIGURATION, "default", "hello")
ROUTE: WorkKey = (Resource.ROUTE, "default", "hello")
REVISION: WorkKey = (Resource.REVISION, "default", "hello-00001")
BLUE = [{"revisionName": "hello-00001", "percent": 100, "tag": "blue"}]


def knowing(*objects: tuple[Resource, Object]) -> Knowledge:
    knowledge = Knowledge(SETTINGS, SCALING)
    for resource, one in objects:
        knowledge.put(resource, one)
    return knowledge


def newer(one: Object, **changes: object) -> Object:
    """A later state of an object."""
    return {**stored(one, resourceVersion="8"), **changes}


def test_a_service_wakes_itself() -> None:
    assert knowing().put(Resource.SERVICE, a_service()) == {SERVICE}


def test_a_child_wakes_its_service() -> None:
    assert knowing().put(Resource.CONFIGURATION, a_configuration()) == {CONFIGURATION, SERVICE}
    assert knowing().put(Resource.ROUTE, a_route()) == {ROUTE, SERVICE}


def test_a_configuration_wakes_the_routes_that_name_it() -> None:
    knowledge = knowing((Resource.ROUTE, a_route()))
    assert ROUTE in knowledge.put(Resource.CONFIGURATION, a_configuration())


def test_a_configuration_wakes_its_newest_revision_and_the_one_before() -> None:
    before = {**a_configuration(), "status": {"latestCreatedRevisionName": "hello-00001"}}
    knowledge = knowing((Resource.CONFIGURATION, before))
    woken = knowledge.put(Resource.CONFIGURATION, newer(before, status={"latestCreatedRevisionName": "hello-00002"}))
    assert {REVISION, (Resource.REVISION, "default", "hello-00002")} <= woken


def test_what_is_beneath_a_revision_wakes_it() -> None:
    revision = a_revision()
    for resource, one in ((Resource.DEPLOYMENT, a_deployment(revision)), (Resource.POD, a_pod())):
        assert knowing().put(resource, one) == {REVISION}
        assert knowing((resource, one)).drop(resource, ("default", one["metadata"]["name"])) == {REVISION}


def test_a_pod_of_nobody_wakes_nobody() -> None:
    assert knowing().put(Resource.POD, stored(a_pod(), labels={})) == set()


def test_a_revision_wakes_who_names_it() -> None:
    knowledge = knowing((Resource.ROUTE, a_route(traffic=BLUE)))
    assert knowledge.put(Resource.REVISION, a_revision()) == {REVISION, CONFIGURATION, ROUTE}


def test_a_count_of_pods_is_nothing_to_the_configuration() -> None:
    knowledge = knowing((Resource.REVISION, a_revision()))
    assert knowledge.put(Resource.REVISION, newer(a_revision(), status={"actualReplicas": 3})) == {REVISION}


def test_a_revision_that_gets_pods_or_gives_them_up_is_nothing_to_the_others_and_one_that_retires_is() -> None:
    one = a_revision()
    knowledge = knowing((Resource.ROUTE, a_route(traffic=BLUE)), (Resource.REVISION, one))
    asleep = newer(one, spec={**one["spec"], "servingState": "Reserve"})
    assert knowledge.put(Resource.REVISION, asleep) == {REVISION}
    retired = {**stored(one, resourceVersion="9"), "spec": {**one["spec"], "servingState": "Retired"}}
    assert knowledge.put(Resource.REVISION, retired) == {REVISION, CONFIGURATION, ROUTE}


def test_a_route_wakes_revisions_that_it_begins_or_ceases_to_name() -> None:
    knowledge = knowing((Resource.ROUTE, a_route(traffic=BLUE)))
    moved = newer(a_route(traffic=[{**BLUE[0], "revisionName": "hello-00002"}]))
    woken = knowledge.put(Resource.ROUTE, moved)
    assert {REVISION, (Resource.REVISION, "default", "hello-00002")} <= woken
    assert REVISION not in knowledge.put(Resource.ROUTE, newer(moved))


def test_a_route_wakes_those_that_claim_its_host() -> None:
    knowledge = knowing((Resource.ROUTE, a_route(traffic=BLUE)))
    assert ROUTE in knowledge.put(Resource.ROUTE, a_route("blue-hello"))
    assert ROUTE in knowledge.drop(Resource.ROUTE, ("default", "blue-hello"))


def test_a_route_that_leaves_the_latest_wakes_its_newest_revision() -> None:
    newest = {**a_configuration(), "status": {"latestCreatedRevisionName": "hello-00002"}}
    knowledge = knowing((Resource.CONFIGURATION, newest), (Resource.ROUTE, a_route()))
    pinned = newer(a_route(traffic=BLUE))
    assert (Resource.REVISION, "default", "hello-00002") in knowledge.put(Resource.ROUTE, pinned)


def test_the_later_claim_of_a_host_is_told_by_whom_it_is_held() -> None:
    knowledge = knowing((Resource.ROUTE, a_route(traffic=BLUE)), (Resource.ROUTE, a_route("blue-hello")))
    status = written_status(knowledge.decide(ROUTE, now=NOW, now_s=NOW_S), Resource.ROUTE)
    assert "default/blue-hello" in told(status, "IngressReady")[2]


def test_an_older_state_is_ignored() -> None:
    knowledge = knowing((Resource.SERVICE, newer(a_service())))
    assert knowledge.put(Resource.SERVICE, a_service()) == set()
    assert knowledge.get(Resource.SERVICE, ("default", "hello")) == newer(a_service())


def test_a_new_object_of_an_old_name_is_not_older() -> None:
    knowledge = knowing((Resource.SERVICE, newer(a_service())))
    assert knowledge.put(Resource.SERVICE, stored(a_service(), uid="another"))


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    knowledge = knowing((Resource.SERVICE, newer(a_service())))
    assert knowledge.put(Resource.SERVICE, stored(a_service(), resourceVersion="opaque"))


def test_what_was_written_is_known_unless_it_is_gone() -> None:
    knowledge = knowing()
    assert knowledge.put_written(Resource.SERVICE, a_service()) == {SERVICE}
    assert knowledge.put(Resource.SERVICE, a_service()) == set()
    assert knowledge.put_written(Resource.SERVICE, newer(a_service())) == {SERVICE}
    knowledge.drop(Resource.SERVICE, ("default", "hello"))
    assert knowledge.put_written(Resource.SERVICE, newer(a_service())) == set()
    assert knowledge.put_written(Resource.SERVICE, stored(a_service(), uid="another")) == {SERVICE}


def test_only_the_last_that_went_are_remembered() -> None:
    knowledge = knowing()
    for number in range(5000):
        knowledge.put(Resource.POD, stored(a_pod(), uid=f"pod-{number}"))
        knowledge.drop(Resource.POD, ("default", "pod"))
    assert knowledge.put_written(Resource.POD, stored(a_pod(), uid="pod-4999")) == set()
    assert knowledge.put_written(Resource.POD, stored(a_pod(), uid="pod-0")) == {REVISION}


def test_what_was_never_there_is_dropped_without_a_word() -> None:
    assert knowing().drop(Resource.SERVICE, ("default", "hello")) == set()


def test_what_is_not_there_needs_nothing() -> None:
    assert knowing().decide(SERVICE, now=NOW, now_s=NOW_S) == Plan()


def test_what_others_reconcile_needs_nothing() -> None:
    assert knowing((Resource.POD, a_pod())).decide((Resource.POD, "default", "pod"), now=NOW, now_s=NOW_S) == Plan()


def test_pods_are_asked_while_none_is_ready() -> None:
    boom = {"name": "user-container", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    revision = a_revision()
    knowledge = knowing(
        (Resource.REVISION, revision),
        (Resource.DEPLOYMENT, a_deployment(revision)),
        (Resource.POD, a_pod(containerStatuses=[boom])),
    )
    status = written_status(knowledge.decide(REVISION, now=NOW, now_s=NOW_S), Resource.REVISION)
    assert told(status, "Ready")[1] == "ExitCode1"
    knowledge.drop(Resource.POD, ("default", "pod"))
    status = written_status(knowledge.decide(REVISION, now=NOW, now_s=NOW_S), Resource.REVISION)
    assert told(status, "Ready")[1] == "Deploying"


def test_a_revision_that_is_not_the_newest_does_not_wait_for_traffic() -> None:
    newest = {**a_configuration(), "status": {"latestCreatedRevisionName": "hello-00002"}}
    knowledge = knowing((Resource.REVISION, a_revision()), (Resource.CONFIGURATION, newest))
    (labels,) = [
        write.patch["metadata"]["labels"]
        for write in knowledge.decide(REVISION, now=NOW, now_s=NOW_S).writes
        if hasattr(write, "patch") and "labels" in write.patch["metadata"]
    ]
    assert labels == {"serving.knative.dev/routingState": "reserve"}


def test_a_name_that_is_taken_is_seen_by_the_service() -> None:
    named: dict[str, Any] = {"metadata": {"name": "hello-blue"}}
    taken = a_revision("hello", generation=1, spec={"containers": [{"image": "other"}]}, **named)
    configuration = a_configuration(generation=2, **named)
    knowledge = knowing(
        (Resource.SERVICE, a_service(**named)),
        (Resource.CONFIGURATION, configuration),
        (Resource.REVISION, taken),
    )
    status = written_status(knowledge.decide(SERVICE, now=NOW, now_s=NOW_S), Resource.SERVICE)
    assert told(status, "RoutesReady")[1] == "RevisionNameTaken"
    knowledge.drop(Resource.REVISION, ("default", "hello-blue"))
    status = written_status(knowledge.decide(SERVICE, now=NOW, now_s=NOW_S), Resource.SERVICE)
    assert told(status, "RoutesReady")[1] == "OutOfDate"


def test_a_configuration_finds_its_revisions() -> None:
    ready = stored(with_ready(a_revision(), "True"), annotations={BECAME_READY_ANNOTATION: NOW})
    knowledge = knowing((Resource.CONFIGURATION, a_configuration()), (Resource.REVISION, ready))
    status = written_status(knowledge.decide(CONFIGURATION, now=NOW, now_s=NOW_S), Resource.CONFIGURATION)
    assert status["latestReadyRevisionName"] == "hello-00001"


def test_a_route_finds_what_it_names() -> None:
    ready = with_ready(a_revision(), "True")
    knowledge = knowing((Resource.ROUTE, a_route(traffic=BLUE)), (Resource.REVISION, ready))
    assert written_status(knowledge.decide(ROUTE, now=NOW, now_s=NOW_S), Resource.ROUTE)["traffic"][0]["tag"] == "blue"


def test_all_of_a_kind_can_be_woken() -> None:
    assert knowing((Resource.SERVICE, a_service())).keys(Resource.SERVICE) == [SERVICE]


def test_it_says_how_much_it_knows() -> None:
    assert repr(knowing((Resource.POD, a_pod()))).endswith(
        "0 services, 1 pods, 0 endpointslices, 0 horizontalpodautoscalers, 0 httproutes, "
        "0 domainmappings, 0 clusterdomainclaims)"
    )


def test_a_refusal_holds_until_the_spec_changes() -> None:
    knowledge = knowing((Resource.CONFIGURATION, a_configuration()))
    assert knowledge.refuse(CONFIGURATION, "too many") == {CONFIGURATION}
    status = written_status(knowledge.decide(CONFIGURATION, now=NOW, now_s=NOW_S), Resource.CONFIGURATION)
    assert "too many" in told(status, "Ready")[2]
    knowledge.put(Resource.CONFIGURATION, newer(a_configuration(generation=2)))
    status = written_status(knowledge.decide(CONFIGURATION, now=NOW, now_s=NOW_S), Resource.CONFIGURATION)
    assert told(status, "Ready")[0] == "Unknown"


def test_what_is_gone_cannot_be_refused() -> None:
    assert knowing().refuse(CONFIGURATION, "too many") == set()


def test_one_of_two_pods_that_goes_leaves_the_other() -> None:
    revision = a_revision()
    boom = {"name": "user-container", "state": {"terminated": {"exitCode": 1, "message": "boom"}}}
    knowledge = knowing(
        (Resource.REVISION, revision),
        (Resource.DEPLOYMENT, a_deployment(revision)),
        (Resource.POD, a_pod("gone")),
        (Resource.POD, a_pod("left", containerStatuses=[boom])),
    )
    knowledge.drop(Resource.POD, ("default", "gone"))
    status = written_status(knowledge.decide(REVISION, now=NOW, now_s=NOW_S), Resource.REVISION)
    assert told(status, "Ready")[1] == "ExitCode1"


def test_a_label_that_changes_moves_a_pod() -> None:
    knowledge = knowing((Resource.POD, a_pod()))
    moved = merged(newer(a_pod()), {"metadata": {"labels": {"serving.knative.dev/revision": "hello-00002"}}})
    assert knowledge.put(Resource.POD, moved) == {REVISION, (Resource.REVISION, "default", "hello-00002")}


def test_other_settings_wake_everybody_and_move_the_claims_of_routes() -> None:
    knowledge = knowing(
        (Resource.SERVICE, a_service()),
        (Resource.CONFIGURATION, a_configuration()),
        (Resource.ROUTE, a_route()),
        (Resource.REVISION, a_revision()),
        (Resource.POD, a_pod()),
    )
    settings = msgspec.structs.replace(SETTINGS, domain="apps.example.org")
    assert knowledge.reconfigure(settings, SCALING) == {SERVICE, CONFIGURATION, ROUTE, REVISION}
    status = written_status(knowledge.decide(ROUTE, now=NOW, now_s=NOW_S), Resource.ROUTE)
    assert status["url"] == "http://hello.default.apps.example.org:8080"
