"""Strategic merge patches: merge patches that treat some lists of Kubernetes' own kinds as maps.

Input: a kind, an object and a patch; output: a new object. Lists with a merge key (containers by name, conditions by type)
are merged element by element, lists of texts such as finalizers become unions; all other lists are replaced. The patch also
orders what it names: its elements come in its own order unless ``$setElementOrder`` gives another. Directives:
``$patch`` (merge, replace, delete), ``$retainKeys``, ``$setElementOrder/LIST``, ``$deleteFromPrimitiveList/LIST``.
Custom resources have no merge keys: as on a real server, they reject patches of this type. Follows Kubernetes'
"strategic merge patch" design (community/contributors/devel/sig-api-machinery). Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from serving.cluster.kinds import Kind
from serving.home.schemas.merge_keys import NO_HINT, Hint, hints_of
from serving.model.errors import Invalid, UnsupportedMediaType

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"

_Json = dict[str, Any]


def strategic_merge(kind: Kind, target: Mapping[str, Any], patch: Mapping[str, Any]) -> _Json:
    """The object after the patch. Raises ``UnsupportedMediaType`` for custom resources, ``Invalid``."""
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
    """The fields that a patch names, directly or in a directive, each once."""
    names: dict[str, None] = {}
    for key in patch:
        if key not in {_PATCH, _RETAIN}:
            names[key.removeprefix(_ORDER).removeprefix(_DELETE)] = None
    return list(names)


def _retained(target: _Json, patch: Mapping[str, Any]) -> _Json:
    keys = _list_of(patch, _RETAIN)
    for name in _touched(patch):
        if name not in keys:
            raise Invalid(f"{name!r} is in a patch whose {_RETAIN} does not name it")
    return {key: value for key, value in target.items() if key in keys}


def _listed(name: str, before: object, patch: Mapping[str, Any], *, hint: Hint) -> list[Any]:
    given = patch.get(name)
    kept = before if isinstance(before, list) else []
    if hint.texts:
        merged = _union(kept, _list_of(patch, _DELETE + name), given or [])
    elif hint.merge_key:
        merged = _merged_list(kept, given or [], hint)
    else:
        return kept if given is None else list(given)
    directives = [one for one in given or [] if isinstance(one, Mapping) and one.get(_PATCH) == "replace"]
    order = _list_of(patch, _ORDER + name) or [one for one in given or [] if one not in directives]
    return _arranged(merged, order, kept, merge_key=hint.merge_key) if order else merged


def _list_of(patch: Mapping[str, Any], key: str) -> list[Any]:
    value = patch.get(key)
    if not isinstance(value, list | None):
        raise Invalid(f"{key} in a strategic merge patch is a list")
    return value or []


def _union(before: Sequence[Any], removed: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    kept = [one for one in before if one not in removed]
    return [*kept, *(one for number, one in enumerate(added) if one not in kept and one not in added[:number])]


def _merged_list(before: Sequence[Any], patch: Sequence[Any], hint: Hint) -> list[Any]:
    elements = [one for one in patch if not (isinstance(one, Mapping) and one.get(_PATCH) == "replace")]
    result = list(before) if len(elements) == len(patch) else []
    for element in elements:
        identity = _identity(element, hint.merge_key)
        # Two elements may share a key, as ports 53/TCP and 53/UDP do: the patch applies to the first.
        place = next((at for at, one in enumerate(result) if _identity(one, hint.merge_key) == identity), None)
        if element.get(_PATCH) == "delete":
            result = [one for one in result if _identity(one, hint.merge_key) != identity]
        elif place is None:
            result.append(_merged({}, element, hint.below))
        else:
            result[place] = _merged(result[place], element, hint.below)
    return result


def _identity(element: object, merge_key: str) -> object:
    found = element
    if merge_key:
        found = element.get(merge_key) if isinstance(element, Mapping) else None
    if not isinstance(found, str | int):
        raise Invalid(f"an element of a list that is merged by {merge_key or 'text'!r} has none")
    return found


def _arranged(merged: Sequence[Any], order: Sequence[Any], before: Sequence[Any], *, merge_key: str) -> list[Any]:
    """The elements named by ``order`` in its order; the others stay before the elements that they preceded."""
    wanted = {_identity(one, merge_key): place for place, one in enumerate(order)}
    places = {_identity(one, merge_key): place for place, one in enumerate(before)}
    named = [one for one in merged if _identity(one, merge_key) in wanted]
    named.sort(key=lambda one: wanted[_identity(one, merge_key)])
    others = [one for one in merged if _identity(one, merge_key) not in wanted]
    if any(_identity(one, merge_key) not in places for one in others):
        raise Invalid(f"a strategic merge patch has an element that its {_ORDER.rstrip('/')} does not name")
    result: list[Any] = []
    for one in named:
        place = places.get(_identity(one, merge_key))
        while place is not None and others and places[_identity(others[0], merge_key)] < place:
            result.append(others.pop(0))
        result.append(one)
    return [*result, *others]
