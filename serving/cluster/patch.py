"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902) on plain JSON values.

Input: a value and a patch; output: a new value. What was put in is never changed, and the new value may share parts with
both. ``merge_difference`` is the other way round: the smallest merge patch from one object to another. Strategic merge
patches, which know Kubernetes' lists, are in ``cluster/strategic.py``. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.model.errors import Invalid

__all__ = ["JSON_OPERATIONS_MAX", "json_patch", "merge_difference", "merge_patch", "same_json"]

# kube-apiserver takes no more operations in one JSON patch either.
JSON_OPERATIONS_MAX = 10_000

# A dict is asked for first: to find out that something is no mapping at all takes ten times as long.
_OBJECT = (dict, Mapping)
_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


def merge_patch(target: Any, patch: Any) -> Any:  # noqa: ANN401 - JSON
    """The target after a merge patch: null removes, objects are merged, all else replaces.

    {"a": 1, "b": 2} with {"b": null, "c": {"d": null}} is {"a": 1, "c": {}}.
    """
    if not isinstance(patch, _OBJECT):
        return patch
    merged = dict(target) if isinstance(target, _OBJECT) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, _OBJECT):
            merged[key] = merge_patch(merged.get(key), value)
        else:
            merged[key] = value
    return merged


def merge_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch from one object to another; {} if they are the same. Neither may hold null inside of an object.

    From {"a": 1, "b": {"c": 2}} to {"b": {"c": 3}} it is {"a": null, "b": {"c": 3}}.
    """
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            below = merge_difference(before, value)
            if below:
                patch[key] = below
        elif key not in old or not same_json(before, value):
            patch[key] = value
    return patch


def same_json(one: object, other: object) -> bool:
    """Whether two JSON values are the same: 1 is 1.0 as in JSON, but never true, as it is in Python.

    Parts that both share are not looked into, so that after a patch only what it touched is compared.
    """
    if one is other:
        return True
    if isinstance(one, dict):
        if not isinstance(other, dict) or len(one) != len(other):
            return False
        return all(key in other and same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    return one == other


def json_patch(target: Any, operations: Sequence[object]) -> Any:  # noqa: ANN401 - JSON
    """The target after all operations, or ``Invalid`` with the first that failed; then nothing is done."""
    if len(operations) > JSON_OPERATIONS_MAX:
        raise Invalid(f"a JSON patch has at most {JSON_OPERATIONS_MAX} operations, this has {len(operations)}")
    for number, operation in enumerate(operations):
        try:
            target = _operated(target, operation)
        except _Failed as failure:
            name = operation.get("op") if isinstance(operation, Mapping) else operation
            raise Invalid(f"operation {number} of the JSON patch, {name!r}: {failure}") from failure
    return target


class _Failed(Exception):
    """An operation that cannot be done."""


def _operated(target: Any, operation: object) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(operation, Mapping) or operation.get("op") not in _OPERATIONS:
        raise _Failed(f"an operation is an object whose op is one of {', '.join(_OPERATIONS)}")
    path = _pointer(operation, "path")
    match operation["op"]:
        case "add":
            return _added(target, path, _value(operation))
        case "remove":
            return _removed(target, path)
        case "replace":
            _found(target, path)
            return _value(operation) if not path else _added(_removed(target, path), path, _value(operation))
        case "move":
            return _moved(target, _pointer(operation, "from"), path)
        case "copy":
            return _added(target, path, _found(target, _pointer(operation, "from")))
        case _:
            if not same_json(_found(target, path), _value(operation)):
                raise _Failed(f"testing value {operation['path']} failed")
            return target


def _moved(target: Any, origin: list[str], path: list[str]) -> Any:  # noqa: ANN401 - JSON
    if len(path) > len(origin) and path[: len(origin)] == origin:
        raise _Failed("a value cannot be moved into itself")
    value = _found(target, origin)
    return target if path == origin else _added(_removed(target, origin), path, value)


def _value(operation: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    if "value" not in operation:
        raise _Failed("it has no value")
    return operation["value"]


def _pointer(operation: Mapping[str, Any], key: str) -> list[str]:
    """The steps of a JSON pointer (RFC 6901): "/a~1b/0" is ["a/b", "0"]."""
    text = operation.get(key)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise _Failed(f"its {key} is not a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def _found(target: Any, path: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    for step in path:
        if isinstance(target, Mapping) and step in target:
            target = target[step]
        elif isinstance(target, list):
            target = target[_index(step, len(target) - 1)]
        else:
            raise _Failed(f"there is no {step!r} to go to")
    return target


def _index(step: str, most: int) -> int:
    if not (step.isascii() and step.isdecimal()) or (len(step) > 1 and step[0] == "0"):
        raise _Failed(f"{step!r} is not an index")
    # Longer than any list can be: int() of a very long text is slow.
    if len(step) > len(str(JSON_OPERATIONS_MAX)) * 2 or int(step) > most:
        raise _Failed(f"index {step[:20]} is outside of the list")
    return int(step)


def _added(target: Any, path: list[str], value: Any) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(target, Mapping):
        if rest and step not in target:
            raise _Failed(f"there is no {step!r} to go to")
        return {**target, step: _added(target.get(step), rest, value)}
    if not isinstance(target, list):
        raise _Failed(f"there is no place for {step!r}")
    if rest:
        index = _index(step, len(target) - 1)
        return [*target[:index], _added(target[index], rest, value), *target[index + 1 :]]
    index = len(target) if step == "-" else _index(step, len(target))
    return [*target[:index], value, *target[index:]]


def _removed(target: Any, path: list[str]) -> Any:  # noqa: ANN401 - JSON
    if not path:
        raise _Failed("the whole cannot be removed")
    step, rest = path[0], path[1:]
    if isinstance(target, Mapping) and step in target:
        if rest:
            return {**target, step: _removed(target[step], rest)}
        return {key: value for key, value in target.items() if key != step}
    if not isinstance(target, list):
        raise _Failed(f"there is no {step!r} to remove")
    index = _index(step, len(target) - 1)
    inner = [_removed(target[index], rest)] if rest else []
    return [*target[:index], *inner, *target[index + 1 :]]
