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


def test_a_new_object_names_its_creator_and_modifier() -> None:
    assert annotations_after(service(), user="ann") == {CREATOR: "ann", MODIFIER: "ann"}


def test_what_a_writer_claims_at_creation_does_not_count() -> None:
    claimed = service(**{CREATOR: "eve", MODIFIER: "eve", "mine": "stays"})
    assert annotations_after(claimed, user="ann") == {CREATOR: "ann", MODIFIER: "ann", "mine": "stays"}


def made(user: str = "ann") -> dict[str, Any]:
    with acting_as(user):
        return admit(SERVING_SERVICE, service())


def test_a_changed_spec_names_its_modifier() -> None:
    old = made()
    new = service("y") | {"metadata": old["metadata"]}
    assert annotations_after(new, old, user="bob") == {CREATOR: "ann", MODIFIER: "bob"}


def test_changed_metadata_leaves_the_modifier() -> None:
    old = made()
    new = {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}
    assert annotations_after(new, old, user="bob") == {CREATOR: "ann", MODIFIER: "ann"}


def with_annotations(old: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    return {**old, "metadata": {**old["metadata"], "annotations": annotations}}


@pytest.mark.parametrize("annotation", [CREATOR, MODIFIER])
def test_neither_can_be_written(annotation: str) -> None:
    old = made()
    new = with_annotations(old, old["metadata"]["annotations"] | {annotation: "eve"})
    with pytest.raises(Invalid, match=r"metadata.annotations\[.*\]: Invalid value: annotation value is immutable"):
        annotations_after(new, old, user="ann")


def test_what_a_writer_leaves_out_stays() -> None:
    # kubectl replace of the manifest that was applied first.
    old = made()
    assert annotations_after(with_annotations(old, {"a": "b"}), old, user="bob") == {
        CREATOR: "ann",
        MODIFIER: "ann",
        "a": "b",
    }
    assert annotations_after(service("y"), old, user="bob") == {CREATOR: "ann", MODIFIER: "bob"}
    assert annotations_after(service(), old, user="") == {CREATOR: "ann", MODIFIER: "ann"}


def test_writes_of_the_system_have_no_user() -> None:
    assert acting_user() == ""
    assert admit(SERVING_SERVICE, service())["metadata"]["annotations"] == {}


@pytest.mark.parametrize("kind", [CONFIGURATION, ROUTE, REVISION])
def test_what_a_controller_made_for_another_object_has_neither(kind: Kind) -> None:
    owner = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello", "uid": "u"}
    spec: dict[str, Any] = {
        CONFIGURATION: service()["spec"],
        ROUTE: {"traffic": [{"configurationName": "hello", "percent": 100}]},
        REVISION: service()["spec"]["template"]["spec"],
    }[kind]
    with acting_as("ann"):
        stored = admit(kind, {"metadata": {"name": "hello", "ownerReferences": [owner]}, "spec": spec})
    assert "annotations" not in stored["metadata"]
