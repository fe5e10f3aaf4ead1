"""Reading resources."""

import pytest

from serving.controller.objects import (
    Object,
    annotations_of,
    condition_of,
    dig,
    is_being_deleted,
    is_controlled_by,
    labels_of,
    merge_difference,
    name_of,
    namespace_of,
    owner_reference,
    seconds_of,
    uid_of,
    version_of,
)
from tests.unit.controller.builders import a_route, a_service, merged


def test_what_is_not_there_is_empty() -> None:
    assert (name_of({}), namespace_of({}), uid_of({}), version_of({})) == ("", "", "", "")
    assert (labels_of({}), annotations_of({}), condition_of({}, "Ready"), condition_of(None, "Ready")) == (
        {},
        {},
        {},
        {},
    )
    assert not is_being_deleted({})


@pytest.mark.parametrize(("path", "found"), [(("a", "b"), 1), (("a", "c"), None), (("a", "b", "c"), None), ((), None)])
def test_a_path_leads_to_what_is_there(path: tuple[str, ...], found: object) -> None:
    assert dig({"a": {"b": 1}}, *path) == (found if path else {"a": {"b": 1}})


def test_a_child_is_controlled_by_who_made_it() -> None:
    service = a_service()
    assert is_controlled_by(a_route(), service)
    assert not is_controlled_by(a_route(ownerReferences=[]), service)
    assert not is_controlled_by(a_route(ownerReferences=[{**owner_reference(service), "controller": False}]), service)


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4, "d": 3}}, {"a": None, "b": {"c": 4}}),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, {}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({}, {"a": {}}, {"a": {}}),
    ],
)
def test_a_difference_is_the_smallest_patch(old: Object, new: Object, patch: Object) -> None:
    assert merge_difference(old, new) == patch
    assert merged(old, patch) == new


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("1970-01-02T00:00:00Z", 86400.0),
        ("2026-11-21T04:30:00Z", 1795235400.0),
        ("1970-01-01T00:00:00.25Z", 0.25),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_stamp_is_seconds_since_the_epoch(stamp: object, seconds: float | None) -> None:
    assert seconds_of(stamp) == seconds
