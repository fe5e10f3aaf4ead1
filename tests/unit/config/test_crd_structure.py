"""The custom resources' schemas are structural: a server prunes and defaults by them, and refuses others."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from serving.cluster.kinds import Kind
from serving.home.schemas.crds import crds

_LOGIC = ("allOf", "anyOf", "oneOf")
_NOT_IN_LOGIC = {"type", "default", "description", "title", "additionalProperties", "nullable"}
_NEEDS_NO_TYPE = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")


def unstructural(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """What keeps a schema from being structural (Kubernetes' rules 1 to 4 of structural schemas)."""
    if not schema.get("type") and not any(schema.get(key) for key in _NEEDS_NO_TYPE):
        yield f"{path}: no type"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: both properties and additionalProperties"
    for logic in _LOGIC:
        for inner in schema.get(logic, ()):
            yield from _in_logic(inner, schema, f"{path}.{logic}")
    if "not" in schema:
        yield from _in_logic(schema["not"], schema, f"{path}.not")
    for name, inner in schema.get("properties", {}).items():
        yield from unstructural(inner, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from unstructural(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from unstructural(schema["additionalProperties"], f"{path}.*")


def _in_logic(inner: Mapping[str, Any], outer: Mapping[str, Any], path: str) -> Iterator[str]:
    is_int_or_string = bool(outer.get("x-kubernetes-int-or-string"))
    forbidden = (_NOT_IN_LOGIC - {"type"}) if is_int_or_string else _NOT_IN_LOGIC
    for name in forbidden & inner.keys():
        yield f"{path}: {name} inside of logic"
    for name, deeper in inner.get("properties", {}).items():
        if name not in outer.get("properties", {}):
            yield f"{path}.{name}: named in logic only"
        else:
            yield from _in_logic(deeper, outer["properties"][name], f"{path}.{name}")


@pytest.mark.parametrize("kind", crds(), ids=lambda kind: kind.resource)
def test_a_schema_is_structural(kind: Kind) -> None:
    assert list(unstructural(crds()[kind].schema)) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {}}, ": no type"),
        ({"type": "object", "properties": {"a": {}}}, ".a: no type"),
        ({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}, ": both properties"),
        ({"type": "object", "anyOf": [{"type": "string"}]}, ".anyOf: type inside"),
        ({"type": "object", "not": {"properties": {"a": {}}}}, ".not.a: named in logic only"),
        ({"type": "array", "items": {"x": 1}}, "[]: no type"),
    ],
)
def test_the_check_sees_what_is_not(schema: Mapping[str, Any], said: str) -> None:
    assert [text for text in unstructural(schema) if text.startswith(said)]
