"""The hosts of a ScaledWorkload, as rules of the host table.

A workload always has its cluster-local name, NAME.NAMESPACE.svc.cluster.local, with the paths and headers of each rule.
"""

from collections.abc import Iterator

import msgspec

from serving.activator.routing.hostclaims import access_of
from serving.activator.routing.hosttable import HostRule, normal_path
from serving.activator.routing.sites import INNER_DOMAIN, Listener, Site
from serving.core.model.knative import AFFINITY_ANNOTATION, SESSION_AFFINITY_ANNOTATION
from serving.core.model.objects import Object, annotations_of, key_of, nested
from serving.core.model.routepolicy import SessionAffinity, route_policy
from serving.core.model.scaledworkload import ScaledWorkloadSpec


def host_rules_of(workload: Object, spec: ScaledWorkloadSpec) -> Iterator[HostRule]:
    """The rules of a ScaledWorkload with this spec. A cluster-local host of another namespace is left out."""
    namespace, name = key_of(workload)
    annotations = annotations_of(workload)
    policy = route_policy(annotations)
    client_s = nested(workload, "status", "clientAffinitySeconds") or 0
    if client_s and not annotations.keys() & {AFFINITY_ANNOTATION, SESSION_AFFINITY_ANNOTATION}:
        policy = msgspec.structs.replace(policy, affinity=SessionAffinity(client_s=client_s))
    site = Site(
        route=f"{namespace}/{name}",
        namespace=namespace,
        revisions=(name,),
        bounds=(100,),
        policy=policy,
        access=access_of(policy, namespace, name),
    )
    since = nested(workload, "metadata", "creationTimestamp") or ""
    inner = f"{name}.{namespace}.{INNER_DOMAIN}"
    for rule in spec.routing:
        for host in (inner, *rule.hosts):
            is_of_cluster = host.endswith(f".{INNER_DOMAIN}")
            if is_of_cluster and not host.endswith(f".{namespace}.{INNER_DOMAIN}"):
                continue
            # A host without a dot is a Service's short name, for pods only.
            is_inner = is_of_cluster or "." not in host
            listeners = (Listener.INNER,) if is_inner else (Listener.PUBLIC, Listener.INNER)
            for path in rule.paths or ("",):
                yield HostRule(
                    since=since,
                    owner=site.route,
                    host=host,
                    site=site,
                    path=normal_path(path),
                    headers=rule.headers,
                    listeners=listeners,
                )
