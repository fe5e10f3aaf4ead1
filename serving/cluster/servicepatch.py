"""Merge patches that scale a Service or split its traffic, for the CLI and the dashboard.

Input: the Service as stored, and the requested change. Output: a merge patch. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.model.errors import InvalidValue, ServingError
from serving.model.objects import Object
from serving.settings.annotations import GROUP, spellings

LATEST = "@latest"
"""The newest revision that is ready, now and later."""

_ALL_PERCENT = 100


class AskedService(msgspec.Struct, frozen=True, kw_only=True):
    """A requested split: percentages by revision, revisions by tag, tags to remove. "@latest" is the latest ready revision."""

    shares: Mapping[str, int] = {}
    tags: Mapping[str, str] = {}
    untagged: Sequence[str] = ()


def scaling_annotations(scaling: Mapping[str, str]) -> dict[str, str | None]:
    """The annotations of a template for values by key, such as "min-scale". None removes a key's other spelling: both are refused."""
    found: dict[str, str | None] = {}
    for key, text in scaling.items():
        own, *others = spellings(GROUP + key)
        found |= {own: text, **dict.fromkeys(others)}
    return found


def scale_patch(service: Object, scaling: Mapping[str, str]) -> Object:
    """The patch that sets annotations of scaling by key, such as "min-scale". It creates a new revision."""
    metadata: dict[str, object] = {"annotations": scaling_annotations(scaling)}
    template = (service.get("spec") or {}).get("template") or {}
    if (template.get("metadata") or {}).get("name"):
        # A named revision cannot change; the new one gets a generated name.
        metadata["name"] = None
    return {"spec": {"template": {"metadata": metadata}}}


def desired_traffic(service: Object, asked: AskedService) -> list[Object]:
    """The traffic targets for the service's spec. Raises ``ServingError``."""
    before: Sequence[Mapping[str, Any]] = (service.get("spec") or {}).get("traffic") or ()
    tags = {one["tag"]: _revision_of(one) for one in before if one.get("tag")}
    shares = dict(asked.shares)
    if not shares:
        for one in before:
            shares[_revision_of(one)] = shares.get(_revision_of(one), 0) + (one.get("percent") or 0)
    total = sum(shares.values())
    if total != _ALL_PERCENT:
        text = " ".join(f"{revision}={percent}" for revision, percent in shares.items())
        raise ServingError(f"{text} is {total} % together; expected 100 %")
    for tag in asked.untagged:
        if tags.pop(tag, None) is None:
            raise InvalidValue(text=tag, expected=f"a tag of it; there are {', '.join(sorted(tags)) or 'none'}")
    tags.update(asked.tags)
    targets = [_target(revision, percent=percent) for revision, percent in shares.items() if percent]
    for tag, revision in tags.items():
        plain = next((one for one in targets if _revision_of(one) == revision and "tag" not in one), None)
        if plain is not None:
            plain["tag"] = tag
        else:
            targets.append({**_target(revision, percent=0), "tag": tag})
    return targets


def _revision_of(target: Mapping[str, Any]) -> str:
    return str(target.get("revisionName") or LATEST)


def _target(revision: str, *, percent: int) -> Object:
    if revision == LATEST:
        return {"latestRevision": True, "percent": percent}
    return {"revisionName": revision, "latestRevision": False, "percent": percent}
