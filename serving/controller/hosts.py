"""The hosts of a route, and which route gets a host that several claim.

A route claims its own host since its creation, and the host of each tag since the tag first appeared; the oldest claim wins.
"hello" with tag "blue" and a route "blue-hello" claim the same host: the later claim is rejected and has no URL. An annotation
keeps the times of tags, so that a restart does not change the result.

Input: routes and settings; output: hosts, URLs, and the holder of each host. Follows knative/serving 98e5ef90,
pkg/reconciler/route/domains, which does not decide between two claims.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from serving.model.knative import CLAIMED_TAGS_ANNOTATION, VISIBILITY_LABEL
from serving.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, nested
from serving.settings.controller import ControllerSettings

__all__ = ["Claims", "Hosts", "Key", "claims_of", "hosts_of", "is_cluster_local", "tag_claims", "tags_of", "url_of"]

_CLUSTER_LOCAL = "cluster-local"
_HTTP_PORT = 80
# Sorts after every timestamp: a claim without a time is the latest.
_NEVER = "~"
_PLACE = re.compile(r"\{\{\s*\.(\w+)\s*\}\}")

Key = tuple[str, str]


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """The public and the cluster-local host of a route; they are equal if the route is cluster-local."""

    shown: str
    inner: str


def is_cluster_local(route: Object) -> bool:
    """Whether the route is served on the cluster-local listener only."""
    return labels_of(route).get(VISIBILITY_LABEL) == _CLUSTER_LOCAL


def tags_of(route: Object) -> list[str]:
    """The tags of a route's traffic, in order."""
    return [target["tag"] for target in nested(route, "spec", "traffic") or () if target.get("tag")]


def hosts_of(route: Object, settings: ControllerSettings, *, tag: str = "") -> Hosts:
    """The hosts of a route, or of one of its tags. "hello" in "default": hello.default.localhost."""
    name, namespace = name_of(route), namespace_of(route)
    if tag:
        name = _filled(settings.tag_template, {"Tag": tag, "Name": name})
    inner = f"{name}.{namespace}.svc.{settings.cluster_domain}"
    if is_cluster_local(route):
        return Hosts(shown=inner, inner=inner)
    public = {"Name": name, "Namespace": namespace, "Domain": settings.domain}
    return Hosts(shown=_filled(settings.domain_template, public), inner=inner)


def url_of(host: str, port: int) -> str:
    """The URL of a host, without port 80."""
    return f"http://{host}" if port == _HTTP_PORT else f"http://{host}:{port}"


def _filled(template: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: values[match.group(1)], template)


def tag_claims(route: Object, now: str) -> dict[str, str]:
    """The time of each tag's claim: the recorded time, or ``now`` for a new tag."""
    kept = _kept_claims(route)
    return {tag: kept.get(tag, now) for tag in tags_of(route)}


def claims_of(route: Object, settings: ControllerSettings) -> dict[str, str]:
    """The hosts that a route claims, each with the time of the claim as sortable text."""
    since = nested(route, "metadata", "creationTimestamp") or _NEVER
    kept = _kept_claims(route)
    claims: dict[str, str] = {}
    for tag, at in (("", since), *((tag, kept.get(tag, _NEVER)) for tag in tags_of(route))):
        hosts = hosts_of(route, settings, tag=tag)
        claims |= {hosts.shown: at, hosts.inner: at}
    return claims


def _kept_claims(route: Object) -> dict[str, str]:
    try:
        kept = json.loads(annotations_of(route).get(CLAIMED_TAGS_ANNOTATION, "{}"))
    except ValueError:
        return {}
    return {str(tag): str(at) for tag, at in kept.items()} if isinstance(kept, dict) else {}


class Claims:
    """The claims of all routes, by namespace and name; a tie goes to the first of these."""

    __slots__ = ("_by_host", "_by_route")

    def __init__(self) -> None:
        self._by_host: dict[str, dict[Key, str]] = {}
        self._by_route: dict[Key, frozenset[str]] = {}

    def __repr__(self) -> str:
        return f"Claims({len(self._by_route)} routes, {len(self._by_host)} hosts)"

    def put(self, route: Key, claims: Mapping[str, str]) -> set[Key]:
        """Replace the claims of a route; returns the other routes that claim one of the hosts."""
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
        """Remove a route; returns the routes that claim one of its hosts."""
        return self.put(route, {})

    def holder(self, host: str) -> Key | None:
        """The route that has the host; None if no route claims it."""
        claims = self._by_host.get(host)
        return min(claims, key=lambda key: (claims[key], key)) if claims else None

    def validate(self) -> None:
        """Assert that both indexes agree."""
        pairs = {(host, route) for host, claims in self._by_host.items() for route in claims}
        assert pairs == {(host, route) for route, hosts in self._by_route.items() for host in hosts}
        assert all(self._by_host.values())

    def _rivals(self, route: Key, hosts: Iterable[str]) -> Iterator[Key]:
        for host in hosts:
            yield from (key for key in self._by_host.get(host, ()) if key != route)
