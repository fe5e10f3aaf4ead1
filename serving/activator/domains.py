"""DomainMappings as an activator reads them: the host, the cluster-local host that it leads to, and the certificate.

A mapping is served while the controller reports, for its present generation, that its namespace has claimed the host and
that its reference is good. Input: a DomainMapping object; output: its record, or None while it is not to be served.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.activator.sites import INNER_DOMAIN
from serving.model.objects import generation_of, is_true, name_of, namespace_of, nested

__all__ = ["DomainTarget", "DomainTargets", "domain_target_of"]

_NEEDED = ("DomainClaimed", "ReferenceResolved")


class DomainTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests for a host go. ``secret`` is namespace and name of its certificate; None: it has none of its own."""

    host: str
    inner_host: str
    secret: tuple[str, str] | None = None


def domain_target_of(mapping: Mapping[str, Any]) -> DomainTarget | None:
    """The record of a mapping; None while it is not claimed or not resolved."""
    if nested(mapping, "status", "observedGeneration") != generation_of(mapping):
        return None
    if not all(is_true(mapping, condition) for condition in _NEEDED):
        return None
    namespace, secret = namespace_of(mapping), nested(mapping, "spec", "tls", "secretName")
    return DomainTarget(
        host=name_of(mapping).lower(),
        inner_host=f"{nested(mapping, 'spec', 'ref', 'name')}.{namespace}.{INNER_DOMAIN}".lower(),
        secret=(namespace, secret) if secret else None,
    )


class DomainTargets:
    """All mappings that are served, by namespace and name."""

    __slots__ = ("_targets",)

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str], DomainTarget] = {}

    def __repr__(self) -> str:
        return f"DomainTargets({len(self._targets)})"

    def put(self, key: tuple[str, str], mapping: Mapping[str, Any] | None) -> bool:
        """Take a mapping as it is now, None once it is gone; whether that changes what is served."""
        before = self._targets.pop(key, None)
        after = None if mapping is None else domain_target_of(mapping)
        if after is not None:
            self._targets[key] = after
        return before != after

    @property
    def hosts(self) -> dict[str, str]:
        """The cluster-local host that each host leads to. A host has one namespace at a time, by its claim."""
        return {one.host: one.inner_host for one in self._targets.values()}

    @property
    def secrets(self) -> dict[str, tuple[str, str]]:
        """Namespace and name of the Secret with the certificate of each host that has one."""
        return {one.host: one.secret for one in self._targets.values() if one.secret is not None}
