"""Patches are reversible, and equal in each format."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serving.home.schemas.patch import json_patch, merge_patch, same_json
from serving.home.schemas.strategic import strategic_merge
from serving.net.cluster.kinds import POD

Json = Any

# Keys that need escaping in a JSON pointer or look like indices.
KEYS = st.sampled_from(["a", "b", "a/b", "~", "~1", "0", "-", ""])
LEAVES = st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from(["", "x"]), st.just(0.5))

NAMES = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


def values(leaves: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
        max_leaves=12,
    )


# A merge patch cannot set null inside an object, where null means removal.
OBJECTS = st.dictionaries(KEYS, values(LEAVES), max_size=5)
DOCUMENTS = values(st.one_of(LEAVES, st.none()))


@given(DOCUMENTS, DOCUMENTS)
def test_merge_patch_is_idempotent(target: Json, patch: Json) -> None:
    once = merge_patch(target, patch)
    assert same_json(merge_patch(once, patch), once)


@given(DOCUMENTS, DOCUMENTS)
def test_same_json_is_symmetric(left: Json, right: Json) -> None:
    assert same_json(left, right) == same_json(right, left)


def replaced(old: Json, new: Json) -> Json:
    """The part of a merge patch that turns one value into another."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**dict.fromkeys(old), **{key: replaced(old.get(key), value) for key, value in new.items()}}


@given(OBJECTS, OBJECTS)
def test_strategic_patch_without_lists_equals_a_merge_patch(old: Json, new: Json) -> None:
    patch = replaced(old, new)
    assert same_json(strategic_merge(POD, {"data": old}, {"data": patch}), {"data": new})


@given(NAMES, NAMES, st.data())
def test_strategic_patch_of_a_list_sets_the_element_order(
    before: list[str], added: list[str], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(sorted({*before, *added})))
    patch = {"containers": [{"name": name} for name in order if name in added]}
    directive = {"$setElementOrder/containers": [{"name": name} for name in order]}
    merged = strategic_merge(
        POD, {"spec": {"containers": [{"name": name} for name in before]}}, {"spec": patch | directive}
    )
    assert [container["name"] for container in merged["spec"]["containers"]] == (order or [])


@given(NAMES, NAMES)
def test_strategic_delete_from_a_list_preserves_the_order(before: list[str], gone: list[str]) -> None:
    patch = {"containers": [{"name": name, "$patch": "delete"} for name in gone]}
    merged = strategic_merge(POD, {"spec": {"containers": [{"name": name} for name in before]}}, {"spec": patch})
    assert [container["name"] for container in merged["spec"]["containers"]] == [
        name for name in before if name not in gone
    ]


def pointer(path: Sequence[str]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def places(value: Json, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of a value and of all values inside it."""
    inner: list[tuple[str, Json]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = [(str(index), result) for index, result in enumerate(value)]
    return [path, *(place for key, document in inner for place in places(document, (*path, key)))]


def at(value: Json, path: Sequence[str]) -> Json:
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


@given(DOCUMENTS, DOCUMENTS, st.data())
def test_json_patch_replace_is_reversible(document: Json, value: Json, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(places(document)))
    there, back = (
        {"op": "replace", "path": pointer(path), "value": replacement} for replacement in (value, at(document, path))
    )
    changed = json_patch(document, [there])
    assert same_json(at(changed, path), value)
    assert same_json(json_patch(changed, [back]), document)


@given(DOCUMENTS, st.data())
def test_json_patch_remove_is_reversed_by_add(document: Json, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(places(document)))
    if path:
        changed = json_patch(document, [{"op": "remove", "path": pointer(path)}])
        back = {"op": "add", "path": pointer(path), "value": at(document, path)}
        assert same_json(json_patch(changed, [back]), document)


@given(DOCUMENTS, st.data())
def test_json_patch_test_matches_each_value(document: Json, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(places(document)))
    test = {"op": "test", "path": pointer(path), "value": at(document, path)}
    assert same_json(json_patch(document, [test]), document)


@given(DOCUMENTS, st.data())
def test_json_patch_move_equals_copy_and_remove(document: Json, data: st.DataObject) -> None:
    whole = {"old": document, "new": {}}
    origin = ("old", *data.draw(st.sampled_from(places(document))))
    moved = json_patch(whole, [{"op": "move", "from": pointer(origin), "path": "/new/x"}])
    copied = json_patch(
        whole,
        [{"op": "copy", "from": pointer(origin), "path": "/new/x"}, {"op": "remove", "path": pointer(origin)}],
    )
    assert same_json(moved, copied)


@given(DOCUMENTS, DOCUMENTS)
def test_patches_do_not_mutate_their_arguments(document: Json, patch: Json) -> None:
    before = repr((document, patch))
    merge_patch(document, patch)
    json_patch({"d": document}, [{"op": "add", "path": "/x", "value": patch}, {"op": "remove", "path": "/d"}])
    assert repr((document, patch)) == before
