"""Finds a site by host, path and headers, for hosts that many sites share.

Input: rules with host, path prefix and headers; a request's host, target and headers. Output: the site of the best
rule. An exact host precedes wildcards, and a longer wildcard precedes a shorter one. Among equal hosts the longest path
wins, then the most headers, then the oldest rule. A path is a prefix of whole segments.

A host belongs to the namespace in its ClusterDomainClaim, or else to the namespace of its oldest rule. Rules of other
namespaces for that host have no effect, so that no namespace can take over paths of another's host.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from serving.activator.routing.sites import Listener, Site
from serving.core.model.scaledworkload import HeaderMatch

HeaderValues = Callable[[bytes], Iterable[bytes]]
"""Returns a request header's values, given its name in lower case."""


class HostRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that leads requests for a host to a site.

    ``owner`` is the object with the rule, which has claimed the host since the time ``since``. ``path`` is a prefix
    without trailing slash, "" for all paths. The request must have all ``headers``. ``listeners`` are those that apply
    the rule.
    """

    since: str
    owner: str
    host: str
    site: Site
    path: str = ""
    headers: tuple[HeaderMatch, ...] = ()
    listeners: tuple[Listener, ...] = (Listener.PUBLIC, Listener.INNER)

    @property
    def is_whole_host(self) -> bool:
        """Whether the rule matches all requests for its host."""
        return not self.path and not self.headers

    def matches(self, listener: Listener, path: bytes, values: HeaderValues) -> bool:
        """Whether the rule matches a request for its host."""
        prefix = self.path.encode()
        is_below = path == prefix or path.startswith(prefix + b"/") or not prefix
        return listener in self.listeners and is_below and all(_has(header, values) for header in self.headers)


class HostTable:
    """The rules of all owners. A lookup is linear in the rules of one host."""

    __slots__ = ("_by_host", "_by_owner", "claims")

    def __init__(self) -> None:
        self.claims: Mapping[str, str] = {}
        """The namespace that owns each host."""
        self._by_owner: dict[str, tuple[HostRule, ...]] = {}
        self._by_host: dict[str, list[HostRule]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_host)

    def set(self, owner: str, rules: Sequence[HostRule]) -> bool:
        """Replace the rules of an owner; an empty sequence removes them. Return whether they changed."""
        if self._by_owner.get(owner, ()) == tuple(rules):
            return False
        before = self._by_owner.pop(owner, ())
        for host in {rule.host for rule in before}:
            others = [rule for rule in self._by_host[host] if rule.owner != owner]
            if others:
                self._by_host[host] = others
            else:
                del self._by_host[host]
        if rules:
            self._by_owner[owner] = tuple(rules)
        for rule in rules:
            self._by_host.setdefault(rule.host, []).append(rule)
        for host in {rule.host for rule in rules}:
            self._by_host[host].sort(key=_precedence)
        return True

    def find(self, listener: Listener, host: str, *, target: bytes, values: HeaderValues) -> HostRule | None:
        """The rule for a request; None if no rule matches. ``host`` is in lower case, without port.

        Rules for the exact host precede those for wildcards. Then the longest path decides, then the most headers, then
        the oldest claim.
        """
        path = target.partition(b"?")[0]
        for name in (host, *_wildcards_of(host)):
            for rule in self._owned(name):
                if rule.matches(listener, path, values):
                    return rule
        return None

    def lost(self) -> Iterator[HostRule]:
        """Rules without effect, because another namespace owns their host."""
        for host, rules in self._by_host.items():
            owned = set(map(id, self._owned(host)))
            yield from (rule for rule in rules if id(rule) not in owned)

    def _owned(self, host: str) -> list[HostRule]:
        rules = self._by_host.get(host, [])
        claimed = self.claims.get(host)
        if claimed is None and len({rule.site.namespace for rule in rules}) < 2:
            return rules
        namespace = claimed or min(rules, key=_age).site.namespace
        return [rule for rule in rules if rule.site.namespace == namespace]


def normal_path(path: str) -> str:
    """A path prefix without trailing slash; "" for all paths."""
    return path.rstrip("/")


def _age(rule: HostRule) -> tuple[str, ...]:
    return rule.since, *rule.owner.split("/")


def _precedence(rule: HostRule) -> tuple[object, ...]:
    return -len(rule.path), -len(rule.headers), *_age(rule)


def _wildcards_of(host: str) -> Iterator[str]:
    """The wildcards that match "a.b.c": "*.b.c", then "*.c"."""
    rest = host
    while "." in rest:
        rest = rest.partition(".")[2]
        yield f"*.{rest}"


def _has(header: HeaderMatch, values: HeaderValues) -> bool:
    present = [value.decode("latin-1") for value in values(header.name.lower().encode())]
    return bool(present) if header.value is None else header.value in present
