"""DomainMappings as an activator reads them: the host, the cluster-local host that it leads to, and the certificate.

A host belongs to the namespace that its ClusterDomainClaim names, whatever the status of a mapping says. A mapping is served
while its namespace has the claim, and the controller reports, for its present generation, that its reference is good.
Input: DomainMapping and ClusterDomainClaim objects; output: the hosts that are served, with what they lead to.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from serving.model.objects import generation_of, is_true, name_of, namespace_of, nested
from serving.model.routehosts import HostRules, inner_host


class DomainTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests for a host go, if ``namespace`` has it. ``secret`` names its certificate; None: it has none of its own."""

    host: str
    namespace: str
    name: str
    secret: str | None = None


def domain_target_of(mapping: Mapping[str, Any]) -> DomainTarget | None:
    """The record of a mapping; None while its reference is not resolved."""
    if nested(mapping, "status", "observedGeneration") != generation_of(mapping):
        return None
    if not is_true(mapping, "ReferenceResolved"):
        return None
    return DomainTarget(
        host=name_of(mapping).lower(),
        namespace=namespace_of(mapping),
        name=str(nested(mapping, "spec", "ref", "name")),
        secret=nested(mapping, "spec", "tls", "secretName") or None,
    )


class DomainTargets:
    """All mappings, by namespace and name, and the namespace that has claimed each host."""

    __slots__ = ("_owners", "_targets")

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str], DomainTarget] = {}
        self._owners: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"DomainTargets({len(self._targets)})"

    def put(self, key: tuple[str, str], mapping: Mapping[str, Any] | None) -> bool:
        """Take a mapping as it is now, None once it is gone; whether that changes it."""
        before = self._targets.pop(key, None)
        after = None if mapping is None else domain_target_of(mapping)
        if after is not None:
            self._targets[key] = after
        return before != after

    def claim(self, host: str, claim: Mapping[str, Any] | None) -> bool:
        """Take the ClusterDomainClaim of a host as it is now, None once it is gone; whether its owner changes."""
        before = self._owners.pop(host.lower(), None)
        after = None if claim is None else nested(claim, "spec", "namespace")
        if isinstance(after, str):
            self._owners[host.lower()] = after
        return before != after

    def hosts(self, rules: HostRules) -> dict[str, str]:
        """The cluster-local host that each host leads to."""
        return {one.host: inner_host(one.name, one.namespace, rules).lower() for one in self._owned()}

    def secrets(self, is_taken: Callable[[str], bool]) -> dict[str, tuple[str, str]]:
        """Namespace and name of the Secret with the certificate of each host; none where a route has the host."""
        return {
            one.host: (one.namespace, one.secret)
            for one in self._owned()
            if one.secret is not None and not is_taken(one.host)
        }

    def _owned(self) -> Iterator[DomainTarget]:
        return (one for one in self._targets.values() if self._owners.get(one.host) == one.namespace)
