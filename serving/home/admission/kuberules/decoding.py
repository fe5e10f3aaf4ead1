"""Finds values of wrong types in Kubernetes' own kinds, which a real API server cannot decode.

Input: a schema of ``builtin_schemas`` and a value; output: a ``Problem`` for each wrong value. A field of null equals an
absent field, as in Go; lists and maps have no nulls. Unknown fields are ignored, because they are reported elsewhere. Pure.
"""

import base64
import binascii
import datetime as dt
from collections.abc import Iterator
from typing import Any

from serving.core.model.errors import Problem
from serving.home.admission.kuberules.formats import Json, is_quantity
from serving.home.schemas.crds import builtin_schemas, crds, resolved, schema_of
from serving.home.schemas.schema import Schema, has_type
from serving.net.cluster.kinds import Kind

_QUANTITY = "api.resource.Quantity"
_INTEGERS = {"int32": range(-(2**31), 2**31), "int64": range(-(2**63), 2**63)}
_FORMATS = {
    "byte": "base64",
    "date-time": "a time such as 2026-01-02T03:04:05Z",
    "int32": "a whole number of 32 bits",
    "int64": "a whole number of 64 bits",
}
_TEXT = {"type": "string"}
_NAMES = {
    type(None): "null",
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}


def undecodable(kind: Kind, whole: Json) -> list[Problem]:
    """The problems of values with a wrong type. For a custom resource, only metadata is checked."""
    schema = schema_of(kind)
    if kind in crds():
        schema = {"properties": {"metadata": schema["properties"]["metadata"]}}
    return list(type_problems(schema, whole, ""))


def pod_type_problems(spec: object, where: str) -> Iterator[Problem]:
    """Yield a problem for each value of a pod spec with a wrong type."""
    yield from type_problems(builtin_schemas()["core.v1.PodSpec"], spec, where)


def type_problems(schema: Schema, value: Any, path: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    """Yield a problem for each value, at a path or below, with a wrong type or format."""
    if value is None:
        return
    reference, schema = schema.get("$ref", ""), resolved(schema)
    if expected := _expected(schema, value, is_quantity_wanted=reference.endswith(_QUANTITY)):
        yield _wrong(path, value, expected)
    else:
        for below, child, where in _parts(schema, value, path):
            if child is None:
                yield _null(below, where)
            else:
                yield from type_problems(below, child, where)


def _parts(schema: Schema, value: Any, path: str) -> Iterator[tuple[Schema, Any, str]]:  # noqa: ANN401 - JSON
    """Yield the schema, value and path of each part to check. Fields of null are absent, and are not yielded."""
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key, child in value.items():
            known = properties.get(key)
            # In a map of texts null is an empty text.
            if known is None and isinstance(rest, dict) and (child is not None or rest != _TEXT):
                known = rest
            elif child is None:
                continue
            if known is not None and not _is_plain_text(known, child):
                yield known, child, f"{path}.{key}" if path else key
    elif isinstance(value, list):
        items = schema.get("items", {})
        for index, child in enumerate(value):
            if not _is_plain_text(items, child):
                yield items, child, f"{path}[{index}]"


def _is_plain_text(schema: Schema, value: object) -> bool:
    """Whether the value is a text and the schema accepts any text."""
    return schema == _TEXT and type(value) is str


def _expected(schema: Schema, value: object, *, is_quantity_wanted: bool) -> str:
    """The expected type or format of a value; "" if the value matches.

    ``is_quantity_wanted``: a value that may be a number or a string must be a quantity such as 128Mi.
    """
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str | float):
            return "a number or a string"
        return "a quantity, as 128Mi, 1Gi, 500m or 2" if is_quantity_wanted and not is_quantity(value) else ""
    wanted = schema.get("type", "")
    if wanted and not has_type(schema, value):
        return f"of type {wanted}"
    has_format = "format" not in schema or _has_format(schema["format"], value)
    return "" if has_format else _FORMATS[schema["format"]]


def _has_format(wanted: str, value: Any) -> bool:  # noqa: ANN401 - of the schema's type
    try:
        match wanted:
            case "byte":
                base64.b64decode("".join(value.split()), validate=True)
            case "date-time":
                dt.datetime.fromisoformat(value)
            case "int32" | "int64":
                return int(value) in _INTEGERS[wanted]
    except (binascii.Error, ValueError):
        return False
    return True


def _null(schema: Schema, path: str) -> Problem:
    wanted = resolved(schema).get("type")
    return _wrong(path, None, f"of type {wanted}" if wanted else "a value")


def _wrong(path: str, value: object, expected: str) -> Problem:
    name = _NAMES.get(type(value), "a value")
    # Values that should be base64 are often secret.
    shown = f' "{value[:40]}"' if isinstance(value, str) and expected != _FORMATS["byte"] else ""
    return Problem(where=path, what=f"must be {expected}, not {name}{shown}", expected=expected)
