"""Assigns each contested host to the oldest claim (``serving.core.model.routehosts``).

Input: the claims of routes as they change; output: the holder of each host.
"""

from collections.abc import Iterable, Iterator, Mapping

from serving.core.model.objects import Key, Object
from serving.core.model.routehosts import HostRules, claimed_hosts, recorded_claims, tags_of
from serving.core.settings.controller import ControllerSettings

_PORTS = {"http": 80, "https": 443}


def url_of(host: str, port: int, *, scheme: str = "http") -> str:
    """The URL of a host, without the scheme's default port."""
    return f"{scheme}://{host}" if port == _PORTS[scheme] else f"{scheme}://{host}:{port}"


def public_url(host: str, settings: ControllerSettings, *, has_certificate: bool) -> str:
    """The URL of a public host; https with a certificate, or if default-external-scheme is https."""
    if has_certificate or settings.default_external_scheme == "https":
        return url_of(host, settings.public_tls_port, scheme="https")
    return url_of(host, settings.public_port)


def inner_url(host: str, settings: ControllerSettings, *, has_certificate: bool) -> str:
    """The URL of a cluster-local host.

    The inner listener serves both schemes at one port. The Service ports 80 and 443 both lead to it.
    """
    if not has_certificate:
        return url_of(host, settings.inner_port)
    port = _PORTS["https"] if settings.inner_port == _PORTS["http"] else settings.inner_port
    return url_of(host, port, scheme="https")


def tag_claims(route: Object, now: str) -> dict[str, str]:
    """The time of each tag's claim: the recorded time, or ``now`` for a new tag."""
    claims = recorded_claims(route)
    return {tag: claims.get(tag, now) for tag in tags_of(route)}


def claims_of(route: Object, rules: HostRules) -> dict[str, str]:
    """The hosts that a route claims, each with the time of the claim as sortable text."""
    return {claimed_host.host: claimed_host.since for claimed_host in claimed_hosts(route, rules)}


class Claims:
    """The claims of all routes. The oldest claim wins; of equally old ones, the first by namespace and name."""

    __slots__ = ("_by_host", "_by_route")

    def __init__(self) -> None:
        self._by_host: dict[str, dict[Key, str]] = {}
        self._by_route: dict[Key, frozenset[str]] = {}

    def put(self, route: Key, claims: Mapping[str, str]) -> set[Key]:
        """Replace the claims of a route; return the other routes that claim one of the hosts."""
        touched = self._by_route.get(route, frozenset()) | claims.keys()
        for host in self._by_route.pop(route, frozenset()) - claims.keys():
            self._by_host[host].pop(route)
            if not self._by_host[host]:
                del self._by_host[host]
        for host, at in claims.items():
            self._by_host.setdefault(host, {})[route] = at
        if claims:
            self._by_route[route] = frozenset(claims)
        return set(self._rivals(route, touched))

    def drop(self, route: Key) -> set[Key]:
        """Remove a route; return the routes that claim one of its hosts."""
        return self.put(route, {})

    def holder(self, host: str) -> Key | None:
        """The route that holds the host; None if no route claims it."""
        claims = self._by_host.get(host)
        return min(claims, key=lambda key: (claims[key], key)) if claims else None

    def _rivals(self, route: Key, hosts: Iterable[str]) -> Iterator[Key]:
        for host in hosts:
            yield from (key for key in self._by_host.get(host, ()) if key != route)
