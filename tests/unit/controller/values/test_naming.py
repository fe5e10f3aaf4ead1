"""Names of children."""

import pytest

from serving.controller.values.naming import (
    RoutingState,
    child_name,
    deployment_name,
    metadata_changes,
    private_service_name,
    revision_name,
    revisions_named_by,
    routing_state_of,
)
from serving.core.model.knative import (
    BECAME_READY_ANNOTATION,
    FAILURE_ANNOTATION,
    ROUTES_ANNOTATION,
    ROUTING_STATE_LABEL,
    ROUTING_STATE_MODIFIED_ANNOTATION,
)
from serving.core.model.objects import Object
from tests.unit.controller.builders import CREATED, NOW, a_revision, a_route, merged, stored

# What ``kn service export`` (1.21) leaves out of a revision's annotations.
IGNORED_BY_KN = {f"serving.knative.dev/{name}" for name in ("lastPinned", "creator", "routingStateModified")}


def test_children_are_named_after_their_parent() -> None:
    assert revision_name("hello", 1) == "hello-00001"
    assert deployment_name("hello-00001") == "hello-00001-deployment"
    assert private_service_name("hello-00001") == "hello-00001-private"


def test_generations_past_five_digits_keep_all_of_them() -> None:
    assert revision_name("hello", 123456) == "hello-123456"


@pytest.mark.parametrize(("length", "is_hashed"), [(52, False), (53, True), (63, True)])
def test_a_name_that_would_be_too_long_is_hashed(length: int, is_hashed: bool) -> None:
    parent = "a" * length
    name = child_name(parent, "-deployment")
    assert len(name) <= 63
    assert name.endswith("-deployment")
    assert (name != parent + "-deployment") is is_hashed


def test_long_names_that_differ_at_their_end_stay_different() -> None:
    assert child_name("a" * 62 + "b", "-private") != child_name("a" * 62 + "c", "-private")


def test_a_hashed_name_is_knatives() -> None:
    # kmeta.ChildName: the first 31 characters less the suffix, the MD5 of the parent, the suffix.
    assert child_name("a" * 63, "-private") == "a" * 23 + "b06521f39153d618550606be297466d5" + "-private"


@pytest.mark.parametrize(
    ("routes", "is_newest", "is_awaited", "was_ready", "state"),
    [
        (["hello"], False, False, False, RoutingState.ACTIVE),
        ([], True, False, False, RoutingState.PENDING),
        ([], True, False, True, RoutingState.RESERVE),
        ([], True, True, True, RoutingState.PENDING),
        ([], False, True, False, RoutingState.RESERVE),
    ],
)
def test_a_route_makes_active_and_only_the_newest_waits(
    routes: list[str], is_newest: bool, is_awaited: bool, was_ready: bool, state: RoutingState
) -> None:
    routing_state = routing_state_of(routes=routes, is_newest=is_newest, is_awaited=is_awaited, was_ready=was_ready)
    assert routing_state is state


def test_a_route_names_what_it_asks_for_and_what_it_has_assigned() -> None:
    route = a_route(traffic=[{"revisionName": "hello-00002", "percent": 100}, {"latestRevision": True}])
    assigned: Object = {**route, "status": {"traffic": [{"revisionName": "hello-00001"}]}}
    assert list(revisions_named_by(assigned)) == ["hello-00002", "hello-00001"]


def changes(revision: Object, *, routes: list[str], state: RoutingState, was_ready: bool = False) -> Object:
    return metadata_changes(revision, routes=routes, state=state, was_ready=was_ready, now=NOW)


def test_a_revision_that_becomes_active_says_when_and_by_whom() -> None:
    assert changes(a_revision(), routes=["b", "a"], state=RoutingState.ACTIVE, was_ready=True) == {
        "metadata": {
            "labels": {ROUTING_STATE_LABEL: "active"},
            "annotations": {
                ROUTES_ANNOTATION: "a,b",
                ROUTING_STATE_MODIFIED_ANNOTATION: NOW,
                BECAME_READY_ANNOTATION: NOW,
            },
        }
    }


def test_a_revision_that_is_as_it_says_is_left_alone() -> None:
    assert changes(a_revision(), routes=[], state=RoutingState.PENDING) == {}


def test_readiness_is_noted_with_the_state_that_follows() -> None:
    assert changes(a_revision(), routes=[], state=RoutingState.PENDING, was_ready=True) == {}


def test_a_revision_that_loses_its_routes_says_so_and_keeps_its_first_readiness() -> None:
    active = merged(a_revision(), changes(a_revision(), routes=["a"], state=RoutingState.ACTIVE, was_ready=True))
    active["metadata"]["annotations"][BECAME_READY_ANNOTATION] = CREATED
    after = merged(active, changes(active, routes=[], state=RoutingState.RESERVE, was_ready=True))
    assert after["metadata"]["annotations"] == {
        ROUTING_STATE_MODIFIED_ANNOTATION: NOW,
        BECAME_READY_ANNOTATION: CREATED,
    }
    assert after["metadata"]["labels"][ROUTING_STATE_LABEL] == "reserve"


def test_an_export_of_a_routed_revision_says_only_which_routes_it_has() -> None:
    patch = changes(a_revision(), routes=["a"], state=RoutingState.ACTIVE, was_ready=True)
    assert patch["metadata"]["annotations"].keys() - IGNORED_BY_KN == {ROUTES_ANNOTATION}


def test_a_failure_is_kept_until_there_is_none() -> None:
    noted = metadata_changes(
        a_revision(), routes=[], state=RoutingState.PENDING, was_ready=False, now=NOW, failure="boom"
    )
    assert noted == {"metadata": {"annotations": {FAILURE_ANNOTATION: "boom"}}}
    after = merged(a_revision(), noted)
    assert changes(after, routes=[], state=RoutingState.PENDING) == {
        "metadata": {"annotations": {FAILURE_ANNOTATION: None}}
    }


def test_the_former_annotation_of_readiness_moves_with_its_time() -> None:
    before = stored(a_revision(), annotations={"serving.dev/became-ready": CREATED})
    after = merged(before, changes(before, routes=["a"], state=RoutingState.ACTIVE, was_ready=True))
    annotations = after["metadata"]["annotations"]
    assert annotations[BECAME_READY_ANNOTATION] == CREATED
    assert "serving.dev/became-ready" not in annotations
    assert changes(after, routes=["a"], state=RoutingState.ACTIVE, was_ready=True) == {}


def test_the_former_annotation_stays_until_the_other_is_written() -> None:
    before = stored(a_revision(), annotations={"serving.dev/became-ready": CREATED})
    assert changes(before, routes=[], state=RoutingState.PENDING, was_ready=True) == {}
