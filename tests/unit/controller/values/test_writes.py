"""Writes as data: fenced, and none where nothing changes."""

from serving.controller.values.writes import Delete, Patch, ResourceKind, deletion_of, patch_of, status_patch
from tests.unit.controller.builders import a_service


def test_no_change_is_no_write() -> None:
    service = {**a_service(), "status": {"url": "a"}}
    assert patch_of(ResourceKind.SERVICE, service, {}) == ()
    assert status_patch(ResourceKind.SERVICE, service, {"url": "a"}) == ()


def test_a_patch_is_fenced_by_the_version_it_was_decided_on() -> None:
    (patch,) = patch_of(ResourceKind.SERVICE, a_service(), {"metadata": {"labels": {"a": "b"}}, "spec": {}})
    assert patch == Patch(
        resource=ResourceKind.SERVICE,
        namespace="default",
        name="hello",
        patch={"metadata": {"labels": {"a": "b"}, "resourceVersion": "7"}, "spec": {}},
    )


def test_a_status_is_patched_by_what_differs() -> None:
    service = {**a_service(), "status": {"url": "a", "traffic": [1]}}
    (patch,) = status_patch(ResourceKind.SERVICE, service, {"traffic": [2]})
    assert patch.subresource == "status"
    assert patch.patch == {"status": {"url": None, "traffic": [2]}, "metadata": {"resourceVersion": "7"}}


def test_a_deletion_is_of_what_was_seen() -> None:
    assert deletion_of(ResourceKind.SERVICE, a_service()) == Delete(
        resource=ResourceKind.SERVICE,
        namespace="default",
        name="hello",
        uid="uid-of-service-hello",
        resource_version="7",
    )
