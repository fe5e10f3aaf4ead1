from typing import Any

import pytest

from serving.home.apiserver.content import check_fields, touched, warning_header
from serving.home.apiserver.requests import Fault
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.net.cluster.port import PatchType

WRONG: list[dict[str, Any]] = [{"spec": {"foo": 1}}]


@pytest.mark.parametrize("level", ["", "Warn"])
def test_unknown_and_duplicate_fields_are_warned_about(level: str) -> None:
    expected = ['unknown field "spec.foo"', 'duplicate field "a"']
    assert check_fields(SERVING_SERVICE, WRONG, duplicates=["a"], level=level) == expected


def test_field_validation_ignore_reports_nothing() -> None:
    assert check_fields(SERVING_SERVICE, WRONG, duplicates=["a"], level="Ignore") == []


def test_field_validation_strict_rejects_unknown_fields() -> None:
    expected = (
        'Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "spec.foo", '
    )
    with pytest.raises(Fault, match=expected) as caught:
        check_fields(SERVING_SERVICE, WRONG, duplicates=["a"], level="Strict")
    assert caught.value.code == 400


def test_field_validation_strict_accepts_valid_fields() -> None:
    assert check_fields(SERVING_SERVICE, [{"spec": {"template": {}}}], duplicates=[], level="Strict") == []


def test_unknown_field_validation_level_is_rejected() -> None:
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
def test_touched_returns_the_fields_that_a_patch_writes(patch: object, patch_type: PatchType, expected: object) -> None:
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
def test_warning_header_is_a_single_ascii_line(text: str, expected: str) -> None:
    assert warning_header(text) == expected
