from typing import Any

import pytest

from serving.home.schemas.schema import breaches, completed, deep_copy, unknown_fields

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": WHOLE, "y": WHOLE | {"default": 3}}}
OPAQUE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXTS = {"type": "object", "additionalProperties": TEXT}
ANY = {"type": "object"}
INT_OR_TEXT = {"x-kubernetes-int-or-string": True}
_MAP = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}

PLACE = "spec.f"
SHARED = {
    "type": "object",
    "properties": {
        "kept": {
            "type": "object",
            "properties": {"count": {"type": "integer"}, "size": {"type": "integer", "default": 1}},
        },
        "items": {"type": "array", "items": {"type": "string"}},
        "changed": {"type": "integer"},
    },
}


def nested(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": {"f": schema}}}}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (POINT, {}, {"y": 3}),
        (POINT, {"y": 4}, {"y": 4}),
        (POINT, {"y": None}, {"y": 3}),
        (POINT, {"x": None}, {"y": 3}),
        (POINT, {"z": 1}, {"y": 3}),
        ({"type": "object", "properties": {"x": TEXT | {"nullable": True}}}, {"x": None}, {"x": None}),
        ({"type": "object", "properties": {"p": POINT | {"default": {}}}}, {}, {"p": {"y": 3}}),
        ({"type": "object", "properties": {"p": POINT}}, {}, {}),
        ({"type": "array", "items": POINT}, [{}, {"y": 1}], [{"y": 3}, {"y": 1}]),
        ({"type": "array"}, [{"a": 1}], [{"a": 1}]),
        (OPAQUE, {"a": {"b": None}}, {"a": {"b": None}}),
        (ANY, {"a": 1}, {"a": 1}),
        (TEXTS, {"a": "b", "c": None}, {"a": "b"}),
        ({"type": "object", "additionalProperties": True}, {"a": 1}, {"a": 1}),
        ({"type": "object", "additionalProperties": POINT}, {"a": {}}, {"a": {"y": 3}}),
    ],
)
def test_completed_applies_defaults_and_prunes_fields(schema: dict[str, Any], value: object, expected: object) -> None:
    assert completed(schema, value) == expected


def test_default_values_are_copied() -> None:
    schema = {"type": "object", "properties": {"p": OPAQUE | {"default": {"a": [1]}}}}
    completed(schema, {})["p"]["a"].append(2)
    assert completed(schema, {}) == {"p": {"a": [1]}}


def test_completed_does_not_share_its_input() -> None:
    value = {"a": [{"b": 1}]}
    completed(OPAQUE, value)["a"][0]["b"] = 2
    assert value == {"a": [{"b": 1}]}


def test_deep_copy_shares_nothing() -> None:
    value = {"a": [{"b": 1}]}
    deep_copy(value)["a"].append(2)
    assert value == {"a": [{"b": 1}]}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (POINT, {"x": 1, "z": 2}, ["z"]),
        (nested(POINT), {"spec": {"f": {"z": 1}, "g": 2}}, ["spec.f.z", "spec.g"]),
        (nested({"type": "array", "items": POINT}), {"spec": {"f": [{}, {"z": 1}]}}, ["spec.f[1].z"]),
        (nested(TEXTS), {"spec": {"f": {"a": "b"}}}, []),
        (nested({"type": "object", "additionalProperties": POINT}), {"spec": {"f": {"k": {"z": 1}}}}, ["spec.f.k.z"]),
        (nested({"type": "object", "additionalProperties": True}), {"spec": {"f": {"k": 1}}}, []),
        (nested(OPAQUE), {"spec": {"f": {"a": 1}}}, []),
        (nested(ANY), {"spec": {"f": {"a": 1}}}, []),
        (nested({"type": "array"}), {"spec": {"f": [{"a": 1}]}}, []),
    ],
)
def test_unknown_fields_are_listed_by_path(schema: dict[str, Any], value: object, expected: list[str]) -> None:
    assert list(unknown_fields(schema, value)) == expected


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (TEXT, 5, 'Invalid value: "integer": spec.f in body must be of type string: "integer"'),
        (WHOLE, "5", 'Invalid value: "string": spec.f in body must be of type integer: "string"'),
        (WHOLE, True, 'Invalid value: "boolean": spec.f in body must be of type integer: "boolean"'),
        (WHOLE, 1.5, 'Invalid value: "number": spec.f in body must be of type integer: "number"'),
        ({"type": "number"}, False, 'Invalid value: "boolean": spec.f in body must be of type number: "boolean"'),
        ({"type": "boolean"}, 0, 'Invalid value: "integer": spec.f in body must be of type boolean: "integer"'),
        (POINT, [], 'Invalid value: "array": spec.f in body must be of type object: "array"'),
        ({"type": "array"}, {}, 'Invalid value: "object": spec.f in body must be of type array: "object"'),
        (
            INT_OR_TEXT,
            1.5,
            'Invalid value: "number": spec.f in body must be of type integer or string: "number"',
        ),
        (TEXT, None, 'Invalid value: null: spec.f in body must be of type string: "null"'),
        (TEXT | {"enum": ["a", "b"]}, "c", 'Unsupported value: "c": supported values: "a", "b"'),
        (WHOLE | {"minimum": 1}, 0, "Invalid value: 0: spec.f in body should be greater than or equal to 1"),
        (WHOLE | {"maximum": 9}, 10, "Invalid value: 10: spec.f in body should be less than or equal to 9"),
        (
            WHOLE | {"format": "int32"},
            2**31,
            "Invalid value: 2147483648: spec.f in body must be of type int32: 2147483648",
        ),
        (TEXT | {"maxLength": 2}, "abc", "Too long: may not be more than 2 bytes"),
        (TEXT | {"minLength": 2}, "a", 'Invalid value: "a": spec.f in body should be at least 2 chars long'),
        (TEXT | {"pattern": "^a$"}, "b", "Invalid value: \"b\": spec.f in body should match '^a$'"),
        ({"type": "array", "minItems": 1}, [], "Invalid value: 0: spec.f in body should have at least 1 items"),
        ({"type": "array", "maxItems": 1}, [1, 2], "Too many: 2: must have at most 1 items"),
        (OPAQUE | {"maxProperties": 1}, {"a": 1, "b": 2}, "Too many: 2: must have at most 1 items"),
    ],
)
def test_violation_message_equals_kube_apiservers(schema: dict[str, Any], value: object, expected: str) -> None:
    problems = list(breaches(nested(schema), {"spec": {"f": value}}))
    assert [(problem.where, problem.what) for problem in problems] == [(PLACE, expected)]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (WHOLE, 3.0),
        (INT_OR_TEXT, "5%"),
        (INT_OR_TEXT, 5),
        ({"type": "number"}, 1),
        (TEXT | {"nullable": True}, None),
        (TEXT | {"enum": ["a"], "pattern": "a", "minLength": 1, "maxLength": 1}, "a"),
        (WHOLE | {"minimum": 1, "maximum": 1, "format": "int64"}, 1),
        ({"type": "array", "minItems": 1, "maxItems": 1, "items": TEXT}, ["a"]),
        ({}, object),
        ({"type": "boolean"}, True),
        (OPAQUE | {"maxProperties": 1}, {"a": 1}),
        (TEXTS, {"a": "b"}),
    ],
)
def test_valid_value_has_no_violations(schema: dict[str, Any], value: object) -> None:
    assert list(breaches(schema, value)) == []


def test_missing_required_field_is_reported() -> None:
    schema = nested({"type": "object", "required": ["a"]})
    results = [(problem.where, problem.what) for problem in breaches(schema, {"spec": {"f": {}}})]
    assert results == [("spec.f.a", "Required value")]


def test_missing_required_field_at_the_root_is_reported() -> None:
    assert [problem.where for problem in breaches({"type": "object", "required": ["a"]}, {})] == ["a"]


def test_every_list_item_is_validated() -> None:
    result = breaches({"type": "array", "items": TEXT}, ["a", 1, 2], "x")
    assert [problem.where for problem in result] == ["x[1]", "x[2]"]


def test_long_value_is_truncated_in_the_message() -> None:
    (problem,) = breaches(TEXT | {"pattern": "^b"}, "a" * 500, "x")
    assert len(problem.what) < 200


def test_identical_old_values_are_shared() -> None:
    old = {"kept": {"count": 1, "size": 1}, "items": ["a"], "changed": 1}
    entry = completed(SHARED, {**old, "changed": 2}, old)
    assert entry == {**old, "changed": 2}
    assert entry["kept"] is old["kept"]
    assert entry["items"] is old["items"]


def test_equal_but_not_identical_values_get_defaults() -> None:
    old = {"kept": {"count": 1}, "items": ["a"]}
    entry = completed(SHARED, {"kept": {"count": 1}, "items": ["a"]}, old)
    assert entry == {"kept": {"count": 1, "size": 1}, "items": ["a"]}
    assert entry["items"] is not old["items"]


def test_identical_old_values_are_not_validated_again() -> None:
    old = {"kept": {"count": "was let in once"}, "changed": 1}
    assert list(breaches(SHARED, {**old, "changed": 2}, old=old)) == []
    assert [problem.where for problem in breaches(SHARED, {**old, "changed": "2"}, old=old)] == ["changed"]
    assert [problem.where for problem in breaches(SHARED, {"kept": {"count": "new"}}, old=old)] == ["kept.count"]


class CountedName(str):
    """A name that counts its comparisons."""

    __slots__ = ()

    comparison_count = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparison_count += 1
        return str(self) == str(other)

    __hash__ = str.__hash__


def test_duplicate_map_list_keys_are_found_in_linear_time() -> None:
    schema = {
        "type": "array",
        "items": {"type": "object", "properties": {"name": {"type": "string"}}},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    CountedName.comparison_count = 0
    value = [{"name": CountedName(f"N{number % 1999}")} for number in range(2000)]
    assert [problem.where for problem in breaches(schema, value, "env")] == ["env[1999]"]
    assert CountedName.comparison_count < 10 * len(value)


def test_list_above_max_items_is_not_traversed() -> None:
    schema = {"type": "array", "maxItems": 2, "items": {"type": "string"}, **_MAP}
    (problem,) = breaches(schema, [{"name": "same"}] * 100_000, "list")
    assert problem.what == "Too many: 100000: must have at most 2 items"
    items = {"type": "array", "maxItems": 2, "items": POINT}
    many = [{"x": 1, "other": 1}] * 3
    assert completed(items, many) is many
    assert list(unknown_fields(items, many, "list")) == []


def test_each_map_list_element_key_is_read_once() -> None:
    counted = 0

    class Counted(dict[str, object]):
        def __getitem__(self, key: str) -> object:
            nonlocal counted
            counted += 1
            return super().__getitem__(key)

    problems = list(breaches({"type": "array", **_MAP}, [Counted(name=str(number)) for number in range(1_000)], "list"))
    assert (problems, counted) == ([], 1_000)
