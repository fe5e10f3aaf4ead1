"""Names of children, and the routing state in the metadata of a revision."""

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


def test_child_names_start_with_parent_name() -> None:
    assert revision_name("hello", 1) == "hello-00001"
    assert deployment_name("hello-00001") == "hello-00001-deployment"
    assert private_service_name("hello-00001") == "hello-00001-private"


def test_generation_above_five_digits_is_not_truncated() -> None:
    assert revision_name("hello", 123456) == "hello-123456"


@pytest.mark.parametrize(("length", "is_hashed"), [(52, False), (53, True), (63, True)])
def test_child_name_above_63_characters_is_hashed(length: int, is_hashed: bool) -> None:
    parent = "a" * length
    name = child_name(parent, "-deployment")
    assert len(name) <= 63
    assert name.endswith("-deployment")
    assert (name != parent + "-deployment") is is_hashed


def test_hashed_names_of_different_parents_differ() -> None:
    assert child_name("a" * 62 + "b", "-private") != child_name("a" * 62 + "c", "-private")


def test_hashed_name_equals_knative() -> None:
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
def test_routing_state_depends_on_routes_and_newest(
    routes: list[str], is_newest: bool, is_awaited: bool, was_ready: bool, state: RoutingState
) -> None:
    routing_state = routing_state_of(routes=routes, is_newest=is_newest, is_awaited=is_awaited, was_ready=was_ready)
    assert routing_state is state


def test_route_names_revisions_of_spec_and_status() -> None:
    route = a_route(traffic=[{"revisionName": "hello-00002", "percent": 100}, {"latestRevision": True}])
    assigned: Object = {**route, "status": {"traffic": [{"revisionName": "hello-00001"}]}}
    assert list(revisions_named_by(assigned)) == ["hello-00002", "hello-00001"]


def changes(revision: Object, *, routes: list[str], state: RoutingState, was_ready: bool = False) -> Object:
    return metadata_changes(revision, routes=routes, state=state, was_ready=was_ready, now=NOW)


def test_active_revision_gets_routes_and_timestamps() -> None:
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


def test_unchanged_routing_state_needs_no_patch() -> None:
    assert changes(a_revision(), routes=[], state=RoutingState.PENDING) == {}


def test_readiness_alone_is_not_annotated() -> None:
    assert changes(a_revision(), routes=[], state=RoutingState.PENDING, was_ready=True) == {}


def test_revision_without_routes_keeps_first_readiness_time() -> None:
    active = merged(a_revision(), changes(a_revision(), routes=["a"], state=RoutingState.ACTIVE, was_ready=True))
    active["metadata"]["annotations"][BECAME_READY_ANNOTATION] = CREATED
    after = merged(active, changes(active, routes=[], state=RoutingState.RESERVE, was_ready=True))
    assert after["metadata"]["annotations"] == {
        ROUTING_STATE_MODIFIED_ANNOTATION: NOW,
        BECAME_READY_ANNOTATION: CREATED,
    }
    assert after["metadata"]["labels"][ROUTING_STATE_LABEL] == "reserve"


def test_export_of_routed_revision_has_only_routes_annotation() -> None:
    patch = changes(a_revision(), routes=["a"], state=RoutingState.ACTIVE, was_ready=True)
    assert patch["metadata"]["annotations"].keys() - IGNORED_BY_KN == {ROUTES_ANNOTATION}


def test_failure_annotation_is_removed_with_the_failure() -> None:
    noted = metadata_changes(
        a_revision(), routes=[], state=RoutingState.PENDING, was_ready=False, now=NOW, failure="boom"
    )
    assert noted == {"metadata": {"annotations": {FAILURE_ANNOTATION: "boom"}}}
    after = merged(a_revision(), noted)
    assert changes(after, routes=[], state=RoutingState.PENDING) == {
        "metadata": {"annotations": {FAILURE_ANNOTATION: None}}
    }


def test_former_readiness_annotation_is_migrated_with_its_time() -> None:
    before = stored(a_revision(), annotations={"serving.dev/became-ready": CREATED})
    after = merged(before, changes(before, routes=["a"], state=RoutingState.ACTIVE, was_ready=True))
    annotations = after["metadata"]["annotations"]
    assert annotations[BECAME_READY_ANNOTATION] == CREATED
    assert "serving.dev/became-ready" not in annotations
    assert changes(after, routes=["a"], state=RoutingState.ACTIVE, was_ready=True) == {}


def test_former_readiness_annotation_is_retained_until_next_write() -> None:
    before = stored(a_revision(), annotations={"serving.dev/became-ready": CREATED})
    assert changes(before, routes=[], state=RoutingState.PENDING, was_ready=True) == {}
