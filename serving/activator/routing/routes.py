"""Finds the site of a request by its host and listener.

Input: changed Route objects; a request's Host and listener. Output: the site.

The inner listener serves NAME.NAMESPACE.svc.cluster.local of every route and revision, and the short forms that cluster
resolvers allow. The public listener serves none of these names. A Gateway applies the weights of a route itself: it
names the revision in two headers, and keeps the client's host. These headers are used on the inner listener only, where
a client may address any revision by host. A revision's site has the access rules of the routes that lead to it.

If two routes claim one host, the older claim wins. The other claim takes effect when the older one is removed. A host
that no route claims is searched in the table of hosts with paths and headers (``hosttable.py``). The table may also
have paths of a route's host, for rules of the same namespace.
"""

import bisect
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serving.activator.routing.hostclaims import HostClaim, ServedRoute, claims_of
from serving.activator.routing.hosttable import HeaderValues, HostRule, HostTable
from serving.activator.routing.sites import INNER_DOMAIN, AccessRule, Listener, Site
from serving.core.model.knative import RevisionKey

# Namespace and name.
_SHORT_PARTS = 2
# Sorts after every API time: a route always takes precedence over a revision with the same host.
_AFTER_ALL = "~"
_REVISION = ":revision"
_NO_CLAIMS: Mapping[str, str] = {}


class Routes:
    """All claims, and the winning claim of each host. A change costs time linear in one route's hosts."""

    __slots__ = ("_claims", "_claims_of", "_digests", "_domains", "_private", "_sites", "_table", "turn")

    def __init__(self) -> None:
        self._claims: dict[tuple[Listener, str], list[HostClaim]] = {}
        self._claims_of: dict[str, list[HostClaim]] = {}
        self._digests: dict[str, str] = {}
        self._sites: dict[Listener, dict[str, Site]] = {listener: {} for listener in Listener}
        self._domains: Mapping[str, str] = {}
        self._table = HostTable()
        # The private routes to a revision, by name: they make the revision's own host private.
        self._private: dict[RevisionKey, dict[str, AccessRule]] = {}
        self.turn = 0
        """Incremented by each change: equal values guarantee equal lookup results."""

    def set(self, facts: ServedRoute) -> None:
        """Add or update a route."""
        self._set(facts.key, list(claims_of(facts)))
        self._digests[facts.key] = facts.digest

    def digest_of(self, key: str) -> str | None:
        """The digest of a Route as currently served, by "namespace/name"; None for an unknown Route."""
        return self._digests.get(key)

    def set_revision(self, key: RevisionKey) -> None:
        """Add the host of a revision. Its public Service leads to the activators while it has no ready pods."""
        route = _of_revision(key)
        if route not in self._claims_of:
            self._set(route, [_claim_of_revision(route, key)])

    def holds(self, host: str) -> bool:
        """Whether a route has this public host. Mappings of the host then have no effect."""
        return host in self._sites[Listener.PUBLIC]

    def holder_of(self, host: str) -> str:
        """The route ("namespace/name") that has a host; "" if there is none."""
        inner = self._sites[Listener.INNER]
        site = self._sites[Listener.PUBLIC].get(host) or inner.get(host) or inner.get(_whole(host))
        return site.route if site else ""

    def remove_revision(self, key: RevisionKey) -> None:
        """Remove a revision."""
        self.remove(_of_revision(key))

    def set_domains(self, targets: Mapping[str, str], claims: Mapping[str, str] = _NO_CLAIMS) -> None:
        """Replace all domain mappings, and the namespaces that own hosts.

        ``targets`` has the cluster-local host of each mapped host.
        """
        self._domains = targets
        self._table.claims = claims
        self.turn += 1

    def set_rules(self, owner: str, rules: Sequence[HostRule]) -> None:
        """Replace an owner's rules in the host table; an empty sequence removes them."""
        if self._table.set(owner, rules):
            self.turn += 1

    def _set(self, route: str, claims: list[HostClaim]) -> None:
        self.remove(route)
        self._claims_of[route] = claims
        for claim in claims:
            bisect.insort(self._claims.setdefault((claim.listener, claim.host), []), claim, key=_age_order)
            self._settle(claim)
            for revision, access in _private_revisions(claim.site):
                self._private.setdefault(revision, {})[route] = access

    def remove(self, key: str) -> None:
        """Remove a route; its hosts pass to the next claims."""
        self._digests.pop(key, None)
        for claim in self._claims_of.pop(key, ()):
            self._claims[claim.listener, claim.host].remove(claim)
            self._settle(claim)
            for revision, _ in _private_revisions(claim.site):
                rules = self._private.get(revision, {})
                rules.pop(key, None)
                if not rules:
                    self._private.pop(revision, None)

    def find(
        self,
        listener: Listener,
        host: str,
        *,
        named: tuple[Sequence[bytes], Sequence[bytes]] | None = None,
        target: bytes = b"/",
        values: HeaderValues = lambda _: (),
    ) -> Site | None:
        """The site for a Host header, ignoring case, port and trailing dot; None if no service claims the host.

        The request ``target`` and the header ``values`` choose among sites that share a host. ``named`` are the values
        of Knative-Serving-Namespace and Knative-Serving-Revision. On the inner listener these two headers take
        precedence over the host if each has exactly one value. They do not take precedence if the route selects by
        session or header.
        """
        if named is not None and listener is Listener.INNER and len(named[0]) == len(named[1]) == 1:
            key = (named[0][0].decode("latin-1"), named[1][0].decode("latin-1"))
            return self._chooser(host, key) or self._guarded(self._find_revision(key))
        sites = self._sites[listener]
        site = sites.get(host) or sites.get(_bare(host)) or sites.get(_whole(_bare(host)))
        site = self._guarded(site or self._find_domain(_bare(host)))
        if not self._table:
            return site
        return self._find_rule(listener, _bare(host), target=target, values=values, site=site)

    def _find_rule(
        self, listener: Listener, host: str, *, target: bytes, values: HeaderValues, site: Site | None
    ) -> Site | None:
        """The site of the matching host rule, unless another route has the host; otherwise ``site``.

        A route of the same namespace shares its host with rules for paths or headers.
        """
        rule = self._table.find(listener, host, target=target, values=values)
        if rule is None and listener is Listener.INNER and (whole := _whole(host)):
            rule = self._table.find(listener, whole, target=target, values=values)
        if rule is None or (site is not None and (rule.is_whole_host or rule.site.namespace != site.namespace)):
            return site
        return rule.site

    def _chooser(self, host: str, key: RevisionKey) -> Site | None:
        """The site of ``host`` if its route has the revision and selects by session, prompt or header; else None."""
        site = self._sites[Listener.PUBLIC].get(_bare(host)) or self._sites[Listener.INNER].get(_bare(host))
        if site is None or site.namespace != key[0] or not site.policy.chooses:
            return None
        return site if any(key[1] in candidate.revisions for candidate in (site, *site.tags.values())) else None

    def _guarded(self, site: Site | None) -> Site | None:
        """Add access rules to a site that is a revision's own host; other sites are returned unchanged.

        Without this, the host of a revision would give access to a private route's pods.
        """
        if site is None or not self._private or not site.route.endswith(_REVISION):
            return site
        rules = self._private.get((site.namespace, site.revisions[0]))
        return msgspec.structs.replace(site, access=rules[min(rules)]) if rules else site

    def _find_domain(self, host: str) -> Site | None:
        """The site of a mapped domain; None for any other host.

        Both listeners serve mapped domains, because a Gateway forwards them to the inner listener.
        """
        return self._sites[Listener.INNER].get(self._domains.get(host, ""))

    def _find_revision(self, key: RevisionKey) -> Site | None:
        claims = self._claims_of.get(_of_revision(key))
        return claims[0].site if claims else None

    def lost(self) -> list[HostClaim]:
        """Claims that lost their host to an older claim."""
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


def _age_order(claim: HostClaim) -> tuple[str, ...]:
    # Sorted as in the controller: by namespace, then by name.
    return claim.since, *claim.route.split("/")


def _bare(host: str) -> str:
    # "[::1]:80" loses its port too, but never matches a route.
    name, colon, port = host.rpartition(":")
    return (name if colon and (not port or port.isdigit()) else host).removesuffix(".").lower()


def _whole(host: str) -> str:
    """The full form of a cluster-local host given as "hello.default" or "hello.default.svc"."""
    parts = host.split(".")
    if len(parts) == _SHORT_PARTS:
        return f"{host}.{INNER_DOMAIN}"
    return (
        f"{host}.{INNER_DOMAIN.removeprefix('svc.')}" if len(parts) == _SHORT_PARTS + 1 and parts[-1] == "svc" else ""
    )


def _private_revisions(site: Site) -> Iterator[tuple[RevisionKey, AccessRule]]:
    if site.access is not None:
        for variant in (site, *site.tags.values()):
            yield from (((site.namespace, revision), site.access) for revision in variant.revisions)


def _of_revision(key: RevisionKey) -> str:
    # No route can have this name.
    return f"{key[0]}/{key[1]}{_REVISION}"


def _claim_of_revision(route: str, key: RevisionKey) -> HostClaim:
    site = Site(route=route, namespace=key[0], revisions=(key[1],), bounds=(100,))
    host = f"{key[1]}.{key[0]}.{INNER_DOMAIN}".lower()
    return HostClaim(since=_AFTER_ALL, route=route, host=host, listener=Listener.INNER, site=site)
