from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.schemas.patch import JSON_OPERATIONS_MAX, VALUES_MAX, check_values, json_patch, merge_patch, same_json


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # RFC 7386, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": 1, "b": 2}, {"b": None, "c": {"d": None}}, {"a": 1, "c": {}}),
    ],
)
def test_merge_patch_results_equal_rfc_7386(target: Any, patch: Any, result: Any) -> None:  # noqa: ANN401 - JSON
    assert merge_patch(target, patch) == result


def test_merge_patch_does_not_mutate_its_inputs() -> None:
    target, patch = {"a": {"b": 1}}, {"a": {"c": 2, "b": None}}
    merge_patch(target, patch)
    assert (target, patch) == ({"a": {"b": 1}}, {"a": {"c": 2, "b": None}})


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        (None, None, True),
        (None, False, False),
        ("1", 1, False),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ({"a": [1]}, {"a": [True]}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({}, [], False),
        ([], {}, False),
    ],
)
def test_same_json_compares_values_and_types(left: object, right: object, same: bool) -> None:
    assert same_json(left, right) is same


@pytest.mark.parametrize(
    ("target", "operation", "result"),
    [
        ({"a": [1, 2]}, {"op": "add", "path": "/a/1", "value": 9}, {"a": [1, 9, 2]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 9}, {"a": [1, 9]}),
        ({"a": [1]}, {"op": "add", "path": "/a/1", "value": 9}, {"a": [1, 9]}),
        ({"a": 1}, {"op": "add", "path": "", "value": {"b": 2}}, {"b": 2}),
        ({"a": {"b": 1}}, {"op": "add", "path": "/a/b", "value": 2}, {"a": {"b": 2}}),
        ({"a": [{"b": 1}]}, {"op": "add", "path": "/a/0/c", "value": 2}, {"a": [{"b": 1, "c": 2}]}),
        ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
        ({"a": [{"b": 1}]}, {"op": "remove", "path": "/a/0/b"}, {"a": [{}]}),
        ({"a": [1, 2]}, {"op": "replace", "path": "/a/0", "value": 9}, {"a": [9, 2]}),
        ({"a": 1}, {"op": "replace", "path": "", "value": 9}, 9),
        ({"a": [1, 2, 3]}, {"op": "move", "from": "/a/0", "path": "/a/2"}, {"a": [2, 3, 1]}),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/a"}, {"a": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": None}, {"op": "test", "path": "/a", "value": None}, {"a": None}),
        ({"~1": 1, "m~n": 8}, {"op": "test", "path": "/m~0n", "value": 8}, {"~1": 1, "m~n": 8}),
        ({"": 1}, {"op": "remove", "path": "/"}, {}),
    ],
)
def test_json_patch_operation_is_applied(target: Any, operation: dict[str, Any], result: Any) -> None:  # noqa: ANN401 - JSON
    assert json_patch(target, [operation]) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "add", "path": "/a/3", "value": 1},
        {"op": "add", "path": "/a/01", "value": 1},
        {"op": "add", "path": "/a/+1", "value": 1},
        {"op": "add", "path": "/a/" + "9" * 5000, "value": 1},
        {"op": "add", "path": "/s/x", "value": 1},
        {"op": "add", "path": "/a/-/x", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "value": 1},
        {"op": "remove", "path": ""},
        {"op": "remove", "path": "/nothing"},
        {"op": "remove", "path": "/a/-"},
        {"op": "remove", "path": "/s/x"},
        {"op": "replace", "path": "/nothing", "value": 1},
        {"op": "move", "from": "/o", "path": "/o/inside"},
        {"op": "move", "path": "/x"},
        {"op": "copy", "from": "/nothing", "path": "/x"},
        {"op": "test", "path": "/a/0", "value": True},
        {"op": "test", "path": "/s", "value": "other"},
        {"op": "swap", "path": "/a"},
        "remove",
    ],
)
def test_invalid_json_patch_operation_is_rejected(operation: Any) -> None:  # noqa: ANN401 - JSON
    with pytest.raises(Invalid, match=r"operation 0 of the JSON patch|a path of a JSON patch"):
        json_patch({"a": [1, 2], "s": "text", "o": {"inside": 1}}, [operation])


def test_json_patch_with_too_many_operations_is_rejected() -> None:
    with pytest.raises(Invalid, match="at most"):
        json_patch({}, [{"op": "test", "path": "", "value": {}}] * (JSON_OPERATIONS_MAX + 1))


@pytest.mark.parametrize("operation", [{"path": "/a" * 101}, {"path": "/", "from": "/" + "a" * 2048}])
def test_json_patch_path_with_too_many_parts_is_rejected(operation: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="2048 characters and 100 parts"):
        json_patch({}, [{"op": "move", **operation}])


def test_parts_of_all_json_patch_paths_are_limited() -> None:
    with pytest.raises(Invalid, match="at most 60000 parts, these have 60100"):
        json_patch({}, [{"op": "remove", "path": "/a" * 100}] * 601)


def test_values_per_object_and_copy_are_limited() -> None:
    check_values({"a": [[1] * (VALUES_MAX - 2)]})
    with pytest.raises(Invalid, match="at most 20000 values"):
        check_values({"a": [[1] * VALUES_MAX]})
    with pytest.raises(Invalid, match="a copy has more than"):
        json_patch({"a": [1] * (VALUES_MAX + 1)}, [{"op": "copy", "from": "/a", "path": "/b"}])


def test_doubling_json_patch_copies_are_rejected() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(40)]
    with pytest.raises(Invalid, match="copies make more than"):
        json_patch({"a": {"b": "x" * 1000}}, doubling)


def test_json_patch_does_not_mutate_its_inputs() -> None:
    target, operations = {"a": {"b": 1}}, [{"op": "add", "path": "/a/c", "value": {"d": 1}}]
    operations.append({"op": "add", "path": "/a/c/e", "value": {}})
    json_patch(target, operations)
    assert (target, operations[0]["value"]) == ({"a": {"b": 1}}, {"d": 1})
