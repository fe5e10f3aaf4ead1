"""Applies patches: strategic merge patches here, and the choice among all patch types in ``patched``. Pure.

A strategic merge patch treats some lists of Kubernetes' own kinds as maps. Input: a kind, an object and a patch;
output: a new object. Lists with a merge key (containers by name, conditions by type) are merged element by element.
Lists of strings such as finalizers become unions. All other lists are replaced. Elements of the patch have the patch's
order, unless ``$setElementOrder`` sets another. Directives: ``$patch`` (merge, replace, delete), ``$retainKeys``,
``$setElementOrder/LIST``, ``$deleteFromPrimitiveList/LIST``. Custom resources have no merge keys: as on a real server,
they reject patches of this type. Follows Kubernetes' "strategic merge patch" design
(community/contributors/devel/sig-api-machinery).
"""

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import Invalid, UnsupportedMediaType
from serving.core.model.objects import Object
from serving.home.schemas.crds import builtin_schemas, resolved, schema_name
from serving.home.schemas.patch import check_depth, check_values, json_patch, merge_patch
from serving.home.schemas.schema import Schema
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import PatchType

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"

# Replaces a deleted element until the list is written.
_GONE = object()

_Json = dict[str, Any]


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """How a strategic merge patch merges a field.

    A list of objects is merged by ``merge_key``, and a list of strings, ``texts``, as a union. ``below`` are the hints
    for the fields of the object or of the list's elements.
    """

    merge_key: str = ""
    texts: bool = False
    below: "Mapping[str, Hint]" = {}


NO_HINT = Hint()


@functools.cache
def hints_of(kind: Kind) -> Mapping[str, Hint] | None:
    """The merge strategies of a kind's fields; None for a custom resource."""
    schema = builtin_schemas().get(schema_name(kind))
    return None if schema is None else _below(schema)


def _below(schema: Schema) -> Mapping[str, Hint]:
    hints = {name: _hint(property_schema) for name, property_schema in schema.get("properties", {}).items()}
    return {name: hint for name, hint in hints.items() if hint != NO_HINT}


def _hint(schema: Schema) -> Hint:
    merge_key = schema.get("x-kubernetes-patch-merge-key", "")
    is_merged = "merge" in schema.get("x-kubernetes-patch-strategy", "")
    inner = schema.get("items", schema)
    # Elements of a replaced list are never merged.
    below = {} if inner is not schema and not is_merged else _below(resolved(inner))
    return Hint(merge_key=merge_key, texts=is_merged and not merge_key and "items" in schema, below=below)


def strategic_merge(kind: Kind, target: Mapping[str, Any], patch: Mapping[str, Any]) -> _Json:
    """The object after a strategic merge patch. Raises ``Invalid``; ``UnsupportedMediaType`` for a custom resource."""
    hints = hints_of(kind)
    if hints is None:
        raise UnsupportedMediaType(f"{kind.resource} is a custom resource: it takes merge and JSON patches only")
    return _merged(target, patch, hints)


def _merged(target: Mapping[str, Any], patch: Mapping[str, Any], hints: Mapping[str, Hint]) -> _Json:
    match patch.get(_PATCH):
        case None | "merge":
            result = dict(target)
        case "replace":
            result = {}
        case "delete":
            return {}
        case other:
            raise Invalid(f"unknown patch type {other!r} in a strategic merge patch")
    if _RETAIN in patch:
        result = _retained(result, patch)
    for name in _touched(patch):
        value = patch.get(name)
        hint = hints.get(name, NO_HINT)
        if name in patch and value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = _merged(before if isinstance(before, Mapping) else {}, value, hint.below)
        elif isinstance(value, list) or (value is None and name in result):
            result[name] = _listed(name, result.get(name), patch, hint=hint)
        elif name in patch:
            result[name] = value
    return result


def _touched(patch: Mapping[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for key in patch:
        if key not in {_PATCH, _RETAIN}:
            names[key.removeprefix(_ORDER).removeprefix(_DELETE)] = None
    return list(names)


def _retained(target: _Json, patch: Mapping[str, Any]) -> _Json:
    keys = {key for key in _list_of(patch, _RETAIN) if isinstance(key, str)}
    for name in _touched(patch):
        if name not in keys:
            raise Invalid(f"{name!r} is in a patch whose {_RETAIN} does not name it")
    return {key: value for key, value in target.items() if key in keys}


def _listed(name: str, before: object, patch: Mapping[str, Any], *, hint: Hint) -> list[Any]:
    patched = patch.get(name)
    previous = before if isinstance(before, list) else []
    if hint.texts:
        merged = _union(previous, _list_of(patch, _DELETE + name), patched or [])
    elif hint.merge_key:
        merged = _merged_list(previous, patched or [], hint)
    else:
        return previous if patched is None else list(patched)
    order = _list_of(patch, _ORDER + name) or [element for element in patched or [] if not _is_replace(element)]
    return _arranged(merged, order, previous, merge_key=hint.merge_key) if order else merged


def _list_of(patch: Mapping[str, Any], key: str) -> list[Any]:
    value = patch.get(key)
    if not isinstance(value, list | None):
        raise Invalid(f"{key} in a strategic merge patch is a list")
    return value or []


def _union(before: Sequence[Any], removed: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    gone = {_identity(element, "") for element in removed}
    return list(
        dict.fromkeys(
            [*(element for element in before if element not in gone), *(_identity(element, "") for element in added)]
        )
    )


def _is_replace(element: object) -> bool:
    return isinstance(element, Mapping) and element.get(_PATCH) == "replace"


def _merged_list(before: Sequence[Any], patch: Sequence[Any], hint: Hint) -> list[Any]:
    elements = [element for element in patch if not _is_replace(element)]
    result: list[Any] = list(before) if len(elements) == len(patch) else []
    places: dict[object, list[int]] = {}
    for at, present in enumerate(result):
        places.setdefault(_identity(present, hint.merge_key), []).append(at)
    for element in elements:
        identity = _identity(element, hint.merge_key)
        if element.get(_PATCH) == "delete":
            for at in places.pop(identity, ()):
                result[at] = _GONE
        elif identity not in places:
            places[identity] = [len(result)]
            result.append(_merged({}, element, hint.below))
        else:
            # Two elements may share a key, as ports 53/TCP and 53/UDP do: the patch applies to the first.
            at = places[identity][0]
            result[at] = _merged(result[at], element, hint.below)
    return [element for element in result if element is not _GONE]


def _identity(element: object, merge_key: str) -> object:
    identity = element
    if merge_key:
        identity = element.get(merge_key) if isinstance(element, Mapping) else None
    if not isinstance(identity, str | int):
        raise Invalid(f"an element of a list that is merged by {merge_key or 'text'!r} has none")
    return identity


def _arranged(merged: Sequence[Any], order: Sequence[Any], before: Sequence[Any], *, merge_key: str) -> list[Any]:
    """The elements of ``merged``: those in ``order`` in its order.

    Each other element stays before the elements that it preceded in ``before``.
    """
    wanted = {_identity(element, merge_key): place for place, element in enumerate(order)}
    places = {_identity(element, merge_key): place for place, element in enumerate(before)}
    named = [element for element in merged if _identity(element, merge_key) in wanted]
    named.sort(key=lambda element: wanted[_identity(element, merge_key)])
    others = deque(element for element in merged if _identity(element, merge_key) not in wanted)
    if any(_identity(other, merge_key) not in places for other in others):
        raise Invalid(f"a strategic merge patch has an element that its {_ORDER.rstrip('/')} does not name")
    result: list[Any] = []
    for element in named:
        place = places.get(_identity(element, merge_key))
        while place is not None and others and places[_identity(others[0], merge_key)] < place:
            result.append(others.popleft())
        result.append(element)
    return [*result, *others]


def patched(
    kind: Kind, target: Object, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, patch_type: PatchType
) -> Mapping[str, Any]:
    """The object after the patch. Raises ``Invalid`` if the patch does not fit its type or leaves no object."""
    try:
        match patch_type, patch:
            case PatchType.JSON, Sequence():
                result = json_patch(target, patch)
                # Operations combine into a value that is deeper than each of them.
                check_depth(result)
            case PatchType.MERGE | PatchType.APPLY, Mapping():
                result = merge_patch(target, patch)
            case PatchType.STRATEGIC, Mapping():
                result = strategic_merge(kind, target, patch)
            case _:
                raise Invalid(
                    f"a patch of type {patch_type} must be {'a list' if patch_type is PatchType.JSON else 'an object'}"
                )
    except RecursionError as error:
        raise Invalid("the patch is nested too deep") from error
    if not isinstance(result, Mapping):
        raise Invalid("the result of the patch is not an object")
    check_values(result)
    return result
