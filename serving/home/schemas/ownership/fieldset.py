"""Sets of fields of an object, in the format FieldsV1 of ``metadata.managedFields``.

A set is a tree whose keys are path elements: ``f:NAME`` is a field, ``k:{...}`` a list element by its keys, ``v:VALUE``
a member of a list of values. ``.`` means that the element itself is in the set. An element without children is also in
the set. So {"f:spec": {"f:replicas": {}}} has the single field ``.spec.replicas``. Format:
sigs.k8s.io/structured-merge-diff/fieldpath. Pure.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

FieldSet = dict[str, Any]
"""An immutable set of fields; sets share parts."""

ITSELF = "."
"""The key by which an element with children is itself in the set."""


def field_element(name: str) -> str:
    """The path element of an object's field."""
    return f"f:{name}"


def key_element(keys: Mapping[str, Any]) -> str:
    """The path element of a list element, given its key fields."""
    return "k:" + json.dumps(dict(sorted(keys.items())), separators=(",", ":"), ensure_ascii=False)


def value_element(value: object) -> str:
    """The path element of a member of a list of values."""
    return "v:" + json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def is_member(node: FieldSet) -> bool:
    """Whether the field at a node of a set is itself in the set. Otherwise only fields below it are."""
    return not node or ITSELF in node


def children(node: FieldSet) -> FieldSet:
    """The part of a set that is below a node, without the field at the node itself."""
    return {key: below for key, below in node.items() if key != ITSELF} if ITSELF in node else node


def union(fields: FieldSet, other: FieldSet) -> FieldSet:
    """The fields in either of two sets."""
    result = dict(fields)
    for key, node in other.items():
        before = result.get(key)
        result[key] = (
            node if before is None else _node(union(before, node), in_set=is_member(before) or is_member(node))
        )
    return result


def difference(fields: FieldSet, other: FieldSet) -> FieldSet:
    """The fields of the first set that are not in the second."""
    result = {}
    for key, node in children(fields).items():
        taken = other.get(key)
        if taken is None:
            result[key] = node
            continue
        in_set = is_member(node) and not is_member(taken)
        below = difference(children(node), children(taken))
        if in_set or below:
            result[key] = _node(below, in_set=in_set)
    return result


def common(fields: FieldSet, other: FieldSet) -> FieldSet:
    """The fields in both sets."""
    result = {}
    for key, node in children(fields).items():
        its = other.get(key)
        if its is None:
            continue
        in_set = is_member(node) and is_member(its)
        below = common(children(node), children(its))
        if in_set or below:
            result[key] = _node(below, in_set=in_set)
    return result


def _node(below: FieldSet, *, in_set: bool) -> FieldSet:
    below = children(below)
    return {ITSELF: {}, **below} if in_set and below else below


def paths(fields: FieldSet, prefix: str = "") -> Iterator[str]:
    """The fields of a set in the form of Kubernetes' messages: ``.spec.containers[name="app"].image``."""
    for key, node in children(fields).items():
        path = prefix + shown(key)
        if is_member(node):
            yield path
        yield from paths(children(node), path)


def shown(element: str) -> str:
    """A path element as Kubernetes' messages show it."""
    kind, _, text = element.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = json.loads(text)
        return "[" + ",".join(f"{name}={_compact(value)}" for name, value in keys.items()) + "]"
    return f"[={text}]"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def well_formed(fields: object) -> bool:
    """Whether a client's JSON value is a valid set of fields."""
    if not isinstance(fields, dict):
        return False
    return all((key == ITSELF or _is_element(key)) and well_formed(node) for key, node in fields.items())


def _is_element(key: str) -> bool:
    kind, _, text = key.partition(":")
    if kind == "f":
        return bool(text)
    if kind not in {"k", "v", "i"}:
        return False
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return kind != "k" or isinstance(value, dict)
