"""Which lists of Kubernetes' own kinds a strategic merge patch merges, and by which key.

Facts: ``x-kubernetes-patch-strategy`` and ``x-kubernetes-patch-merge-key`` of ``builtin_schemas``. A list without them is replaced as
a whole. Kinds without a schema there are custom resources, which have no such keys.
"""

import functools
from collections.abc import Mapping

import msgspec

from serving.cluster.kinds import Kind
from serving.home.schemas.builtin_schemas import builtin_schemas, resolved, schema_name
from serving.home.schemas.schema import Schema


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """How one field is merged: a list by ``merge_key``, a list of texts as a union, an object field by field."""

    merge_key: str = ""
    texts: bool = False
    below: "Mapping[str, Hint]" = {}


NO_HINT = Hint()


@functools.cache
def hints_of(kind: Kind) -> Mapping[str, Hint] | None:
    """How a kind's fields are merged; None for a custom resource."""
    schema = builtin_schemas().get(schema_name(kind))
    return None if schema is None else _below(schema)


def _below(schema: Schema) -> Mapping[str, Hint]:
    """The hints of an object's fields, without those that say nothing."""
    hints = {name: _hint(one) for name, one in schema.get("properties", {}).items()}
    return {name: hint for name, hint in hints.items() if hint != NO_HINT}


def _hint(schema: Schema) -> Hint:
    merge_key = schema.get("x-kubernetes-patch-merge-key", "")
    is_merged = "merge" in schema.get("x-kubernetes-patch-strategy", "")
    inner = schema.get("items", schema)
    # Elements of a list that is replaced are never merged.
    below = {} if inner is not schema and not is_merged else _below(resolved(inner))
    return Hint(merge_key=merge_key, texts=is_merged and not merge_key and "items" in schema, below=below)
