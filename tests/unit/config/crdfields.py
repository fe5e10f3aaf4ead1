"""Field paths of custom resources, from schemas, from the records that read them, and from written values."""

import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from kubernetes.client import models

Fields = Mapping[str, str]
"""The type of each field by its path: {"spec.traffic": "array", "spec.traffic[].percent": "integer"}.

Fields of type "any" and fields below "open" are not compared.
"""

_SCALARS: Mapping[object, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_CONTAINED = re.compile(r"(?:[Ll]ist\[|[Dd]ict[\[(]str, )(.+)[\])]\Z")


def fields_of_schema(schema: Mapping[str, Any], path: str) -> dict[str, str]:
    """The fields that an openAPIV3Schema names."""
    return dict(_in_schema(schema, path))


def _in_schema(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") and "properties" not in schema
    yield path, "open" if is_open else schema.get("type", "any")
    for name, inner in schema.get("properties", {}).items():
        yield from _in_schema(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _in_schema(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _in_schema(schema["additionalProperties"], f"{path}.*")


def fields_of_record(
    record: object, path: str, *, names: Callable[[str], str] = str, left_out: Collection[type] = ()
) -> dict[str, str]:
    """The fields of a TypedDict or a Struct in JSON. ``names`` turns a field's name into its key."""
    return dict(_in_record(record, path, names, left_out))


def _in_record(
    hint: Any,  # noqa: ANN401 - a type
    path: str,
    names: Callable[[str], str],
    left_out: Collection[type],
) -> Iterator[tuple[str, str]]:
    origin, arguments = (
        typing.get_origin(hint),
        [argument for argument in typing.get_args(hint) if argument not in {type(None), ...}],
    )
    if origin is typing.Annotated or origin in {typing.Union, types.UnionType}:
        yield from _in_record(arguments[0], path, names, left_out)
    elif origin in {list, tuple}:
        yield path, "array"
        yield from _in_record(arguments[0], f"{path}[]", names, left_out)
    elif origin in {dict, Mapping} and arguments[1] is not Any:
        yield path, "object"
        yield from _in_record(arguments[1], f"{path}.*", names, left_out)
    elif typing.is_typeddict(hint):
        yield path, "object"
        for name, inner in typing.get_type_hints(hint).items():
            yield from _in_record(inner, f"{path}.{name}", names, left_out)
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield path, "object"
        hints = typing.get_type_hints(hint, include_extras=True)
        for field in msgspec.structs.fields(hint):
            if hints[field.name] not in left_out:
                yield from _in_record(hints[field.name], f"{path}.{names(field.encode_name)}", names, left_out)
    else:
        yield path, _SCALARS.get(hint, "any")


def fields_of_value(value: object, path: str) -> dict[str, str]:
    """The fields of a JSON value; for a list, the fields of all items."""
    return dict(_in_value(value, path))


def _in_value(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        yield path, "object"
        for name, inner in value.items():
            yield from _in_value(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        yield path, "array"
        for inner in value:
            yield from _in_value(inner, f"{path}[]")
    elif value is not None:
        yield path, next(name for kind, name in _SCALARS.items() if isinstance(value, typing.cast("type", kind)))


def differences(schema: Fields, record: Fields, *, record_name: str, exceptions: Mapping[str, str]) -> list[str]:
    """Fields that only one side has, and fields of different types.

    ``exceptions`` are fields that only a schema may have, with reasons.
    """
    below_open = tuple(path + step for path, kind in schema.items() if kind == "open" for step in ".[")
    return [
        *(
            f"{path}: in config/crd, but no field of {record_name}"
            for path in schema
            if path not in record and not _is_excused(path, exceptions)
        ),
        *(
            f"{path}: a field of {record_name}, but not in config/crd"
            for path in record
            if path not in schema and not path.startswith(below_open)
        ),
        *(
            f"{path}: {schema[path]} in config/crd, {record[path]} in {record_name}"
            for path in schema.keys() & record.keys()
            if not {"any", "open"} & {schema[path], record[path]} and schema[path] != record[path]
        ),
    ]


def _is_excused(path: str, exceptions: Collection[str]) -> bool:
    return any(f".{exception}." in f".{path}." for exception in exceptions)


def unknown_to_kubernetes(schema: Mapping[str, Any], model: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - a generated class
    """Fields of a schema that Kubernetes' own type lacks."""
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    for name, inner in schema.get("properties", {}).items():
        if name not in attributes:
            yield f"{path}.{name}"
            continue
        wanted = model.openapi_types[attributes[name]]
        inner_model = getattr(models, item_type(wanted), None)
        if inner_model is not None:
            items = inner if "properties" in inner else inner.get("items", inner.get("additionalProperties", {}))
            yield from unknown_to_kubernetes(items, inner_model, f"{path}.{name}")


def item_type(wanted: str) -> str:
    """The type of the items of a list or map: "V1Container" of "list[V1Container]"."""
    match_ = _CONTAINED.match(wanted)
    return item_type(match_[1]) if match_ else wanted
