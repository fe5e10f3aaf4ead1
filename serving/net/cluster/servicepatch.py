"""Merge patches for scaling, traffic splits and rollbacks of a Service, for CLI and dashboard.

Input: the Service as stored, and the requested change. Output: a merge patch. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.knative import CONDITION_READY, CONFIGURATION_GENERATION_LABEL
from serving.core.model.objects import Object, is_true, labels_of, name_of, nested
from serving.core.settings.annotations import GROUP, spellings

LATEST = "@latest"
"""Stands for the latest ready revision, now and later."""

_ALL_PERCENT = 100
_WORKLOAD_KEYS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "min-scale": ("min", int),
    "max-scale": ("max", int),
    "target": ("target", float),
    "window": ("window", str),
}


class TrafficRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A requested traffic split: percentages by revision, revisions by tag, tags to remove.

    "@latest" is the latest ready revision.
    """

    shares: Mapping[str, int] = {}
    tags: Mapping[str, str] = {}
    untagged: Sequence[str] = ()


def scaling_annotations(scaling: Mapping[str, str]) -> dict[str, str | None]:
    """Template annotations that set scaling values by key, such as "min-scale".

    An annotation with the value None removes the key's other spelling.
    """
    annotations: dict[str, str | None] = {}
    for key, text in scaling.items():
        own, *others = spellings(GROUP + key)
        annotations |= {own: text, **dict.fromkeys(others)}
    return annotations


def scale_patch(service: Object, scaling: Mapping[str, str]) -> Object:
    """The patch that sets scaling annotations by key, such as "min-scale". It creates a new revision."""
    metadata: dict[str, object] = {"annotations": scaling_annotations(scaling)}
    template = (service.get("spec") or {}).get("template") or {}
    if (template.get("metadata") or {}).get("name"):
        # A named revision is immutable, so the new one gets a generated name.
        metadata["name"] = None
    return {"spec": {"template": {"metadata": metadata}}}


def workload_scale_patch(scaling: Mapping[str, str]) -> Object:
    """The patch that sets scaling values of a ScaledWorkload: in its spec, other keys as annotations."""
    spec = {name: read(scaling[key]) for key, (name, read) in _WORKLOAD_KEYS.items() if key in scaling}
    others = {key: text for key, text in scaling.items() if key not in _WORKLOAD_KEYS}
    annotations = {"metadata": {"annotations": scaling_annotations(others)}} if others else {}
    return {"spec": {"scaling": spec}, **annotations}


def desired_traffic(service: Object, wanted: TrafficRequest) -> list[Object]:
    """The traffic targets for a Service's spec. Raises ``ServingError``."""
    before = _targets_of(service)
    tags = {target["tag"]: _revision_of(target) for target in before if target.get("tag")}
    shares = dict(wanted.shares or _wanted_shares(before))
    total = sum(shares.values())
    if total != _ALL_PERCENT:
        text = " ".join(f"{revision}={percent}" for revision, percent in shares.items())
        raise ServingError(f"{text} is {total} % together; expected 100 %")
    for tag in wanted.untagged:
        if tags.pop(tag, None) is None:
            raise InvalidValue(text=tag, expected=f"a tag of it; there are {', '.join(sorted(tags)) or 'none'}")
    tags.update(wanted.tags)
    targets = [_target(revision, percent=percent) for revision, percent in shares.items() if percent]
    for tag, revision in tags.items():
        plain = next((target for target in targets if _revision_of(target) == revision and "tag" not in target), None)
        if plain is not None:
            plain["tag"] = tag
        else:
            targets.append({**_target(revision, percent=0), "tag": tag})
    return targets


def pinned_traffic(service: Object) -> list[Object]:
    """Traffic targets with the latest ready revision's name instead of "latest", so that new revisions get no requests.

    Raises ``ServingError``.
    """
    shares = _wanted_shares(_targets_of(service))
    percent = shares.pop(LATEST, 0)
    if percent:
        ready = str(nested(service, "status", "latestReadyRevisionName") or "")
        if not ready:
            raise ServingError(f"no revision of {name_of(service)} is ready, so that none can get traffic")
        shares[ready] = shares.get(ready, 0) + percent
    return desired_traffic(service, TrafficRequest(shares=shares))


def _targets_of(service: Object) -> Sequence[Mapping[str, Any]]:
    return nested(service, "spec", "traffic") or ({"latestRevision": True, "percent": _ALL_PERCENT},)


def _wanted_shares(targets: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for target in targets:
        revision = _revision_of(target)
        shares[revision] = shares.get(revision, 0) + (target.get("percent") or 0)
    return shares


def shares_of(service: Object) -> dict[str, int]:
    """The current percent of traffic by revision, without revisions at 0."""
    shares: dict[str, int] = {}
    for target in nested(service, "status", "traffic") or ():
        if target.get("percent"):
            name = str(target.get("revisionName", ""))
            shares[name] = shares.get(name, 0) + target["percent"]
    return shares


def shares_text(shares: Mapping[str, int]) -> str:
    """A traffic split as text: "90 % to hello-00001, 10 % to hello-00002"."""
    return ", ".join(f"{percent} % to {revision}" for revision, percent in shares.items() if percent)


def newest_first(revisions: Iterable[Object]) -> list[Object]:
    """The revisions of a Service, newest first."""
    return sorted(revisions, key=age_order, reverse=True)


def age_order(revision: Object) -> tuple[int, str, str]:
    """A sort key that orders a Service's revisions by age, oldest first."""
    text = labels_of(revision).get(CONFIGURATION_GENERATION_LABEL, "")
    number = int(text) if text.isdecimal() else 0
    return number, str(nested(revision, "metadata", "creationTimestamp")), name_of(revision)


def rollback_target(service: Object, revisions: Sequence[Object]) -> str:
    """The rollback target: the newest ready revision older than the newest revision with traffic.

    In a rollout from one revision to the next, the target is the earlier one. ``revisions`` are the service's
    revisions, newest first. Raises ``ServingError``.
    """
    shares = shares_of(service)
    newest = next((place for place, revision in enumerate(revisions) if name_of(revision) in shares), None)
    if newest is None:
        raise ServingError("no revision has traffic: there is nothing to roll back")
    target = next((name_of(revision) for revision in revisions[newest + 1 :] if is_true(revision, CONDITION_READY)), "")
    if not target:
        has = f"{name_of(revisions[newest])} is the newest revision with traffic"
        raise ServingError(f"{has}, and no older revision is ready: there is nothing to roll back to")
    return target


def _revision_of(target: Mapping[str, Any]) -> str:
    return str(target.get("revisionName") or LATEST)


def _target(revision: str, *, percent: int) -> Object:
    if revision == LATEST:
        return {"latestRevision": True, "percent": percent}
    return {"revisionName": revision, "latestRevision": False, "percent": percent}
