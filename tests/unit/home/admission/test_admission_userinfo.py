from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.admission.admission import admit
from serving.home.store.requester import acting_as, acting_user
from serving.net.cluster.kinds import CONFIGURATION, REVISION, ROUTE, SERVING_SERVICE, Kind

CREATOR, MODIFIER = "serving.knative.dev/creator", "serving.knative.dev/lastModifier"


def service(image: str = "x", **annotations: str) -> dict[str, Any]:
    template = {"spec": {"containers": [{"image": image}]}}
    return {"metadata": {"name": "hello", "annotations": annotations}, "spec": {"template": template}}


def annotations_after(new: dict[str, Any], old: dict[str, Any] | None = None, *, user: str) -> dict[str, str]:
    with acting_as(user):
        annotations: dict[str, str] = admit(SERVING_SERVICE, new, old)["metadata"]["annotations"]
    return annotations


def test_new_object_has_creator_and_modifier_annotations() -> None:
    assert annotations_after(service(), user="ann") == {CREATOR: "ann", MODIFIER: "ann"}


def test_creator_annotations_of_the_writer_are_overwritten() -> None:
    claimed = service(**{CREATOR: "eve", MODIFIER: "eve", "mine": "stays"})
    assert annotations_after(claimed, user="ann") == {CREATOR: "ann", MODIFIER: "ann", "mine": "stays"}


def admitted_service(user: str = "ann") -> dict[str, Any]:
    with acting_as(user):
        return admit(SERVING_SERVICE, service())


def test_changed_spec_updates_the_modifier() -> None:
    old = admitted_service()
    new = service("y") | {"metadata": old["metadata"]}
    assert annotations_after(new, old, user="bob") == {CREATOR: "ann", MODIFIER: "bob"}


def test_changed_metadata_does_not_update_the_modifier() -> None:
    old = admitted_service()
    new = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert annotations_after(new, old, user="bob") == {CREATOR: "ann", MODIFIER: "ann"}


def with_annotations(old: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    return {**old, "metadata": {**old["metadata"], "annotations": annotations}}


@pytest.mark.parametrize("annotation", [CREATOR, MODIFIER])
def test_changed_creator_or_modifier_annotation_is_rejected(annotation: str) -> None:
    old = admitted_service()
    new = with_annotations(old, old["metadata"]["annotations"] | {annotation: "eve"})
    with pytest.raises(Invalid, match=r"metadata.annotations\[.*\]: Invalid value: annotation value is immutable"):
        annotations_after(new, old, user="ann")


def test_omitted_creator_annotations_are_preserved() -> None:
    # As kubectl replace with the manifest that was applied first.
    old = admitted_service()
    assert annotations_after(with_annotations(old, {"a": "b"}), old, user="bob") == {
        CREATOR: "ann",
        MODIFIER: "ann",
        "a": "b",
    }
    assert annotations_after(service("y"), old, user="bob") == {CREATOR: "ann", MODIFIER: "bob"}
    assert annotations_after(service(), old, user="") == {CREATOR: "ann", MODIFIER: "ann"}


def test_system_writes_set_no_creator() -> None:
    assert acting_user() == ""
    assert admit(SERVING_SERVICE, service())["metadata"]["annotations"] == {}


@pytest.mark.parametrize("kind", [CONFIGURATION, ROUTE, REVISION])
def test_owned_objects_have_no_creator_annotations(kind: Kind) -> None:
    owner = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello", "uid": "u"}
    spec: dict[str, Any] = {
        CONFIGURATION: service()["spec"],
        ROUTE: {"traffic": [{"configurationName": "hello", "percent": 100}]},
        REVISION: service()["spec"]["template"]["spec"],
    }[kind]
    with acting_as("ann"):
        stored = admit(kind, {"metadata": {"name": "hello", "ownerReferences": [owner]}, "spec": spec})
    assert "annotations" not in stored["metadata"]
