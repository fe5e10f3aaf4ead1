"""Adds components of ``config/components`` to the objects of an installation.

It supports the parts of kustomize that the components use: resources, and patches with a target, as strategic merge or JSON
patches. A test compares the output with that of ``kubectl kustomize``. Unlike kustomize it refuses a component whose patch has no
target, or whose binding has no account: such a component would do nothing, or not start.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from serving.core.model.errors import ServingError
from serving.core.model.objects import Object
from serving.home.schemas.crds import YAML_LOADER
from serving.home.schemas.patch import json_patch
from serving.home.schemas.strategic import strategic_merge
from serving.net.cluster.kinds import KINDS

_KNOWN_KEYS = {"apiVersion", "kind", "resources", "patches"}
_FOLDER, _FILE = "components", "kustomization.yaml"


def component_names(folder: Path) -> list[str]:
    """The names of all components of a tree."""
    return sorted(path.parent.name for path in (folder / _FOLDER).glob(f"*/{_FILE}"))


def with_components(folder: Path, objects: Sequence[Object], names: Sequence[str]) -> list[Object]:
    """The objects, changed and extended by components in the order of ``names``.

    Raises:
        ServingError: when there is no such component, or it needs another that is not named.
    """
    known = component_names(folder)
    for name in names:
        if name not in known:
            raise ServingError(f"{name!r} is no component; there are {', '.join(known)}")
    combined = [*objects, *(resource for name in names for resource in _resources(folder, name))]
    for name in names:
        _check_accounts(folder, combined, name)
        for patch in _kustomization(folder, name).get("patches", ()):
            combined = _patched(folder, combined, patch, name=name)
    return combined


def _kustomization(folder: Path, name: str) -> Object:
    content: Object = _documents(folder / _FOLDER / name / _FILE)[0]
    unknown = content.keys() - _KNOWN_KEYS
    assert not unknown, f"component {name} has {unknown}, which only kubectl understands"
    return content


def _resources(folder: Path, name: str) -> Iterator[Object]:
    for resource in _kustomization(folder, name).get("resources", ()):
        yield from _documents(folder / _FOLDER / name / resource)


def _patched(folder: Path, objects: Sequence[Object], patch: Object, *, name: str) -> list[Object]:
    target, content = patch["target"], yaml.load(patch["patch"], Loader=YAML_LOADER)  # noqa: S506 - both loaders are safe
    is_target = [_is_target(resource, target) for resource in objects]
    if not any(is_target):
        raise _needs(folder, name, kind=target["kind"], wanted=target["name"])
    return [
        _changed(resource, content) if chosen else resource for resource, chosen in zip(objects, is_target, strict=True)
    ]


def _is_target(resource: Object, target: Object) -> bool:
    # As in kustomize: the whole name, as a regular expression.
    return bool(resource["kind"] == target["kind"] and re.fullmatch(target["name"], resource["metadata"]["name"]))


def _changed(resource: Object, content: Any) -> Object:  # noqa: ANN401 - YAML
    if isinstance(content, list):
        changed: Object = json_patch(resource, content)
        return changed
    kind = next(kind for kind in KINDS if (kind.api_version, kind.name) == (resource["apiVersion"], resource["kind"]))
    return strategic_merge(kind, resource, content)


def _check_accounts(folder: Path, objects: Sequence[Object], name: str) -> None:
    accounts = {resource["metadata"]["name"] for resource in objects if resource["kind"] == "ServiceAccount"}
    for resource in _resources(folder, name):
        for subject in resource.get("subjects", ()):
            if subject["name"] not in accounts:
                raise _needs(folder, name, kind="ServiceAccount", wanted=subject["name"])


def _needs(folder: Path, name: str, *, kind: str, wanted: str) -> ServingError:
    holders = [
        other
        for other in component_names(folder)
        for resource in _resources(folder, other)
        if (resource["kind"], resource["metadata"]["name"]) == (kind, wanted)
    ]
    return ServingError(f"component {name} needs the component {' or '.join(holders)} too, for its {kind} {wanted}")


def _documents(path: Path) -> list[Object]:
    return list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=YAML_LOADER))
