"""The schemas of Kubernetes' own kinds: types of fields, which lists are maps, and by which keys.

Input: ``config/openapi/kubernetes.json``, reduced from Kubernetes' OpenAPI documents by ``tests/conformance/reduce_openapi.py``.
A kind that is neither there nor a custom resource has an open schema. Pure except for reading the file once.
"""

import functools
from typing import Any

import msgspec

from serving.cluster.crds import crd_folder, crds
from serving.cluster.kinds import Kind
from serving.cluster.schema import Schema

__all__ = ["OPEN_SCHEMA", "SCHEMAS_FILE", "builtin_schemas", "resolved", "schema_name", "schema_of"]

SCHEMAS_FILE = crd_folder().parent / "openapi" / "kubernetes.json"

OPEN_SCHEMA: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""Any object."""

_REF = "#/components/schemas/"
_METADATA = "meta.v1.ObjectMeta"


@functools.cache
def builtin_schemas() -> dict[str, dict[str, Any]]:
    """All schemas by their short names, such as "core.v1.Pod". Do not change them."""
    return msgspec.json.decode(SCHEMAS_FILE.read_bytes(), type=dict[str, dict[str, Any]])


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
