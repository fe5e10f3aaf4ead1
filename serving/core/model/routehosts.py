"""The hosts of a route: a function of its name, namespace, labels, tags and the cluster's rules, never of its status.

Controller and activators both derive hosts here, so a user who may only write a route's status gets no hosts. A route
claims its own host from its creation on, and a tag's host from the tag's first appearance on. The oldest claim wins.
Example: "hello" with tag "blue" and a route "blue-hello" claim the same host, and the later claim is rejected. An
annotation has the times of tags, so that a restart does not change the result. A tag is never older than its route.

Follows knative/serving 98e5ef90, pkg/reconciler/route/domains, which does not decide between two claims.
"""

import json
import zlib
from collections.abc import Collection, Iterator

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.gotemplate import fill_template
from serving.core.model.knative import CLAIMED_TAGS_ANNOTATION, CLUSTER_LOCAL, VISIBILITY_LABEL
from serving.core.model.objects import (
    Object,
    annotations_of,
    is_dns_label,
    is_dns_subdomain,
    labels_of,
    name_of,
    namespace_of,
    nested,
)
from serving.core.model.selectors import SelectedName, name_for

# Sorts after every timestamp, so that a claim without a time is the newest.
_NEVER = "~"
# Sorts last: a tag that the status still serves and the spec has removed takes no host from another claim.
_LEFT_OVER = "~~"
# The networks of short names: 10.140 to 10.255, above those of pods and gateways.
_NAMED_FIRST, _NAMED_COUNT = 140, 116
# Most characters of an invalid host in a message.
_SHOWN_MAX = 300
# The last number of an address, 1 to 254.
_HOSTS = 254


class HostRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster names hosts: by the public and the cluster's domain, and Go templates for hosts and tags.

    ``domains`` are the domains of routes with certain labels; ``domain`` applies to all others. ``has_certificates``:
    each public host has a certificate. ``has_local_certificates``: each cluster-local host has one.
    """

    domain: str
    cluster_domain: str
    domain_template: str
    tag_template: str
    domains: tuple[SelectedName, ...] = ()
    has_certificates: bool = False
    has_local_certificates: bool = False

    @property
    def inner_domain(self) -> str:
        """The suffix of all cluster-local hosts: "svc.cluster.local"."""
        return f"svc.{self.cluster_domain}"


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """The public and the cluster-local host of a route; they are equal if the route is cluster-local.

    ``problem`` is why there is no public host; the public host is then "".
    """

    shown: str
    inner: str
    problem: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only the cluster-local listener serves the route."""
        return self.shown == self.inner


class ClaimedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host claimed by a route or its ``tag``, with the time of the claim as sortable text.

    Unless ``is_public``, only the cluster-local listener serves the host.
    """

    host: str
    tag: str
    since: str
    is_public: bool


def certificate_name(uid: str, tag: str = "", *, is_local: bool = False, owner: str = "route") -> str:
    """The name of a host's Certificate and of its Secret; ``is_local`` selects the cluster-local host.

    ``uid`` is the route's, or the DomainMapping's if ``owner`` is "mapping".
    """
    suffix = "-local" if is_local else ""
    return f"{owner}-{uid}-{zlib.adler32(tag.encode())}{suffix}" if tag else f"{owner}-{uid}{suffix}"


def inner_names(host: str, rules: HostRules) -> tuple[str, str, str]:
    """The names of a cluster-local host: "hello.default", "hello.default.svc", "hello.default.svc.cluster.local"."""
    short = host.removesuffix(f".{rules.inner_domain}")
    return short, f"{short}.svc", host


def is_cluster_local(route: Object) -> bool:
    """Whether the route is served on the cluster-local listener only."""
    return labels_of(route).get(VISIBILITY_LABEL) == CLUSTER_LOCAL


def tags_of(route: Object) -> list[str]:
    """The tags in a route's traffic, in order."""
    return [target["tag"] for target in nested(route, "spec", "traffic") or () if target.get("tag")]


def inner_host(name: str, namespace: str, rules: HostRules) -> str:
    """The cluster-local host of a route or revision. "hello" in "default": hello.default.svc.cluster.local."""
    return f"{name}.{namespace}.{rules.inner_domain}"


def hosts_of(route: Object, rules: HostRules, *, tag: str = "") -> Hosts:
    """The hosts of a route, or of one of its tags. "hello" in "default": hello.default.localhost."""
    name, namespace = name_of(route), namespace_of(route)
    if tag:
        try:
            name = fill_template(rules.tag_template, {"Tag": tag, "Name": name})
        except InvalidValue as error:
            inner = inner_host(f"{tag}-{name}", namespace, rules)
            return Hosts(shown="", inner=inner, problem=f"tag-template of config-network: {error}")
    inner = inner_host(name, namespace, rules)
    domain = name_for(labels_of(route), rules.domains) or rules.domain
    if is_cluster_local(route) or domain == rules.inner_domain:
        return Hosts(shown=inner, inner=inner)
    data = {
        "Name": name,
        "Namespace": namespace,
        "Domain": domain,
        "Labels": labels_of(route),
        "Annotations": annotations_of(route),
    }
    try:
        shown = fill_template(rules.domain_template, data)
    except InvalidValue as error:
        return Hosts(shown="", inner=inner, problem=f"domain-template of config-network: {error}")
    if not is_dns_subdomain(shown):
        why = f'domain-template of config-network makes "{shown[:_SHOWN_MAX]}", which is no host name'
        return Hosts(shown="", inner=inner, problem=why)
    return Hosts(shown=shown, inner=inner)


def claimed_hosts(route: Object, rules: HostRules, *, served_tags: Collection[str] = ()) -> Iterator[ClaimedHost]:
    """All hosts that a route claims, the route's own host first.

    ``served_tags`` are the tags in the status. While the spec cannot be served, removed tags keep their hosts if no
    other route claims them.
    """
    since = nested(route, "metadata", "creationTimestamp") or _NEVER
    claimed_at, tags = recorded_claims(route), tags_of(route)
    left_over = [tag for tag in served_tags if tag not in tags and is_dns_label(tag)]
    for tag, at in (
        ("", since),
        *((tag, max(since, claimed_at.get(tag, _NEVER))) for tag in tags),
        *((tag, _LEFT_OVER) for tag in left_over),
    ):
        hosts = hosts_of(route, rules, tag=tag)
        yield ClaimedHost(host=hosts.inner, tag=tag, since=at, is_public=False)
        if hosts.shown and not hosts.shown.endswith(f".{rules.inner_domain}"):
            yield ClaimedHost(host=hosts.shown, tag=tag, since=at, is_public=True)


def recorded_claims(route: Object) -> dict[str, str]:
    """The claim time of each tag, as recorded in the route's annotation; {} if the annotation is invalid."""
    try:
        claims = json.loads(annotations_of(route).get(CLAIMED_TAGS_ANNOTATION, "{}"))
    except (ValueError, RecursionError):
        return {}
    return {str(tag): str(at) for tag, at in claims.items()} if isinstance(claims, dict) else {}


def named_network(gateway: str) -> str:
    """The first three numbers of the addresses of a gateway's namespaces: "10.147.9" for the gateway 10.138.7.9.

    Each namespace has one address in this network (``named_address``).
    """
    first, _, third, fourth = gateway.split(".")
    return f"{first}.{_NAMED_FIRST + int(third) % _NAMED_COUNT}.{fourth}"


def machine_gateway(inner_port: int) -> str:
    """The gateway address for pods in the machine's network: 127.0, then the two bytes of the inner port.

    Example: port 8081 is 31 x 256 + 145, which gives 127.0.31.145.
    """
    return f"127.0.{inner_port >> 8}.{inner_port & 255}"


def named_address(gateway: str, namespace: str) -> str:
    """The address at which pods of a single machine reach a namespace's services by short name.

    Two namespaces may have the same address. If both have a service of the same short name, the name resolves to
    neither.
    """
    return f"{named_network(gateway)}.{1 + zlib.crc32(namespace.encode()) % _HOSTS}"
