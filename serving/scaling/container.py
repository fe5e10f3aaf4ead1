"""The container of a revision that takes requests, and what it may use: what its cpu and memory are compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.model.resources import Resources, resources_of


class ServingContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a revision."""

    name: str = ""

    limits: Resources = Resources()
    """Its limits. Without a limit of cpu its request, which is all that it can count on; None: neither is set."""


def serving_container(containers: Sequence[Mapping[str, Any]]) -> ServingContainer:
    """The only container, or the one with a port."""
    found = next((one for one in containers if one.get("ports")), containers[0] if containers else {})
    resources = found.get("resources") or {}
    limits, requests = resources_of(resources.get("limits")), resources_of(resources.get("requests"))
    return ServingContainer(
        name=str(found.get("name", "")),
        limits=Resources(cpu_m=limits.cpu_m or requests.cpu_m, memory_bytes=limits.memory_bytes),
    )
