"""Compares, merges and prunes objects field by field, by the structure in their schema.

A schema says which lists are maps (``x-kubernetes-list-type: map`` with their keys) or sets, and which objects and
lists are atomic: one value with one owner. Without a schema objects are merged and lists are atomic. Inputs never
change; results share parts with them. Follows the rules of sigs.k8s.io/structured-merge-diff. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import Invalid, Problem
from serving.home.schemas.ownership.fieldset import (
    ITSELF,
    FieldSet,
    children,
    field_element,
    is_member,
    key_element,
    shown,
    value_element,
)
from serving.home.schemas.patch import same_json
from serving.home.schemas.schema import Resolve, Schema

_OPEN: Schema = {}


class FieldChange(msgspec.Struct, frozen=True):
    """The difference of two objects: fields added or changed, and fields removed."""

    written: FieldSet
    removed: FieldSet


class Structure:
    """Compares and merges objects of one schema, by the schema's list and map types."""

    def __init__(self, schema: Schema, resolve: Resolve) -> None:
        self._schema = schema
        self._resolve = resolve

    def fields(self, value: Mapping[str, Any]) -> FieldSet:
        """All fields of an object. Raises ``Invalid`` for a list element without keys, or with repeated keys."""
        return self._fields(self._schema, value)

    def compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> FieldChange:
        """The fields that differ between two objects."""
        change = FieldChange({}, {})
        self._compare(self._schema, old, new, into=change)
        return change

    def merge(self, live: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a configuration into the live object. Raises ``Invalid`` in the same cases as ``fields``."""
        merged: dict[str, Any] = self._merged(self._schema, live, config)
        return merged

    def pruned(self, value: Mapping[str, Any], *, last: FieldSet, owned: FieldSet) -> dict[str, Any]:
        """The object without the fields in ``last`` but not in ``owned``, and without objects that become empty."""
        result: dict[str, Any] = self._pruned(self._schema, value, last=last, owned=owned)
        return result

    def _items(self, schema: Schema, value: object) -> dict[str, tuple[Any, Schema, bool]] | None:
        """The parts of an object or list by path element; None for a leaf, which is owned as a whole.

        Each part is a tuple: its value, its schema, and whether the schema names the part as a field.
        """
        schema = self._resolve(schema)
        if isinstance(value, Mapping):
            if schema.get("x-kubernetes-map-type") == "atomic":
                return None
            return {field_element(key): (child, *self._below(schema, key)) for key, child in value.items()}
        if not isinstance(value, Sequence) or isinstance(value, str):
            return None
        below = schema.get("items", _OPEN)
        elements = self._elements(schema, value)
        return None if elements is None else {key: (element, below, False) for key, element in elements.items()}

    def _below(self, schema: Schema, key: str) -> tuple[Schema, bool]:
        known = schema.get("properties", _OPEN).get(key)
        if known is not None:
            return known, True
        rest = schema.get("additionalProperties")
        return (rest if isinstance(rest, Mapping) else _OPEN), False

    def _elements(self, schema: Schema, value: Sequence[Any]) -> dict[str, Any] | None:
        """The elements of a list by path element; None if the list is owned as a whole, or if an element lacks keys."""
        try:
            return self._checked_elements(schema, value)
        except Invalid:
            return None

    def _checked_elements(self, schema: Schema, value: Sequence[Any]) -> dict[str, Any] | None:
        match schema.get("x-kubernetes-list-type"):
            case "map":
                elements = {}
                for member in value:
                    element = key_element(self._keys(schema, member))
                    if element in elements:
                        raise Invalid(f"duplicate entries for key {shown(element)}")
                    elements[element] = member
                return elements
            case "set":
                return {value_element(element): element for element in value}
            case _:
                return None

    def _keys(self, schema: Schema, element: object) -> dict[str, Any]:
        names = schema["x-kubernetes-list-map-keys"]
        if not isinstance(element, Mapping):
            raise Invalid(f"an element of a list with the keys {', '.join(names)} is not an object")
        fields = self._resolve(schema.get("items", _OPEN)).get("properties", _OPEN)
        values = {}
        for name in names:
            value = element.get(name, fields.get(name, _OPEN).get("default"))
            if value is not None:
                values[name] = value
        if not values:
            raise Invalid(f"an element of a list omits its key {', '.join(names)}")
        return values

    def _check(self, schema: Schema, value: object, path: str) -> None:
        """Raise ``Invalid`` if a keyed list in a configuration has elements without unique keys."""
        if isinstance(value, Sequence) and not isinstance(value, str):
            try:
                self._checked_elements(self._resolve(schema), value)
            except Invalid as error:
                problem = Problem(where=path, what=f"Invalid value: {error}", expected="elements with different keys")
                raise Invalid(str(problem), [problem]) from error

    def _fields(self, schema: Schema, value: object, path: str = "") -> FieldSet:
        self._check(schema, value, path)
        fields: FieldSet = {}
        for key, (child, below, is_named) in (self._items(schema, value) or {}).items():
            inner = self._fields(below, child, path + shown(key))
            # An element of a list or a key of a map is owned itself; a field of a structure is owned through its parts.
            fields[key] = {ITSELF: {}, **inner} if inner and not is_named else inner
        return fields

    def _compare(self, schema: Schema, old: object, new: object, *, into: FieldChange) -> None:
        before, after = self._items(schema, old) or {}, self._items(schema, new) or {}
        for key in before.keys() - after.keys():
            child, below, is_named = before[key]
            into.removed[key] = self._whole(below, child, is_named=is_named)
        for key, (child, below, is_named) in after.items():
            if key not in before:
                into.written[key] = self._whole(below, child, is_named=is_named)
                continue
            was = before[key][0]
            if was is child:
                continue
            if self._is_leaf(below, was) or self._is_leaf(below, child):
                if not same_json(was, child):
                    into.written[key] = {}
                continue
            inner = FieldChange({}, {})
            self._compare(below, was, child, into=inner)
            if inner.written:
                into.written[key] = inner.written
            if inner.removed:
                into.removed[key] = inner.removed

    def _whole(self, schema: Schema, value: object, *, is_named: bool) -> FieldSet:
        """The set of all fields of an added or removed part of an object.

        An empty part is in the set itself. A map or a list is in the set together with its elements. A structure, whose
        fields the schema lists, is not: only its fields are. ``is_named``: the schema names the part as a field.
        """
        inner: FieldSet = {}
        for key, (child, below, named) in (self._items(schema, value) or {}).items():
            inner[key] = self._whole(below, child, is_named=named)
        is_structure = is_named and "properties" in self._resolve(schema)
        return {ITSELF: {}, **inner} if inner and not is_structure else inner

    def _is_leaf(self, schema: Schema, value: object) -> bool:
        return self._items(schema, value) is None

    def _merged(self, schema: Schema, live: Any, config: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(config, Mapping) and isinstance(live, Mapping):
            if self._is_leaf(schema, config):
                return config
            known = self._resolve(schema)
            result = dict(live)
            for key, value in config.items():
                below, _ = self._below(known, key)
                result[key] = self._merged(below, result[key], value) if key in result else value
            return result
        if isinstance(config, list) and isinstance(live, list):
            return self._merged_list(self._resolve(schema), live, config)
        return config

    def _merged_list(self, schema: Schema, live: list[Any], config: list[Any]) -> list[Any]:
        """The elements of both lists. Elements of ``config`` are in their order there.

        Each other element of ``live`` stays before the element of ``config`` that it preceded.
        """
        before, configured = self._elements(schema, live), self._elements(schema, config)
        if before is None or configured is None:
            return config
        below = schema.get("items", _OPEN)
        rest, result = list(before), []
        for key, element in configured.items():
            while rest and rest[0] not in configured:
                result.append(before[rest.pop(0)])
            result.append(self._merged(below, before[key], element) if key in before else element)
            if key in before:
                rest.remove(key)
        return [*result, *(before[key] for key in rest)]

    def _pruned(self, schema: Schema, value: Any, *, last: FieldSet, owned: FieldSet) -> Any:  # noqa: ANN401 - JSON
        items = self._items(schema, value)
        if items is None:
            return value
        remaining = dict(self._retained(items, last=last, owned=owned))
        if isinstance(value, Mapping):
            return {key.removeprefix("f:"): child for key, child in remaining.items()}
        return list(remaining.values())

    def _retained(
        self, items: Mapping[str, tuple[Any, Schema, bool]], *, last: FieldSet, owned: FieldSet
    ) -> Iterator[tuple[str, Any]]:
        for key, (child, below, _) in items.items():
            was, is_now = last.get(key), owned.get(key)
            if was is None:
                yield key, child
                continue
            if is_now is None and is_member(was):
                continue
            rest = self._pruned(below, child, last=children(was), owned=children(is_now or {}))
            if rest or not child or (is_now is not None and is_member(is_now)):
                yield key, rest
