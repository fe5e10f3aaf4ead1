"""Type errors of an object of Kubernetes, by the types of its Python client.

As ``fieldValidation=Strict`` on a server: unknown fields, wrong types and missing required fields. Enumerations and
rules between fields are not checked, because the generated types do not have them.
"""

import re
from collections.abc import Iterator
from typing import Any

from kubernetes.client import models

_SCALARS: dict[str, tuple[type, ...]] = {"str": (str,), "datetime": (str,), "int": (int,), "float": (int, float)}
# Bytes are text in base64.
_SCALARS |= {"bool": (bool,), "bytes": (str,)}
_INT_OR_STRING = {"max_unavailable", "max_surge", "min_available", "port", "target_port"}
_LIST = re.compile(r"[Ll]ist\[(.+)\]\Z")
_DICT = re.compile(r"[Dd]ict[(\[]str, (.+)[)\]]\Z")


def model_of(resource: dict[str, Any]) -> type | None:
    """The generated type of an object; None where the client has none."""
    version = resource["apiVersion"].rpartition("/")[2]
    return getattr(models, f"{version.capitalize()}{resource['kind']}", None)


def faults(resource: dict[str, Any]) -> list[str]:
    """Every problem, each with its path."""
    model = model_of(resource)
    return (
        [f"no type for {resource['apiVersion']} {resource['kind']}"]
        if model is None
        else list(_object("", resource, model))
    )


def _object(path: str, value: Any, model: Any) -> Iterator[str]:  # noqa: ANN401 - JSON against a generated class
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is not an object"
        return
    attributes = {name: attribute for attribute, name in model.attribute_map.items()}
    for name, inner in value.items():
        attribute = attributes.get(name)
        if attribute is None:
            yield f"{path}.{name}: no such field in {model.__name__}"
        # A server decodes null as an absent field.
        elif inner is not None and not (attribute in _INT_OR_STRING and isinstance(inner, int | str)):
            yield from _value(f"{path}.{name}", inner, model.openapi_types[attribute])
    present = [(name, inner) for name, inner in value.items() if name in attributes and inner is not None]
    try:
        model(**{attributes[name]: inner for name, inner in present})
    except ValueError as error:
        yield f"{path}: {error}"


def _value(path: str, value: Any, wanted: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    if wanted == "object":
        return
    if match_ := _LIST.match(wanted):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is not a list"
            return
        for number, inner in enumerate(value):
            yield from _value(f"{path}[{number}]", inner, match_[1])
    elif match_ := _DICT.match(wanted):
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is not a map"
            return
        for name, inner in value.items():
            yield from _value(f"{path}.{name}", inner, match_[1])
    elif wanted in _SCALARS:
        if not isinstance(value, _SCALARS[wanted]) or (isinstance(value, bool) and wanted != "bool"):
            yield f"{path}: {value!r} is not a {wanted}"
    else:
        yield from _object(path, value, getattr(models, wanted))
