"""Reading resources as the Kubernetes API has them: metadata, owners, conditions, and what differs between two.

Everything here is total: a field that is not there is empty, so that a half-written object is a fact and not a crash.
Nothing is changed in place. It does not know which kinds there are.
"""

import calendar
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "Object",
    "annotations_of",
    "condition_of",
    "dig",
    "is_being_deleted",
    "is_controlled_by",
    "labels_of",
    "merge_difference",
    "name_of",
    "namespace_of",
    "owner_reference",
    "seconds_of",
    "uid_of",
    "version_of",
]

Object = dict[str, Any]

_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z\Z")


def dig(value: object, *path: str) -> Any:  # noqa: ANN401 - JSON
    """What is at a path of keys; None where there is nothing."""
    for key in path:
        # Asked a thousand times a decision: a dict, as JSON has it, and not any mapping.
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def name_of(one: Object) -> str:
    """``metadata.name``."""
    return str(dig(one, "metadata", "name") or "")


def namespace_of(one: Object) -> str:
    """``metadata.namespace``; "" for kinds without one."""
    return str(dig(one, "metadata", "namespace") or "")


def uid_of(one: Object) -> str:
    """``metadata.uid``."""
    return str(dig(one, "metadata", "uid") or "")


def version_of(one: Object) -> str:
    """``metadata.resourceVersion``."""
    return str(dig(one, "metadata", "resourceVersion") or "")


def labels_of(one: Object) -> dict[str, str]:
    """A copy of the labels."""
    return dict(dig(one, "metadata", "labels") or {})


def annotations_of(one: Object) -> dict[str, str]:
    """A copy of the annotations."""
    return dict(dig(one, "metadata", "annotations") or {})


def is_being_deleted(one: Object) -> bool:
    """Whether its deletion was asked for and something still holds it."""
    return dig(one, "metadata", "deletionTimestamp") is not None


def owner_reference(owner: Object) -> Object:
    """The reference by which a child goes when its owner goes, and by which no second controller adopts it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_controlled_by(child: Object, owner: Object) -> bool:
    """Whether the owner made this child. One of the same name from somebody else is left alone, and told."""
    references = dig(child, "metadata", "ownerReferences") or ()
    return any(one.get("controller") and one.get("uid") == uid_of(owner) for one in references)


def condition_of(one: Object | None, condition_type: str) -> Object:
    """A condition of the status; {} if it is not there."""
    conditions = dig(one, "status", "conditions") or ()
    return next((found for found in conditions if found.get("type") == condition_type), {})


def merge_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """The smallest merge patch that makes ``new`` of ``old``; {} if they are equal. A key that goes becomes null.

    From {"a": 1, "b": {"c": 2, "d": 3}} to {"b": {"c": 4, "d": 3}} it is {"a": null, "b": {"c": 4}}.
    """
    patch: Object = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = merge_difference(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def seconds_of(stamp: object) -> float | None:
    """Seconds since the epoch of a time as the API writes it; None if it is none.

    "1970-01-02T00:00:00Z" is 86400.
    """
    match = _STAMP.match(stamp) if isinstance(stamp, str) else None
    if not match:
        return None
    *whole, fraction = match.groups()
    return calendar.timegm((*(int(part) for part in whole), 0, 0, 0)) + float(fraction or 0)
