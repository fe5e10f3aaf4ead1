"""The hosts that a Route claims, and what it would answer there.

Input: a Route object as the API has it. Output: a claim for each host and listener. Public hosts are those of the URLs in the
route's status (NAME.NAMESPACE.<domain>, TAG-NAME.NAMESPACE.<domain>); the inner listener serves
NAME.NAMESPACE.svc.cluster.local of every route. Follows the Route of knative/serving 98e5ef90 (pkg/reconciler/route).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serving.activator.sites import INNER_DOMAIN, AccessRule, Listener, Site
from serving.model.knative import CLAIMED_TAGS_ANNOTATION, VISIBILITY_LABEL
from serving.model.nodata import NoData
from serving.model.rollout import tag_splits
from serving.model.routedigest import route_digest
from serving.model.routepolicy import RoutePolicy, route_policy

__all__ = ["HostClaim", "ServedRoute", "claims_of", "route_of"]

_NO_TAGS: Mapping[str, Site] = {}
_CLUSTER_LOCAL = "cluster-local"


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
    policy = route_policy(facts.metadata.annotations or {})
    tags = {
        tag: _site(facts, splits.get(tag, ((entry.revision_name, 100),)), policy=policy)
        for tag, entry in tagged.items()
    }
    own = _site(facts, [(entry.revision_name, entry.percent or 0) for entry in entries], tags, policy=policy)
    if own.revisions:
        yield from _claims(facts, own, since=created)
    for tag, entry in tagged.items():
        # A tag is never older than its route, whatever is written there.
        yield from _claims(facts, tags[tag], since=max(created, tagged_since.get(tag, "")), tag=entry)


def _site(
    facts: ServedRoute, shares: Iterable[tuple[str, int]], tags: Mapping[str, Site] = _NO_TAGS, *, policy: RoutePolicy
) -> Site:
    """Revisions with at least 1 percent; a target of 0 percent is reached by its tag only."""
    bounds: list[int] = []
    revisions: list[str] = []
    for revision, percent in shares:
        if percent > 0:
            revisions.append(revision)
            bounds.append((bounds[-1] if bounds else 0) + percent)
    name, namespace = facts.metadata.name, facts.metadata.namespace
    access = AccessRule(namespace=namespace, route=name, version=policy.token_version) if policy.is_private else None
    return Site(
        route=facts.key,
        namespace=namespace,
        revisions=tuple(revisions),
        bounds=tuple(bounds),
        tags=tags,
        policy=policy,
        access=access,
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
