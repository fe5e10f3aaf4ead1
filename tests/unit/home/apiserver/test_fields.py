from typing import Any

import pytest

from serving.home.apiserver.content import check_fields, touched, warning_header
from serving.home.apiserver.requests import Fault
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.net.cluster.port import PatchType

WRONG: list[dict[str, Any]] = [{"spec": {"foo": 1}}]


@pytest.mark.parametrize("level", ["", "Warn"])
def test_unknown_and_repeated_fields_are_reported(level: str) -> None:
    expected = ['unknown field "spec.foo"', 'duplicate field "a"']
    assert check_fields(SERVING_SERVICE, WRONG, duplicates=["a"], level=level) == expected


def test_only_subscribers_are_notified() -> None:
    assert check_fields(SERVING_SERVICE, WRONG, duplicates=["a"], level="Ignore") == []


def test_strict_refuses_with_all_of_them() -> None:
    expected = (
        'Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "spec.foo", '
    )
    with pytest.raises(Fault, match=expected) as caught:
        check_fields(SERVING_SERVICE, WRONG, duplicates=["a"], level="Strict")
    assert caught.value.code == 400


def test_strict_takes_what_is_right() -> None:
    assert check_fields(SERVING_SERVICE, [{"spec": {"template": {}}}], duplicates=[], level="Strict") == []


def test_another_level_is_refused() -> None:
    with pytest.raises(Fault, match="expected one of Ignore, Strict, Warn"):
        check_fields(SERVING_SERVICE, [], duplicates=[], level="strict")


@pytest.mark.parametrize(
    ("patch", "patch_type", "expected"),
    [
        ({"a": {"b": 1, "c": None}}, PatchType.MERGE, [{"a": {"b": 1}}]),
        ({"a": [{"$patch": "delete", "b": 1}], "$retainKeys": []}, PatchType.STRATEGIC, [{"a": [{"b": 1}]}]),
        ([], PatchType.MERGE, []),
        ([{"op": "add", "path": "/a/0/b~1c~0", "value": 1}], PatchType.JSON, [{"a": [{"b/c~": 1}]}]),
        ([{"op": "add", "path": "/a/-", "value": {"x": 1}}], PatchType.JSON, [{"a": [{"x": 1}]}]),
        ([{"op": "remove", "path": "/a"}, {"op": "add", "path": ""}, 5], PatchType.JSON, []),
        ([{"op": "add", "path": "/0", "value": 1}], PatchType.JSON, [{}]),
        ({}, PatchType.JSON, []),
    ],
)
def test_a_patch_is_the_parts_that_it_writes(patch: object, patch_type: PatchType, expected: object) -> None:
    assert touched(patch, patch_type) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b", '299 - "a b"'),
        ('say "x" \\', '299 - "say \\"x\\" \\\\"'),
        ("two\nlines", '299 - "two lines"'),
        ("café", '299 - "caf?"'),
    ],
)
def test_a_warning_is_one_line_of_ascii(text: str, expected: str) -> None:
    assert warning_header(text) == expected
