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


def test_applied_manifest_has_the_last_applied_annotation() -> None:
    resource = with_last_applied({**manifest(x=1), "status": {"y": 1}})
    assert json.loads(resource["metadata"]["annotations"][LAST_APPLIED_ANNOTATION]) == manifest(x=1)
    assert "status" not in resource
    assert with_last_applied(resource) == resource


def test_exported_manifest_loses_server_metadata() -> None:
    exported = manifest(x=1)
    exported["metadata"] |= {"uid": "u", "resourceVersion": "5", "creationTimestamp": "then", "generation": 3}
    assert with_last_applied(exported) == with_last_applied(manifest(x=1))


def test_server_annotations_are_not_applied() -> None:
    exported = manifest(x=1)
    exported["metadata"]["annotations"] |= {
        "serving.knative.dev/creator": "dev",
        "serving.knative.dev/lastModifier": "dev",
    }
    assert with_last_applied(exported) == with_last_applied(manifest(x=1))


def test_unchanged_manifest_yields_no_patch_despite_server_fields() -> None:
    assert patch_between(with_last_applied(manifest(x=1)), live(manifest(x=1), x=1, added=2)) == {}


def test_patch_removes_only_previously_applied_fields() -> None:
    wanted = with_last_applied(manifest(deep={"b": 2, "c": 3}))
    there = live(manifest(x=1, deep={"a": 1, "b": 2}), x=1, others=5, deep={"a": 1, "b": 2})
    patch = patch_between(wanted, there)
    assert patch["spec"] == {"x": None, "deep": {"a": None, "c": 3}}
    assert list(patch["metadata"]["annotations"]) == [LAST_APPLIED_ANNOTATION]


def test_lists_are_replaced_whole() -> None:
    patch = patch_between(with_last_applied(manifest(names=["a"])), live(manifest(names=["a", "b"]), names=["a", "b"]))
    assert patch["spec"] == {"names": ["a"]}


def test_invalid_last_applied_annotation_removes_no_field() -> None:
    for text in ("not JSON", "[]"):
        there = {**manifest(x=1), "metadata": {"name": "a", "annotations": {LAST_APPLIED_ANNOTATION: text}}}
        assert "spec" not in patch_between(with_last_applied({**manifest(), "spec": {}}), there)


def test_changed_fields_are_listed_by_path_without_server_fields() -> None:
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
