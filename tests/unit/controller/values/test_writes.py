"""Planned writes: fenced by resource version, and none without a change."""

from serving.controller.values.writes import WaitingWrites, deletion_of, patch_of, status_patch, text_of
from serving.net.cluster import kinds
from serving.net.cluster.port import Delete, Patch
from tests.unit.controller.builders import a_service

KEY = (kinds.SERVING_SERVICE, "default", "hello")


def test_unchanged_object_needs_no_patch() -> None:
    service = {**a_service(), "status": {"url": "a"}}
    assert patch_of(kinds.SERVING_SERVICE, service, {}) == ()
    assert status_patch(kinds.SERVING_SERVICE, service, {"url": "a"}) == ()


def test_patch_has_resource_version_of_its_decision() -> None:
    (patch,) = patch_of(kinds.SERVING_SERVICE, a_service(), {"metadata": {"labels": {"a": "b"}}, "spec": {}})
    assert patch == Patch(
        kind=kinds.SERVING_SERVICE,
        namespace="default",
        name="hello",
        patch={"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}, "spec": {}},
    )


def test_status_patch_has_only_differences() -> None:
    service = {**a_service(), "status": {"url": "a", "traffic": [1]}}
    (patch,) = status_patch(kinds.SERVING_SERVICE, service, {"traffic": [2]})
    assert patch.subresource == "status"
    assert patch.patch == {"status": {"url": None, "traffic": [2]}, "metadata": {"resourceVersion": "7"}}


def test_deletion_has_uid_and_resource_version() -> None:
    assert deletion_of(kinds.SERVING_SERVICE, a_service()) == Delete(
        kind=kinds.SERVING_SERVICE,
        namespace="default",
        name="hello",
        uid="uid-of-service-hello",
        resource_version="7",
    )


def test_key_text_has_resource_namespace_and_name() -> None:
    assert text_of((kinds.ROUTE, "default", "hello")) == "routes.serving.knative.dev default/hello"


def test_earliest_of_several_delays_applies() -> None:
    waiting = WaitingWrites()
    assert waiting.rest_s(KEY, 60.0, now_s=10.0) == 60.0
    assert waiting.rest_s(KEY, 1.5, now_s=40.0) == 1.5
    assert waiting.rest_s(KEY, 60.0, now_s=41.0) == 0.5
    assert waiting.rest_s(KEY, 60.0, now_s=41.5) == 0.0


def test_debounce_starts_when_write_is_first_planned() -> None:
    waiting = WaitingWrites()
    assert waiting.rest_s(KEY, 1.5, now_s=10.0) == 1.5
    assert waiting.rest_s(KEY, 1.5, now_s=11.0) == 0.5
    assert waiting.rest_s(KEY, 1.5, now_s=11.5) == 0.0
    assert waiting.rest_s(KEY, 1.5, now_s=12.0) == 1.5, "these are new"


def test_write_without_debounce_does_not_wait() -> None:
    waiting = WaitingWrites()
    waiting.rest_s(KEY, 1.5, now_s=10.0)
    assert waiting.rest_s(KEY, 0.0, now_s=10.1) == 0.0
