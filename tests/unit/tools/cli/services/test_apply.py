import json
from typing import Any

from serving.core.model.knative import LAST_APPLIED_ANNOTATION
from serving.tools.cli.services.apply import changed_fields, patch_between, with_last_applied

Json = dict[str, Any]


def manifest(**spec: object) -> Json:
    return {"kind": "Service", "metadata": {"name": "a", "annotations": {"b": "c"}}, "spec": spec}


def live(applied: Json, **spec: object) -> Json:
    wanted = with_last_applied(applied)
    return {**wanted, "metadata": {**wanted["metadata"], "uid": "1"}, "spec": spec, "status": {"x": 1}}


def test_what_is_applied_carries_itself_as_kubectl_writes_it() -> None:
    resource = with_last_applied({**manifest(x=1), "status": {"y": 1}})
    assert json.loads(resource["metadata"]["annotations"][LAST_APPLIED_ANNOTATION]) == manifest(x=1)
    assert "status" not in resource
    assert with_last_applied(resource) == resource


def test_an_export_loses_what_belongs_to_the_object_that_it_was_taken_from() -> None:
    exported = manifest(x=1)
    exported["metadata"] |= {"uid": "u", "resourceVersion": "5", "creationTimestamp": "then", "generation": 3}
    assert with_last_applied(exported) == with_last_applied(manifest(x=1))


def test_the_annotations_of_the_server_are_not_applied() -> None:
    exported = manifest(x=1)
    exported["metadata"]["annotations"] |= {
        "serving.knative.dev/creator": "dev",
        "serving.knative.dev/lastModifier": "dev",
    }
    assert with_last_applied(exported) == with_last_applied(manifest(x=1))


def test_what_is_the_same_is_no_patch_though_the_server_has_added_to_it() -> None:
    assert patch_between(with_last_applied(manifest(x=1)), live(manifest(x=1), x=1, added=2)) == {}


def test_what_was_applied_and_is_not_wanted_goes_and_what_others_set_stays() -> None:
    wanted = with_last_applied(manifest(deep={"b": 2, "c": 3}))
    there = live(manifest(x=1, deep={"a": 1, "b": 2}), x=1, others=5, deep={"a": 1, "b": 2})
    patch = patch_between(wanted, there)
    assert patch["spec"] == {"x": None, "deep": {"a": None, "c": 3}}
    assert list(patch["metadata"]["annotations"]) == [LAST_APPLIED_ANNOTATION]


def test_lists_are_replaced_whole() -> None:
    patch = patch_between(with_last_applied(manifest(names=["a"])), live(manifest(names=["a", "b"]), names=["a", "b"]))
    assert patch["spec"] == {"names": ["a"]}


def test_an_annotation_that_is_no_manifest_takes_nothing_away() -> None:
    for text in ("not JSON", "[]"):
        there = {**manifest(x=1), "metadata": {"name": "a", "annotations": {LAST_APPLIED_ANNOTATION: text}}}
        assert "spec" not in patch_between(with_last_applied({**manifest(), "spec": {}}), there)


def test_changes_are_reported_by_their_path_without_the_servers_own() -> None:
    before = live(manifest(), a=1, gone="x", items=[{"n": 1}, {"n": 2}], notes={"a/b": "1"})
    after = live(manifest(y=1), a=2, items=[{"n": 1}, {"n": 3}], notes={"a/b": "2\n3"}, long="z" * 100)
    after["metadata"]["resourceVersion"] = "9"
    after["status"] = {"x": 2}
    assert changed_fields(before, after) == [
        "spec.a: 1 → 2",
        "spec.gone: x → nothing",
        "spec.items[1].n: 2 → 3",
        "spec.notes[a/b]: 1 → 2 3",
        f"spec.long: nothing → {'z' * 57}...",
    ]
