"""Structural schemas of custom resources: fill in defaults, prune unknown fields, and report every violation.

Input: the ``openAPIV3Schema`` of a CRD, as read from YAML, and a value; output: a new value, a list of unknown fields,
or a ``Problem`` for each violation, in the words of a kube-apiserver ("Invalid value: ..."). Rules in CEL are
``validations.py``'s. Follows the structural schemas of apiextensions.k8s.io/v1: disallowed nulls are pruned before
defaults are filled in; a default needs its parent object.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serving.core.model.errors import Problem

Schema = Mapping[str, Any]
Resolve = Callable[[Schema], Schema]
"""Returns the schema named by a reference."""

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_INTEGER_MAX = {"int32": 2**31 - 1, "int64": 2**63 - 1}
_SHOWN_LENGTH_MAX = 100
# Patterns in CRDs that need an explanation, with the text to show instead.
_TEXTS = {
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$": "a quantity, as 128Mi, 1Gi, 500m or 2"
}
DEPTH_MAX = 200
"""Deepest nesting of an object or patch, above that of any manifest, and below Python's recursion limits."""

_NESTING = (dict, list)
# A sentinel that equals no value.
_NOTHING = object()

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def deep_copy(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A copy of a JSON value, three times as fast as ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: deep_copy(child) for key, child in value.items()}
    if isinstance(value, list):
        return [deep_copy(child) for child in value]
    return value


def is_within(value: Any, values_max: int) -> bool:  # noqa: ANN401 - JSON
    """Whether a JSON value has at most ``values_max`` values at any depth. Counting stops at the limit."""
    waiting, remaining = [value], values_max
    while waiting:
        container = waiting.pop()
        remaining -= len(container)
        if remaining < 0:
            return False
        waiting += [
            child
            for child in (container.values() if isinstance(container, dict) else container)
            if type(child) in _NESTING
        ]
    return True


def is_shallow(value: object) -> bool:
    """Whether a JSON value is nested at most ``DEPTH_MAX`` deep, independent of Python's recursion limit."""
    level: list[Any] = [value] if type(value) in _NESTING else []
    for _ in range(DEPTH_MAX):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if type(child) in _NESTING
        ]
        if not level:
            return True
    return not level


def completed(schema: Schema, value: Any, old: Any = None) -> Any:  # noqa: ANN401 - JSON
    """A copy of a value with defaults, without unknown fields, and without nulls that the schema forbids.

    ``old`` is the stored value, which is already complete. A part that is the same Python object in ``old`` is not
    copied.
    """
    if isinstance(value, dict):
        return value if value is old else _completed_object(schema, value, old if isinstance(old, dict) else {})
    if isinstance(value, list):
        # A list that is too long is refused, whatever its content.
        if value is old or _is_too_long(schema, value):
            return value
        items = schema.get("items")
        return [deep_copy(child) if items is None else completed(items, child) for child in value]
    return value


def _completed_object(schema: Schema, value: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties")
    keeps = schema.get(_PRESERVE, False) or (rest is None and not properties)
    result: dict[str, Any] = {}
    for key, child in value.items():
        known = properties.get(key, rest if isinstance(rest, Mapping) else None)
        if known is None:
            if keeps or rest is True:
                result[key] = deep_copy(child)
        elif child is not None or known.get("nullable"):
            result[key] = completed(known, child, old.get(key))
    for key, known in properties.items():
        if key not in result and "default" in known:
            result[key] = completed(known, deep_copy(known["default"]))
    return result


def _is_too_long(schema: Schema, value: list[Any]) -> bool:
    most = schema.get("maxItems")
    return most is not None and len(value) > most


def _itself(schema: Schema) -> Schema:
    return schema


def unknown_fields(schema: Schema, value: object, path: str = "", *, resolve: Resolve = _itself) -> Iterator[str]:
    """The paths of all unknown fields, in the order of the value."""
    schema = resolve(schema)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        keeps = schema.get(_PRESERVE, False) or (rest is None and not properties) or rest is True
        for key, child in value.items():
            known = properties.get(key, rest if isinstance(rest, Mapping) else None)
            where = f"{path}.{key}" if path else key
            if known is not None:
                yield from unknown_fields(known, child, where, resolve=resolve)
            elif not keeps:
                yield where
    elif isinstance(value, list) and "items" in schema and not _is_too_long(schema, value):
        for index, child in enumerate(value):
            yield from unknown_fields(schema["items"], child, f"{path}[{index}]", resolve=resolve)


def breaches(schema: Schema, value: object, path: str = "", *, old: object = _NOTHING) -> Iterator[Problem]:
    """Yield every violation of the schema in a value. Parts that are the same Python objects in ``old`` are skipped."""
    if value is old:
        return
    if value is None:
        if not schema.get("nullable"):
            yield _invalid(
                path, "null", f'{path} in body must be of type {_type_of(schema)}: "null"', expected=_type_of(schema)
            )
        return
    if not has_type(schema, value):
        message = f'{path} in body must be of type {_type_of(schema)}: "{_name_of(value)}"'
        yield _invalid(path, json.dumps(_name_of(value)), message, expected=f"a value of type {_type_of(schema)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        choices = ", ".join(json.dumps(choice) for choice in schema["enum"])
        yield Problem(
            where=path, what=f"Unsupported value: {_shown(value)}: supported values: {choices}", expected=choices
        )
    if isinstance(value, dict):
        yield from _object_breaches(schema, value, path, old=old if isinstance(old, dict) else {})
    elif isinstance(value, list):
        yield from _list_breaches(schema, value, path)
    elif isinstance(value, str):
        yield from _text_breaches(schema, value, path)
    elif not isinstance(value, bool) and isinstance(value, int | float):
        yield from _number_breaches(schema, value, path)


def _object_breaches(
    schema: Schema, value: dict[str, Any], path: str, *, old: Mapping[str, object]
) -> Iterator[Problem]:
    prefix = f"{path}." if path else ""
    for key in schema.get("required", ()):
        if key not in value:
            yield Problem(where=prefix + key, what="Required value", expected="a value")
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties")
    for key, child in value.items():
        known = properties.get(key, rest if isinstance(rest, Mapping) else None)
        if known is not None:
            yield from breaches(known, child, prefix + key, old=old.get(key, _NOTHING))
    most = schema.get("maxProperties")
    if most is not None and len(value) > most:
        yield Problem(
            where=path, what=f"Too many: {len(value)}: must have at most {most} items", expected=f"at most {most}"
        )


def _list_breaches(schema: Schema, value: list[Any], path: str) -> Iterator[Problem]:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least:
        message = f"{path} in body should have at least {least} items"
        yield _invalid(path, str(len(value)), message, expected=f"at least {least} items")
    if _is_too_long(schema, value):
        yield Problem(
            where=path, what=f"Too many: {len(value)}: must have at most {most} items", expected=f"at most {most} items"
        )
        # The limit is checked first, because 100,000 elements would take seconds.
        return
    if "items" in schema:
        for index, child in enumerate(value):
            yield from breaches(schema["items"], child, f"{path}[{index}]")
    if schema.get("x-kubernetes-list-type") == "map":
        yield from _duplicates(schema["x-kubernetes-list-map-keys"], value, path)


def _duplicates(names: Sequence[str], value: list[Any], path: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, child in enumerate(value):
        keys = {name: child[name] for name in names if name in child} if isinstance(child, dict) else {}
        # One look-up per element, because the list may have 100,000.
        text = json.dumps(keys, separators=(",", ":"))
        if keys and text in seen:
            yield Problem(
                where=f"{path}[{index}]", what=f"Duplicate value: {text}", expected="elements with different keys"
            )
        seen.add(text)


def _text_breaches(schema: Schema, value: str, path: str) -> Iterator[Problem]:
    most, least, pattern = schema.get("maxLength"), schema.get("minLength", 0), schema.get("pattern")
    if most is not None and len(value) > most:
        what = f"Too long: may not be more than {most} bytes"
        yield Problem(where=path, what=what, expected=f"at most {most} characters")
    if len(value) < least:
        message = f"{path} in body should be at least {least} chars long"
        yield _invalid(path, _shown(value), message, expected=f"at least {least} characters")
    if pattern is not None and not re.search(pattern, value):
        expected = _TEXTS.get(pattern)
        message = f"{path} in body should be {expected}" if expected else f"{path} in body should match '{pattern}'"
        yield _invalid(path, _shown(value), message, expected=expected or f"a text like {pattern}")


def _number_breaches(schema: Schema, value: float, path: str) -> Iterator[Problem]:
    least, most = schema.get("minimum"), schema.get("maximum")
    widest = _INTEGER_MAX.get(schema.get("format", ""))
    if widest is not None and abs(value) > widest:
        message = f"{path} in body must be of type {schema['format']}: {_shown(value)}"
        yield _invalid(path, _shown(value), message, expected=f"at most {widest}")
    if least is not None and value < least:
        message = f"{path} in body should be greater than or equal to {least}"
        yield _invalid(path, _shown(value), message, expected=f"{least} or more")
    if most is not None and value > most:
        yield _invalid(
            path, _shown(value), f"{path} in body should be less than or equal to {most}", expected=f"at most {most}"
        )


def has_type(schema: Schema, value: object) -> bool:
    """Whether a value has the type of a schema. JSON has one kind of number: 3.0 is an integer."""
    wanted = (int, str) if schema.get(_INT_OR_STRING) else _PYTHON_TYPES.get(schema.get("type", ""))
    if wanted is None:
        return True
    if isinstance(value, bool):
        return bool in wanted
    return isinstance(value, wanted) or (wanted == (int,) and isinstance(value, float) and value.is_integer())


def _type_of(schema: Schema) -> str:
    return "integer or string" if schema.get(_INT_OR_STRING) else str(schema.get("type", "object"))


def _name_of(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "..."


def _invalid(path: str, value: str, message: str, *, expected: str) -> Problem:
    return Problem(where=path, what=f"Invalid value: {value}: {message}", expected=expected)
