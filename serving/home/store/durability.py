"""Decides on the durable part of an object, and on the writes that wait for the disk.

A durable object is stored without ``status`` and version: as the user wrote it. Two fields are written to the journal a
moment later: ``Revision.spec.servingState`` and ``Deployment.spec.replicas``. A request at scale 0 changes them, and no
request may wait for a disk. If the process ends in between, the old state is restored, and later corrected: the next
request activates a revision in Reserve, the autoscaler reserves an idle active one, and the controller retires again.

A durable write is visible only once it is on disk. ``carried_over`` merges writes that did not wait (status,
servingState) into the durable write's object. Pure.
"""

import enum
from collections.abc import Mapping
from typing import Any

from serving.core.model.errors import Conflict
from serving.core.model.objects import Object, controller_uid_of, namespace_of
from serving.home.schemas.ownership.managers import entries_of, with_entries
from serving.home.schemas.patch import same_json
from serving.net.cluster.identity import SYSTEM_NAMESPACE
from serving.net.cluster.kinds import DEPLOYMENT, REVISION, Kind
from serving.net.cluster.port import Subresource

# Fields of ``spec`` that are written in the background, by kind.
_SOFT_FIELDS: Mapping[Kind, str] = {DEPLOYMENT: "replicas", REVISION: "servingState"}
_NO_FIELD: Any = object()


class Disk(enum.StrEnum):
    """How a write uses the journal.

    NONE: not at all. BEHIND: in the background. AWAITED: the write waits for the disk.
    """

    NONE = "none"
    BEHIND = "behind"
    AWAITED = "awaited"


def is_durable(kind: Kind, whole: Object) -> bool:
    """Whether an object is stored in the journal, because no controller can recreate it after a restart."""
    if kind.durable or not kind.durable_unowned:
        return kind.durable
    return not controller_uid_of(whole) and namespace_of(whole) != SYSTEM_NAMESPACE


def disk_for(kind: Kind, old: Object | None, new: Object, *, subresource: Subresource | None = None) -> Disk:
    """How a write uses the journal. ``old`` is None for a new object."""
    if subresource == "status" or not (is_durable(kind, new) or (old is not None and is_durable(kind, old))):
        return Disk.NONE
    return Disk.BEHIND if old is not None and _is_soft(kind, old, new) else Disk.AWAITED


def durable_part(whole: Mapping[str, Any]) -> Object:
    """The part of an object that the journal stores: everything except the status and the version."""
    durable = {key: value for key, value in whole.items() if key != "status"}
    durable["metadata"] = {key: value for key, value in whole["metadata"].items() if key != "resourceVersion"}
    return with_entries(durable, _of_status(whole, wanted=False))


def _of_status(whole: Mapping[str, Any], *, wanted: bool) -> list[Object]:
    """The ``managedFields`` entries for the status if ``wanted``, otherwise all other entries."""
    return [entry for entry in entries_of(whole) if (entry.get("subresource") == "status") is wanted]


def _is_soft(kind: Kind, old: Object, new: Object) -> bool:
    field = _SOFT_FIELDS.get(kind)
    return field is not None and same_json(_hard_part(old, field), _hard_part(new, field))


def _hard_part(whole: Object, field: str) -> Object:
    part = durable_part(whole)
    # A flip increments the generation, which alone is no reason to wait.
    for key in ("generation", "managedFields"):
        part["metadata"].pop(key, None)
    if isinstance(part.get("spec"), Mapping):
        part["spec"] = {key: value for key, value in part["spec"].items() if key != field}
    return part


def carried_over(kind: Kind, base: Object, new: Object, *, present: Object) -> Object:
    """Merge a durable write (from ``base`` to ``new``) into the object ``present``, which changed meanwhile.

    Raises ``Conflict`` if both changed the servingState.
    """
    result = {key: value for key, value in new.items() if key != "status"}
    if "status" in present:
        result["status"] = present["status"]
    result = with_entries(result, [*_of_status(new, wanted=False), *_of_status(present, wanted=True)])
    field = _SOFT_FIELDS.get(kind)
    if field is None:
        return result
    was, wanted, is_now = (_spec_field(whole, field) for whole in (base, new, present))
    if is_now == was:
        return result
    if wanted not in (was, is_now):
        raise Conflict(f"{kind.resource} {new['metadata']['name']!r}: {field} was changed while it was written")
    generation = max(new["metadata"].get("generation", 1), present["metadata"].get("generation", 1) + 1)
    result["metadata"] = {**result["metadata"], "generation": generation}
    spec = {key: value for key, value in (new.get("spec") or {}).items() if key != field}
    result["spec"] = spec if is_now is _NO_FIELD else {**spec, field: is_now}
    return result


def _spec_field(whole: Object, field: str) -> object:
    spec = whole.get("spec")
    return spec.get(field, _NO_FIELD) if isinstance(spec, Mapping) else _NO_FIELD
