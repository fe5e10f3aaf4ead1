"""Finds the resources affected by a changed object, through indexes of owners and references.

Only fields that a decision reads count. For example, the number of a revision's pods does not affect its configuration.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping

import msgspec

from serving.controller.revisions.public import public_owner_name
from serving.controller.revisions.revision_status import serving_state_of
from serving.controller.routes.domain_mapping import Domains
from serving.controller.routes.hosts import Claims, claims_of
from serving.controller.routes.httproutes import httproute_owner_name
from serving.controller.values.naming import revisions_named_by
from serving.controller.values.writes import KEDA_ROUTES, WorkKey
from serving.controller.workloads.known import KnownWorkloads
from serving.controller.workloads.rights import RIGHTS
from serving.core.model.knative import (
    ANTICIPATED_PODS_ANNOTATION,
    CONDITION_READY,
    CONFIGURATION_LABEL,
    LEARNT_ANNOTATION,
    LEARNT_TARGET_ANNOTATION,
    REVISION_LABEL,
    ROUTE_LABEL,
    SAVINGS_ANNOTATION,
    SERVICE_LABEL,
    ServingState,
)
from serving.core.model.objects import (
    Key,
    Object,
    annotations_of,
    condition_of,
    conditions_of,
    labels_of,
    nested,
    uid_of,
)
from serving.core.model.routepolicy import OPEN_POLICY, route_policy
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind

_Index = defaultdict[Key, set[str]]

_OWNER_NAMES: dict[Kind, Callable[[str], str]] = {
    kinds.SERVICE: str,
    kinds.ENDPOINT_SLICE: public_owner_name,
    kinds.HTTP_ROUTE: httproute_owner_name,
}
_INDIRECT = {
    kinds.ENDPOINT_SLICE,
    kinds.HTTP_ROUTE,
    kinds.DOMAIN_MAPPING,
    kinds.CLUSTER_DOMAIN_CLAIM,
    kinds.NAMESPACE,
    kinds.STATEFUL_SET,
    kinds.REPLICA_SET,
}
_OF_A_REVISION = {kinds.DEPLOYMENT, kinds.SERVICE, kinds.POD}
# The fields of pod statuses and Deployment conditions that decisions about revisions use.
_POD_FIELDS = ("containerStatuses", "initContainerStatuses", "podIP", "podIPs", "reason", "message")
_DEPLOYMENT_FAILURES = {("ReplicaFailure", "True"), ("Progressing", "False")}
# What an autoscaler has learnt about a revision.
_AUTOSCALER_ANNOTATIONS = {
    ANTICIPATED_PODS_ANNOTATION,
    LEARNT_ANNOTATION,
    LEARNT_TARGET_ANNOTATION,
    SAVINGS_ANNOTATION,
}
_OF_A_SERVICE = {kinds.CONFIGURATION, kinds.ROUTE}


class Relations:
    """Names of related objects by key: objects that are owned by or refer to the key's object."""

    def __init__(self) -> None:
        self._revisions: _Index = defaultdict(set)
        self._pods: _Index = defaultdict(set)
        self._httproutes: _Index = defaultdict(set)
        self._services: _Index = defaultdict(set)
        self._certificates: _Index = defaultdict(set)
        # Routes by the configurations and revisions that they reference.
        self._routes_to_configuration: _Index = defaultdict(set)
        self._routes_to_revision: _Index = defaultdict(set)

    def put(self, kind: Kind, key: Key, *, before: Object | None, after: Object | None) -> None:
        """Record an object before and after a change; None means that it does not exist."""
        match kind:
            case kinds.REVISION:
                _move(
                    self._revisions,
                    key,
                    before=owners_of(before, CONFIGURATION_LABEL),
                    after=owners_of(after, CONFIGURATION_LABEL),
                )
            case kinds.POD:
                _move(self._pods, key, before=owners_of(before, REVISION_LABEL), after=owners_of(after, REVISION_LABEL))
            case kinds.HTTP_ROUTE:
                owner = {httproute_owner_name(key[1])}
                _move(self._httproutes, key, before=owner if before else set(), after=owner if after else set())
            case kinds.SERVICE:
                _move(self._services, key, before=owners_of(before, ROUTE_LABEL), after=owners_of(after, ROUTE_LABEL))
            case kinds.CERTIFICATE:
                owners_before, owners_after = owners_of(before, ROUTE_LABEL), owners_of(after, ROUTE_LABEL)
                _move(self._certificates, key, before=owners_before, after=owners_after)
            case kinds.ROUTE:
                before_names, after_names = configurations_named(before), configurations_named(after)
                _move(self._routes_to_configuration, key, before=before_names, after=after_names)
                _move(self._routes_to_revision, key, before=revisions_named(before), after=revisions_named(after))
            case _:
                pass

    def revisions_of(self, configuration: Key) -> Collection[str]:
        """The revisions of a configuration, by label."""
        return self._revisions.get(configuration, ())

    def pods_of(self, revision: Key) -> Collection[str]:
        """Pods of a revision, by label."""
        return self._pods.get(revision, ())

    def httproutes_of(self, route: Key) -> Collection[str]:
        """HTTPRoutes with a name that belongs to the route, of any owner."""
        return self._httproutes.get(route, ())

    def services_of(self, route: Key) -> Collection[str]:
        """Core Services with the label of the route, of any owner."""
        return self._services.get(route, ())

    def certificates_of(self, route: Key) -> Collection[str]:
        """Certificates with the label of the route, of any owner."""
        return self._certificates.get(route, ())

    def routes_to_configuration(self, configuration: Key) -> Collection[str]:
        """Routes whose traffic references the configuration."""
        return self._routes_to_configuration.get(configuration, ())

    def routes_to_revision(self, revision: Key) -> Collection[str]:
        """Routes that reference the revision in their spec or status."""
        return self._routes_to_revision.get(revision, ())


def owners_of(resource: Object | None, label: str) -> set[str]:
    """The owner that an object's label names, as a set; empty without the label."""
    name = labels_of(resource).get(label) if resource else None
    return {name} if name else set()


def configurations_named(route: Object | None) -> set[str]:
    """Configurations referenced in a route's spec."""
    targets = nested(route, "spec", "traffic") or ()
    return {target["configurationName"] for target in targets if target.get("configurationName")}


def revisions_named(route: Object | None) -> set[str]:
    """Revisions referenced by a route."""
    return set(revisions_named_by(route)) if route else set()


def _move(index: _Index, key: Key, *, before: set[str], after: set[str]) -> None:
    namespace, name = key
    for parent in before - after:
        index[namespace, parent].discard(name)
        if not index[namespace, parent]:
            del index[namespace, parent]
    for parent in after - before:
        index[namespace, parent].add(name)


class CacheIndexes(msgspec.Struct, frozen=True, kw_only=True):
    """The cached objects by kind and key, with the indexes derived from them."""

    objects: Mapping[Kind, MutableMapping[Key, Object]]
    relations: Relations
    claims: Claims
    domains: Domains
    workloads: KnownWorkloads


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An object before and after a change; None means that it does not exist."""

    kind: Kind
    key: Key
    before: Object | None
    after: Object | None


def affected_by(change: Change, indexes: CacheIndexes, settings: ControllerSettings) -> Iterator[WorkKey]:
    """The keys to decide on again after a change. Also updates the claims of a changed route."""
    kind, (namespace, name) = change.kind, change.key
    yield from indexes.domains.woken(kind, change.key, before=change.before, after=change.after)
    yield from _workloads(change, indexes)
    if kind in _OWNER_NAMES and settings.public_services:
        yield from _owners_by_name(change, indexes)
        # A tag's Service has a different name.
        yield from ((kinds.ROUTE, namespace, owner) for owner in _owners(change, ROUTE_LABEL))
    if kind is kinds.CERTIFICATE:
        yield from ((kinds.ROUTE, namespace, owner) for owner in _owners(change, ROUTE_LABEL))
        yield from ((kinds.DOMAIN_MAPPING, namespace, mapping) for mapping in _mappings(change))
        return
    if kind in {kinds.KEDA_SCALED_OBJECT, kinds.CONFIG_MAP}:
        routes = ((route, *key) for route in KEDA_ROUTES for key in indexes.objects[route])
        yield from (route for route in routes if route[1] == namespace)
        return
    if kind in _INDIRECT:
        return
    if kind is kinds.HORIZONTAL_POD_AUTOSCALER:
        # No decision uses the status of the HorizontalPodAutoscaler.
        if nested(change.before, "spec") != nested(change.after, "spec"):
            yield (kinds.REVISION, namespace, name)
        return
    if kind in _OF_A_REVISION:
        if _concerns_revision(change):
            yield from ((kinds.REVISION, namespace, owner) for owner in _owners(change, REVISION_LABEL))
        return
    if kind in _OF_A_SERVICE:
        # Also by name: an unlabelled object of another owner blocks a service with this name.
        names = _owners(change, SERVICE_LABEL) | {name}
        yield from ((kinds.SERVING_SERVICE, namespace, service) for service in names)
    yield (kind, namespace, name)
    yield from _beyond(change, indexes, settings)


def _workloads(change: Change, indexes: CacheIndexes) -> Iterator[WorkKey]:
    """The ScaledWorkloads that read an object, and the RoleBinding for those of a namespace."""
    for workload in indexes.workloads.readers(change.kind, change.key):
        yield (kinds.SCALED_WORKLOAD, *workload)
    if change.kind is kinds.NAMESPACE:
        yield (kinds.ROLE_BINDING, change.key[1], RIGHTS)


def _mappings(change: Change) -> set[str]:
    """The DomainMappings that own a Certificate."""
    return {
        owner["name"]
        for certificate in (change.before, change.after)
        for owner in nested(certificate, "metadata", "ownerReferences") or ()
        if owner.get("kind") == kinds.DOMAIN_MAPPING.name
    }


def _concerns_revision(change: Change) -> bool:
    """Whether the change can affect the decision about a revision."""
    before, after = change.before, change.after
    match change.kind:
        case kinds.POD:
            has_moved = before is not None and after is not None and labels_of(before) != labels_of(after)
            return has_moved or _read_of_pod(before) != _read_of_pod(after)
        case kinds.DEPLOYMENT:
            return _read_of_deployment(before) != _read_of_deployment(after)
        case _:
            return True


def _read_of_pod(pod: Object | None) -> object:
    """The fields of a pod that decisions use. A missing status equals an empty status."""
    status = nested(pod, "status") or {}
    is_bound = ("PodScheduled", "True")
    conditions = [
        condition
        for condition in status.get("conditions") or ()
        if (condition.get("type"), condition.get("status")) != is_bound
    ]
    is_failed = status.get("phase") == "Failed"
    return nested(pod, "metadata", "deletionTimestamp"), is_failed, conditions, *map(status.get, _POD_FIELDS)


def _read_of_deployment(deployment: Object | None) -> object:
    if deployment is None:
        return None
    failures = [
        condition
        for condition in conditions_of(deployment)
        if (condition["type"], condition.get("status")) in _DEPLOYMENT_FAILURES
    ]
    metadata = deployment["metadata"]
    return (
        *(metadata.get(key) for key in ("uid", "ownerReferences", "labels", "deletionTimestamp")),
        deployment.get("spec"),
        nested(deployment, "status", "readyReplicas"),
        failures,
    )


def _beyond(change: Change, indexes: CacheIndexes, settings: ControllerSettings) -> Iterator[WorkKey]:
    """Other keys that a change of a resource affects, besides the resource and its owner."""
    namespace, name = change.key
    match change.kind:
        case kinds.SERVING_SERVICE if change.before is None:
            # Children are not changed while their owner is not cached.
            yield from ((child_kind, namespace, name) for child_kind in _OF_A_SERVICE)
        case kinds.CONFIGURATION:
            yield from _by_configuration(change, indexes)
        case kinds.ROUTE:
            yield from _by_route(change, indexes, settings)
        case kinds.REVISION if _read_of(change.before) != _read_of(change.after):
            parents = _owners(change, CONFIGURATION_LABEL)
            yield from ((kinds.CONFIGURATION, namespace, parent) for parent in parents)
            yield from ((kinds.ROUTE, namespace, route) for route in indexes.relations.routes_to_revision(change.key))
        case kinds.SCALED_WORKLOAD:
            if nested(change.before, "spec") != nested(change.after, "spec"):
                # A host or a target may be free for another now.
                yield from ((kinds.SCALED_WORKLOAD, *other.key) for other in indexes.workloads)
            if change.before is None or change.after is None:
                yield (kinds.ROLE_BINDING, namespace, RIGHTS)
            yield from ((route, namespace, name) for route in KEDA_ROUTES if change.key in indexes.objects[route])
        case _:
            pass


def _owners(change: Change, label: str) -> set[str]:
    return owners_of(change.before, label) | owners_of(change.after, label)


def _owners_by_name(change: Change, indexes: CacheIndexes) -> Iterator[WorkKey]:
    """The Revision and Route whose child has this object's name: an object of another owner may occupy the name."""
    namespace, name = change.key
    owner = _OWNER_NAMES[change.kind](name)
    for owner_kind in (kinds.REVISION, kinds.ROUTE):
        if (namespace, owner) in indexes.objects[owner_kind]:
            yield (owner_kind, namespace, owner)


def _by_configuration(change: Change, indexes: CacheIndexes) -> Iterator[WorkKey]:
    namespace, _ = change.key
    routes = indexes.relations.routes_to_configuration(change.key)
    yield from ((kinds.ROUTE, namespace, route) for route in routes)
    before, after = _newest(change.before), _newest(change.after)
    if before != after:
        yield from ((kinds.REVISION, namespace, revision) for revision in (before, after) if revision)
    if change.before is None:
        # Revisions are not changed while their owner is not cached.
        revisions = indexes.relations.revisions_of(change.key)
        yield from ((kinds.REVISION, namespace, revision) for revision in revisions)


def _by_route(change: Change, indexes: CacheIndexes, settings: ControllerSettings) -> Iterator[WorkKey]:
    namespace, _ = change.key
    # Only revisions that the route begins or stops to reference; the others are unaffected.
    before, after = revisions_named(change.before), revisions_named(change.after)
    has_moved = _ways(change.before) != _ways(change.after)
    for name in before | after if has_moved else before ^ after:
        yield (kinds.REVISION, namespace, name)
    claims = {} if change.after is None else claims_of(change.after, settings.host_rules)
    claimed = {} if change.before is None else claims_of(change.before, settings.host_rules)
    if change.before is None or claims != claimed:
        yield from ((kinds.ROUTE, *rival) for rival in indexes.claims.put(change.key, claims))
        for host in claims.keys() ^ claimed.keys():
            yield from ((kinds.DOMAIN_MAPPING, *mapping) for mapping in indexes.domains.of_host(host))
    # The newest revision is pending while a route uses its configuration.
    for name in configurations_named(change.before) ^ configurations_named(change.after):
        newest = _newest(indexes.objects[kinds.CONFIGURATION].get((namespace, name)))
        if newest:
            yield (kinds.REVISION, namespace, newest)


def _ways(route: Object | None) -> tuple[bool, bool]:
    """Return two facts about a route: whether its requests must pass an activator, and whether its pods reject others."""
    policy = OPEN_POLICY if route is None else route_policy(annotations_of(route))
    return policy.needs_activator, policy.is_guarded


def _newest(configuration: Object | None) -> str | None:
    name: str | None = nested(configuration, "status", "latestCreatedRevisionName")
    return name


def _read_of(revision: Object | None) -> object:
    if revision is None:
        return None
    ready = condition_of(revision, CONDITION_READY)
    return (
        uid_of(revision),
        ready.get("status"),
        ready.get("message"),
        labels_of(revision),
        {name: text for name, text in annotations_of(revision).items() if name not in _AUTOSCALER_ANNOTATIONS},
        # Active and Reserve alternate with each wake; other resources only need Retired.
        serving_state_of(revision) is ServingState.RETIRED,
        nested(revision, "metadata", "deletionTimestamp"),
    )
