"""Which revision a request is for: from its host, tag and listener to the name of a revision.

Input: Route objects one at a time, as they change; a request's Host, ``Knative-Serving-Tag`` and listener. Output: the site
that answers for the host, and one revision of it by weighted choice.

Public hosts are those of the URLs in the route's status (NAME.NAMESPACE.<domain>, TAG-NAME.NAMESPACE.<domain>). The inner
listener serves NAME.NAMESPACE.svc.cluster.local of every route and of every revision, also without its end, as resolvers of a
cluster allow; the public listener serves no such name. A Gateway that has applied the weights names the revision by two
headers, with the client's host: they count on the inner listener alone, where any client may ask for any revision by its host.

If two routes claim one host, the older claim has it; the other gets it when the older one goes. Randomness is an argument.
Follows the Route of knative/serving 98e5ef90 (pkg/reconciler/route).
"""

import bisect
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serving.model.knative import CLAIMED_TAGS_ANNOTATION, VISIBILITY_LABEL
from serving.model.nodata import NoData
from serving.model.rollout import tag_splits
from serving.model.routedigest import route_digest

__all__ = [
    "INNER_DOMAIN",
    "HostClaim",
    "Listener",
    "Routes",
    "ServedRoute",
    "Site",
    "choose",
    "claims_of",
    "route_of",
    "shares_of",
]

# Namespace and name.
RevisionKey = tuple[str, str]

INNER_DOMAIN = "svc.cluster.local"

# Name and namespace.
_SHORT_PARTS = 2
# Later than any time that the API writes: a route always comes before a revision of that name.
_AFTER_ALL = "~"
_REVISION = ":revision"
_NO_TAGS: Mapping[str, "Site"] = {}
_CLUSTER_LOCAL = "cluster-local"
# The controller notes there since when each tag is claimed, as a JSON object of tag to time.


class Listener(enum.StrEnum):
    """Where a request came in. Cluster-local hosts exist on the inner one only."""

    PUBLIC = "public"
    INNER = "inner"


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What answers for one host: revisions with their shares, and revisions that a tag header may ask for.

    ``bounds`` are the sums of the percents up to each revision: 90 and 10 percent are bounds 90 and 100. A tag's own
    host has one revision and no tags.
    """

    route: str
    namespace: str
    revisions: tuple[str, ...]
    bounds: tuple[int, ...]
    tags: Mapping[str, "Site"] = {}


class HostClaim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A host that a route wants, since when, and what it would answer there. The smallest claim has the host."""

    since: str
    route: str
    host: str
    listener: Listener
    site: Site


class _RouteMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = "default"
    creation_timestamp: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _TrafficTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One line of ``status.traffic``."""

    revision_name: str = ""
    percent: int | None = None
    tag: str = ""
    url: str = ""


class _RouteAddress(msgspec.Struct, frozen=True, kw_only=True):
    url: str | None = None


class _RouteStatus(msgspec.Struct, frozen=True, kw_only=True):
    url: str = ""
    address: _RouteAddress | None = None
    traffic: list[_TrafficTarget] | None = None


class ServedRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What of a Route object matters here; ``digest`` is that of the whole (``serving.model.routedigest``)."""

    metadata: _RouteMetadata
    status: _RouteStatus = _RouteStatus()
    digest: str = ""

    @property
    def key(self) -> str:
        """Namespace and name with a slash, unique among routes."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


def route_of(route: Mapping[str, Any]) -> ServedRoute | NoData:
    """The facts of a Route object as the API has it."""
    try:
        facts = msgspec.convert(route, ServedRoute)
    except msgspec.ValidationError as error:
        return NoData(missing=f"a Route that can be read: {error}")
    return msgspec.structs.replace(facts, digest=route_digest(route))


def claims_of(facts: ServedRoute) -> Iterator[HostClaim]:
    """All hosts that a route claims.

    Until its status has traffic it claims none. "hello" in "default" at http://hello.default.localhost:8080 with a tag
    "new" claims hello.default.localhost and new-hello.default.localhost in public, and both names with
    default.svc.cluster.local on the inner listener.
    """
    created, tagged_since = facts.metadata.creation_timestamp, _tagged_since(facts)
    entries = [entry for entry in facts.status.traffic or () if entry.revision_name]
    tagged = {entry.tag: entry for entry in entries if entry.tag}
    # During a gradual rollout a tag has several revisions, with other shares than on the route's own host.
    splits = tag_splits(facts.metadata.annotations or {})
    tags = {tag: _site(facts, splits.get(tag, ((entry.revision_name, 100),))) for tag, entry in tagged.items()}
    own = _site(facts, [(entry.revision_name, entry.percent or 0) for entry in entries], tags)
    if own.revisions:
        yield from _claims(facts, own, since=created)
    for tag, entry in tagged.items():
        # A tag is never older than its route, whatever is written there.
        yield from _claims(facts, tags[tag], since=max(created, tagged_since.get(tag, "")), tag=entry)


def choose(site: Site, *, tag: str | None, draw: Callable[[], float]) -> RevisionKey:
    """One revision of a site: the one that the tag names, else one by weight; a tag that is not there is ignored.

    ``draw`` gives numbers from 0 to below 1: with 90 and 10 percent, 0.89 is the first revision and 0.9 the second.
    """
    if tag is not None and (tagged := site.tags.get(tag)) is not None:
        return choose(tagged, tag=None, draw=draw)
    if len(site.revisions) == 1:
        return site.namespace, site.revisions[0]
    place = bisect.bisect_right(site.bounds, draw() * site.bounds[-1])
    return site.namespace, site.revisions[place]


def shares_of(site: Site) -> Iterator[tuple[str, int]]:
    """Each revision of a site with its percent."""
    before = 0
    for revision, bound in zip(site.revisions, site.bounds, strict=True):
        yield revision, bound - before
        before = bound


class Routes:
    """All claims, and who has each host. A change costs as much as the hosts of one route."""

    __slots__ = ("_claims", "_claims_of", "_digests", "_domains", "_sites", "turn")

    def __init__(self) -> None:
        self._claims: dict[tuple[Listener, str], list[HostClaim]] = {}
        self._claims_of: dict[str, list[HostClaim]] = {}
        self._digests: dict[str, str] = {}
        self._sites: dict[Listener, dict[str, Site]] = {listener: {} for listener in Listener}
        self._domains: Mapping[str, str] = {}
        self.turn = 0
        """Grows with each change: what was found in the same turn is still so."""

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(sites)} {listener} hosts" for listener, sites in self._sites.items())
        route_count = sum(not key.endswith(_REVISION) for key in self._claims_of)
        return f"Routes({route_count} routes, {counts})"

    def set(self, facts: ServedRoute) -> None:
        """A route is new or has changed."""
        self._set(facts.key, list(claims_of(facts)))
        self._digests[facts.key] = facts.digest

    def digest_of(self, key: str) -> str | None:
        """The digest of a Route as it is served now, by namespace and name with a slash; None for an unknown Route."""
        return self._digests.get(key)

    def set_revision(self, key: RevisionKey) -> None:
        """A revision is there: its public Service leads here while its pods are not the endpoints."""
        route = _of_revision(key)
        if route not in self._claims_of:
            self._set(route, [_claim_of_revision(route, key)])

    def remove_revision(self, key: RevisionKey) -> None:
        """A revision is gone."""
        self.remove(_of_revision(key))

    def set_domains(self, targets: Mapping[str, str]) -> None:
        """The cluster-local host of the route or revision that each mapped host leads to: all mappings there are."""
        self._domains = targets
        self.turn += 1

    def _set(self, route: str, claims: list[HostClaim]) -> None:
        self.remove(route)
        self._claims_of[route] = claims
        for claim in claims:
            bisect.insort(self._claims.setdefault((claim.listener, claim.host), []), claim, key=_age_order)
            self._settle(claim)

    def remove(self, key: str) -> None:
        """A route is gone; who waited for its hosts has them."""
        self._digests.pop(key, None)
        for claim in self._claims_of.pop(key, ()):
            self._claims[claim.listener, claim.host].remove(claim)
            self._settle(claim)

    def find(
        self, listener: Listener, host: str, *, named: tuple[Sequence[bytes], Sequence[bytes]] | None = None
    ) -> Site | None:
        """The site of a Host header; its case, port and final dot do not matter. None if no service has it.

        ``named`` are the values of Knative-Serving-Namespace and Knative-Serving-Revision. On the inner listener they go
        before the host if there is one of each.
        """
        if named is not None and listener is Listener.INNER and len(named[0]) == len(named[1]) == 1:
            return self._find_revision((named[0][0].decode("latin-1"), named[1][0].decode("latin-1")))
        sites = self._sites[listener]
        found = sites.get(host) or sites.get(_bare(host)) or sites.get(_whole(_bare(host)))
        return found or self._find_domain(_bare(host))

    def _find_domain(self, host: str) -> Site | None:
        """On both listeners: a Gateway in front sends what came for the domain to the inner one."""
        return self._sites[Listener.INNER].get(self._domains.get(host, ""))

    def _find_revision(self, key: RevisionKey) -> Site | None:
        claims = self._claims_of.get(_of_revision(key))
        return claims[0].site if claims else None

    def lost(self) -> list[HostClaim]:
        """Claims of hosts that an older claim has."""
        return [claim for claims in self._claims.values() for claim in claims[1:]]

    def _settle(self, claim: HostClaim) -> None:
        self.turn += 1
        place = claim.listener, claim.host
        claims = self._claims[place]
        if claims:
            self._sites[claim.listener][claim.host] = claims[0].site
        else:
            del self._claims[place]
            self._sites[claim.listener].pop(claim.host)


def _age_order(claim: HostClaim) -> tuple[str, str]:
    return claim.since, claim.route


def _bare(host: str) -> str:
    # "[::1]:80" loses its port too and names no route either way.
    name, colon, port = host.rpartition(":")
    return (name if colon and (not port or port.isdigit()) else host).removesuffix(".").lower()


def _whole(host: str) -> str:
    """A host of the cluster as it is written in full: "hello.default" and "hello.default.svc"."""
    parts = host.split(".")
    if len(parts) == _SHORT_PARTS:
        return f"{host}.{INNER_DOMAIN}"
    return (
        f"{host}.{INNER_DOMAIN.removeprefix('svc.')}" if len(parts) == _SHORT_PARTS + 1 and parts[-1] == "svc" else ""
    )


def _of_revision(key: RevisionKey) -> str:
    # No route has such a name, so that it is the key of none.
    return f"{key[0]}/{key[1]}{_REVISION}"


def _claim_of_revision(route: str, key: RevisionKey) -> HostClaim:
    site = Site(route=route, namespace=key[0], revisions=(key[1],), bounds=(100,))
    host = f"{key[1]}.{key[0]}.{INNER_DOMAIN}".lower()
    return HostClaim(since=_AFTER_ALL, route=route, host=host, listener=Listener.INNER, site=site)


def _site(facts: ServedRoute, shares: Iterable[tuple[str, int]], tags: Mapping[str, Site] = _NO_TAGS) -> Site:
    """Revisions with at least 1 percent; a target of 0 percent is reached by its tag only."""
    bounds: list[int] = []
    revisions: list[str] = []
    for revision, percent in shares:
        if percent > 0:
            revisions.append(revision)
            bounds.append((bounds[-1] if bounds else 0) + percent)
    return Site(
        route=facts.key,
        namespace=facts.metadata.namespace,
        revisions=tuple(revisions),
        bounds=tuple(bounds),
        tags=tags,
    )


def _claims(facts: ServedRoute, site: Site, *, since: str, tag: _TrafficTarget | None = None) -> Iterator[HostClaim]:
    """The claims of a route's own host, or of a tag's, on each listener on which it is.

    A label that takes a route from the public is obeyed at once, whatever its status still says.
    """
    prefix = f"{tag.tag}-" if tag else ""
    inner, public = _inner_host_of(facts), _host_of(facts.status.url)
    yield HostClaim(since=since, route=facts.key, host=f"{prefix}{inner}".lower(), listener=Listener.INNER, site=site)
    is_inner = (facts.metadata.labels or {}).get(VISIBILITY_LABEL) == _CLUSTER_LOCAL
    if is_inner or not public or public == inner or public.endswith(f".{INNER_DOMAIN}"):
        return
    # A route that lost a tag's host to another has no URL for it; then the older claim has the host here, too.
    host = (tag and _host_of(tag.url)) or f"{prefix}{public}"
    if host.endswith(f".{INNER_DOMAIN}"):
        # A tag that is cluster-local though its route is public.
        return
    yield HostClaim(since=since, route=facts.key, host=host.lower(), listener=Listener.PUBLIC, site=site)


def _inner_host_of(facts: ServedRoute) -> str:
    address = facts.status.address
    known = _host_of(address.url or "") if address else ""
    return known or f"{facts.metadata.name}.{facts.metadata.namespace}.{INNER_DOMAIN}".lower()


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _tagged_since(facts: ServedRoute) -> dict[str, str]:
    text = (facts.metadata.annotations or {}).get(CLAIMED_TAGS_ANNOTATION, "{}")
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}
