"""Which DomainMappings a change concerns: by the host that they map, and by the object that they reference.

A large memory without I/O: ``put`` follows the mappings; ``woken`` costs as much as what it finds.
"""

from collections import defaultdict
from collections.abc import Iterator

from serving.controller.routes.domain_mapping import target_of
from serving.controller.routes.hosts import Key
from serving.controller.values.writes import ResourceKind
from serving.model.objects import Object, nested

_Target = tuple[ResourceKind, Key]


class Domains:
    """The mappings by host and by target."""

    __slots__ = ("_by_host", "_by_target")

    def __init__(self) -> None:
        self._by_host: defaultdict[str, set[Key]] = defaultdict(set)
        self._by_target: defaultdict[_Target, set[Key]] = defaultdict(set)

    def __repr__(self) -> str:
        return f"Domains({sum(map(len, self._by_host.values()))} mappings)"

    def put(self, key: Key, *, before: Object | None, after: Object | None) -> None:
        """A mapping was ``before`` and is ``after``; None where there is none."""
        old, new = before and target_of(before), after and target_of(after)
        if old and not _discard(self._by_target[old], key):
            del self._by_target[old]
        if new:
            self._by_target[new].add(key)
        if after:
            self._by_host[key[1]].add(key)
        elif not _discard(self._by_host[key[1]], key):
            del self._by_host[key[1]]

    def of_host(self, host: str) -> set[Key]:
        """The mappings of a host, in any namespace."""
        return self._by_host.get(host, set())

    def woken(
        self, resource: ResourceKind, key: Key, *, before: Object | None, after: Object | None
    ) -> Iterator[tuple[ResourceKind, str, str]]:
        """The mappings and claims to decide on again after a change of an object."""
        match resource:
            case ResourceKind.DOMAIN_MAPPING:
                yield (resource, *key)
                yield (ResourceKind.DOMAIN_CLAIM, "", key[1])
            case ResourceKind.DOMAIN_CLAIM:
                yield (resource, *key)
                yield from ((ResourceKind.DOMAIN_MAPPING, *one) for one in self.of_host(key[1]))
            case _ if _address_of(before) != _address_of(after):
                yield from ((ResourceKind.DOMAIN_MAPPING, *one) for one in self._by_target.get((resource, key), ()))


def _address_of(one: Object | None) -> object:
    """What a mapping reads of its target; None if the target is not there."""
    return one and (nested(one, "status", "address", "url"), nested(one, "metadata", "ownerReferences"))


def _discard(found: set[Key], key: Key) -> bool:
    """Remove a key; whether any other is left."""
    found.discard(key)
    return bool(found)
