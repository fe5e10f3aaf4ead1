"""The hosts claimed by Routes and DomainMappings, with the site of each host.

Input: a Route object, and the rules that name hosts. Output: a claim for each host and listener.
``serving.core.model.routehosts`` computes hosts; the route's status has only the revisions that respond. A route or tag
without traffic also claims its hosts, with the reason that it is not ready. Follows the Route of knative/serving
98e5ef90 (pkg/reconciler/route).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from serving.activator.routing.hosttable import HostRule, normal_path
from serving.activator.routing.sites import INNER_DOMAIN, AccessRule, Listener, Site
from serving.core.model.knative import CLUSTER_LOCAL, VISIBILITY_LABEL
from serving.core.model.nodata import NoData
from serving.core.model.objects import Object, condition_of, generation_of, is_true, name_of, namespace_of, nested
from serving.core.model.rollout import tag_splits
from serving.core.model.routehosts import (
    ClaimedHost,
    HostRules,
    certificate_name,
    claimed_hosts,
    inner_host,
    inner_names,
)
from serving.core.model.routepolicy import RoutePolicy, route_digest, route_policy

_OF_ROUTE = ":route"
_NO_TAGS: Mapping[str, Site] = {}


class HostClaim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A route's claim on a host of a listener, made at the time ``since``.

    If several routes claim the host, the oldest claim wins it: its ``site`` gets the requests.
    """

    since: str
    route: str
    host: str
    listener: Listener
    site: Site


class RouteOwner(msgspec.Struct, frozen=True, kw_only=True):
    """An ownerReference of a route."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class _RouteMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = "default"
    uid: str = ""
    creation_timestamp: str = ""
    owner_references: list[RouteOwner] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _TrafficTarget(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of ``status.traffic`` or ``spec.traffic``."""

    revision_name: str = ""
    percent: int | None = None
    tag: str = ""
    url: str = ""


class _RouteSpec(msgspec.Struct, frozen=True, kw_only=True):
    traffic: list[_TrafficTarget] | None = None


class _RouteAddress(msgspec.Struct, frozen=True, kw_only=True):
    url: str = ""


class _RouteStatus(msgspec.Struct, frozen=True, kw_only=True):
    url: str = ""
    address: _RouteAddress = _RouteAddress()
    traffic: list[_TrafficTarget] | None = None


class ServedRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The routing facts of a Route; ``digest`` changes with any of them (``serving.core.model.routepolicy``)."""

    metadata: _RouteMetadata
    spec: _RouteSpec = _RouteSpec()
    status: _RouteStatus = _RouteStatus()
    hosts: tuple[ClaimedHost, ...] = ()
    digest: str = ""

    @property
    def key(self) -> str:
        """The key "namespace/name", unique among routes."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def service(self) -> RouteOwner:
        """The Service that controls the route, or the route itself without one."""
        own = RouteOwner(kind="Route", name=self.metadata.name, uid=self.metadata.uid)
        owners = self.metadata.owner_references or ()
        return next((owner for owner in owners if owner.controller and owner.kind == "Service"), own)


def route_of(route: Object, rules: HostRules) -> ServedRoute | NoData:
    """Read the routing facts of a Route object."""
    try:
        facts = msgspec.convert(route, ServedRoute)
    except msgspec.ValidationError as error:
        return NoData(missing=f"a Route that can be read: {error}")
    served_tags = [target.tag for target in facts.status.traffic or ()]
    hosts = tuple(claimed_hosts(route, rules, served_tags=served_tags))
    return msgspec.structs.replace(facts, hosts=hosts, digest=route_digest(route, rules))


def certificates_of(facts: ServedRoute, rules: HostRules) -> dict[str, tuple[str, str]]:
    """The Secret (namespace, name) with the certificate of each of a route's hosts.

    A public host has a certificate once its URL is https; a cluster-local host has one once the route's address is
    https.
    """
    urls = {"": facts.status.url, **{entry.tag: entry.url for entry in facts.status.traffic or () if entry.tag}}
    has_local = rules.has_local_certificates and _is_https(facts.status.address.url)
    secrets: dict[str, tuple[str, str]] = {}
    for host in facts.hosts:
        is_local = not host.is_public
        if has_local if is_local else rules.has_certificates and _is_https(urls.get(host.tag, "")):
            secret = facts.metadata.namespace, certificate_name(facts.metadata.uid, host.tag, is_local=is_local)
            names = inner_names(host.host, rules) if is_local else (host.host,)
            secrets |= dict.fromkeys(names, secret)
    return secrets


def _is_https(url: str) -> bool:
    return url.startswith("https://")


def claims_of(facts: ServedRoute) -> Iterator[HostClaim]:
    """All hosts that a route claims.

    Example: "hello" in "default" has the domain localhost and a tag "new". It claims hello.default.localhost and
    new-hello.default.localhost on the public listener. It claims both names with default.svc.cluster.local on the inner
    listener.
    """
    tagged = _tagged(facts)
    policy = route_policy(facts.metadata.annotations or {})
    own = _own_site(facts, policy)
    tags = own.tags
    for host in facts.hosts:
        if host.is_public and host.tag in tagged and _is_inner(tagged[host.tag].url):
            # A status is only trusted to make a tag cluster-local, which restricts access.
            continue
        site = tags.get(host.tag, _site(facts, (), policy=policy)) if host.tag else own
        listener = Listener.PUBLIC if host.is_public else Listener.INNER
        yield HostClaim(since=host.since, route=facts.key, host=host.host.lower(), listener=listener, site=site)


def rules_of(facts: ServedRoute) -> list[HostRule]:
    """The rules for the shared hosts that a route's annotation names.

    The rules of a cluster-local route apply to the inner listener only.
    """
    policy = route_policy(facts.metadata.annotations or {})
    if not policy.shared_hosts:
        return []
    is_local = (facts.metadata.labels or {}).get(VISIBILITY_LABEL) == CLUSTER_LOCAL
    site = _own_site(facts, policy)
    return [
        HostRule(
            since=facts.metadata.creation_timestamp,
            owner=owner_of_rules(facts.key),
            host=shared.host,
            path=normal_path(shared.path),
            site=site,
            listeners=(Listener.INNER,) if is_local else (Listener.PUBLIC, Listener.INNER),
        )
        for shared in policy.shared_hosts
        if not shared.host.endswith(f".{INNER_DOMAIN}")
    ]


def owner_of_rules(route: str) -> str:
    """The name of a route's rules in the host table; no ScaledWorkload has this name."""
    return f"{route}{_OF_ROUTE}"


def _tagged(facts: ServedRoute) -> dict[str, _TrafficTarget]:
    """The traffic entries of each tag."""
    return {entry.tag: entry for entry in facts.status.traffic or () if entry.revision_name and entry.tag}


def _own_site(facts: ServedRoute, policy: RoutePolicy) -> Site:
    """The site of a route's own host, including its tags."""
    # During a rollout a tag has several revisions, and its shares differ from the route's.
    splits = tag_splits(facts.metadata.annotations or {})
    tags = {
        tag: _site(facts, splits.get(tag, ((entry.revision_name, 100),)), policy=policy)
        for tag, entry in _tagged(facts).items()
    }
    entries = [entry for entry in facts.status.traffic or () if entry.revision_name]
    return _site(facts, [(entry.revision_name, entry.percent or 0) for entry in entries], tags, policy=policy)


def _site(
    facts: ServedRoute, shares: Iterable[tuple[str, int]], tags: Mapping[str, Site] = _NO_TAGS, *, policy: RoutePolicy
) -> Site:
    """A site with the revisions that have at least 1 percent. A target with 0 percent is reached only by its tag."""
    bounds: list[int] = []
    revisions: list[str] = []
    for revision, percent in shares:
        if percent > 0:
            revisions.append(revision)
            bounds.append((bounds[-1] if bounds else 0) + percent)
    name, namespace = facts.metadata.name, facts.metadata.namespace
    return Site(
        route=facts.key,
        namespace=namespace,
        revisions=tuple(revisions),
        bounds=tuple(bounds),
        tags=tags,
        policy=policy,
        access=access_of(policy, namespace, name),
    )


def access_of(policy: RoutePolicy, namespace: str, name: str) -> AccessRule | None:
    """The access rule of a route's policy; None if the route is public."""
    if not policy.is_private and policy.callers is None and policy.jwt is None:
        return None
    return AccessRule(
        namespace=namespace,
        route=name,
        version=policy.token_version,
        is_private=policy.is_private,
        callers=policy.callers,
        jwt=policy.jwt,
    )


def _is_inner(url: str) -> bool:
    return url.partition("://")[2].partition(":")[0].endswith(f".{INNER_DOMAIN}")


class DomainTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A resolved DomainMapping: ``host`` leads to the service ``name``. ``secret`` has its certificate, if any."""

    host: str
    namespace: str
    name: str
    secret: str | None = None


def _secret_of(mapping: Mapping[str, Any]) -> str | None:
    """The Secret of a mapping's certificate: the user's Secret, or that of the issued Certificate; None without one."""
    own = nested(mapping, "spec", "tls", "secretName")
    provisioned = condition_of(mapping, "CertificateProvisioned")
    # A reason says why there is none.
    if own or provisioned.get("status") != "True" or provisioned.get("reason"):
        return own or None
    return certificate_name(str(nested(mapping, "metadata", "uid")), owner="mapping")


def domain_target_of(mapping: Mapping[str, Any]) -> DomainTarget | None:
    """Read a DomainMapping; None while its reference is unresolved."""
    if nested(mapping, "status", "observedGeneration") != generation_of(mapping):
        return None
    if not is_true(mapping, "ReferenceResolved"):
        return None
    return DomainTarget(
        host=name_of(mapping).lower(),
        namespace=namespace_of(mapping),
        name=str(nested(mapping, "spec", "ref", "name")),
        secret=_secret_of(mapping),
    )


class DomainTargets:
    """All DomainMappings by namespace and name, and the owning namespace of each host."""

    __slots__ = ("_owners", "_targets")

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str], DomainTarget] = {}
        self._owners: dict[str, str] = {}

    def put(self, key: tuple[str, str], mapping: Mapping[str, Any] | None) -> bool:
        """Store a mapping, or remove it with None; return whether it changed."""
        before = self._targets.pop(key, None)
        after = None if mapping is None else domain_target_of(mapping)
        if after is not None:
            self._targets[key] = after
        return before != after

    def claim(self, host: str, claim: Mapping[str, Any] | None) -> bool:
        """Store the ClusterDomainClaim of a host, or remove it with None; return whether the owner changed."""
        before = self._owners.pop(host.lower(), None)
        after = None if claim is None else nested(claim, "spec", "namespace")
        if isinstance(after, str):
            self._owners[host.lower()] = after
        return before != after

    @property
    def claims(self) -> dict[str, str]:
        """The namespace that owns each host."""
        return dict(self._owners)

    def hosts(self, rules: HostRules) -> dict[str, str]:
        """The cluster-local target of each mapped host."""
        return {domain.host: inner_host(domain.name, domain.namespace, rules).lower() for domain in self._owned()}

    def secrets(self, is_taken: Callable[[str], bool]) -> dict[str, tuple[str, str]]:
        """The Secret (namespace, name) of each mapped host's certificate. Hosts that a route claims are left out."""
        return {
            domain.host: (domain.namespace, domain.secret)
            for domain in self._owned()
            if domain.secret is not None and not is_taken(domain.host)
        }

    def _owned(self) -> Iterator[DomainTarget]:
        return (target for target in self._targets.values() if self._owners.get(target.host) == target.namespace)
