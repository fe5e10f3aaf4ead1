"""The schemas of Kubernetes' own kinds: types of fields, which lists are maps, and by which keys.

Input: ``config/openapi/kubernetes.json``, reduced from Kubernetes' OpenAPI documents by ``tests/conformance/reduce_openapi.py``.
A kind that is neither there nor a custom resource has an open schema. Pure except for reading the file once.
"""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from serving.cluster.kinds import Kind
from serving.home.schemas.crds import crd_folder, crds
from serving.home.schemas.schema import Schema

SCHEMAS_FILE = crd_folder().parent / "openapi" / "kubernetes.json"

OPEN_SCHEMA: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""Any object."""

_DESCRIPTIONS_FILE = SCHEMAS_FILE.with_name("descriptions.yaml")
_REF = "#/components/schemas/"
_METADATA = "meta.v1.ObjectMeta"


@functools.cache
def builtin_schemas() -> dict[str, dict[str, Any]]:
    """All schemas by their short names, such as "core.v1.Pod". Do not change them."""
    return msgspec.json.decode(SCHEMAS_FILE.read_bytes(), type=dict[str, dict[str, Any]])


@functools.cache
def _descriptions() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = yaml.safe_load(_DESCRIPTIONS_FILE.read_text(encoding="utf-8"))
    return found


def described_schema(name: str) -> dict[str, Any]:
    """A schema with descriptions, for clients."""
    schema, texts = builtin_schemas()[name], _descriptions().get(name, {})
    properties = {
        field: {"description": texts[field], **_inner(one)} if field in texts else one
        for field, one in schema.get("properties", {}).items()
    }
    result = {**schema, **({"properties": properties} if properties else {})}
    return {"description": texts[""], **result} if "" in texts else result


def _inner(schema: dict[str, Any]) -> dict[str, Any]:
    """A reference beside a description would hide it."""
    if "$ref" not in schema:
        return schema
    return {**{key: one for key, one in schema.items() if key != "$ref"}, "allOf": [{"$ref": schema["$ref"]}]}


def referred(schema: object) -> Iterator[str]:
    """The names of all schemas that a schema refers to, directly."""
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_REF)
        for one in schema.values():
            yield from referred(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from referred(one)


def schema_name(kind: Kind) -> str:
    """The name of a kind's schema: the first part of its group, its version, its name."""
    return f"{(kind.group or 'core').partition('.')[0]}.{kind.version}.{kind.name}"


def resolved(schema: Schema) -> Schema:
    """The schema that a reference names; other schemas are returned as they are."""
    reference = schema.get("$ref")
    return schema if reference is None else builtin_schemas()[reference.removeprefix(_REF)]


@functools.cache
def schema_of(kind: Kind) -> Schema:
    """The schema of a kind, with that of ``metadata``."""
    crd = crds().get(kind)
    schema = crd.schema if crd else builtin_schemas().get(schema_name(kind), OPEN_SCHEMA)
    metadata = {"$ref": _REF + _METADATA}
    return {**schema, "properties": {**schema.get("properties", {}), "metadata": metadata}}
