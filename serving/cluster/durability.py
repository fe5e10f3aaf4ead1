"""What of an object is on disk, and which writes therefore wait for it.

Of a durable kind everything is, but ``status`` and the version: what a user wrote. One field is written behind:
``Revision.spec.servingState``, because a request from zero flips it, and nothing on a request's path may wait for a disk.
A flip is in the journal a moment after it is seen; if the process dies in between, the revision comes back with the
state before, which heals by itself: a Reserve is flipped by the next request, an Active one that nobody asks for by the
autoscaler, and the controller retires again.

A durable write is seen only once it is on disk. What was written meanwhile without waiting (status, servingState) stays:
``carried_over`` puts it into the object that the durable write leads to. Pure.
"""

import enum
from collections.abc import Mapping
from typing import Any

from serving.cluster.kinds import REVISION, Kind
from serving.cluster.patch import same_json
from serving.cluster.port import Object, Subresource
from serving.model.errors import Conflict

__all__ = ["Disk", "carried_over", "disk_for", "durable_part"]

# Fields of ``spec`` that are written behind, by kind.
_SOFT_FIELDS: Mapping[Kind, str] = {REVISION: "servingState"}
_NO_FIELD: Any = object()


class Disk(enum.StrEnum):
    """What a write has to do with the journal."""

    NONE = "none"
    BEHIND = "behind"
    AWAITED = "awaited"


def disk_for(kind: Kind, old: Object | None, new: Object, *, subresource: Subresource | None = None) -> Disk:
    """Whether a write waits for the journal, goes there behind its answer, or not at all. ``old`` None is a creation."""
    if not kind.durable or subresource is not None:
        return Disk.NONE
    return Disk.BEHIND if old is not None and _is_soft(kind, old, new) else Disk.AWAITED


def durable_part(whole: Mapping[str, Any]) -> Object:
    """What the journal keeps of an object: everything but the status and the version."""
    kept = {key: value for key, value in whole.items() if key != "status"}
    kept["metadata"] = {key: value for key, value in whole["metadata"].items() if key != "resourceVersion"}
    return kept


def _is_soft(kind: Kind, old: Object, new: Object) -> bool:
    field = _SOFT_FIELDS.get(kind)
    return field is not None and same_json(_hard_part(old, field), _hard_part(new, field))


def _hard_part(whole: Object, field: str) -> Object:
    part = durable_part(whole)
    # A flip grows the generation; alone that is no reason to wait either.
    part["metadata"].pop("generation", None)
    if isinstance(part.get("spec"), Mapping):
        part["spec"] = {key: value for key, value in part["spec"].items() if key != field}
    return part


def carried_over(kind: Kind, base: Object, new: Object, *, present: Object) -> Object:
    """The object that a durable write from ``base`` to ``new`` leads to when ``present`` is what is there by now.

    Raises ``Conflict`` if both changed the servingState.
    """
    result = {key: value for key, value in new.items() if key != "status"}
    if "status" in present:
        result["status"] = present["status"]
    field = _SOFT_FIELDS.get(kind)
    if field is None:
        return result
    was, wanted, is_now = (_spec_field(one, field) for one in (base, new, present))
    if is_now == was:
        return result
    if wanted not in (was, is_now):
        raise Conflict(f"{kind.resource} {new['metadata']['name']!r}: {field} was changed while it was written")
    generation = max(new["metadata"].get("generation", 1), present["metadata"].get("generation", 1) + 1)
    result["metadata"] = {**new["metadata"], "generation": generation}
    spec = {key: value for key, value in (new.get("spec") or {}).items() if key != field}
    result["spec"] = spec if is_now is _NO_FIELD else {**spec, field: is_now}
    return result


def _spec_field(whole: Object, field: str) -> object:
    spec = whole.get("spec")
    return spec.get(field, _NO_FIELD) if isinstance(spec, Mapping) else _NO_FIELD
