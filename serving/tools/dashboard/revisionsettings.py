"""Lists the settings that differ between two revisions, and no secret value.

Pure. Images, resources, numbers and scaling annotations show their values. Of variables, commands and everything else the result
has the name, and whether the values differ.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from serving.core.model.knative import (
    AUTOSCALING_GROUP,
    CREATOR_ANNOTATION,
    LAST_APPLIED_ANNOTATION,
    LAST_MODIFIER_ANNOTATION,
    OWN_AUTOSCALING_GROUP,
    REVISION_STATE_ANNOTATIONS,
    SNAPSHOT_ANNOTATION,
)
from serving.core.model.objects import Object, annotations_of, meant, nested

_SHOWN_GROUPS = (f"{AUTOSCALING_GROUP}/", f"{OWN_AUTOSCALING_GROUP}/", SNAPSHOT_ANNOTATION)
# Written by daemons and clients about a revision: no settings of it.
_STATES = REVISION_STATE_ANNOTATIONS | {CREATOR_ANNOTATION, LAST_APPLIED_ANNOTATION, LAST_MODIFIER_ANNOTATION}
_STATE_FIELDS = {"servingState"}
_CONTAINERS = {"containers": "", "initContainers": "init "}
_OWN_ROWS = {"name", "image", "env", "resources"}


class SettingDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting with its value in two revisions; None where a revision has none."""

    name: str
    older: str | None
    newer: str | None


class _SettingValue(NamedTuple):
    value: str
    is_shown: bool


def differences(older: Object, newer: Object) -> list[SettingDifference]:
    """The settings that differ between two Revisions, by name."""
    before, after = dict(_settings(older)), dict(_settings(newer))
    differing = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            differing.append(SettingDifference(name=name, older=_text(old), newer=_text(new)))
        elif old.value != new.value:
            is_shown = old.is_shown and new.is_shown
            texts = (old.value, new.value) if is_shown else ("set", "another value")
            differing.append(SettingDifference(name=name, older=texts[0], newer=texts[1]))
    return differing


def _text(setting: _SettingValue | None) -> str | None:
    if setting is None:
        return None
    return setting.value if setting.is_shown else "set"


def _settings(revision: Object) -> Iterator[tuple[str, _SettingValue]]:
    for name, value in annotations_of(revision).items():
        if name not in _STATES:
            yield name, _SettingValue(str(value), name.startswith(_SHOWN_GROUPS))
    spec: Mapping[str, Any] = meant(nested(revision, "spec") or {})
    for name, value in spec.items():
        if name in _CONTAINERS:
            for container in value:
                is_only = name == "containers" and len(value) == 1
                label = "" if is_only else f"{_CONTAINERS[name]}{container.get('name', '')}: "
                yield from ((label + own, setting) for own, setting in _of_container(container))
        elif name not in _STATE_FIELDS:
            yield name, _SettingValue(_written(value), not isinstance(value, dict | list))


def _of_container(container: Mapping[str, Any]) -> Iterator[tuple[str, _SettingValue]]:
    yield "image", _SettingValue(str(container.get("image", "")), is_shown=True)
    for variable in container.get("env") or ():
        yield f"env {variable.get('name', '')}", _SettingValue(_written(variable), is_shown=False)
    for kind, amounts in (container.get("resources") or {}).items():
        for resource, amount in amounts.items() if isinstance(amounts, dict) else ():
            yield f"{kind}.{resource}", _SettingValue(str(amount), is_shown=True)
    for name, value in container.items():
        if name not in _OWN_ROWS:
            yield name, _SettingValue(_written(value), is_shown=False)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
