"""Tracks field owners: ``metadata.managedFields``, updates and server-side apply.

An update becomes the owner of the fields that it writes. An apply contains all fields that its manager wants. It
conflicts with other managers that own one of these fields with another value. Fields that the manager no longer applies
are removed unless another manager owns them. Objects that no request created have no owners until their first apply;
then ``before-first-apply`` owns all their fields. Follows k8s.io/apimachinery/pkg/util/managedfields. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from serving.core.model.errors import UNREADABLE, ApplyConflict, Invalid, OwnedField
from serving.core.model.knative import LAST_APPLIED_ANNOTATION
from serving.core.model.objects import Object
from serving.home.schemas.crds import resolved, schema_of
from serving.home.schemas.ownership.fieldset import FieldSet, common, difference, paths, union, well_formed
from serving.home.schemas.ownership.structure import Structure
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Subresource

_BEFORE_FIRST_APPLY = "before-first-apply"
_ANCIENT = "ancient-changes"
# Most update entries of an object; kube-apiserver's limit.
_UPDATE_ENTRIES_MAX = 10
_METADATA = ("annotations", "finalizers", "generateName", "labels", "ownerReferences")
_TYPE = ("apiVersion", "kind")
# Only kubectl's own apply updates the annotation of client-side apply.
_KUBECTL = "kubectl"


class FieldWriter(msgspec.Struct, frozen=True, kw_only=True):
    """The manager, subresource and time of a write."""

    manager: str
    subresource: Subresource | None = None
    stamp: str


class _Key(msgspec.Struct, frozen=True):
    manager: str
    operation: Literal["Apply", "Update"]
    version: str
    subresource: str = ""


class _Entry(msgspec.Struct, frozen=True):
    """The fields of one manager, and when they last changed."""

    fields: FieldSet
    stamp: str


_Managers = dict[_Key, _Entry]


def after_update(kind: Kind, old: Object | None, new: Object, *, writer: FieldWriter, sent: object = None) -> Object:
    """The object with its ``managedFields`` after an update. ``sent`` are the ``managedFields`` in the body, if any.

    The writer becomes the owner of the changed fields. If an existing object has no ``managedFields``, none are added.
    """
    before = (old or {}).get("metadata", {}).get("managedFields")
    managers = _read(before)
    if writer.subresource is None and sent and sent != before:
        if sent == [{}]:
            return with_entries(new, ())
        managers = _read(sent) or managers
    if old is not None and not managers:
        return with_entries(new, ())
    live = _content(kind, old or {}, writer.subresource)
    change = _structure(kind).compare(live, _content(kind, new, writer.subresource))
    own = _Key(writer.manager, "Update", kind.api_version, writer.subresource or "")
    managed = {key: _Entry(_taken(entry.fields, change.written), entry.stamp) for key, entry in managers.items()}
    managed = {key: _Entry(difference(entry.fields, change.removed), entry.stamp) for key, entry in managed.items()}
    if change.written:
        mine = union(managed[own].fields, change.written) if own in managed else change.written
        managed[own] = _Entry(mine, writer.stamp)
    return with_entries(new, list(_written(_capped(managed))))


def _taken(fields: FieldSet, written: FieldSet) -> FieldSet:
    return difference(fields, written) if fields else fields


def after_apply(kind: Kind, old: Object | None, config: Object, *, writer: FieldWriter, force: bool) -> Object:
    """The object after applying a configuration, with its field owners.

    Raises:
        ApplyConflict: when other managers own fields with other values, and ``force`` is false.
        Invalid: when a list of the configuration has elements without their keys.
    """
    live = old or {}
    structure = _structure(kind)
    wanted = _content(kind, config, writer.subresource)
    before = _content(kind, live, writer.subresource)
    managers = _read(live.get("metadata", {}).get("managedFields"))
    if old is not None and not managers:
        everything = structure.fields(_content(kind, live, None))
        first = _Key(_BEFORE_FIRST_APPLY, "Update", kind.api_version)
        managers[first] = _Entry(everything, live["metadata"].get("creationTimestamp", writer.stamp))
    own = _Key(writer.manager, "Apply", kind.api_version, writer.subresource or "")
    last = managers.pop(own, _Entry({}, ""))
    fields = structure.fields(wanted)
    merged = structure.merge(before, wanted)
    owned = fields
    for entry in managers.values():
        owned = union(owned, entry.fields)
    merged = structure.pruned(merged, last=last.fields, owned=owned)
    change = structure.compare(before, merged)
    conflicts = {key: both for key, entry in managers.items() if (both := common(entry.fields, change.written))}
    own_before = _last_applied(kind, live, manager=writer.manager)
    refused = {key: rest for key, both in conflicts.items() if (rest := difference(both, own_before))}
    if refused and not force:
        raise _conflict(refused)
    managed = {}
    for key, entry in managers.items():
        rest = difference(difference(entry.fields, conflicts.get(key, {})), change.removed)
        managed[key] = _Entry(rest, entry.stamp)
    if fields:
        managed[own] = _Entry(fields, last.stamp if fields == last.fields else writer.stamp)
    return with_entries(_assembled(live, merged, config, manager=writer.manager), list(_written(managed)))


def without_nulls(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Drop null fields of an applied configuration, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [without_nulls(element) for element in value]
    return value


def _structure(kind: Kind) -> Structure:
    return Structure(schema_of(kind), resolved)


def _content(kind: Kind, whole: Mapping[str, Any], subresource: Subresource | None) -> Object:
    """The parts of an object that managers can own. With a ``subresource``, only the parts of the subresource."""
    if subresource == "status":
        return {"status": whole["status"]} if whole.get("status") else {}
    left_out = {*_TYPE, "metadata", *(["status"] if kind.has_status else [])}
    content = {key: value for key, value in whole.items() if key not in left_out}
    present_metadata = whole.get("metadata") or {}
    metadata = {key: present_metadata[key] for key in _METADATA if present_metadata.get(key)}
    return {**content, "metadata": metadata} if metadata else content


def _assembled(live: Object, merged: Object, config: Object, *, manager: str) -> Object:
    """The object after an apply: the merged parts, and the parts of the live object that managers cannot own."""
    metadata = {key: value for key, value in (live.get("metadata") or {}).items() if key not in _METADATA}
    metadata |= merged.get("metadata", {})
    for key in ("name", "namespace", "uid", "resourceVersion"):
        if (config.get("metadata") or {}).get(key):
            metadata[key] = config["metadata"][key]
    annotations = metadata.get("annotations") or {}
    if manager == _KUBECTL and LAST_APPLIED_ANNOTATION in annotations:
        text = msgspec.json.encode(config).decode() + "\n"
        metadata["annotations"] = {**annotations, LAST_APPLIED_ANNOTATION: text}
    rest = {key: live[key] for key in (*_TYPE, "status") if key in live}
    return {**rest, **merged, "metadata": metadata}


def _last_applied(kind: Kind, live: Object, *, manager: str) -> FieldSet:
    """The fields of kubectl's client-side apply that have not changed since.

    A server-side apply of kubectl may take them over; for another ``manager`` there are none.
    """
    annotations = live.get("metadata", {}).get("annotations") or {}
    if manager != _KUBECTL or LAST_APPLIED_ANNOTATION not in annotations:
        return {}
    structure = _structure(kind)
    try:
        last = _content(kind, msgspec.json.decode(annotations[LAST_APPLIED_ANNOTATION], type=dict[str, Any]), None)
        fields = structure.fields(last)
    except (*UNREADABLE, Invalid):
        return {}
    return difference(fields, structure.compare(_content(kind, live, None), last).written)


def _conflict(conflicts: Mapping[_Key, FieldSet]) -> ApplyConflict:
    owned = [
        OwnedField(path=path, manager=_title(key))
        for key, fields in sorted(conflicts.items(), key=lambda conflict: _title(conflict[0]))
        for path in paths(fields)
    ]
    return ApplyConflict(owned)


def _title(key: _Key) -> str:
    name = f'"{key.manager}"' + (f' with subresource "{key.subresource}"' if key.subresource else "")
    return name if key.operation == "Apply" else f"{name} using {key.version}"


class _ManagedFields(msgspec.Struct, frozen=True, rename="camel"):
    manager: str
    operation: Literal["Apply", "Update"]
    api_version: str
    fields_v1: FieldSet = msgspec.field(name="fieldsV1")
    time: str = ""
    subresource: str = ""


def _read(managed_fields: object) -> _Managers:
    """The entries of an object; none if they are invalid, as on a real server."""
    try:
        entries = msgspec.convert(managed_fields or [], type=list[_ManagedFields])
    except msgspec.ValidationError:
        return {}
    if not all(well_formed(entry.fields_v1) for entry in entries):
        return {}
    return {
        _Key(entry.manager, entry.operation, entry.api_version, entry.subresource): _Entry(entry.fields_v1, entry.time)
        for entry in entries
    }


def entries_of(whole: Mapping[str, Any]) -> list[Object]:
    """The ``managedFields`` of an object."""
    entries: list[Object] = (whole.get("metadata") or {}).get("managedFields") or []
    return entries


def with_entries(whole: Object, entries: Sequence[Object]) -> Object:
    """The object with these ``managedFields``; without the field if there are none."""
    if not entries and "managedFields" not in whole["metadata"]:
        return whole
    metadata = {key: value for key, value in whole["metadata"].items() if key != "managedFields"}
    return {**whole, "metadata": {**metadata, "managedFields": list(entries)} if entries else metadata}


def _written(managers: _Managers) -> Iterator[Object]:
    for key, entry in sorted(
        managers.items(), key=lambda entry: (entry[0].operation, entry[1].stamp, *_order(entry[0]))
    ):
        if entry.fields:
            yield {
                "manager": key.manager,
                "operation": key.operation,
                "apiVersion": key.version,
                **({"time": entry.stamp} if entry.stamp else {}),
                "fieldsType": "FieldsV1",
                "fieldsV1": entry.fields,
                **({"subresource": key.subresource} if key.subresource else {}),
            }


def _order(key: _Key) -> tuple[str, str, str]:
    return (key.manager, key.version, key.subresource)


def _capped(managers: _Managers) -> _Managers:
    """The managers. If there are too many update entries, the oldest are merged."""
    updates = [key for key, entry in managers.items() if key.operation == "Update" and entry.fields]
    if len(updates) <= _UPDATE_ENTRIES_MAX:
        return managers
    oldest = sorted(updates, key=lambda key: (managers[key].stamp, *_order(key)))
    merged = oldest[: len(updates) - _UPDATE_ENTRIES_MAX + 1]
    retained = {key: entry for key, entry in managers.items() if key not in merged}
    return retained | _merged((key, managers[key]) for key in merged)


def _merged(entries: Iterable[tuple[_Key, _Entry]]) -> _Managers:
    merged: _Managers = {}
    for key, entry in entries:
        into = msgspec.structs.replace(key, manager=_ANCIENT)
        before = merged.get(into, _Entry({}, ""))
        merged[into] = _Entry(union(before.fields, entry.fields), max(before.stamp, entry.stamp))
    return merged
